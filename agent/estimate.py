# SPDX-License-Identifier: Apache-2.0
"""What a recording in windows says about the whole: totals, their variance and 95 % intervals.

Window i starts at iT + U_i, U_i uniform on [0, T) and independent, and may run into the next period. A launch that m
windows cover stands for m T/W launches, since E[m] = W/T whatever the period of the workload is. z_i, the weighted sum
over the launches of window i, are independent, so that n s_z^2 estimates the variance of their sum; it is too large
where the workload drifts, never too small.

The interval is the sum times or divided by exp(t s.d. / sum). Few windows meet a kernel that runs in one burst a step,
so its z are skewed: in 500 simulated minutes a plain sum +- t s.d. held the truth of such kernels in 86-94 %, this form
in 94-97 %, Hall's transformation in 96-99 %. It needs n, the sum and the sum of squares, which can be added up later.

Where launches were counted exactly, N sum(m d) / sum(m) replaces the sum: the mean duration is known far better than
the number of launches a window happens to meet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Windows are at most as long as their period, so two can overlap; three where the governor has just changed the period.
DEEPEST = 3
NORMAL_975 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Windows:
    """Recorded windows in order of their starts; shape (n,), ns. 0 < length <= period."""

    start: NDArray[np.int64]
    length: NDArray[np.int64]
    period: NDArray[np.int64]

    @property
    def weight(self) -> NDArray[np.float64]:
        """T/W: what a launch of the window stands for."""
        return self.period / self.length


@dataclass(frozen=True, slots=True)
class Estimate:
    """Per key, shape (k,): value, its 95 % interval (NaN below two windows), and what was recorded of it."""

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    raw: NDArray[np.float64]


def covering(windows: Windows, launch: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(place in launch, place in windows) of each window over each launch: m pairs for a launch that m windows cover."""
    if not windows.start.size or not launch.size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    last = np.searchsorted(windows.start, launch, side="right") - 1
    end = windows.start + windows.length
    found = []
    for back in range(DEEPEST):
        window = last - back
        inside = (window >= 0) & (launch < end[np.maximum(window, 0)])
        found.append((np.flatnonzero(inside), window[inside]))
    return np.concatenate([places for places, _ in found]), np.concatenate([window for _, window in found])


def weights(windows: Windows, launch: NDArray[np.int64]) -> NDArray[np.float64]:
    """sum of T/W over the windows that cover each launch; 0 outside all windows."""
    places, window = covering(windows, launch)
    return np.bincount(places, windows.weight[window], minlength=launch.size)


def window_sums(
    windows: Windows, launch: NDArray[np.int64], value: NDArray, key: NDArray[np.integer], keys: int
) -> NDArray[np.float64]:
    """z, shape (windows, keys): what each window says the whole of each key is worth in its period."""
    places, window = covering(windows, launch)
    flat = window * keys + key[places]
    amount = value[places] * windows.weight[window]
    return np.bincount(flat, amount, minlength=windows.start.size * keys).reshape(windows.start.size, keys)


def weighted(
    windows: Windows, launch: NDArray[np.int64], value: NDArray, key: NDArray[np.integer], keys: int
) -> Estimate:
    """Sum of `value` (durations; ones to count launches; times 1/p for sampled stacks) by key over all launches, also
    those outside the windows. `launch`, `value` and `key` have one entry a record."""
    z = window_sums(windows, launch, value, key, keys)
    covered = weights(windows, launch) > 0
    raw = np.bincount(key[covered], value[covered], minlength=keys)
    return Estimate(z.sum(axis=0), *interval(z), raw)


def counted(
    windows: Windows,
    launch: NDArray[np.int64],
    value: NDArray,
    key: NDArray[np.integer],
    count: NDArray[np.integer],
) -> Estimate:
    """As `weighted`, for keys whose launches were counted: `count`, shape (k,). NaN for a key of which none was recorded.

    The variance is that of the residuals value - mean, which is what is left to guess.
    """
    keys = count.size
    ones = np.ones(launch.size)
    met = window_sums(windows, launch, ones, key, keys).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = window_sums(windows, launch, value, key, keys).sum(axis=0) / met
        rest = window_sums(windows, launch, value - np.nan_to_num(mean)[key], key, keys)
        margin = reach_of(rest) * count / met
    raw = np.bincount(key, value, minlength=keys)
    found = np.where(count == 0, 0.0, count * mean)
    margin = np.where(count == 0, 0.0, margin)
    return Estimate(found, found - margin, found + margin, raw)


def counted_total(
    windows: Windows,
    launch: NDArray[np.int64],
    value: NDArray,
    key: NDArray[np.integer],
    count: NDArray[np.integer],
) -> Estimate:
    """The sum of `counted` over its keys, shape (1,). Residuals of one window are summed before they are squared."""
    each = counted(windows, launch, value, key, count)
    keys = count.size
    met = window_sums(windows, launch, np.ones(launch.size), key, keys).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.nan_to_num(window_sums(windows, launch, value, key, keys).sum(axis=0) / met)
        factor = np.nan_to_num(np.where(met > 0, count / met, 0.0))
    rest = window_sums(windows, launch, (value - mean[key]) * factor[key], np.zeros_like(key), 1)
    value = np.nansum(each.value, keepdims=True)
    margin = reach_of(rest)
    return Estimate(value, value - margin, value + margin, each.raw.sum(keepdims=True))


def deviation(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviation of z.sum(axis=0); z has shape (windows, keys), rows independent. NaN below two windows."""
    n = z.shape[0]
    return np.sqrt(n * z.var(axis=0, ddof=1)) if n > 1 else np.full(z.shape[1], math.nan)


def reach_of(residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half the width of the 95 % interval of a counted key. Its residuals are of the few windows that met it, and one
    mean was fitted to them: degrees of freedom by Satterthwaite, (sum r^2)^2 / sum r^4, one less for the mean."""
    squares = residuals**2
    power = (squares**2).sum(axis=0)
    met = np.divide(squares.sum(axis=0) ** 2, power, out=np.ones(power.size), where=power > 0)
    degrees = np.maximum(met - 1, 1)
    quantile = np.array([student_975(int(n)) for n in degrees])
    return quantile * np.sqrt(squares.sum(axis=0) * met / degrees)


def interval(z: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """95 % interval (low, high) of z.sum(axis=0), whose entries are not negative."""
    value = z.sum(axis=0, dtype=np.float64)
    spread = np.divide(deviation(z), value, out=np.zeros_like(value), where=value > 0)
    reach = np.exp(student_975(max(1, z.shape[0] - 1)) * spread)
    return value / reach, value * reach


def student_975(degrees: int) -> float:
    """97.5 % quantile of Student's t. A table below 5, then the expansion in 1/n, within 0.3 %."""
    if degrees < 5:
        return (12.7062, 4.3027, 3.1824, 2.7764)[degrees - 1]
    z, n = NORMAL_975, degrees
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3


def split_stacks(
    group: NDArray[np.integer], value: NDArray, stack_weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shares out each group's whole value among its launches whose stack was taken.

    One entry a record: its group (thread, kernel, GPU), its weighted value, and 1/p if its stack was taken, else 0.
    Launches taken for certain (1/p = 1) keep their own value; what the others are worth together goes to those of them
    that were taken, in proportion to value/p.
    -> (value that each record's stack gets, shape of `group`; value of each group for which no stack stands).
    """
    groups = int(group.max(initial=-1)) + 1
    certain = stack_weight == 1
    rest = np.bincount(group, np.where(certain, 0, value), minlength=groups).astype(np.float64)
    drawn = np.where(certain, 0, value * stack_weight)
    met = np.bincount(group, drawn, minlength=groups).astype(np.float64)
    share = np.divide(rest, met, out=np.zeros(groups), where=met > 0)
    return np.where(certain, value, drawn * share[group]), np.where(met > 0, 0.0, rest)
