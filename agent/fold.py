# SPDX-License-Identifier: Apache-2.0
"""Windows of numbers, once their frames have names, become Profiles: label sets per thread, stacks of frames, summed
rows.

Stacks that read the same are one: frames that differ only by address within one line (or, without line numbers, one
function) are the same frame; the first address stands for all. A stack and a thread are looked at once per epoch; rows
are numpy's work.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.agent.model import Frame, Profiles, ProfileWindow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpustrobe.agent.model import Process, RawFrame, Thread, Window
    from numpy.typing import NDArray

UNNAMED = "the symbolizer had not answered when the window had to be sent"


class Folder:
    """Takes windows in order; hands them on once their frames are named.

    A round: `add` windows; name `unnamed()`; `flush` with those names. Windows that came in between wait for the next
    round.
    """

    def __init__(self) -> None:
        self._epochs: deque[_Epoch] = deque()

    def add(self, window: Window) -> None:
        """Raises ValueError where the window's ids do not continue those of its epoch."""
        if not self._epochs or self._epochs[-1].number != window.epoch:
            self._epochs.append(_Epoch(window.epoch))
        self._epochs[-1].add(window)

    @property
    def epoch(self) -> int | None:
        """The epoch that `unnamed()` speaks of: the oldest one that still waits."""
        return next((epoch.number for epoch in self._epochs if epoch.windows or epoch is self._epochs[-1]), None)

    @property
    def waiting(self) -> int:
        """Windows taken and not yet flushed."""
        return sum(len(epoch.windows) for epoch in self._epochs)

    def unnamed(self) -> list[RawFrame]:
        """Frames to name next, all of one epoch: owners of raw frames mean nothing outside theirs."""
        waiting = next((epoch for epoch in self._epochs if epoch.windows or epoch is self._epochs[-1]), None)
        return waiting.unnamed() if waiting else []

    def flush(self, resolved: Sequence[tuple[Frame, ...] | None]) -> Profiles:
        """Give names to the first len(resolved) of `unnamed()` and take every window of that epoch whose frames all
        have one.

        None (not named in time) stands for a frame with a reason in these windows; it is asked for again in the next
        round.
        """
        waiting = next((epoch for epoch in self._epochs if epoch.windows or epoch is self._epochs[-1]), None)
        if waiting is None:
            return Profiles((), (), ())
        profiles = waiting.flush(resolved)
        while len(self._epochs) > 1 and not self._epochs[0].windows:
            self._epochs.popleft()
        return profiles


class _Epoch:
    """What one epoch's ids mean."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.windows: deque[tuple[Window, int]] = deque()  # with the number of frames known when it came
        self._raw: list[RawFrame] = []
        self._names: list[int] = []  # frame id -> place in _tuples, -1 = not yet
        self._late: list[int] = []  # frame ids that went out without a name
        self._tuples: list[tuple[Frame, ...]] = []
        self._places: dict[tuple, int] = {}
        self._stacks: list[tuple[int, ...] | None] = []  # frame ids; None once worked out for good
        self._merged = np.zeros(0, np.int64)  # stack id -> place in _expanded, -1 = not yet
        self._expanded: list[tuple[Frame, ...]] = []
        self._expanded_places: dict[tuple[int, ...], int] = {}
        self._processes: dict[int, Process] = {}
        self._threads: dict[int, Thread] = {}
        self._label_sets: dict[int, Mapping[str, str]] = {}

    def add(self, window: Window) -> None:
        if window.first_frame != len(self._raw) or window.first_stack != len(self._stacks):
            raise ValueError(
                f"epoch {window.epoch}: frames from {window.first_frame} and stacks from {window.first_stack}, "
                f"expected {len(self._raw)} and {len(self._stacks)}"
            )
        self._raw.extend(window.frames)
        self._stacks.extend(window.stacks)
        for process in window.processes:
            self._processes[process.process_id] = process
        changed = {process.process_id for process in window.processes}
        for thread in window.threads:
            self._threads[thread.thread_id] = thread
            self._label_sets.pop(thread.thread_id, None)
        if changed:
            for thread_id in [t for t in self._label_sets if self._threads[t].process_id in changed]:
                del self._label_sets[thread_id]
        self.windows.append((window, len(self._raw)))

    def unnamed(self) -> list[RawFrame]:
        return [self._raw[frame_id] for frame_id in self._unnamed_ids()]

    def _unnamed_ids(self) -> list[int]:
        return [*self._late, *range(len(self._names), len(self._raw))]

    def flush(self, resolved: Sequence[tuple[Frame, ...] | None]) -> Profiles:
        self._name(resolved)
        ready = []
        while self.windows and self.windows[0][1] <= len(self._names):
            ready.append(self.windows.popleft()[0])
        threads, thread_places = _used([window.thread for window in ready])
        stacks, stack_places = _used([window.stack for window in ready])
        merged, merged_places = np.unique(self._merge(stacks), return_inverse=True)
        folded = tuple(
            _fold(window, labels, merged_places[stack])
            for window, labels, stack in zip(ready, thread_places, stack_places, strict=True)
        )
        profiles = Profiles(
            folded,
            tuple(self._expanded[place] for place in merged.tolist()),
            tuple(self._labels(thread) for thread in threads.tolist()),
        )
        self._forget_late(stacks)
        return profiles

    def _name(self, resolved: Sequence[tuple[Frame, ...] | None]) -> None:
        ids = self._unnamed_ids()
        if len(resolved) > len(ids):
            raise ValueError(f"{len(resolved)} names for {len(ids)} frames")
        self._names.extend([-1] * (ids[len(resolved) - 1] + 1 - len(self._names) if resolved else 0))
        late = self._late[len(resolved) :]
        for frame_id, frames in zip(ids, resolved, strict=False):
            if frames is None:
                late.append(frame_id)
            else:
                self._names[frame_id] = self._place(frames)
        self._late = late

    def _place(self, frames: tuple[Frame, ...]) -> int:
        """One place for all names that read the same, address aside."""
        key = tuple((f.name, f.kind, f.module, f.file, f.line, f.build_id, f.reason) for f in frames)
        place = self._places.setdefault(key, len(self._tuples))
        if place == len(self._tuples):
            self._tuples.append(frames)
        return place

    def _merge(self, stacks: NDArray) -> NDArray[np.int64]:
        """Places in _expanded of `stacks`; works each out when it is first asked for."""
        if self._merged.size < len(self._stacks):
            grown = np.full(max(1024, 2 * len(self._stacks)), -1, np.int64)
            grown[: self._merged.size] = self._merged
            self._merged = grown
        for stack in stacks[self._merged[stacks] < 0].tolist():
            frame_ids = self._stacks[stack]
            key = tuple([self._names[frame_id] for frame_id in frame_ids])
            self._merged[stack] = self._expand(frame_ids, key)
            if -1 not in key:
                self._stacks[stack] = None
        return self._merged[stacks]

    def _expand(self, frame_ids: tuple[int, ...], key: tuple[int, ...]) -> int:
        if -1 in key:
            frames = [
                self._tuples[p] if p >= 0 else (self._placeholder(f),) for p, f in zip(key, frame_ids, strict=True)
            ]
            self._expanded.append(tuple([frame for part in frames for frame in part]))
            return len(self._expanded) - 1
        place = self._expanded_places.setdefault(key, len(self._expanded))
        if place == len(self._expanded):
            self._expanded.append(tuple([frame for part in key for frame in self._tuples[part]]))
        return place

    def _placeholder(self, frame_id: int) -> Frame:
        raw = self._raw[frame_id]
        return Frame(f"0x{raw.address:x}", "reason", address=raw.address, reason=UNNAMED)

    def _forget_late(self, stacks: NDArray) -> None:
        """Stacks that went out with a placeholder are worked out anew next time."""
        if self._late:
            for stack in stacks.tolist():
                if self._stacks[stack] is not None:
                    self._merged[stack] = -1

    def _labels(self, thread_id: int) -> Mapping[str, str]:
        known = self._label_sets.get(thread_id)
        if known is None:
            thread = self._threads[thread_id]
            known = self._label_sets[thread_id] = label_set(
                self._processes[thread.process_id], thread.tid, thread.comm, thread.wait
            )
        return known


def label_set(process: Process, tid: int, thread_comm: str, wait: str = "") -> dict[str, str]:
    """Labels of one thread's samples, by the names of docs/architecture.md."""
    own = {"comm": process.comm, "pid": str(process.pid), "thread": thread_comm, "tid": str(tid)}
    own |= {"wait": wait} if wait else {}
    return {**own, **{name: value for name, value in process.labels.items() if value}}


def _used(columns: Sequence[NDArray]) -> tuple[NDArray, list[NDArray]]:
    """Distinct values of all columns, and each column as places in them."""
    if not columns:
        return np.zeros(0, np.int64), []
    values, places = np.unique(np.concatenate(columns), return_inverse=True)
    return values, np.split(places, np.cumsum([column.size for column in columns])[:-1])


def _fold(window: Window, labels: NDArray, stack: NDArray) -> ProfileWindow:
    """Rows that now have the same labels and stack summed, unless each has a mark of its own."""
    if window.sample_type in ("launch", "moment"):
        mark = np.zeros(0, np.uint64) if window.mark is None else window.mark
        rows = (labels.astype(np.uint32), stack.astype(np.uint32), window.value)
        return ProfileWindow(window.sample_type, window.start_unix, window.duration, window.period, *rows, mark=mark)
    size = int(stack.max(initial=0)) + 1
    key, value = labels.astype(np.int64) * size + stack, window.value.astype(np.uint64)
    order = np.argsort(key, kind="stable")
    key = key[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    value = np.add.reduceat(value[order], starts) if key.size else value
    key = key[starts]
    return ProfileWindow(
        sample_type=window.sample_type,
        start_unix=window.start_unix,
        duration=window.duration,
        period=window.period,
        labels=(key // size).astype(np.uint32),
        stack=(key % size).astype(np.uint32),
        value=value,
        books=window.books,
    )
