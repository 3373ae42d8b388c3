# SPDX-License-Identifier: Apache-2.0
"""Where a GPU's time is known, and that idle is never asserted while anything ran."""

from __future__ import annotations

import numpy as np
import pytest
from gpustrobe.agent import device_time
from gpustrobe.agent.gpu_names import CATEGORIES
from gpustrobe.agent.join import Joined, Window
from gpustrobe.cupti import ring

MS, SECOND = 1_000_000, 1_000_000_000


def window(begin: int, end: int, launches: int = 0, lossy: bool = False) -> Window:
    return Window(1, begin, end, 10.0, begin, SECOND, 0, launches, lossy)


def joined(*operations: tuple[int, int, int]) -> Joined:
    """(stream, start, end) each."""
    stream, start, end = (np.array(column, np.int64) for column in zip(*operations, strict=True))
    zero = np.zeros(stream.size, np.int64)
    columns = {name: zero for name in Joined.__slots__}
    return Joined(**columns | {"stream": stream, "start": start, "end": end, "first": zero == 0})


def sync(kind: int, start: int, end: int, stream: int = 0xFFFFFFFF) -> np.ndarray:
    row = np.zeros(1, ring.ACTIVITY)
    row["kind"], row["start"], row["end"], row["stream"] = kind, start, end, stream
    return row


NO_SYNC = np.zeros(0, ring.ACTIVITY)


def spans(rows: Joined, live: set[int], over: Window, syncs=NO_SYNC, category=None):
    category = np.zeros(len(rows), np.int64) if category is None else np.array(category)
    return device_time.spans(over, rows, np.arange(len(rows)), category, syncs, {(0, stream) for stream in live})


def pieces(span) -> list[tuple[int, int, int]]:
    return list(zip(span.begin.tolist(), span.end.tolist(), span.kind.tolist(), strict=True))


def test_between_operations_of_the_only_stream_it_was_idle():
    [span] = spans(joined((7, 10, 20), (7, 50, 60)), {7}, window(0, 40, launches=9))
    assert pieces(span) == [(10, 20, 0), (20, 50, -1), (50, 60, 0)]
    assert span.after.tolist() == [1, 1, 1]  # after the gap ran the second; after that nothing is known


def test_with_all_records_it_is_known_until_the_window_closes():
    [span] = spans(joined((7, 10, 20), (7, 25, 30)), {7}, window(0, 40, launches=2))
    assert pieces(span)[-1] == (30, 40, -1)


def test_before_the_first_operation_nothing_is_known():
    [span] = spans(joined((7, 30, 35)), {7}, window(0, 40, launches=1))
    assert span.begin[0] == 30


def test_a_live_stream_without_a_record_leaves_all_unknown():
    assert spans(joined((7, 10, 20)), {7, 8}, window(0, 40, launches=1)) == []


def test_the_latest_of_the_streams_firsts_counts():
    [span] = spans(joined((7, 10, 20), (8, 15, 17), (7, 30, 35)), {7, 8}, window(0, 40, launches=3))
    assert pieces(span) == [(15, 17, 0), (17, 20, 0), (20, 30, -1), (30, 35, 0), (35, 40, -1)]


def test_a_synchronization_that_began_in_the_window_frees_its_streams():
    rows = joined((7, 30, 35))
    [span] = spans(rows, {7}, window(0, 40, launches=1), sync(device_time.CONTEXT_SYNC, 2, 5))
    assert pieces(span)[0] == (5, 30, -1)
    [span] = spans(rows, {7, 8}, window(0, 40, launches=1), sync(device_time.CONTEXT_SYNC, 2, 5))
    assert span.begin[0] == 5
    assert spans(rows, {7, 8}, window(0, 40, launches=1), sync(device_time.STREAM_SYNC, 2, 5, stream=7)) == []
    [span] = spans(rows, {7}, window(3, 40, launches=1), sync(device_time.CONTEXT_SYNC, 2, 5))  # began before it
    assert span.begin[0] == 30


def test_windows_that_lost_something_say_nothing():
    assert spans(joined((7, 10, 20)), {7}, window(0, 40, lossy=True)) == []


def test_classes_and_what_counts_where_several_run():
    rows = joined((7, 0, 10), (7, 10, 30), (8, 20, 50), (9, 40, 60))
    span = device_time.partition(0, 0, 70, rows.start, rows.end, np.array([0, 1, 2, 0]), np.arange(4))
    assert pieces(span) == [(0, 10, 0), (10, 20, 1), (20, 30, 1), (30, 40, 2), (40, 50, 0), (50, 60, 0), (60, 70, -1)]
    totals = device_time.per_second(span, SECOND - 35)
    assert totals[0].tolist() == [10, 20, 5, 0] and totals[SECOND].tolist() == [20, 0, 5, 10]
    assert device_time.CLASSES == CATEGORIES


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_idle_is_never_asserted_while_a_kernel_ran(streams):
    """Random schedules in order on each stream, queues of up to 400 ms; what windows see of them, against all of them."""
    random = np.random.default_rng(streams)
    asserted = checked = 0
    for _ in range(60):
        operations = []
        for stream in range(streams):
            launch = np.sort(random.integers(0, 5 * SECOND, 150))
            duration = (random.lognormal(0, 1, 150) * 5 * MS).astype(np.int64)
            ready, before = launch + random.integers(0, 400 * MS), np.cumsum(duration) - duration
            start = np.maximum.accumulate(ready - before) + before
            operations += list(zip([stream] * 150, launch, start, start + duration, strict=True))
        stream, launch, start, end = (np.array(column, np.int64) for column in zip(*operations, strict=True))
        for begin in range(int(random.integers(0, SECOND)), 5 * SECOND, SECOND):
            seen = (launch >= begin) & (launch < begin + 100 * MS)
            if not seen.any():
                continue
            rows = joined(*zip(stream[seen], start[seen], end[seen], strict=True))
            for span in spans(rows, set(range(streams)), window(begin, begin + 100 * MS, launches=int(seen.sum()))):
                for a, b, kind in pieces(span):
                    overlap = np.maximum(0, np.minimum(end, b) - np.maximum(start, a)).sum()
                    assert (overlap == 0) == (kind < 0)
                    asserted += kind < 0
                    checked += 1
    assert checked > 50 and asserted >= 5
