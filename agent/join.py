# SPDX-License-Identifier: Apache-2.0
"""Activity joined with its launch and its window, for one process.

An activity comes up to minutes after its launch, in any order; it counts whole, in the windows that cover its launch
(the ring's records say which). So launches and windows are kept for `RETENTION`, and what is joined goes out at once,
into the second that its window stands for. All of it is numpy: a batch is joined by one sort and one search.

Clocks: activity has CUPTI's, CLOCK_REALTIME as a rule, everything else CLOCK_MONOTONIC. Each WINDOW record says how far
they are apart; between two of them the difference is interpolated, so that slewing does no harm. Windows in which the
wall clock was stepped are counted and not used.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

import numpy as np
from gpustrobe.agent.grouping import group
from gpustrobe.cupti import ring
from numpy.typing import NDArray

SECOND = 1_000_000_000
RETENTION = 90 * SECOND
GRACE = 2_500_000_000  # stacks of launches come with the second they were taken in, named: until then records wait
LONGEST_PERIOD = 2 * SECOND  # a window with a longer one (sessions, detail) stands for itself, second by second
LONGEST_DURATION = 86_400 * SECOND
MOST_PENDING, MOST_LAUNCHES = 1 << 20, 1 << 19  # records kept of a process: 64 MB each at most
MOST_WINDOWS, MOST_DEVICES, MOST_STREAMS, MOST_FUNCTIONS = 1024, 64, 4096, 1 << 16
WORK = (ring.Record.KERNEL, ring.Record.MEMCPY, ring.Record.MEMSET, ring.Record.GRAPH)
NO_TIME = -1
# Records are moved as plain bytes: numpy copies a dtype with overlapping fields field by field, five times slower.
BYTES = np.dtype(f"V{ring.RECORD_SIZE}")


@dataclass(frozen=True, slots=True)
class Window:
    """A recorded window that has closed; mono ns. `weight` is T/W; `slot`: the part of time its records stand for."""

    id: int
    begin: int
    end: int
    weight: float
    slot: int  # mono, start
    slot_length: int
    unix_minus_mono: int
    launches: int
    lossy: bool

    @property
    def whole(self) -> bool:
        """It stands for itself alone."""
        return self.weight == 1.0


@dataclass(frozen=True, slots=True)
class Joined:
    """One row for each (activity, window that covers its launch), shape (n,). Times mono ns."""

    type: NDArray[np.uint8]
    kind: NDArray[np.uint16]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    device: NDArray[np.uint32]
    context: NDArray[np.uint32]
    stream: NDArray[np.uint32]
    graph: NDArray[np.uint32]
    detail: NDArray[np.uint64]  # KERNEL: shape id; MEMCPY, MEMSET: bytes
    correlation: NDArray[np.uint32]
    weight: NDArray[np.float64]  # launches it stands for: T/W, times exact over estimated count where counted
    second: NDArray[np.int64]  # unix ns: start of the slot it belongs to
    length: NDArray[np.int64]  # of that slot
    first: NDArray[np.bool_]  # one row of each activity has it: for what counts activities, not windows
    launch: NDArray[np.int64]  # API entry; NO_TIME where the launch is not known
    tid: NDArray[np.uint32]  # in the process's own namespace; 0 = not known
    function: NDArray[np.uint32]
    stack_weight: NDArray[np.float64]  # launches its stack stands for among those of its window; 0 = none was taken

    def __len__(self) -> int:
        return self.type.size


@dataclass(frozen=True, slots=True)
class Batch:
    """What a process's records gave since the last batch."""

    joined: Joined
    windows: list[Window]  # closed, and old enough that their records have come if they come in time
    syncs: NDArray  # ring.ACTIVITY with mono times, of type SYNC
    seconds: dict[int, tuple[float, bool]]  # unix start of a slot -> (share of launches recorded, all counted exactly)


class ProcessRecords:
    """Records of one process's ring, in; joined batches, out. Not thread-safe."""

    def __init__(self) -> None:
        self._chunks: list[NDArray[np.uint8]] = []
        self._kept_activity = np.zeros(0, BYTES)
        self._kept_launches = np.zeros(0, BYTES)
        self._windows: dict[int, Window] = {}
        self._handed: set[int] = set()
        self._clock: deque[tuple[int, int]] = deque(maxlen=512)  # cupti time, cupti - mono
        self._counts: dict[tuple[int, int, int], deque[tuple[int, int]]] = {}
        self._counted_until = 0
        self._carried: Counter[tuple[int, int, int]] = Counter()
        self._factors: dict[tuple[int, int], float] = {}  # (window, function) -> exact over estimated count, once known
        self.devices: dict[int, bytes] = {}
        self.streams: dict[tuple[int, int], int] = {}  # (device, stream) -> last seen, mono
        self.lost: Counter[str] = Counter()
        self.exited = False

    @property
    def _pending(self) -> NDArray:
        return self._kept_activity.view(ring.ACTIVITY)

    @property
    def _launches(self) -> NDArray:
        return self._kept_launches.view(ring.LAUNCH)

    def add(self, records: NDArray[np.uint8]) -> None:
        if records.shape[0]:
            self._chunks.append(records)

    def take(self, now: int, last: bool = False) -> Batch:
        """All that can be joined by now. `last`: the process has ended and its ring is empty, nothing is waited for."""
        self._sort_in()
        ready = self._ready(now, last)
        joined, seconds = self._join(self._kept_activity[ready], now)
        syncs = self._syncs(ready)
        self._kept_activity = self._kept_activity[~ready]
        windows = self._closed(now, last)
        self._forget(now)
        return Batch(joined, windows, syncs, seconds)

    def launching_threads(self) -> list[int]:
        """TIDs, in the process's own namespace, of the launches that are remembered; at most 256."""
        return np.unique(self._launches["tid"]).tolist()[:256]

    # records by type

    def _sort_in(self) -> None:
        if not self._chunks:
            return
        records = np.concatenate(self._chunks)
        self._chunks = []
        kind = records[:, 4]
        there = np.bincount(kind, minlength=256) > 0
        none, rows = np.zeros(0, BYTES), np.ascontiguousarray(records).view(BYTES).ravel()
        raw = {t: rows[kind == t] if there[t] else none for t in ring.Record if t}
        of_type = {t: some.view(ring.RECORDS[t]) for t, some in raw.items()}
        for row in of_type[ring.Record.DEVICE]:
            if len(self.devices) < MOST_DEVICES:
                self.devices[int(row["ordinal"])] = bytes(row["uuid"])
        for row in of_type[ring.Record.WINDOW]:
            self._window(row)
        self._count(of_type[ring.Record.COUNT])
        self.exited |= bool(of_type[ring.Record.EXIT].size)
        self._kept_launches = self._bounded(
            self._kept_launches, raw[ring.Record.LAUNCH], MOST_LAUNCHES, "launches_full"
        )
        found = np.concatenate([raw[t] for t in (*WORK, ring.Record.SYNC)])
        rows = found.view(ring.ACTIVITY)
        good = (
            (rows["start"] <= rows["end"]) & (rows["end"] - rows["start"] < LONGEST_DURATION) & (rows["end"] < 1 << 62)
        )
        self.lost["bad_time"] += int((~good).sum())
        self._kept_activity = self._bounded(self._kept_activity, found[good], MOST_PENDING, "pending_full")
        known = sum(rows.size for rows in of_type.values())
        self.lost["unknown_record"] += records.shape[0] - known

    def _bounded(self, old: NDArray, new: NDArray, most: int, reason: str) -> NDArray:
        both = np.concatenate((old, new)) if new.size else old
        self.lost[reason] += max(0, both.size - most)
        return both[-most:]

    def _window(self, row: np.void) -> None:
        number, begin, end = int(row["id"]), int(row["begin"]), int(row["end"])
        flags, offset = int(row["flags"]), int(row["cupti_minus_mono"])
        is_open = bool(flags & ring.WindowFlag.OPEN)
        if not 0 < begin < 1 << 62 or (not is_open and not begin <= end < begin + LONGEST_DURATION):
            self.lost["bad_window"] += 1
            return
        if flags & ring.WindowFlag.CLOCK_STEP or abs(offset) >= 1 << 62:
            self.lost["clock_step"] += 1
            return
        if not flags & ring.WindowFlag.AMENDED:
            at = begin if is_open else end
            if not self._clock or at + offset > self._clock[-1][0]:
                self._clock.append((at + offset, offset))
        if is_open or begin == end:  # one that closed as it opened covers nothing
            return
        width, period = int(row["width_us"]) * 1000, int(row["period_us"]) * 1000
        length = min(width, end - begin) if width else end - begin  # closed early: shorter than planned
        whole = period <= width or period > LONGEST_PERIOD
        weight = 1.0 if whole else period / max(1, length)
        # window i begins in [iT, (i + 1)T): the slot is its own
        slot, slot_length = (begin, end - begin) if whole else (begin // period * period, period)
        self._windows[number] = Window(
            id=number,
            begin=begin,
            end=end,
            weight=weight,
            slot=slot,
            slot_length=slot_length,
            unix_minus_mono=int(row["unix_minus_mono"]),
            launches=int(row["launches"]),
            lossy=bool(flags & ring.WindowFlag.LOSSY),
        )

    def _count(self, rows: NDArray) -> None:
        for row in rows:
            key = (int(row["call"]), int(row["function"]), int(row["graph"]))
            time, since, count = int(row["time"]), int(row["since"]), int(row["count"])
            if not 0 < since <= time < 1 << 62 or count >= 1 << 62:
                self.lost["bad_count"] += 1
                continue
            known = self._counts.get(key)
            if known is None:
                if len(self._counts) >= MOST_FUNCTIONS:
                    self.lost["counts_full"] += 1
                    continue
                known = self._counts[key] = deque([(since, 0)], maxlen=256)
            if known[-1][1] > count or known[0][0] < since - RETENTION:  # counted anew
                known.clear()
                known.append((since, 0))
            if time > known[-1][0]:
                known.append((time, count))
            self._counted_until = max(self._counted_until, time)

    # joining

    def _ready(self, now: int, last: bool) -> NDArray[np.bool_]:
        """Which of the pending activities have a window that closed a while ago."""
        if last or not self._pending.size:
            return np.ones(self._pending.size, np.bool_)
        closed = np.array([w.id for w in self._windows.values() if w.end < now - GRACE], np.uint32)
        stale = self._to_mono(self._pending["end"]) < now - RETENTION
        return np.isin(self._pending["window"], closed) | stale

    def _to_mono(self, cupti: NDArray) -> NDArray[np.int64]:
        times = cupti.astype(np.int64)
        if not self._clock:
            return times
        at, offset = np.array(self._clock, np.int64).T
        base = int(offset[0])
        return times - base - np.interp(times, at, offset - base).astype(np.int64)

    def _join(self, raw: NDArray, now: int) -> tuple[Joined, dict[int, tuple[float, bool]]]:
        raw = raw[np.isin(raw.view(ring.ACTIVITY)["type"], WORK)]
        places, table, window = self._covering(raw.view(ring.ACTIVITY))
        rows = raw[places].view(ring.ACTIVITY)
        launch, found = self._launch_of(rows["correlation"], ("time", "tid", "function", "weight"))
        start, end = self._to_mono(rows["start"]), self._to_mono(rows["end"])
        called = np.where(found & (launch["time"] < 1 << 62), launch["time"].astype(np.int64), NO_TIME)
        second, length = _seconds(table, window, np.where(called == NO_TIME, start, called))
        weight = _once(table, window, places, np.array([w.weight for w in table], np.float64)[window])
        function = np.where(found, launch["function"], 0).astype(np.uint32)
        countable = (rows["type"] == ring.Record.KERNEL) & (rows["graph"] == 0) & (function > 0)
        exact = self._exactly(table, window, np.where(countable, function, 0), weight)
        joined = Joined(
            type=rows["type"],
            kind=rows["kind"],
            start=start,
            end=end,
            device=rows["device"],
            context=rows["context"],
            stream=rows["stream"],
            graph=rows["graph"],
            detail=np.where(rows["type"] == ring.Record.KERNEL, rows["shape"].astype(np.uint64), rows["bytes"]),
            correlation=rows["correlation"],
            weight=weight,
            second=second,
            length=length,
            first=np.diff(places, prepend=-1) != 0,
            launch=called,
            tid=np.where(found, launch["tid"], 0).astype(np.uint32),
            function=function,
            stack_weight=np.where(found, launch["weight"], 0) / 65536.0,
        )
        for row in group(joined.device, joined.stream)[1].tolist():
            device, stream = int(joined.device[row]), int(joined.stream[row])
            if len(self.streams) < MOST_STREAMS:
                self.streams[device, stream] = now
        seconds: dict[int, tuple[float, bool]] = {}
        for row in group(window, second)[1].tolist():
            place, at = int(window[row]), int(second[row])
            seconds[at] = (1.0 / table[place].weight, place in exact)
        return joined, seconds

    def _launch_of(self, correlation: NDArray, names: tuple[str, ...]) -> tuple[dict[str, NDArray], NDArray[np.bool_]]:
        """Columns of the launch of each activity, and whether it is known."""
        if not self._launches.size:
            nothing = np.zeros(correlation.size, np.uint32)
            return dict.fromkeys(names, nothing), np.zeros(correlation.size, np.bool_)
        order = np.argsort(self._launches["correlation"], kind="stable")
        known = self._launches["correlation"][order]
        at = np.maximum(np.searchsorted(known, correlation, side="right") - 1, 0)
        rows = order[at]
        return {name: self._launches[name][rows] for name in names}, known[at] == correlation

    def _covering(self, rows: NDArray) -> tuple[NDArray[np.int64], list[Window], NDArray[np.int64]]:
        """Each (activity, window that covers its launch): place in rows, the windows, place in them. Activities of windows
        that are not known are counted as lost."""
        multiplicity = np.maximum(rows["flags"] >> ring.MULTIPLICITY_SHIFT, 1).astype(np.int64)
        places = np.repeat(np.arange(rows.size), multiplicity)
        back = np.arange(places.size) - np.repeat(np.cumsum(multiplicity) - multiplicity, multiplicity)
        number = rows["window"][places].astype(np.int64) - back
        window, one = group(number)
        numbers = number[one]
        known = [self._windows.get(number) for number in numbers.tolist()]
        has = np.array([found is not None for found in known], np.bool_)
        self.lost["no_window"] += int((~has[window]).sum()) if window.size else 0
        kept = has[window] if window.size else np.zeros(0, np.bool_)
        table = [found for found in known if found is not None]
        return places[kept], table, (np.cumsum(has) - 1)[window[kept]]

    def _exactly(
        self, table: list[Window], window: NDArray[np.int64], function: NDArray, weight: NDArray[np.float64]
    ) -> set[int]:
        """Makes weights of kernels whose launches were counted exact, in place: times N over what the window says N is.
        -> places in table of the windows in whose slots all was counted.

        Launches counted in a slot whose window met none of them are carried to the next that does.
        """
        slots = [
            place for place, w in enumerate(table) if not w.whole and w.slot + w.slot_length <= self._counted_until
        ]
        if not slots:
            return set()
        functions = sorted({key[1] for key in self._counts if key[0] == ring.Call.KERNEL and key[1]})
        column = np.searchsorted(np.array(functions, np.int64), function)
        ours = np.isin(function, functions)
        met = np.bincount(
            window[ours] * len(functions) + column[ours], weight[ours], minlength=len(table) * len(functions)
        ).reshape(len(table), len(functions))
        factor = np.ones_like(met)
        exact = set(slots)
        for place in slots:
            for at, name in enumerate(functions):
                key = (int(ring.Call.KERNEL), name, 0)
                number, before = self._counted(key, table[place]), self._factors.get((table[place].id, name))
                if number is None:
                    exact.discard(place)
                elif before is not None:  # records that come later than the others of their window
                    factor[place, at] = before
                elif met[place, at]:
                    factor[place, at] = (number + self._carried.pop(key, 0)) / met[place, at]
                    self._factors[table[place].id, name] = factor[place, at]
                elif number:
                    self._carried[key] += number
                    self._factors[table[place].id, name] = 1.0
        weight[ours] *= factor[window[ours], column[ours]]
        return exact

    def _counted(self, key: tuple[int, int, int], window: Window) -> int | None:
        """Launches of a function in the window's slot; None where counting began inside it."""
        points = self._counts.get(key)
        if not points or points[0][0] > window.slot:
            return None
        times, counts = zip(*points, strict=True)
        ends = np.interp((window.slot, window.slot + window.slot_length), times, counts)
        return int(ends[1]) - int(ends[0])

    def _syncs(self, ready: NDArray[np.bool_]) -> NDArray:
        rows = self._kept_activity[ready & (self._pending["type"] == ring.Record.SYNC)].view(ring.ACTIVITY)
        rows["start"], rows["end"] = self._to_mono(rows["start"]), self._to_mono(rows["end"])
        return rows

    # forgetting

    def _closed(self, now: int, last: bool) -> list[Window]:
        new = [w for w in self._windows.values() if w.id not in self._handed and (last or w.end < now - GRACE)]
        self._handed.update(w.id for w in new)
        return sorted(new, key=lambda window: window.begin)

    def _forget(self, now: int) -> None:
        old = [w.id for w in self._windows.values() if w.end < now - RETENTION]
        old += sorted(self._windows)[: max(0, len(self._windows) - MOST_WINDOWS)]
        for number in old:
            self._windows.pop(number, None)
            self._handed.discard(number)
        if old:
            self._factors = {key: factor for key, factor in self._factors.items() if key[0] in self._windows}
        recent = self._launches["time"] > max(0, now - RETENTION)
        if not recent.all():
            self._kept_launches = self._kept_launches[recent]
        self.streams = {key: seen for key, seen in self.streams.items() if seen > now - RETENTION}


def _seconds(
    table: list[Window], window: NDArray[np.int64], time: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Unix start and length of the slot of each row. Slots of a second begin with the wall clock's, as the CPU's windows
    do; windows that stand for themselves are cut into seconds, by `time`."""
    columns = [(w.slot, w.slot_length, w.unix_minus_mono, w.whole, w.begin, w.end) for w in table]
    slot, length, ahead, whole, begin, end = np.array(columns, np.int64).reshape(-1, 6)[window].T
    into = np.clip(time, begin, np.maximum(begin, end - 1))
    start = np.where(whole == 1, into, slot) + ahead
    by_clock = (whole == 1) | (length == SECOND)
    return np.where(by_clock, start // SECOND * SECOND, start), np.where(by_clock, SECOND, length)


def _once(
    table: list[Window], window: NDArray[np.int64], places: NDArray[np.int64], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """A launch that a window covers which stands for itself was recorded for certain: it counts once, there. Such windows
    follow each other closely enough to overlap, and a random one may lie within them."""
    whole = np.array([w.whole for w in table], np.bool_)[window] if window.size else np.zeros(0, np.bool_)
    certain = (
        np.bincount(places[whole], minlength=int(places.max(initial=-1)) + 1)[places] > 0 if places.size else whole
    )
    first = np.zeros(places.size, np.bool_)
    rows = np.flatnonzero(whole)
    first[rows[np.unique(places[rows], return_index=True)[1]]] = True
    return np.where(certain, np.where(first, 1.0, 0.0), weight)
