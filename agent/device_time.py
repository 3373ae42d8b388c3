# SPDX-License-Identifier: Apache-2.0
"""What a GPU did with its time, where records prove it: compute, collective, copy, idle. All else is unknown.

Idle is never concluded from the absence of records alone. Streams run in order, so from its first recorded operation in a
window (or from the end of a synchronization that began in it) nothing launched earlier can run on a stream any more; and
while every operation launched since has its record, the stream is known. It stays known until its last recorded
operation ends, or until the window closes if every launch of the window has its record. A moment is covered when all live
streams of all processes that use the GPU are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gpustrobe.agent.join import Joined, Window
    from numpy.typing import NDArray

CLASSES = ("compute", "collective", "copy")  # what counts where several run at once: the first
STREAM_SYNC, CONTEXT_SYNC = 3, 4  # CUpti_ActivitySynchronizationType


@dataclass(frozen=True, slots=True)
class Span:
    """A covered span of one device, mono ns: rows (begin, end, class), in order and without gaps; class -1 is idle.
    `after`: per row, place in the batch's rows of what ran next, or where nothing did, of what ran last; -1 = neither."""

    device: int
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    kind: NDArray[np.int64]
    after: NDArray[np.int64]

    def total(self, kind: int) -> int:
        return int((self.end - self.begin)[self.kind == kind].sum())


def spans(
    window: Window,
    joined: Joined,
    rows: NDArray[np.int64],
    category: NDArray[np.int64],
    syncs: NDArray,
    live: set[tuple[int, int]],
) -> list[Span]:
    """Covered spans of each device that the process uses, by the records of one window.

    `rows`: places in `joined` of its activities, each once; `category` of all of joined, as in CLASSES; `live`: the
    process's (device, stream) of the last while.
    """
    if window.lossy:
        return []
    complete = rows.size >= window.launches
    found = []
    for device in {device for device, _ in live}:
        mine = rows[joined.device[rows] == device]
        cover = _cover(window, joined, mine, syncs, {s for d, s in live if d == device}, complete)
        if cover is not None:
            found.append(partition(device, *cover, joined.start[mine], joined.end[mine], category[mine], mine))
    return found


def _cover(
    window: Window, joined: Joined, mine: NDArray[np.int64], syncs: NDArray, streams: set[int], complete: bool
) -> tuple[int, int] | None:
    """Where all streams are known; None if nowhere."""
    inside = syncs[(syncs["start"].astype(np.int64) >= window.begin) & (syncs["end"].astype(np.int64) <= window.end)]
    of_context = inside["end"][inside["kind"] == CONTEXT_SYNC]
    begin, end = window.begin, max(window.end, int(joined.end[mine].max(initial=0)))
    for stream in streams:
        on = mine[joined.stream[mine] == stream]
        own = inside["end"][(inside["kind"] == STREAM_SYNC) & (inside["stream"] == stream)]
        starts = [*joined.start[on].tolist(), *own.astype(np.int64).tolist(), *of_context.astype(np.int64).tolist()]
        if not starts:
            return None
        begin = max(begin, min(starts))
        last = int(joined.end[on].max(initial=0))
        end = min(end, max(last, window.end) if complete else last)
    return (begin, end) if begin < end else None


def partition(
    device: int, begin: int, end: int, start: NDArray, stop: NDArray, category: NDArray, place: NDArray
) -> Span:
    """[begin, end) cut wherever an operation starts or ends; each piece is of the first of CLASSES that runs in it."""
    cuts = np.unique(np.clip(np.concatenate((start, stop, [begin, end])), begin, end))
    running = np.zeros((len(CLASSES), cuts.size), np.int64)
    for kind in range(len(CLASSES)):
        rows = category == kind
        for times, change in ((start[rows], 1), (stop[rows], -1)):
            np.add.at(running[kind], np.searchsorted(cuts, np.clip(times, begin, end)), change)
    busy = running.cumsum(axis=1)[:, :-1] > 0
    kind = np.where(busy.any(axis=0), busy.argmax(axis=0), -1)
    order = np.argsort(start, kind="stable")
    following = np.searchsorted(start[order], cuts[1:], side="left")
    latest = place[order[-1]] if place.size else -1  # nothing more is known to follow: who launched last launches next
    after = np.append(place[order], latest)[np.minimum(following, place.size)]
    return Span(device, cuts[:-1], cuts[1:], kind, after)


def per_second(span: Span, unix_minus_mono: int) -> dict[int, NDArray[np.int64]]:
    """Unix second -> ns of compute, collective, copy, idle."""
    second = 1_000_000_000
    begin, end = span.begin + unix_minus_mono, span.end + unix_minus_mono
    totals: dict[int, NDArray[np.int64]] = {}
    for at in range(int(begin[0]) // second, (int(end[-1]) - 1) // second + 1):
        inside = np.maximum(0, np.minimum(end, (at + 1) * second) - np.maximum(begin, at * second))
        slots = np.where(span.kind < 0, len(CLASSES), span.kind)
        totals[at * second] = np.bincount(slots, inside, minlength=len(CLASSES) + 1).astype(np.int64)
    return totals
