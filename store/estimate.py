# SPDX-License-Identifier: Apache-2.0
"""What part of the GPU work in a range was recorded, and the 95 % interval of sums made of it.

Each second's profile is the estimate of that second, made of one recording window at random phase in it: a sample of one
per stratum. The variance of the sum of n such x_i is at most n / (n - 1) sum (x_i - x_{i+1})^2 / 2 on average (each
difference holds both seconds' errors, and what really changed between them); on a steady load that is n s^2, but where
the load changes, what changed slowly does not pass for error, as it does in n s^2. Where launches were counted exactly
(N_i of them), the estimate is the ratio R N with R = sum x / sum N, and the x_i above are its residuals x_i - R N_i.
All of it holds for any part of the values: a kernel, a stack, a range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.store import sql

if TYPE_CHECKING:
    from gpustrobe.store.database import Reader
    from gpustrobe.store.question import Question
    from numpy.typing import NDArray

SECOND = 1_000_000_000
WHOLE = 0.9995  # a second of which more than this was recorded is no estimate
MIN_WINDOWS = 5  # fewer say nothing of their spread
MAX_BINS = 600  # of a long range: sums of neighbouring windows are windows too


@dataclass(frozen=True, slots=True)
class Recording:
    """Of the seconds with a reading of gpu.time.recorded; all zero or None where the agent does not tell."""

    fraction: float | None  # mean over GPUs and seconds
    counted: bool  # launches counted exactly in each of these seconds
    windows: int  # seconds that were recorded in part
    gpus: int
    gpu_seconds: int
    step: int  # seconds of a bin
    bins: NDArray[np.int64]  # (b,) numbers of the bins (Unix seconds // step) with seconds recorded in part

    @property
    def estimated(self) -> bool:
        return self.fraction is None or self.windows > 0


def read_recording(reader: Reader, question: Question) -> Recording:
    step = max(1, -(-question.span.seconds // MAX_BINS))
    recorded = readings(reader, question, "gpu.time.recorded")
    if not len(recorded["second"]):
        return Recording(None, False, 0, 0, 0, step, np.zeros(0, np.int64))
    counted = readings(reader, question, "gpu.time.counted")
    partly = np.unique(recorded["second"][recorded["mean"] < WHOLE])
    return Recording(
        fraction=float(recorded["mean"].mean()),
        counted=len(counted["mean"]) > 0 and bool((counted["mean"] >= WHOLE).all()),
        windows=len(partly),
        gpus=len(set(recorded["gpu"].tolist())),
        gpu_seconds=len(recorded["second"]),
        step=step,
        bins=np.unique(partly // step),
    )


def readings(reader: Reader, question: Question, name: str) -> dict[str, NDArray]:
    """A device metric by GPU and second: columns node, gpu, gpu_index, second, mean."""
    conditions, parameters = question.device_conditions()
    parameters |= {"name": name, "first": question.span.first, "last": question.span.last, "step": SECOND}
    data = reader.columns(sql.READINGS.format(among=sql.among_series(conditions)), parameters)
    info = reader.lookup(sql.METRIC_LABELS, np.unique(data["metric"]))
    place = np.searchsorted(info["metric"], data["metric"])
    owner = {key: info[key].astype(object)[place] if len(place) else place for key in ("node", "gpu", "gpu_index")}
    # One GPU may have several metric ids (generations): a second of each counts once.
    keys = {key: index for index, key in enumerate(zip(owner["node"], owner["gpu"], data["bin"].tolist(), strict=True))}
    once = np.array(sorted(keys.values()), dtype=np.int64)
    return {
        **{key: column[once] for key, column in owner.items()},
        "second": data["bin"][once],
        "mean": data["mean"][once],
    }


def student(n: int) -> float:
    """97.5 % quantile of Student's t for the n - 1 differences of n windows, which are worth 2/3 as many independent ones
    (neighbours share a window); within 3 % from n = 5 on."""
    v = max(1.0, 2 / 3 * (n - 1))
    return 1.96 + 2.37 / v + 2.8 / v**2


@dataclass(frozen=True, slots=True)
class Rows:
    """Values of some stacks by bin: columns (n,). `part`: which of the parts (kernels) a row belongs to."""

    part: NDArray[np.int64]
    bin: NDArray[np.int64]  # Unix second // Recording.step
    value: NDArray[np.int64]


def halves(
    recording: Recording, rows: Rows, parts: int, launches: Rows | None = None
) -> tuple[NDArray[np.float64], float] | None:
    """Half widths of the 95 % intervals of each part's sum, (parts,), and of the sum of all. None where nothing is
    estimated, or too little is known.

    Only bins with seconds recorded in part count: what was recorded whole is no estimate. `launches` are used where
    they were counted exactly.
    """
    n = len(recording.bins)
    if n < MIN_WINDOWS:
        return None
    x = _matrix(recording, rows, parts)
    mean = np.zeros_like(x)
    if recording.counted and launches is not None:
        counts = _matrix(recording, launches, parts)
        whole = counts.sum(axis=1, keepdims=True)
        mean = np.where(whole > 0, counts * x.sum(axis=1, keepdims=True) / np.maximum(whole, 1), mean)
    rest = x - mean
    return half_width(rest), float(half_width(rest.sum(axis=0, keepdims=True))[0])


def half_width(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half width of the 95 % interval of each row's sum; (rows, n) in order of time."""
    n = x.shape[1]
    return student(n) * np.sqrt(n / (n - 1) * (np.diff(x, axis=1) ** 2).sum(axis=1) / 2)


def _matrix(recording: Recording, rows: Rows, parts: int) -> NDArray[np.float64]:
    n = len(recording.bins)
    place = np.searchsorted(recording.bins, rows.bin)
    inside = place < n
    inside[inside] = recording.bins[place[inside]] == rows.bin[inside]
    key = rows.part[inside] * n + place[inside]
    return np.bincount(key, rows.value[inside].astype(np.float64), minlength=parts * n).reshape(parts, n)


def bounds(total: float, half: float) -> list[float]:
    return [max(0.0, total - half), total + half]
