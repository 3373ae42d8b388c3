# SPDX-License-Identifier: Apache-2.0
"""The sentence about an idle GPU: how much of the range, under what, and which GPU waited for it. None where evidence is
weak, or where idle time is not measured (finding.py then speaks of utilization).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.store import estimate
from gpustrobe.store.flame import by_frame
from gpustrobe.store.kernels import function_texts, read_leaves
from gpustrobe.store.match import Matcher
from gpustrobe.store.query import Profile, read_profile, with_texts

if TYPE_CHECKING:
    from gpustrobe.store.content import Contents
    from gpustrobe.store.database import Reader
    from gpustrobe.store.question import Question
    from numpy.typing import NDArray

SECOND = 1_000_000_000
MIN_WINDOWS = 5  # the lower end of the interval guards what is said of few
MIN_IDLE = 0.15  # of the range
MIN_SURE, MIN_SURE_PART = 0.1, 0.4  # lower end of the interval, of the range and of the estimate
MAX_UNKNOWN = 0.5  # a GPU about which so little is known is not talked of
MIN_FRAME_SHARE = 0.3  # of the idle time
MIN_DEPTH = 6  # nearer to the root (process start, thread start) a native frame says nothing
MIN_WAIT = 0.2  # of another GPU's seconds, in collectives
MIN_WAIT_EXCESS = 1.5  # in seconds in which the first was mostly idle, against the others
_LIBRARY = re.compile(r"(^|/)(site-packages|dist-packages|lib/python3[^/]*|lib64/python3[^/]*)/|^<")
_COLLECTIVE = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|Broadcast|AllToAll|SendRecv|Reduce|Barrier)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """Seconds (n,) with a reading, and the share of each in which it was idle."""

    node: str
    uuid: str
    index: int
    second: NDArray[np.int64]
    idle: NDArray[np.float64]

    @property
    def share(self) -> float:
        return float(self.idle.mean())


def idle_finding(reader: Reader, contents: Contents, question: Question) -> dict[str, object] | None:
    gpus = _gpus(reader, question)
    if not gpus:
        return None
    worst = max(gpus, key=lambda gpu: (gpu.share, -gpu.index))
    bounds = _bounds(worst, estimate.read_recording(reader, question))
    if not _strong(reader, question, worst, bounds):
        return None
    mark = "~" if bounds[0] < bounds[1] else ""
    where = f" of {worst.node}" if not question.node else ""
    text: list[dict[str, object]] = [
        {"t": f"GPU {worst.index}{where} was idle {mark}{_percent(worst.share)} of this range"}
    ]
    cause = _cause(reader, contents, question, worst)
    if cause is not None:
        name, file, line, share = cause
        text += [{"t": f", {_percent(share)} of it under "}, {"t": name, "code": True}]
        if file and line:
            text += [{"t": ", "}, {"t": f"{file.rsplit('/', 1)[-1]}:{line}", "code": True}]
    others = [gpu for gpu in gpus if gpu.node == worst.node and gpu.uuid != worst.uuid]
    if (waiting := _waiting(reader, contents, question, worst, others)) is not None:
        index, share, what = waiting
        text.append({"t": f". GPU {index} waited for it: {mark}{_percent(share)} in {what}"})
    return {
        "text": text,
        "evidence": _evidence(worst, bounds),
        "gpu": worst.uuid,
        "node": worst.node,
        "tab": "gpu_idle" if cause is not None else "gpu_time",
        "focus": f"^{re.escape(cause[0])}$" if cause is not None else "",
        "match": "",
        "idle": round(worst.share, 4),
    }


def _evidence(gpu: Gpu, bounds: tuple[float, float]) -> str:
    low, high = bounds
    if low == high:
        return f"{len(gpu.second)} s recorded whole"
    return f"{low * 100:.0f}–{high * 100:.0f} % (95 % interval), {len(gpu.second)} recording windows"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _gpus(reader: Reader, question: Question) -> list[Gpu]:
    data = estimate.readings(reader, question, "gpu.time.idle")
    keys = list(zip(data["node"], data["gpu"], data["gpu_index"], strict=True))
    out = []
    for key in sorted(set(keys)):
        mine = np.array([other == key for other in keys])
        out.append(Gpu(key[0], key[1], int(key[2]), data["second"][mine], data["mean"][mine] / SECOND))
    return out


def _bounds(gpu: Gpu, recording: estimate.Recording) -> tuple[float, float]:
    """95 % interval of the idle share; both ends equal where all was recorded."""
    n = len(gpu.idle)
    if not recording.estimated or n < 2:
        return gpu.share, gpu.share
    half = float(estimate.half_width(gpu.idle[np.newaxis])[0]) / n
    low, high = estimate.bounds(gpu.share, half)
    return low, min(1.0, high)


def _strong(reader: Reader, question: Question, gpu: Gpu, bounds: tuple[float, float]) -> bool:
    if len(gpu.second) < MIN_WINDOWS or gpu.share < MIN_IDLE or bounds[0] < max(MIN_SURE, MIN_SURE_PART * gpu.share):
        return False
    mine = replace(question, matchers=(*question.matchers, *_only(gpu)))
    unknown = estimate.readings(reader, mine, "gpu.time.unknown")["mean"]
    compute = estimate.readings(reader, mine, "gpu.time.compute")["mean"]
    # A GPU that never computed starves from nothing: it is unused, which the page shows by itself.
    return bool(compute.any()) and (not len(unknown) or float(unknown.mean()) / SECOND <= MAX_UNKNOWN)


def _only(gpu: Gpu) -> tuple[Matcher, ...]:
    return (Matcher("gpu", "=", gpu.uuid), *((Matcher("node", "=", gpu.node),) if gpu.node else ()))


def _cause(reader: Reader, contents: Contents, question: Question, gpu: Gpu) -> tuple[str, str, int, float] | None:
    """(name, file, line, share) of the deepest function that holds much of the idle time; the program's own Python first,
    since that is what people can change."""
    base = replace(question, type="gpu_idle", matchers=(*question.matchers, *_only(gpu)))
    profile = read_profile(reader, contents, base, lines=True)
    if not profile.total:
        return None
    tree = profile.tree
    frame, _, total = by_frame(tree)
    texts = with_texts(reader, profile, frame)
    depth = _depths(profile)
    best = None
    for number, value in zip(frame.tolist(), total.tolist(), strict=True):
        function, line = tree.frames[number]
        name, kind, _, file, _ = texts[function]
        share = value / profile.total
        if share < MIN_FRAME_SHARE or kind in ("kernel", "reason", "guessed"):
            continue
        python = kind == "python"
        # Of the program's own frames the deepest that holds over half: below it the time divides, above it says less.
        rank = (python and not _LIBRARY.search(file), python, share >= 0.5, depth[number])
        if best is None or rank > best[0]:
            best = (rank, (name, file, line, share))
    return None if best is None or (not best[0][1] and best[0][3] < MIN_DEPTH) else best[1]


def _depths(profile: Profile) -> NDArray[np.int64]:
    tree = profile.tree
    level = np.repeat(np.arange(len(tree.starts) - 1), np.diff(tree.starts))
    deepest = np.zeros(max(len(tree.frames), 1), dtype=np.int64)
    rows = tree.frame >= 0
    np.maximum.at(deepest, tree.frame[rows], level[rows])
    return deepest


def _waiting(
    reader: Reader, contents: Contents, question: Question, idle: Gpu, gpus: list[Gpu]
) -> tuple[int, float, str] | None:
    """(index, share of the range, collective) of the GPU that spent most time in collectives while `idle` was idle, if it
    spent clearly less of the rest of the range there."""
    best = None
    empty = idle.second[idle.idle > 0.5]
    for gpu in gpus:
        mine = replace(question, matchers=(*question.matchers, *_only(gpu)))
        data = estimate.readings(reader, mine, "gpu.time.collective")
        share, during = data["mean"] / SECOND, np.isin(data["second"], empty)
        if not during.any() or during.all():
            continue
        while_idle, else_where, whole = float(share[during].mean()), float(share[~during].mean()), float(share.mean())
        if whole >= MIN_WAIT and while_idle >= MIN_WAIT_EXCESS * else_where and (best is None or whole > best[1]):
            best = (gpu, whole)
    if best is None:
        return None
    return (
        best[0].index,
        best[1],
        _collective(reader, contents, replace(question, matchers=(*question.matchers, *_only(best[0])))),
    )


def _collective(reader: Reader, contents: Contents, question: Question) -> str:
    leaves = read_leaves(reader, contents, question, "gpu_time")
    texts = function_texts(reader, np.unique(leaves.function[leaves.function >= 0]))
    sums: dict[str, int] = {}
    for function, value in zip(leaves.function.tolist(), leaves.rows.value.tolist(), strict=True):
        name, kind = texts.get(function, ("", ""))[:2]
        if kind == "collective":
            sums[name] = sums.get(name, 0) + value
    if not sums:
        return "collectives"
    found = _COLLECTIVE.search(max(sorted(sums), key=lambda name: sums[name]))
    return found[1] if found else "collectives"
