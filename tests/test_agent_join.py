# SPDX-License-Identifier: Apache-2.0
"""Activities joined with launches and windows: everything once, whole, in its second, however late; lies are counted."""

from __future__ import annotations

import numpy as np
import pytest
from gpustrobe.agent.join import GRACE, RETENTION, SECOND, ProcessRecords
from gpustrobe.agent.kernels import Ring
from gpustrobe.cupti import ring

from tests import gpu_schedule
from tests.gpu_schedule import AHEAD, MS, Schedule
from tests.ring_writer import RingWriter
from tests.test_agent_kernels import reopened


def schedule(random: np.random.Generator, seconds: int, step: int = 250 * MS, delay: int = 400 * MS) -> Schedule:
    steps, per_step = int(seconds * SECOND / step), 60
    offset = np.sort(random.integers(0, int(0.6 * step), per_step))
    launch = (5 * SECOND + np.arange(steps)[:, None] * step + offset).ravel()
    name = np.tile(np.arange(per_step) * 6 // per_step, steps)
    duration = (np.array([50, 300, 20, 900, 5, 120])[name] * 1000 * random.lognormal(0, 0.1, name.size)).astype(
        np.int64
    )
    start, end = gpu_schedule.in_order(launch, duration, delay)
    zero = np.zeros(launch.size, np.int64)
    names = ("gemm", "softmax", "add", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)", "fill", "norm")
    return Schedule(launch, start, end, name, names, zero + 7, zero + 4321, name % 3)


def joined(schedule, random, seconds, **how):
    """All batches of a run, one a second of simulated time, and the writer's windows."""
    writer = RingWriter(slots=1024, arena=1 << 18)
    reader = Ring(reopened(writer))
    records, batches = ProcessRecords(), []
    written = gpu_schedule.write(writer, schedule, random, seconds, flush=lambda: records.add(reader.drain(0)), **how)
    records.add(reader.drain(0))
    now = 5 * SECOND + int(seconds * SECOND) + 3 * SECOND
    batches.append(records.take(now))
    batches.append(records.take(now + 5 * SECOND, last=True))
    reader.close()
    writer.close()
    return batches, written, records


def test_every_launch_of_a_window_is_there_once_and_whole():
    random = np.random.default_rng(1)
    plan = schedule(random, 32)
    batches, written, records = joined(plan, random, 30)
    rows = [batch.joined for batch in batches]
    correlation = np.concatenate([row.correlation for row in rows])
    assert sorted(correlation.tolist()) == sorted(
        np.repeat(np.arange(1, plan.launch.size + 1), written.covered).tolist()
    )
    start, end = (np.concatenate([getattr(row, name) for row in rows]) for name in ("start", "end"))
    assert np.abs(start - plan.start[correlation - 1]).max() <= 1 and np.abs(end - plan.end[correlation - 1]).max() <= 1
    launch, tid = (np.concatenate([getattr(row, name) for row in rows]) for name in ("launch", "tid"))
    assert (launch == plan.launch[correlation - 1]).all() and (tid == 4321).all()
    assert (np.concatenate([row.weight for row in rows]) == 10).all()
    first = np.concatenate([row.first for row in rows])
    assert first.sum() == (written.covered > 0).sum()
    assert not {name: lost for name, lost in records.lost.items() if lost}


def test_each_window_has_a_second_of_its_own():
    random = np.random.default_rng(2)
    batches, written, _ = joined(schedule(random, 32), random, 30)
    windows = [window for batch in batches for window in batch.windows]
    assert [w.id for w in windows] == [number for number, _, _ in written.windows]
    second = np.concatenate([batch.joined.second for batch in batches])
    assert (second % SECOND == 0).all()
    slots = [(w.slot + w.unix_minus_mono) // SECOND for w in windows]
    assert len(set(slots)) == len(windows) and (np.diff(slots) == 1).all()
    assert all(abs(w.slot - w.begin) <= SECOND for w in windows)
    assert all(batch.seconds[at] == (pytest.approx(0.1), False) for batch in batches for at in batch.seconds)


def test_a_clock_that_drifts_is_followed():
    random = np.random.default_rng(3)
    plan = schedule(random, 32)
    batches, _, _ = joined(plan, random, 30, drift=2e-5)  # 20 ppm: 600 us in 30 s
    rows = batches[0].joined
    assert np.abs(rows.start - plan.start[rows.correlation - 1]).max() < 30_000


def test_counted_launches_make_weights_exact():
    random = np.random.default_rng(4)
    plan = schedule(random, 34)
    batches, written, records = joined(plan, random, 30, counted=True)
    names = {key[1]: plan.names[at] for at, key in enumerate(sorted(records._counts))}
    weight = np.concatenate([batch.joined.weight for batch in batches])
    correlation = np.concatenate([batch.joined.correlation for batch in batches])
    kernel = plan.name[correlation - 1]
    begin, end = written.windows[0][1], written.windows[-1][1]
    for name in range(6):
        exact = ((plan.name == name) & (plan.launch >= begin) & (plan.launch < end)).sum()
        carried = sum(count for key, count in records._carried.items() if plan.names[name] == names[key[1]])
        assert weight[kernel == name].sum() + carried == pytest.approx(exact, rel=0.02)
    assert any(counted for batch in batches for _, counted in batch.seconds.values())


def test_windows_that_stand_for_themselves_are_cut_into_seconds():
    random = np.random.default_rng(5)
    plan = schedule(random, 12)
    batches, _, _ = joined(plan, random, 10, width=5 * SECOND, period=5 * SECOND)
    rows = batches[0].joined
    assert (rows.weight == 1).all() and (rows.length == SECOND).all()
    assert (rows.second == (rows.launch + AHEAD) // SECOND * SECOND).all()


def feed(records: ProcessRecords, type_: ring.Record, **fields) -> None:
    row = np.zeros(1, ring.RECORDS[type_])
    row["type"] = type_
    for name, value in fields.items():
        row[name] = value
    records.add(row.view(np.uint8).reshape(1, 64).copy())


def window(records: ProcessRecords, number: int = 1, begin: int = 5 * SECOND, **fields) -> None:
    values = {"end": begin + 100 * MS, "width_us": 100_000, "period_us": 1_000_000, "cupti_minus_mono": AHEAD}
    feed(records, ring.Record.WINDOW, id=number, begin=begin, unix_minus_mono=AHEAD, **{**values, **fields})


def kernel(records: ProcessRecords, correlation: int, begun: int, number: int = 1, **fields) -> None:
    values = {"start": AHEAD + begun, "end": AHEAD + begun + MS, "correlation": correlation, "window": number}
    feed(records, ring.Record.KERNEL, **{"flags": 1 << 4, **values, **fields})


def test_a_record_that_comes_a_minute_late_finds_its_launch():
    records = ProcessRecords()
    window(records)
    feed(records, ring.Record.LAUNCH, time=5 * SECOND + MS, correlation=9, tid=77, window=1, weight=1 << 16)
    assert len(records.take(10 * SECOND).joined) == 0
    kernel(records, 9, 64 * SECOND)
    rows = records.take(66 * SECOND).joined
    assert rows.tid.tolist() == [77] and rows.stack_weight.tolist() == [1.0]
    assert rows.second.tolist() == [(5 * SECOND + AHEAD) // SECOND * SECOND]


def test_records_wait_until_their_window_has_closed_and_stacks_have_come():
    records = ProcessRecords()
    window(records, end=0, flags=ring.WindowFlag.OPEN)
    kernel(records, 9, 5 * SECOND)
    assert len(records.take(6 * SECOND).joined) == 0
    window(records)
    assert len(records.take(5 * SECOND + 100 * MS + GRACE).joined) == 0
    batch = records.take(5 * SECOND + 100 * MS + GRACE + 1)
    assert len(batch.joined) == 1 and [w.id for w in batch.windows] == [1]
    assert len(records.take(30 * SECOND).joined) == 0  # once


def test_a_window_that_closed_early_weighs_more():
    records = ProcessRecords()
    window(records, end=5 * SECOND + 50 * MS)
    kernel(records, 9, 5 * SECOND)
    assert records.take(20 * SECOND).joined.weight.tolist() == [20.0]


def test_a_launch_in_two_windows_that_stand_for_themselves_counts_once():
    records = ProcessRecords()
    for number, begin in ((1, 5 * SECOND), (2, 6 * SECOND - MS)):
        window(records, number=number, begin=begin, end=begin + SECOND, width_us=1_000_000)
    window(records, number=3, begin=6 * SECOND)
    kernel(records, 1, 6 * SECOND - MS, number=2, flags=2 << 4)
    kernel(records, 2, 6 * SECOND + MS, number=3, flags=2 << 4)
    rows = records.take(20 * SECOND).joined
    for correlation in (1, 2):
        assert rows.weight[rows.correlation == correlation].sum() == 1


def test_what_cannot_be_joined_is_counted():
    records = ProcessRecords()
    window(records)
    window(records, number=2, begin=0)
    window(records, number=3, end=4 * SECOND)
    window(records, number=4, flags=ring.WindowFlag.CLOCK_STEP)
    kernel(records, 1, 5 * SECOND, number=99)
    kernel(records, 2, 5 * SECOND, start=AHEAD + 2, end=AHEAD + 1)
    kernel(records, 3, 5 * SECOND, end=1 << 63)
    feed(records, ring.Record.COUNT, call=1, time=1, since=5, function=8)
    junk = np.zeros((1, 64), np.uint8)
    junk[0, 4] = 200
    records.add(junk)
    records.take(20 * SECOND)
    batch = records.take(20 * SECOND + RETENTION, last=True)
    assert len(batch.joined) == 0
    assert {name: count for name, count in records.lost.items() if count} == {
        "bad_window": 2, "clock_step": 1, "no_window": 1, "bad_time": 2, "bad_count": 1, "unknown_record": 1,
    }  # fmt: skip


def test_random_records_are_survived():
    random = np.random.default_rng(6)
    records = ProcessRecords()
    for round_ in range(60):
        rows = random.integers(0, 256, (200, 64), np.uint8)
        rows[:, 4] = random.integers(0, 14, 200)
        if round_ % 2:  # small numbers meet each other
            rows[:, 5] = 0
            rows[:, 9:64] = 0
            rows[:, 56] = random.integers(0, 5, 200)
            rows[:, 16] = 255
        records.add(rows)
        batch = records.take(round_ * SECOND, last=bool(round_ % 3))
        assert np.isfinite(batch.joined.weight).all()


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("gpustrobe.agent.join.MOST_PENDING", 100)
    monkeypatch.setattr("gpustrobe.agent.join.MOST_LAUNCHES", 50)
    records = ProcessRecords()
    for at in range(300):
        kernel(records, at, 5 * SECOND, number=7)
        feed(records, ring.Record.LAUNCH, time=5 * SECOND, correlation=at)
        feed(records, ring.Record.DEVICE, ordinal=at)
    records.take(6 * SECOND)
    assert records._pending.size == 100 and records._launches.size == 50 and len(records.devices) <= 64
    assert records.lost["pending_full"] == 200 and records.lost["launches_full"] == 250
