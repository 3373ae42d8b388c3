# SPDX-License-Identifier: Apache-2.0
"""Where threads wait: known waits in C and Python, kinds, waits that never end, books, budgets; and the core alone."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gpustrobe.agent import sampling
from gpustrobe.agent.handover import close_files
from gpustrobe.agent.model import RawKind
from gpustrobe.agent.sampler import Sampler, SamplerOptions
from gpustrobe.bpf import loader
from gpustrobe.bpf.drops import ENDS

from tests.test_bpf_profile import gone, loaded, programs

TARGETS = Path(__file__).parent / "targets"
ROOT = TARGETS.parent.parent
SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("waits")
    sources = [TARGETS / "waits.c", ROOT / "bench" / "loads" / "pingpong.c", TARGETS / "seventy_thirty.c"]
    for source in sources:
        command = ["gcc", "-O2", "-fomit-frame-pointer", "-pthread", "-o", folder / source.stem, source]
        subprocess.run(command, check=True)
    return folder


@contextmanager
def running(*command: object, **options: object) -> Iterator[subprocess.Popen]:
    child = subprocess.Popen([str(part) for part in command], **options)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


class Named:
    """Windows of one run by what they say: (labels, functions leaf first, ns or samples) of each row, named."""

    def __init__(self, windows, cache: Path) -> None:
        self.windows = windows
        naming = sampling.open_naming(cache)
        for window in windows:
            naming.add(window)
        self.profiles = [profiles for profiles in naming.round()]
        naming.close()

    def rows(self, pid: int, sample_type: str = "off_cpu"):
        for profiles in self.profiles:
            for window in profiles.windows:
                if window.sample_type != sample_type:
                    continue
                for label, stack, value in zip(window.labels, window.stack, window.value, strict=True):
                    labels = profiles.label_sets[label]
                    if labels["pid"] == str(pid):
                        yield window, labels, [frame.name for frame in profiles.stacks[stack]], int(value)

    def waited(self, pid: int, *functions: str) -> float:
        """Seconds in stacks that hold all these functions, in this order from the leaf."""
        total = 0
        for _, _, names, value in self.rows(pid):
            rest = iter(names)
            total += value if all(name in rest for name in functions) else 0
        return total / 1e9

    def books(self, sample_type: str = "off_cpu"):
        return [window.books for window in self.windows if window.sample_type == sample_type]

    def seconds(self) -> float:
        return sum(window.duration for window in self.windows if window.sample_type == "off_cpu") / 1e9


def watch(seconds: float, cache: Path, warm_up: float = 0.0, during: Callable[[], object] = lambda: None, **options):
    """Samples after a time in which unwind tables are made; returns what came, and the counters."""
    sampler = Sampler(SamplerOptions(off_cpu=True, **options))
    sampler.start()
    before = switches()
    warm, windows, skipped = time.monotonic() + warm_up, [], []
    while (left := warm - time.monotonic()) > 0:
        window = sampler.take(left)
        skipped += [window] if window else []
    end = time.monotonic() + seconds
    during()
    while (left := end - time.monotonic()) > 0:
        window = sampler.take(left)
        windows += [window] if window else []
    counters = {**sampler.counters(), "switches": switches() - before}
    tail = sampler.stop()
    named = Named([*skipped, *windows, *tail], cache)
    named.profiles = [drop_first(profiles, {id(window.books) for window in skipped}) for profiles in named.profiles]
    named.windows = [*windows, *tail]
    return named, counters


def drop_first(profiles, books: set[int]):
    from dataclasses import replace

    return replace(profiles, windows=tuple(window for window in profiles.windows if id(window.books) not in books))


@pytest.mark.bpf
def test_known_waits_in_c(built, tmp_path):
    with running(built / "waits", 30) as child:
        time.sleep(0.2)
        seen, _ = watch(3, tmp_path, warm_up=1.5, pids=(child.pid,))
    whole = seen.seconds()
    seventy = seen.waited(child.pid, "rest", "sleep_seventy", "sleeper")
    thirty = seen.waited(child.pid, "rest", "sleep_thirty", "sleeper")
    assert seventy + thirty == pytest.approx(whole, rel=0.05)
    assert seventy / (seventy + thirty) == pytest.approx(0.7, abs=0.03)
    assert seen.waited(child.pid, "wait_for_pipe", "reader") == pytest.approx(whole, rel=0.05)
    locked, rested = seen.waited(child.pid, "wait_for_lock", "contender"), seen.waited(child.pid, "rest", "contender")
    assert locked + rested == pytest.approx(whole, rel=0.08)
    assert locked > 0.35 * whole  # the lock is held four fifths of the time
    assert seen.waited(child.pid, "rest", "holder") == pytest.approx(whole, rel=0.08)


@pytest.mark.bpf
def test_a_wait_that_never_ends_shows_in_every_second(built, tmp_path):
    children = []
    try:
        start = lambda: children.append(subprocess.Popen([built / "waits", "30"]))  # noqa: E731
        seen, _ = watch(4, tmp_path, during=start)
        pid = children[0].pid
    finally:
        for child in children:
            child.kill()
            child.wait()
    values = Counter()
    for window, labels, names, value in seen.rows(pid):
        if "wait_for_ever" in names:
            values[window.start_unix] += value
            assert labels["wait"] == "sleep"
            assert value <= window.duration * 1.01
    whole = [window for window in seen.windows if window.sample_type == "off_cpu"][2:-1]
    assert len(whole) >= 1
    for window in whole:
        assert values[window.start_unix] == pytest.approx(window.duration, rel=0.02)


@pytest.mark.bpf
def test_who_slept_already_shows_with_its_leaf(built, tmp_path):
    with running(built / "waits", 30) as child:
        time.sleep(0.8)
        seen, _ = watch(2.5, tmp_path, pids=(child.pid,))
    asleep = 0
    for _, _, names, value in seen.rows(child.pid):
        if any("epoll_wait" in name for name in names):
            assert names[-1] == dict(ENDS)["asleep_before"] and "wait_for_ever" not in names
            asleep += value
    assert asleep / 1e9 == pytest.approx(seen.seconds(), abs=0.3)


@pytest.mark.bpf
def test_known_waits_in_python(tmp_path):
    with running(sys.executable, TARGETS / "waits.py") as child:
        time.sleep(0.5)
        seen, _ = watch(3, tmp_path, warm_up=2, pids=(child.pid,))
    whole = seen.seconds()
    seventy = seen.waited(child.pid, "nap", "seventy", "sleep_in_turns")
    thirty = seen.waited(child.pid, "nap", "thirty", "sleep_in_turns")
    assert seventy + thirty == pytest.approx(whole, rel=0.06)
    assert seventy / (seventy + thirty) == pytest.approx(0.7, abs=0.04)
    assert seen.waited(child.pid, "get_items") == pytest.approx(whole, rel=0.06)
    assert seen.waited(child.pid, "select", "poll", "<module>") == pytest.approx(whole, rel=0.06)


KINDS = """
import ctypes, os, signal, subprocess, sys, time
cpu = max(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cpu})
for i in range(2):
    if os.fork() == 0:
        import ctypes
        ctypes.CDLL(None).prctl(1, 9)
        while True: pass
stopped = os.fork()
if stopped == 0:
    ctypes.CDLL(None).prctl(1, 9)
    time.sleep(60)
print(stopped, flush=True)
while True:
    os.kill(stopped, signal.SIGSTOP)
    time.sleep(0.3)
    os.kill(stopped, signal.SIGCONT)
    time.sleep(0.3)
"""


@pytest.mark.bpf
def test_kinds_of_waits(tmp_path):
    """Two loops share a CPU; a process is stopped; vfork()'s caller waits uninterruptibly."""
    vfork = tmp_path / "vfork.c"
    vfork.write_text(
        "#include <unistd.h>\nint main(void) { for (;;) if (vfork() == 0) { usleep(200000); _exit(0); } }\n"
    )
    subprocess.run(["gcc", "-O0", "-w", "-o", tmp_path / "vfork", vfork], check=True)
    with (
        running(sys.executable, "-S", "-c", KINDS, stdout=subprocess.PIPE, text=True) as parent,
        running(tmp_path / "vfork") as forking,
    ):
        stopped = int(parent.stdout.readline())
        seen, _ = watch(2.5, tmp_path)
        parent.stdout.close()
        kinds: dict[int, Counter] = {}
        for profiles in seen.profiles:
            for window in profiles.windows:
                for label, value in zip(window.labels, window.value, strict=True):
                    labels = profiles.label_sets[label]
                    assert ("wait" in labels) == (window.sample_type == "off_cpu")
                    if window.sample_type == "off_cpu":
                        kinds.setdefault(int(labels["pid"]), Counter())[labels["wait"]] += int(value)
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    assert kinds[forking.pid]["disk"] / 1e9 == pytest.approx(2.5, abs=0.5)
    assert 0.3 < kinds[stopped]["stopped"] / kinds[stopped].total() < 0.7
    loops = [kinds.get(int(pid), Counter()) for pid in children[:2]]
    assert all(loop["preempted"] > 0.3 * SECOND for loop in loops)
    assert all(loop["sleep"] == 0 for loop in loops)


@pytest.mark.bpf
def test_books_close_beside_the_cpu_sampler(built, tmp_path):
    """Waits and samples at once: both accounts close, both stacks are right."""
    with running(built / "seventy_thirty", 20) as busy, running(built / "waits", 30) as child:
        seen, counters = watch(3, tmp_path, hz=400)
    for sample_type in ("cpu", "off_cpu"):
        books = seen.books(sample_type)
        assert len(books) >= 3
        for book in books:
            assert book.produced == book.idle + book.filtered + book.delivered + sum(book.drops.values())
    drops = sum((Counter(book.drops) for book in seen.books()), Counter())
    assert set(drops) <= {"kernel_skipped"}
    produced = sum(book.produced for book in seen.books())
    assert produced == pytest.approx(counters["switches"], rel=0.05)
    assert drops["kernel_skipped"] < 0.05 * produced
    assert counters["waits_scratch_busy"] == 0
    assert sum(book.drops["scratch_busy"] for book in seen.books("cpu")) == 0
    leaves: Counter[str] = Counter()
    for _, _, names, value in seen.rows(busy.pid, "cpu"):
        leaves[next((name for name in names if name in ("seventy", "thirty")), "?")] += value
    assert leaves["seventy"] / (leaves["seventy"] + leaves["thirty"]) == pytest.approx(0.7, abs=0.08)
    assert leaves["?"] < 0.1 * sum(leaves.values())
    assert seen.waited(child.pid, "wait_for_pipe", "reader") > 0.2 * seen.seconds()  # its unwind tables take a while


def switches() -> int:
    return int(next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("ctxt")).split()[1])


@pytest.mark.bpf
def test_a_storm_of_switches_is_counted_not_walked(built, tmp_path):
    with running(built / "pingpong", 10, stdout=subprocess.DEVNULL):
        seen, counters = watch(2, tmp_path)
    assert counters["off_cpu_runs"] > 50_000
    assert counters["waits_brief"] > 0.8 * counters["off_cpu_runs"]
    cpus = os.cpu_count()
    assert counters["waits_walked"] <= cpus * (256 + 500 * 2.6)
    assert counters["waits_ended"] < 0.1 * counters["off_cpu_runs"]  # hardly a wait reaches 1 ms
    for book in seen.books():
        assert book.produced == book.idle + book.filtered + book.delivered + sum(book.drops.values())
        assert not book.drops["ring_full"]


@pytest.mark.bpf
def test_pid_filter_and_threshold(built, tmp_path):
    with running(built / "waits", 30) as child, running(built / "waits", 30) as other:
        time.sleep(0.2)
        seen, _ = watch(2, tmp_path, pids=(child.pid,), off_cpu_threshold=0.05)
    assert not list(seen.rows(other.pid))
    assert seen.waited(child.pid, "sleeper") == pytest.approx(0.7 * seen.seconds(), rel=0.15)  # 30 ms are too short


@pytest.mark.bpf
def test_kill_9_leaves_nothing_loaded():
    script = (
        "import time\nfrom gpustrobe.agent.sampler import *\n"
        "s = Sampler(SamplerOptions(off_cpu=True))\ns.start()\nprint('on', flush=True)\ntime.sleep(60)"
    )
    with running(sys.executable, "-c", script, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "on\n"
        ids = programs(child.pid)
        assert len(ids) >= 6  # profile, walk, guess, and their off-CPU kin
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert gone(ids) and not any(loaded(program) for program in ids)


@pytest.mark.bpf
def test_record_writes_waits(built, tmp_path):
    out = tmp_path / "waits.collapsed"
    with running(built / "waits", 30) as child:
        time.sleep(0.3)
        command = [
            Path(sys.executable).with_name("gpustrobe"),
            "record",
            "--off-cpu",
            "-p",
            child.pid,
            "-d",
            "2",
            "-o",
            out,
        ]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "s of waiting in" in done.stderr
    lines = [line.rsplit(" ", 1) for line in out.read_text().splitlines()]
    pipe = sum(int(value) for stack, value in lines if "wait_for_pipe" in stack)
    assert pipe / 1e9 == pytest.approx(2, rel=0.25)


# The core alone, fed with records


WAIT, WAIT_END = 32, 64
KIND = {name: number for number, name in enumerate(loader.WAITS)}


def record(
    flags: int,
    words: tuple[int, ...] = (),
    since: int = 100,
    time_ns: int = 0,
    site: int = 7,
    kind="sleep",
    tid: int = 5,
) -> bytes:
    head = struct.pack(
        "<4Q2I16s4H", time_ns, 1000, 0, max(1, time_ns - since), 5, tid, b"waiter", 0, 0, len(words), flags
    )
    tail = struct.pack("<QIBBH", since, site, KIND[kind], 1, 0)
    return head + struct.pack(f"<{len(words)}Q", *words) + tail


@contextmanager
def core() -> Iterator[Callable[..., tuple]]:
    """feed(*records) -> the off-CPU window that they make."""
    sampler = Sampler(SamplerOptions(off_cpu=True, flags=loader.NO_KERNEL))
    sampler.open()
    clock = time.monotonic_ns()

    def feed(*records: bytes):
        nonlocal clock
        for data in records:
            sampler.feed(data)
        clock += SECOND
        sampler.cut(clock)
        cpu, waits = sampler.take(1), sampler.take(1)
        assert (cpu.sample_type, waits.sample_type) == ("cpu", "off_cpu")
        assert cpu.epoch == waits.epoch and not cpu.value.size
        return cpu, waits

    try:
        yield feed
    finally:
        sampler.stop()


def native(address: int) -> int:
    return 1 << 60 | 3 << 40 | address


def test_a_wait_has_the_stack_it_began_with():
    with core() as feed:
        cpu, waits = feed(
            record(WAIT, (native(1), native(2)), since=100),
            record(WAIT, (native(9),), since=200, site=8, tid=6),
            record(WAIT_END, since=100, time_ns=2100),
        )
    assert waits.value.tolist() == [2000]
    frames, stacks = cpu.frames + waits.frames, cpu.stacks + waits.stacks
    assert [frames[i].address for i in stacks[waits.stack[0]]] == [1, 2]
    threads = cpu.threads + waits.threads
    assert [(threads[i].tid, threads[i].wait) for i in waits.thread] == [(5, "sleep")]
    assert waits.books.delivered == 1 and waits.period == 1


def test_without_a_stack_of_its_own_the_latest_of_its_place():
    with core() as feed:
        cpu, waits = feed(
            record(WAIT, (native(1),), since=100, site=7),
            record(WAIT, (native(2),), since=200, site=8),
            record(WAIT, (native(3),), since=300, site=7),
            record(WAIT_END, since=900, time_ns=1900, site=7),
            record(WAIT_END, since=901, time_ns=1902, site=9),
        )
    frames, stacks = cpu.frames + waits.frames, cpu.stacks + waits.stacks
    seen = {
        value: [(frames[i].kind, frames[i].address) for i in stacks[stack]]
        for value, stack in zip(waits.value.tolist(), waits.stack, strict=True)
    }
    assert seen[1000] == [(RawKind.NATIVE, 3)]
    ((kind, end),) = seen[1001]
    assert kind == RawKind.END and ENDS[end][0] == "wait_unwalked"


def test_kinds_are_threads_of_their_own():
    with core() as feed:
        cpu, waits = feed(
            *(
                part
                for number, kind in enumerate(("sleep", "disk", "preempted", "stopped"))
                for part in (
                    record(WAIT, (native(1),), since=number + 1, kind=kind),
                    record(WAIT_END, since=number + 1, time_ns=number + 2, kind=kind),
                )
            )
        )
    threads = cpu.threads + waits.threads
    assert sorted(threads[i].wait for i in waits.thread) == ["disk", "preempted", "sleep", "stopped"]


def test_a_new_epoch_names_old_stacks_again():
    """Stacks of waits live longer than ids."""
    sampler = Sampler(SamplerOptions(off_cpu=True, flags=loader.NO_KERNEL, max_stacks=8, max_frames=64))
    sampler.open()
    clock = time.monotonic_ns()
    sampler.feed(record(WAIT, (native(1), native(2)), since=100))
    seen = []
    for number in range(6):
        for extra in range(3):
            tid = 100 + 10 * number + extra
            sampler.feed(record(WAIT, (native(tid),), since=5, tid=tid))
            sampler.feed(record(WAIT_END, since=5, time_ns=6, tid=tid))
        sampler.feed(record(WAIT_END, since=100, time_ns=200 + 100 * number))
        clock += SECOND
        sampler.cut(clock)
        seen += [sampler.take(1), sampler.take(1)]
    sampler.stop()
    epochs: dict[int, tuple[list, list]] = {}
    for window in seen:
        frames, stacks = epochs.setdefault(window.epoch, ([], []))
        frames += window.frames
        stacks += window.stacks
        for stack, value in zip(window.stack, window.value.tolist(), strict=True):
            if value == 100:
                assert [frames[i].address for i in stacks[stack]] == [1, 2]
    assert len(epochs) > 1
    # a wait that grows is shown by what it grew by
    assert [window.value.tolist().count(100) for window in seen if window.sample_type == "off_cpu"] == [1] * 6


@pytest.mark.parametrize(
    "damaged",
    [
        record(WAIT_END, since=1, time_ns=2)[:70],
        record(WAIT, (native(1),))[:-8],
        record(WAIT, (native(1),)) + bytes(8),
        record(WAIT_END, since=1, time_ns=2)[:-4] + b"\x00\x00\x00\x00",  # no kind
        record(WAIT_END, since=1, time_ns=2)[:-4] + b"\x63\x00\x00\x00",
    ],
    ids=["cut", "short", "long", "no kind", "unknown kind"],
)
def test_damaged_records_are_counted(damaged):
    with core() as feed:
        _, waits = feed(damaged, record(WAIT_END, since=100, time_ns=200))
    books = waits.books
    assert books.drops["bad_record"] == 1 and books.delivered == 1
    assert books.produced == books.delivered + sum(books.drops.values())


def test_a_stack_that_makes_no_sense_costs_its_wait():
    with core() as feed:
        _, waits = feed(record(WAIT, (9 << 60,), since=100), record(WAIT_END, since=100, time_ns=200))
    assert waits.books.drops["bad_record"] == 1 and waits.books.delivered == 0 and not waits.value.size


def test_windows_not_taken_are_counted_by_their_own_type():
    sampler = Sampler(SamplerOptions(off_cpu=True, flags=loader.NO_KERNEL, max_windows=2))
    sampler.open()
    clock = time.monotonic_ns()
    for number in range(6):
        sampler.feed(record(WAIT_END, since=number, time_ns=number + 10))
        clock += SECOND
        sampler.cut(clock)
    windows = sampler.stop()
    assert [window.sample_type for window in windows] == ["cpu", "off_cpu"] * 2
    late = sum(window.books.drops["window_late"] for window in windows if window.sample_type == "off_cpu")
    delivered = sum(window.books.delivered for window in windows)
    assert (late, delivered) == (4, 2)
    assert sum(window.books.drops["window_late"] for window in windows if window.sample_type == "cpu") == 0


def test_leftover_windows_close_their_files():
    """close_files works on both types; nothing to close here."""
    with core() as feed:
        for window in feed():
            close_files(window)
