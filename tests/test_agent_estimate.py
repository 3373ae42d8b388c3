# SPDX-License-Identifier: Apache-2.0
"""Estimates against truth, in simulated time: hundreds of runs, each with windows at phases of its own."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from gpustrobe.agent import estimate
from gpustrobe.agent.estimate import Windows

MS, SECOND = 1_000_000, 1_000_000_000
H100 = Path(__file__).parent.parent.parent / "shared/data/h100_2gpu_1s.sqlite"
RUNS = 400


def windows_over(seconds: float, random: np.random.Generator, length: int = 100 * MS, period: int = SECOND) -> Windows:
    """As the library draws them: one in each period of the range, each free to run into the next period."""
    number = int(seconds * SECOND / period)
    start = np.arange(number) * period + random.integers(0, period, number)
    same = np.ones(number, np.int64)
    return Windows(start, same * length, same * period)


def training(step: int, seconds: float, random: np.random.Generator, stall: float = 0.3, spread: float = 0.2):
    """Launch times, durations and kernels of a loop: launches in the first part of each step, bursts of one kernel after
    another, then a stall. Returns columns (launch, duration, kernel)."""
    steps = int(seconds * SECOND / step)
    per_step = 240
    offset = np.sort(random.random(per_step)) * step * (1 - stall)
    kernel = (np.arange(per_step) * 12 // per_step).astype(np.int64)
    mean = np.array([40, 12, 90, 7, 300, 25, 60, 15, 5, 800, 33, 2])[kernel] * 1000.0
    at = np.arange(steps)[:, None] * step + offset + random.normal(0, step / 400, (steps, 1))
    duration = mean * random.lognormal(0, spread, (steps, per_step))
    inside = (at >= 0) & (at < seconds * SECOND)
    kernels = np.broadcast_to(kernel, at.shape)[inside]
    return at[inside].astype(np.int64), duration[inside].astype(np.int64), kernels


def coverage(schedule, runs: int, seconds: float, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(share of runs whose interval holds the truth, mean of estimate / truth), by kernel, the total last.

    The schedule is longer than the range: the last window may run past its end. As many launches as it covers there are
    missing at the start, so the truth is that of the range half a window later.
    """
    launch, duration, kernel = schedule
    keys = int(kernel.max()) + 1
    true = (launch >= 50 * MS) & (launch < seconds * SECOND + 50 * MS)
    truth = np.append(np.bincount(kernel[true], duration[true], minlength=keys), duration[true].sum())
    held, ratio = np.zeros(keys + 1), np.zeros(keys + 1)
    for _ in range(runs):
        windows = windows_over(seconds, random)
        met = estimate.weights(windows, launch) > 0
        one = estimate.weighted(windows, launch[met], duration[met], kernel[met], keys)
        total = estimate.weighted(windows, launch[met], duration[met], np.zeros(met.sum(), np.int64), 1)
        low, high = np.append(one.low, total.low), np.append(one.high, total.high)
        held += (low <= truth) & (truth <= high)
        ratio += np.append(one.value, total.value) / truth
    return held / runs, ratio / runs


@pytest.mark.parametrize("step", [1000 * MS, 500 * MS, 333 * MS, 1370 * MS, 80 * MS], ids=lambda s: f"step{s // MS}ms")
def test_intervals_hold_the_truth(step):
    """Also where the step equals the window period, or a whole part of it."""
    random = np.random.default_rng(step)
    held, ratio = coverage(training(step, 62, random), RUNS if step > 100 * MS else 200, 60, random)
    assert 0.93 <= held[:-1].mean() <= 0.97
    assert held.min() >= 0.915 and held.max() <= 0.985  # the standard error of a share of 400 runs is 1.1 %
    assert abs(ratio - 1).max() < 0.06


def test_a_fixed_phase_would_be_wrong():
    """What random phases are for: the same workload met at one phase of its step each time."""
    random = np.random.default_rng(1)
    launch, duration, _ = training(SECOND, 60, random)
    number = np.arange(60)
    fixed = Windows(number * SECOND + 850 * MS, np.full(60, 100 * MS), np.full(60, SECOND))
    one = estimate.weighted(fixed, launch, duration, np.zeros(launch.size, np.int64), 1)
    assert one.value[0] < 0.3 * duration.sum()


def test_depth_of_the_queue_does_not_matter():
    """Records count whole by their launch, however much later they ran: only launch times enter."""
    random = np.random.default_rng(2)
    launch, duration, kernel = training(400 * MS, 60, random)
    windows = windows_over(60, random)
    met = estimate.weights(windows, launch) > 0
    by_launch = estimate.weighted(windows, launch[met], duration[met], kernel[met], 12)
    start = launch + 400 * MS
    clipped = duration[(estimate.weights(windows, start) > 0) & met]
    assert clipped.sum() < 0.1 * duration[met].sum()  # what one would keep who also asks when it ran
    assert by_launch.raw.sum() == duration[met].sum()


def test_launches_that_windows_cover_twice_weigh_twice():
    period = np.full(2, SECOND)
    windows = Windows(np.array([900 * MS, 950 * MS]), np.full(2, 100 * MS), period)
    launch = np.array([899, 900, 960, 1000, 1049, 1050]) * MS
    assert estimate.weights(windows, launch).tolist() == [0, 10, 20, 10, 10, 0]


def test_weights_belong_to_the_window():
    """The governor halves the duty in the middle: values stay unbiased."""
    random = np.random.default_rng(3)
    launch, duration, kernel = training(210 * MS, 60, random)
    seen = []
    for _ in range(300):
        first, second = windows_over(30, random), windows_over(30, random, 50 * MS)
        windows = Windows(
            np.concatenate([first.start, second.start + 30 * SECOND]),
            np.concatenate([first.length, second.length]),
            np.concatenate([first.period, second.period]),
        )
        seen.append(estimate.weighted(windows, launch, duration, kernel, 12).value.sum() / duration.sum())
    assert abs(np.mean(seen) - 1) < 0.01


def test_counted_launches_are_within_two_percent():
    random = np.random.default_rng(4)
    launch, duration, kernel = training(SECOND, 60, random, spread=0.1)
    count = np.bincount(kernel)
    truth, held, errors = duration.sum(), 0, []
    for _ in range(RUNS):
        windows = windows_over(60, random)
        met = estimate.weights(windows, launch) > 0
        total = estimate.counted_total(windows, launch[met], duration[met], kernel[met], count)
        errors.append(total.value[0] / truth - 1)
        held += total.low[0] <= truth <= total.high[0]
    assert np.quantile(np.abs(errors), 0.99) < 0.02
    assert np.std(errors) < 0.008
    assert 0.93 <= held / RUNS <= 0.975


def test_a_counted_kernel_that_no_window_met_is_not_known():
    windows = windows_over(3, np.random.default_rng(0))
    none = np.zeros(0, np.int64)
    one = estimate.counted(windows, none, none, none, np.array([5, 0]))
    assert np.isnan(one.value[0]) and one.value[1] == 0


def test_one_window_has_no_interval():
    one = Windows(np.array([0]), np.array([100 * MS]), np.array([SECOND]))
    found = estimate.weighted(one, np.array([5]), np.array([7.0]), np.array([0]), 1)
    assert found.value[0] == 70 and np.isnan(found.low[0]) and np.isnan(found.high[0])


def test_student_quantiles():
    for degrees, value in ((1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (59, 2.001)):
        assert estimate.student_975(degrees) == pytest.approx(value, rel=5e-3)


def test_sampled_stacks_hold_the_truth():
    """Ten stacks that launch one kernel, told apart by a draw: the first launch of each window for certain, then p."""
    random = np.random.default_rng(5)
    launch, duration, _ = training(230 * MS, 62, random)
    stack = random.choice(10, launch.size, p=np.arange(1, 11) / 55)
    true = (launch >= 50 * MS) & (launch < 60 * SECOND + 50 * MS)
    truth = np.bincount(stack[true], duration[true], minlength=10)
    held, mean, p = np.zeros(10), np.zeros(10), 0.2
    for _ in range(RUNS):
        windows = windows_over(60, random)
        places, window = estimate.covering(windows, launch)
        first = np.unique(window, return_index=True)[1]
        taken = np.where(random.random(places.size) < p, 1 / p, 0.0)
        taken[first] = 1.0
        weighted = duration[places] * windows.weight[window]
        value, unknown = estimate.split_stacks(np.zeros_like(window), weighted, taken)
        assert value.sum() + unknown.sum() == pytest.approx(weighted.sum())
        z = np.bincount(window * 10 + stack[places], value, minlength=600).reshape(60, 10)
        low, high = estimate.interval(z)
        held += (low <= truth) & (truth <= high)
        mean += z.sum(axis=0) / truth / RUNS
    assert 0.93 <= held.mean() / RUNS <= 0.97
    assert abs(mean - 1).max() < 0.05


def test_a_group_without_a_stack_is_said_to_have_none():
    value, unknown = estimate.split_stacks(np.array([0, 0, 1]), np.array([5.0, 7, 11]), np.array([1.0, 0, 0]))
    assert value.tolist() == [5, 0, 0] and unknown.tolist() == [7, 11]


@pytest.mark.skipif(not H100.exists(), reason="../shared/data/h100_2gpu_1s.sqlite is not there")
def test_a_real_training_run():
    """One second of two H100, repeated over a minute at its own step: launches by the runtime calls' times."""
    with sqlite3.connect(H100) as db:
        rows = np.array(
            db.execute(
                "select r.start, k.end - k.start, k.shortName, k.deviceId from CUPTI_ACTIVITY_KIND_KERNEL k join "
                "CUPTI_ACTIVITY_KIND_RUNTIME r on r.correlationId = k.correlationId and "
                "r.globalTid / 16777216 = k.globalPid / 16777216"
            ).fetchall()
        )
    assert rows.shape[0] > 1500  # the others were launched before the recording began
    launch, duration = rows[:, 0] - rows[:, 0].min(), rows[:, 1]
    kernel = np.unique(rows[:, 2], return_inverse=True)[1]
    span = int(launch.max()) + 1
    repeats = int(62 * SECOND / span) + 1
    at = (np.arange(repeats)[:, None] * span + launch).ravel()
    held, ratio = coverage(
        (at, np.tile(duration, repeats), np.tile(kernel, repeats)), 300, 60, np.random.default_rng(6)
    )
    heavy = np.append(np.bincount(kernel, duration) >= 0.01 * duration.sum(), True)
    assert heavy.sum() >= 4
    assert 0.93 <= held[heavy].mean() <= 0.975
    assert abs(ratio[heavy] - 1).max() < 0.05
