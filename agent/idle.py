# SPDX-License-Identifier: Apache-2.0
"""Idle GPU time, given to what the threads that feed the GPU were doing meanwhile.

A gap ends when something starts; the thread that launched that is the one the GPU waited for. Its samples and waits in
the gap say where it was. Samples come every 10 ms and gaps may be shorter: all gaps of a second and thread are put
together, and their time is shared out by what was met in them. Time in which only a collective ran is waiting, too, and
has the collective as its leaf.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.agent.model import Frame, Profiles, ProfileWindow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

SECOND = 1_000_000_000
UNSEEN = Frame(
    "[launching thread not met]",
    "reason",
    reason="the thread that feeds this GPU was neither sampled nor seen waiting in these gaps (--off-cpu shows waits)",
)
NO_THREAD = Frame("[launching thread not known]", "reason", reason="what ended the gap has no launch in a window")


@dataclass(frozen=True, slots=True)
class Gap:
    """An idle span of a GPU, mono ns; `tid`: host TID of the thread whose launch ended it, 0 = not known."""

    gpu: str
    begin: int
    end: int
    tid: int
    unix_minus_mono: int


@dataclass(frozen=True, slots=True)
class Moments:
    """When threads were where: rows of windows of type moment, shape (n,), over the tables of `Profiles`."""

    tid: NDArray[np.int64]
    begin: NDArray[np.int64]  # mono
    end: NDArray[np.int64]
    stack: NDArray[np.int64]
    labels: NDArray[np.int64]
    stacks: Sequence[tuple[Frame, ...]]
    label_sets: Sequence[Mapping[str, str]]


def moments_of(profiles: Profiles) -> Moments:
    """A CPU sample stands for half its period on either side; `wait` in its labels tells a wait from a sample."""
    windows = [window for window in profiles.windows if window.sample_type == "moment" and window.mark is not None]
    empty = np.zeros(0, np.int64)
    mark, value, stack, labels = (
        np.concatenate([getattr(window, name).astype(np.int64) for window in windows] or [empty])
        for name in ("mark", "value", "stack", "labels")
    )
    waits = np.array(["wait" in labels for labels in profiles.label_sets], np.bool_)
    tids = np.array([int(labels.get("tid", 0)) for labels in profiles.label_sets], np.int64)
    begin = np.where(waits[labels], mark, mark - value // 2) if labels.size else mark
    tid = tids[labels] if labels.size else labels
    return Moments(tid, begin, begin + value, stack, labels, profiles.stacks, profiles.label_sets)


def idle_profile(
    gaps: Sequence[Gap], moments: Sequence[Moments], indexes: Mapping[str, str], pids: Mapping[int, Mapping[str, str]]
) -> Profiles:
    """`pids`: labels of the process of each host TID, for threads that were not met."""
    stacks: dict[tuple[Frame, ...], int] = {}
    labels: dict[tuple[tuple[str, str], ...], int] = {}
    rows: dict[int, dict[tuple[int, int], float]] = defaultdict(lambda: defaultdict(float))
    for (gpu, tid, second), some in _grouped(gaps).items():
        total = float(sum(gap.end - gap.begin for gap in some))
        device = {"gpu": gpu, "gpu_index": indexes.get(gpu, ""), "category": "idle"}
        met = _met(some, tid, moments)
        whole = sum(met.values())
        for (batch, stack, label), overlap in met.items():
            where = moments[batch].stacks[stack]
            who = {**moments[batch].label_sets[label], **device}
            row = (stacks.setdefault(where, len(stacks)), labels.setdefault(tuple(who.items()), len(labels)))
            rows[second][row] += total * overlap / whole
        if not whole:
            who = {**pids.get(tid, {}), **device}
            reason = (UNSEEN,) if tid else (NO_THREAD,)
            row = (stacks.setdefault(reason, len(stacks)), labels.setdefault(tuple(who.items()), len(labels)))
            rows[second][row] += total
    windows = tuple(_window(second, rows[second]) for second in sorted(rows))
    return Profiles(windows, tuple(stacks), tuple(dict(items) for items in labels))


def _grouped(gaps: Sequence[Gap]) -> dict[tuple[str, int, int], list[Gap]]:
    """By GPU, thread and the second they begin in; a gap over several seconds is cut."""
    groups: dict[tuple[str, int, int], list[Gap]] = defaultdict(list)
    for gap in gaps:
        begin = gap.begin
        while begin < gap.end:
            second = (begin + gap.unix_minus_mono) // SECOND * SECOND
            end = min(gap.end, second + SECOND - gap.unix_minus_mono)
            groups[gap.gpu, gap.tid, second].append(Gap(gap.gpu, begin, end, gap.tid, gap.unix_minus_mono))
            begin = end
    return groups


def _met(gaps: Sequence[Gap], tid: int, moments: Sequence[Moments]) -> dict[tuple[int, int, int], float]:
    """(batch, stack, labels) -> ns that the thread's samples and waits overlap the gaps."""
    met: dict[tuple[int, int, int], float] = defaultdict(float)
    if not tid:
        return met
    begin = np.array([gap.begin for gap in gaps], np.int64)
    end = np.array([gap.end for gap in gaps], np.int64)
    for batch, some in enumerate(moments):
        rows = np.flatnonzero((some.tid == tid) & (some.end > begin.min()) & (some.begin < end.max()))
        if not rows.size:
            continue
        overlap = np.minimum(some.end[rows, None], end) - np.maximum(some.begin[rows, None], begin)
        lasted = np.maximum(overlap, 0).sum(axis=1)
        for row, ns in zip(rows.tolist(), lasted.tolist(), strict=True):
            if ns > 0:
                met[batch, int(some.stack[row]), int(some.labels[row])] += ns
    return met


def _window(second: int, rows: Mapping[tuple[int, int], float]) -> ProfileWindow:
    stack, labels = np.array(list(rows), np.uint32).T
    value = np.rint(np.array(list(rows.values()))).astype(np.uint64)
    return ProfileWindow("gpu_idle", second, SECOND, 1, labels, stack, value)
