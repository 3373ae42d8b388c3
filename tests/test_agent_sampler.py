# SPDX-License-Identifier: Apache-2.0
"""Interning, window cutting and books of the core without BPF: records made here, fed through gs_core_feed, against a
plain Python twin."""

from __future__ import annotations

import ctypes
import os
import random
import struct
import threading
import time
from collections import Counter

import pytest
from gpustrobe.agent.errors import KernelProblem, UsageError
from gpustrobe.agent.handover import parent
from gpustrobe.agent.model import RawFrame, RawKind
from gpustrobe.agent.sampler import Sampler, SamplerOptions, option_flags, problem
from gpustrobe.bpf import loader
from hypothesis import given, settings
from hypothesis import strategies as st

HEADER = struct.Struct("<QQQQII16sHHHH")  # struct gs_sample
NATIVE, PYTHON, END, GUESSED, RAW_GUESSED = (kind << 60 for kind in (1, 2, 3, 4, 5))
KERNEL = 0xFFFF_FFFF_8100_0000
HINT = 8


def native(file_id: int, offset: int) -> int:
    return NATIVE | file_id << 40 | offset


def record(
    user: list[int],
    kernel: list[int] = (),
    pid: int = 10,
    tid: int = 0,
    comm: bytes = b"a",
    value: int = 1,
    start: int = 1,
    **over: int,
) -> bytes:
    words = [*kernel, *user]
    n_kernel, n_user = over.get("n_kernel", len(kernel)), over.get("n_user", len(user))
    head = HEADER.pack(5, start, 7, value, pid, tid or pid, comm, 0, n_kernel, n_user, over.get("flags", 0))
    return head + struct.pack(f"<{len(words)}Q", *words)


def core(**options: int) -> Sampler:
    sampler = Sampler(SamplerOptions(flags=loader.NO_KERNEL, bpf_stats=False, **options))
    sampler.open()
    return sampler


def one(records: list[bytes], **options: int):
    sampler = core(**options)
    for data in records:
        sampler.feed(data)
    sampler.cut()
    window = sampler.take(0)
    sampler.close()
    return window


def closes(books) -> bool:
    return books.produced == books.idle + books.filtered + books.delivered + sum(books.drops.values())


def test_header_is_64_bytes():
    assert HEADER.size == 64  # asserted at the end of bpf/sample.h as well


def test_words_become_frames():
    words = [
        native(3, 0x1234),
        PYTHON | 0x7F00_0000_1000,
        7 << 32 | 9,
        GUESSED | 4 << 40 | 8,
        0x5555_0000,
        RAW_GUESSED | 16,
        END | 1,
    ]
    window = one([record(words, kernel=[KERNEL, KERNEL + 100])])
    assert window.frames == [
        RawFrame(RawKind.KERNEL, 0, KERNEL),
        RawFrame(RawKind.KERNEL, 0, KERNEL + 99),  # a return address: the call's own byte
        RawFrame(RawKind.NATIVE, 3, 0x1234),
        RawFrame(RawKind.PYTHON, 0, 0x7F00_0000_1000, 9),  # no code object to be read: line 0, the check stays
        RawFrame(RawKind.GUESSED, 4, 8),
        RawFrame(RawKind.RAW, 0, 0x5555_0000),
        RawFrame(RawKind.RAW_GUESSED, 0, 16),
        RawFrame(RawKind.END, 0, 1),
    ]
    assert window.stacks == [tuple(range(8))]
    assert (window.processes[0].pid, window.processes[0].comm, window.processes[0].cgroup_id) == (10, "a", 7)


def test_equal_stacks_are_one_row_and_threads_keep_apart():
    window = one(
        [
            record([native(1, 1)]),
            record([native(1, 1)], value=5),
            record([native(1, 1)], tid=11),
            record([native(1, 2)]),
        ]
    )
    assert list(zip(window.stack.tolist(), window.thread.tolist(), window.value.tolist(), strict=True)) == [
        (0, 0, 6),
        (0, 1, 1),
        (1, 0, 1),
    ]
    assert [(t.tid, t.process_id) for t in window.threads] == [(10, 0), (11, 0)]
    assert window.books.delivered == 4


def test_a_reused_pid_is_another_process():
    window = one([record([1], comm=b"old"), record([1], comm=b"new", start=2)])
    assert [(p.process_id, p.pid, p.start_boottime, p.comm) for p in window.processes] == [
        (0, 10, 1, "old"),
        (1, 10, 2, "new"),
    ]
    assert [t.process_id for t in window.threads] == [0, 1]
    assert [frame.owner for frame in window.frames] == [0, 1]  # a raw address belongs to its process


def test_exec_goes_on_under_another_name():
    window = one([record([1], comm=b"bash"), record([1], comm=b"python3"), record([1], tid=12, comm=b"worker")])
    assert [(p.process_id, p.comm) for p in window.processes] == [(0, "bash"), (1, "python3")]
    assert [(t.process_id, t.comm) for t in window.threads] == [(0, "bash"), (1, "python3"), (1, "worker")]


def test_only_what_is_new_comes_along():
    sampler = core()
    sampler.feed(record([native(1, 1), native(1, 2)]))
    sampler.cut()
    first = sampler.take(0)
    sampler.feed(record([native(1, 1), native(1, 2)]))
    sampler.feed(record([native(1, 3), native(1, 2)]))
    sampler.cut()
    second = sampler.take(0)
    assert (first.first_frame, len(first.frames), first.first_stack, first.stacks) == (0, 2, 0, [(0, 1)])
    assert (second.first_frame, len(second.frames), second.first_stack, second.stacks) == (2, 1, 1, [(2, 1)])
    assert (second.processes, second.threads) == ([], [])
    assert second.stack.tolist() == [0, 1]
    assert first.epoch == second.epoch
    sampler.close()


def test_a_full_table_drops_by_name_and_starts_an_epoch():
    sampler = core(max_stacks=256)
    for i in range(300):
        sampler.feed(record([native(1, i)]))
    sampler.cut()
    full = sampler.take(0)
    assert (full.books.delivered, full.books.drops["stack_table_full"], len(full.stacks)) == (256, 44, 256)
    assert closes(full.books)
    sampler.feed(record([native(1, 299)]))
    sampler.cut()
    after = sampler.take(0)
    assert (after.epoch, after.first_frame, after.first_stack, after.stacks) == (full.epoch + 1, 0, 0, [(0,)])
    assert [p.process_id for p in after.processes] == [0]
    sampler.close()


def test_a_full_window_drops_by_name():
    window = one([record([native(1, i)]) for i in range(300)], max_rows=256)
    assert (len(window.stack), window.books.drops["window_full"], window.books.delivered) == (256, 44, 256)
    assert closes(window.books)


def test_windows_nobody_takes_are_window_late_and_names_survive():
    sampler = core(max_windows=3)
    for i in range(5):
        sampler.feed(record([native(1, i)], value=1))
        sampler.cut()
    windows = [sampler.take(0) for _ in range(3)]
    assert sampler.take(0) is None
    assert [w.books.drops["window_late"] for w in windows] == [2, 0, 0]
    assert all(closes(w.books) for w in windows)
    assert sum(w.books.produced for w in windows) == 5
    assert sum(w.books.delivered for w in windows) == 3
    frames = [frame for w in windows for frame in w.frames]
    assert [frame.address for frame in frames] == [0, 1, 2, 3, 4]  # new frames of lost windows come with the next
    assert windows[0].stack.tolist() == [2]
    sampler.close()


def test_epochs_that_wait_are_bounded():
    sampler = core(max_stacks=256, max_windows=100)
    for epoch in range(20):
        for i in range(256):
            sampler.feed(record([native(1, epoch * 1000 + i)]))
        sampler.cut()
    windows = []
    while (window := sampler.take(0)) is not None:
        windows.append(window)
    assert len({w.epoch for w in windows}) == 3
    assert sum(w.books.drops["window_late"] for w in windows) == 17 * 256
    assert sum(w.books.produced for w in windows) == 20 * 256
    sampler.close()


BAD = {
    "empty": b"",
    "short": record([1])[:63],
    "no words": record([]) + b"1234567",
    "n_user too large": record([1], n_user=60000),
    "n_kernel too large": record([1], n_kernel=200, n_user=0),
    "more words than said": record([1, 2], n_user=1),
    "fewer words than said": record([1, 2], n_user=3),
    "unknown kind": record([9 << 60]),
    "kernel word among user words": record([KERNEL]),
    "python word without its second": record([PYTHON | 1]),
    "end not last": record([END | 1, 5]),
    "hint missing": record([1], flags=HINT),
    "value 0": record([1], value=0),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_records_are_counted_and_nothing_else(name):
    good = record([native(1, 1)])
    window = one([good, BAD[name], good])
    assert (window.books.drops["bad_record"], window.books.delivered, window.value.tolist()) == (1, 2, [2])
    assert closes(window.books)


@given(st.lists(st.binary(max_size=400), max_size=20))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_counted_or_delivered(blobs):
    window = one(blobs)
    assert window.books.produced == len(blobs)
    assert closes(window.books)


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2**64 - 1), max_size=12), st.integers(0, 13), st.integers(0, 13), st.integers(0, 31)
        ),
        max_size=10,
    )
)
@settings(max_examples=200, deadline=None)
def test_hostile_headers_and_words(rows):
    sampler = core()
    for words, n_kernel, n_user, flags in rows:
        sampler.feed(record(words, n_kernel=n_kernel, n_user=n_user, flags=flags))
    sampler.cut()
    window = sampler.take(0)
    sampler.close()
    assert window.books.produced == len(rows)
    assert closes(window.books)
    assert all(0 <= frame < len(window.frames) for stack in window.stacks for frame in stack)


def twin(records: list[tuple[int, int, tuple[int, ...]]]) -> Counter:
    return Counter((pid, tid, words) for pid, tid, words in records)


def test_against_a_plain_python_twin():
    """5,000 random samples in three windows, tables growing and ids kept between windows."""
    rng = random.Random(3)
    sampler = core()
    frames, stacks, threads, processes = [], [], [], []
    for _ in range(3):
        rows = []
        for _ in range(5000):
            pid = rng.randrange(1, 20)
            words = tuple(native(rng.randrange(1, 9), rng.randrange(300)) for _ in range(rng.randrange(1, 6)))
            rows.append((pid, pid * 100 + rng.randrange(3), words))
        for pid, tid, words in rows:
            sampler.feed(record(list(words), pid=pid, tid=tid))
        sampler.cut()
        window = sampler.take(0)
        frames += window.frames
        stacks += window.stacks
        threads += window.threads
        processes += window.processes
        got = Counter()
        for stack, thread, value in zip(window.stack, window.thread, window.value, strict=True):
            words = tuple(native(frames[i].owner, frames[i].address) for i in stacks[stack])
            got[processes[threads[thread].process_id].pid, threads[thread].tid, words] += int(value)
        assert got == twin(rows)
        assert window.books.delivered == 5000
    assert len(set(stacks)) == len(stacks)
    assert len(set(frames)) == len(frames)
    sampler.close()


def test_take_waits_without_the_gil():
    sampler = core()
    counted = 0
    done = threading.Event()

    def count() -> None:
        nonlocal counted
        while not done.is_set():
            counted += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    before = time.monotonic()
    assert sampler.take(0.3) is None
    waited = time.monotonic() - before
    done.set()
    thread.join()
    sampler.close()
    assert waited >= 0.29
    assert counted > 20


def test_window_times():
    sampler = core()
    before = time.time_ns()
    now = time.monotonic_ns()
    sampler.cut(now + 100_000_000)
    window = sampler.take(0)
    assert abs(window.start_unix - before) < 500_000_000
    assert 50_000_000 < window.duration < 200_000_000
    assert window.period == 9_973_013
    sampler.close()


def test_options_that_make_no_sense():
    with pytest.raises(UsageError, match="between 1 and 20000"):
        Sampler(SamplerOptions(hz=0))
    with pytest.raises(UsageError, match="between 1 and 20000"):
        Sampler(SamplerOptions(hz=100_000))
    assert (
        option_flags(SamplerOptions(pids=(1,))) & (loader.FILTER | loader.CHILDREN) == loader.FILTER | loader.CHILDREN
    )
    assert not option_flags(SamplerOptions()) & (loader.FILTER | loader.CHILDREN)


def test_each_fault_is_a_sentence_with_a_fix():
    for i, name in enumerate(loader.FAULTS):
        error = problem(loader.Error(fault=i, text=b"the kernel said so"))
        assert "the kernel said so" in str(error), name
        if name not in ("none", "argument", "memory", "thread"):
            assert isinstance(error, KernelProblem)
            assert error.fix
            assert error.exit_code == 3


def test_parent_of_a_hostile_name():
    assert parent(b"12 (a) R 99 b) S 34 1 1") == 34
    assert parent(b"") == 0


def test_stop_from_another_thread_ends_a_take():
    sampler = core()
    taken = []
    thread = threading.Thread(target=lambda: taken.append(sampler.take(10)))
    asking = threading.Thread(target=lambda: [sampler.counters() for _ in range(2000)])
    thread.start()
    asking.start()
    time.sleep(0.05)
    sampler.feed(record([1]))
    assert sampler.stop() == []  # nothing was cut
    thread.join(2)
    asking.join(5)
    assert taken == [None]
    assert sampler.counters()["bytes"] == 72


def test_stopped_sampler_has_no_windows():
    sampler = core()
    sampler.feed(record([1]))
    sampler.cut()
    assert len(sampler.stop()) == 1
    assert sampler.take(0) is None
    assert sampler.stop() == []
    assert sampler.counters()["delivered"] == 1


def test_options_of_another_build_are_refused():
    error = loader.Error()
    options = loader.Options(
        size=ctypes.sizeof(loader.Options) - 4, hz=100, flags=loader.NO_KERNEL, proc_root=os.fsencode("/proc")
    )
    assert not loader.library().gs_core_open(options, error)
    assert loader.FAULTS[error.fault] == "argument"
