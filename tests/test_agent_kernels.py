# SPDX-License-Identifier: Apache-2.0
"""Draining the ring: order, wrap, gaps, two agents, restart; and bytes of every kind of malice."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from gpustrobe.agent import kernels
from gpustrobe.agent.kernels import Refused, Ring, Wish
from gpustrobe.cupti import ring

from tests.ring_writer import RingWriter

SECOND = 1_000_000_000


@pytest.fixture
def writer():
    made = RingWriter()
    yield made
    made.close()


@pytest.fixture
def reader(writer):
    opened = Ring(reopened(writer))
    yield opened
    opened.close()


def reopened(writer: RingWriter) -> int:
    """A description of its own, as opening /proc/PID/fd/N gives: locks belong to descriptions."""
    return os.open(f"/proc/self/fd/{writer.fd}", os.O_RDWR | os.O_CLOEXEC)


def correlations(records: np.ndarray) -> list[int]:
    return records.view(ring.LAUNCH)["correlation"].ravel().tolist()


def launches(numbers: range) -> np.ndarray:
    rows = np.zeros(len(numbers), ring.LAUNCH)
    rows["type"], rows["correlation"] = ring.Record.LAUNCH, list(numbers)
    return rows


def test_records_come_once_and_in_order_across_the_ends_of_the_ring(writer, reader):
    seen, put = [], 0
    for size in (1, 200, 256, 3, 255, 256, 0, 17):
        writer.put_rows(launches(range(put, put + size)))
        put += size
        seen += correlations(reader.drain(0))
    assert seen == list(range(put))
    assert int(writer.tail[0]) == put


def test_an_uncommitted_record_holds_back_the_rest_until_it_is_there(writer, reader):
    first = writer.put(ring.Record.LAUNCH, commit=False, correlation=1)
    writer.put(ring.Record.LAUNCH, correlation=2)
    assert reader.drain(0).shape[0] == 0 and int(writer.tail[0]) == 0
    writer.commit(first)
    assert correlations(reader.drain(0)) == [1, 2]


def test_a_record_whose_writer_died_is_skipped_and_counted(writer, reader):
    writer.put(ring.Record.LAUNCH, commit=False, correlation=1)
    writer.put(ring.Record.LAUNCH, correlation=2)
    reader.drain(0)
    reader.drain(5 * SECOND)
    assert reader.skipped == 0
    reader.drain(11 * SECOND)
    assert correlations(reader.drain(11 * SECOND)) == [2] and reader.skipped == 1
    writer.put(ring.Record.LAUNCH, commit=False)
    reader.drain(12 * SECOND, gone=True)
    assert reader.skipped == 2


def test_a_stale_commit_of_an_earlier_round_is_not_a_commit(writer, reader):
    writer.put_rows(launches(range(256)))
    reader.drain(0)
    writer.head[0] += 5  # numbers given, nothing written
    assert reader.drain(0).shape[0] == 0


def test_numbers_past_32_bits():
    writer = RingWriter(slots=64)
    writer.head[0] = writer.tail[0] = (1 << 32) - 10
    reader = Ring(reopened(writer))
    writer.put_rows(launches(range(30)))
    assert correlations(reader.drain(0)) == list(range(30))
    reader.close()
    writer.close()


def test_while_a_thread_writes_nothing_is_lost_or_torn(writer, reader):
    total = 20_000
    stop = threading.Event()

    def produce() -> None:
        put = 0
        while put < total and not stop.is_set():
            room = min(writer.slots - (put - int(writer.tail[0])), total - put, 37)
            if room > 0:
                writer.put_rows(launches(range(put, put + room)))
                put += room

    thread = threading.Thread(target=produce)
    thread.start()
    seen: list[int] = []
    try:
        while (len(seen) < total and thread.is_alive()) or reader.waiting:
            seen += correlations(reader.drain(0))
    finally:
        stop.set()
        thread.join()
    assert seen == list(range(total))


def test_a_second_agent_stands_back_and_goes_on_where_the_first_ended(writer):
    first = Ring(reopened(writer))
    writer.put_rows(launches(range(3)))
    with pytest.raises(Refused, match="another agent"):
        Ring(reopened(writer))
    assert correlations(first.drain(0)) == [0, 1, 2]
    writer.put_rows(launches(range(3, 5)))
    first.close()
    second = Ring(reopened(writer))
    assert correlations(second.drain(0)) == [3, 4]
    second.close()


def test_wishes_are_whole_and_heard(writer, reader):
    before = int(writer.agent["wake"][0])
    reader.wish(Wish(mode=ring.Mode.WINDOWS, window_ns=100, period_ns=1000, probability=77, counting=1, seed=5))
    agent = writer.agent[0]
    assert agent["config_sequence"] % 2 == 0 and agent["config_sequence"] > 0
    assert (agent["mode"], agent["window_ns"], agent["period_ns"], agent["probability"]) == (2, 100, 1000, 77)
    assert agent["wake"] == before + 1 and agent["agent_pid"] == os.getpid()
    reader.beat(123)
    assert writer.agent["heartbeat"][0] == 123


def test_names_and_shapes(writer, reader):
    name = writer.string("_Z6kernelPf")
    shape = writer.shape("ncclKernel", grid=(8, 2, 1), registers=40, shared=1024)
    assert reader.text(name) == "_Z6kernelPf"
    found = reader.shape(shape)
    assert (found.name, found.grid, found.registers, found.shared) == ("ncclKernel", (8, 2, 1), 40, 1024)
    assert reader.shape(name) is None and reader.text(shape) == ""  # one is not the other
    assert reader.text(0) == "" and reader.shape(12) is None and reader.text(1 << 31) == ""


@pytest.mark.parametrize(
    "layout",
    [
        {"magic": 1}, {"version": 2}, {"total_size": 1 << 40}, {"control_size": 64}, {"ring_slots": 0},
        {"ring_slots": 255}, {"ring_slots": 1 << 31}, {"ring_offset": 0}, {"ring_offset": 4097},
        {"ring_offset": 1 << 60}, {"arena_offset": 8}, {"arena_size": 1 << 62}, {"arena_offset": (1 << 64) - 8},
        {"counters_offset": 512}, {"counters_offset": 4090}, {"record_size": 128},
    ],
    ids=str,
)  # fmt: skip
def test_a_lying_layout_is_refused(layout):
    writer = RingWriter(**layout)
    with pytest.raises(Refused):
        Ring(reopened(writer))
    writer.close()


def test_an_unsealed_file_is_refused():
    writer = RingWriter(seal=False)
    with pytest.raises(Refused, match="sealed"):
        Ring(reopened(writer))
    writer.close()


def test_counters_that_cannot_be_end_the_reading(writer, reader):
    writer.head[0] = 1 << 63
    with pytest.raises(Refused):
        reader.drain(0)
    with pytest.raises(Refused):
        reader.drain(0)


def test_any_bytes_at_all_lead_to_refusal_or_records_never_further():
    """Layout valid, everything else random, again and again while it is read."""
    random = np.random.default_rng(11)
    for _ in range(30):
        writer = RingWriter(slots=64, arena=4096)
        writer.data[ring.AGENT_OFFSET :] = random.integers(0, 256, writer.data.size - ring.AGENT_OFFSET, np.uint8)
        reader = Ring(reopened(writer))
        for _ in range(10):
            writer.head[0] = int(writer.tail[0]) + int(random.integers(0, 70))
            try:
                records = reader.drain(0, gone=True)
            except Refused:
                break
            assert records.shape[0] <= 64
        for place in [*range(0, 4200, 4), *random.integers(0, 1 << 32, 50).tolist()]:
            reader.text(int(place))
            reader.shape(int(place))
        said = reader.library()
        assert said.state and isinstance(said.reason, str) and said.reason.isprintable()
        reader.close()
        writer.close()


def test_names_that_overlap_do_not_fill_our_memory():
    writer = RingWriter(slots=64, arena=1 << 20)
    reader = Ring(reopened(writer))
    arena = writer.data[writer.arena_offset :].view("<u4")
    arena[0::2], arena[1::2] = 32776, 1  # every 8 bytes a string of 32 KiB: size, type; length and hash of the next
    arena[2::4] = 32760
    for place in range(8, 1 << 14, 8):
        reader.text(place)
    del arena
    assert 0 < sum(map(len, reader._texts.values())) <= kernels.KEPT_TEXT
    reader.close()
    writer.close()


def test_found_in_a_process_by_its_name(writer):
    found = [path for path in kernels.find(os.getpid()) if path.name == str(writer.fd)]
    assert len(found) == 1
    opened = kernels.open_ring(os.getpid(), found[0])
    opened.close()
    assert list(kernels.find(0)) == []


def test_an_inherited_ring_is_not_the_childs():
    writer = RingWriter(pid=os.getpid() + 1)
    with pytest.raises(Refused, match="another process"):
        kernels.open_ring(os.getpid(), next(p for p in kernels.find(os.getpid()) if p.name == str(writer.fd)))
    writer.close()
