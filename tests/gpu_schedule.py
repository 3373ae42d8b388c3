# SPDX-License-Identifier: Apache-2.0
"""A CUDA process in simulated time: what it launches, what the injected library would write of it, and the truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gpustrobe.cupti import ring

from tests.ring_writer import RingWriter

MS, SECOND = 1_000_000, 1_000_000_000
AHEAD = 1_700_000_000 * SECOND  # CUPTI's clock and the wall clock, ahead of CLOCK_MONOTONIC
UUID = bytes(range(16))


@dataclass
class Schedule:
    """Columns of all launches, in order of launch; ns, mono."""

    launch: np.ndarray
    start: np.ndarray
    end: np.ndarray
    name: np.ndarray  # place in names
    names: tuple[str, ...]
    stream: np.ndarray
    tid: np.ndarray
    stack: np.ndarray  # which stack launched it

    @property
    def duration(self) -> np.ndarray:
        return self.end - self.start


def in_order(launch: np.ndarray, duration: np.ndarray, delay: int) -> tuple[np.ndarray, np.ndarray]:
    """Start and end on one stream that runs in order, not before `delay` after the launch."""
    ready = launch + delay
    # end_i = max(ready_i, end_{i-1}) + d_i: the running maximum of ready - (sum of durations before it)
    before = np.cumsum(duration) - duration
    start = np.maximum.accumulate(ready - before) + before
    return start, start + duration


@dataclass
class Written:
    """Windows as drawn: (id, begin, end)."""

    windows: list[tuple[int, int, int]]
    covered: np.ndarray  # how many windows cover each launch


def write(
    writer: RingWriter,
    schedule: Schedule,
    random: np.random.Generator,
    seconds: float,
    width: int = 100 * MS,
    period: int = SECOND,
    probability: float = 1.0,
    counted: bool = False,
    drift: float = 0.0,
    flush=lambda: None,
) -> Written:
    """Windows, launches and activities into the ring, `flush` called whenever it is half full."""
    number = int(seconds * SECOND / period)
    offset = 5 * SECOND
    begin = offset + np.arange(number) * period + random.integers(0, period, number)
    end = begin + width
    times = schedule.launch
    covered = np.zeros(times.size, np.int64)
    newest = np.zeros(times.size, np.int64)
    for at in range(number):
        inside = (times >= begin[at]) & (times < end[at])
        covered += inside
        newest[inside] = at + 1
    shapes = [writer.shape(name, grid=(at + 1, 1, 1)) for at, name in enumerate(schedule.names)]
    functions = [writer.string(name) for name in schedule.names]
    writer.put(ring.Record.DEVICE, ordinal=0, uuid=np.frombuffer(UUID, np.uint8))

    def ahead(mono: np.ndarray | int):
        return AHEAD + (np.asarray(mono) * drift).astype(np.int64)

    for at in range(number):
        for is_open in (True, False):
            moment = int(begin[at] if is_open else end[at])
            writer.put(
                ring.Record.WINDOW,
                flags=ring.WindowFlag.OPEN if is_open else 0,
                begin=int(begin[at]),
                end=0 if is_open else int(end[at]),
                cupti_minus_mono=int(ahead(moment)),
                unix_minus_mono=AHEAD,
                width_us=width // 1000,
                period_us=period // 1000,
                probability=min(int(probability * 2**32), 2**32 - 1),
                id=at + 1,
            )
        flush()
    rows = np.flatnonzero(covered)
    first = np.zeros(times.size, np.bool_)
    key = newest * 10_000_000 + schedule.tid * 1000 + schedule.name
    first[rows[np.unique(key[rows], return_index=True)[1]]] = True
    drawn = first | (random.random(times.size) < probability)
    weight = np.where(first, 1.0, 1 / probability) * drawn
    launches = np.zeros(rows.size, ring.LAUNCH)
    launches["type"], launches["call"] = ring.Record.LAUNCH, ring.Call.KERNEL
    launches["time"], launches["correlation"] = times[rows], rows + 1
    launches["tid"], launches["window"] = schedule.tid[rows], newest[rows]
    launches["weight"] = np.round(weight[rows] * 65536)
    launches["flags"] = drawn[rows] * ring.LaunchFlag.SAMPLED + first[rows] * ring.LaunchFlag.FIRST
    launches["function"] = np.array(functions)[schedule.name[rows]]
    launches["multiplicity"] = covered[rows]
    activities = np.zeros(rows.size, ring.ACTIVITY)
    activities["type"] = ring.Record.KERNEL
    activities["flags"] = covered[rows] << ring.MULTIPLICITY_SHIFT
    activities["start"] = schedule.start[rows] + ahead(schedule.start[rows])
    activities["end"] = schedule.end[rows] + ahead(schedule.end[rows])
    activities["correlation"], activities["window"] = rows + 1, newest[rows]
    activities["context"], activities["stream"] = 1, schedule.stream[rows]
    activities["shape"] = np.array(shapes)[schedule.name[rows]]
    activities = activities[np.argsort(schedule.end[rows] + random.integers(0, 500 * MS, rows.size))]
    counts = []
    if counted:
        for moment in range(int(offset), int(offset + (seconds + 2) * SECOND), SECOND):
            for place, function in enumerate(functions):
                total = int(((schedule.name == place) & (times < moment)).sum())
                counts.append((moment, function, total))
    half = writer.slots // 2
    for columns in (launches, activities):
        for at in range(0, columns.size, half):
            writer.put_rows(columns[at : at + half])
            flush()
    for moment, function, total in counts:
        writer.put(
            ring.Record.COUNT, call=ring.Call.KERNEL, time=moment, since=offset // 2, count=total, function=function
        )
        flush()
    return Written([(at + 1, int(begin[at]), int(end[at])) for at in range(number)], covered)
