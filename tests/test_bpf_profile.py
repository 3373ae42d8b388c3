# SPDX-License-Identifier: Apache-2.0
"""The sampler for real: proportions, books, filter, kernel frames, short lives, losses, and nothing left behind."""

from __future__ import annotations

import bisect
import ctypes
import errno
import itertools
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from gpustrobe.agent.handover import close_files
from gpustrobe.agent.model import RawKind, Window
from gpustrobe.agent.sampler import Sampler, SamplerOptions
from gpustrobe.bpf import loader
from gpustrobe.bpf.drops import ENDS

pytestmark = pytest.mark.bpf

TARGETS = Path(__file__).parent / "targets"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("targets")
    for name in ("seventy_thirty", "deep_loop"):
        subprocess.run(["gcc", "-O0", "-o", folder / name, TARGETS / f"{name}.c"], check=True)
    return folder


@contextmanager
def running(*command: object) -> Iterator[subprocess.Popen]:
    child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


class Seen:
    """All windows of one run, with ids looked up; one epoch."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self.frames, self.stacks, self.threads, self.processes = [], [], [], []
        self.files: dict[int, str] = {}

    def add(self, window: Window) -> None:
        assert window.epoch == 1
        self.windows.append(window)
        self.frames += window.frames
        self.stacks += window.stacks
        self.threads += window.threads
        self.processes += window.processes
        self.files |= {file.file_id: file.path for file in window.files}
        close_files(window)

    def rows(self):
        """(process, thread, frames leaf first, value) of each row."""
        for window in self.windows:
            for stack, thread, value in zip(window.stack, window.thread, window.value, strict=True):
                who = self.threads[thread]
                yield self.processes[who.process_id], who, [self.frames[i] for i in self.stacks[stack]], int(value)

    def of(self, pid: int):
        return [(who, frames, value) for process, who, frames, value in self.rows() if process.pid == pid]

    def total(self, name: str) -> int:
        return sum(getattr(window.books, name) for window in self.windows)

    def drops(self) -> Counter:
        return sum((Counter(window.books.drops) for window in self.windows), Counter())


def sample(seconds: float, during=lambda: None, **options) -> Seen:
    seen = Seen()
    sampler = Sampler(SamplerOptions(**options))
    sampler.start()
    end = time.monotonic() + seconds
    during()
    while (left := end - time.monotonic()) > 0:
        window = sampler.take(left)
        if window is not None:
            seen.add(window)
    for window in sampler.stop():
        seen.add(window)
    return seen


def symbols(path: Path) -> tuple[list[int], list[str]]:
    """File offsets of the functions of an executable, by nm and readelf's own view of its segments."""
    lines = subprocess.run(["nm", path], check=True, capture_output=True, text=True).stdout.splitlines()
    found = sorted((int(line.split()[0], 16), line.split()[2]) for line in lines if line.split()[-2] in "tT")
    text = subprocess.run(["readelf", "-lW", path], check=True, capture_output=True, text=True).stdout
    code = next(line.split() for line in text.splitlines() if line.strip().startswith("LOAD") and " R E " in line)
    shift = int(code[2], 16) - int(code[1], 16)
    return [address - shift for address, _ in found], [name for _, name in found]


def names(seen: Seen, frames, path: Path) -> list[str]:
    """Functions of `path` among the frames, leaf first."""
    starts, functions = symbols(path)
    return [
        functions[bisect.bisect_right(starts, frame.address) - 1]
        for frame in frames
        if frame.kind == RawKind.NATIVE and seen.files.get(frame.owner) == str(path)
    ]


def test_proportions_of_two_functions(built):
    path = built / "seventy_thirty"
    with running(path) as child:
        seen = sample(4, pids=(child.pid,), hz=997)
    leaves, whole = Counter(), 0
    for _, frames, value in seen.of(child.pid):
        stack = names(seen, frames, path)
        leaves[stack[0] if stack else "?"] += value
        whole += value * (stack[1:3] == ["work", "main"])
    total = sum(leaves.values())
    assert total > 200
    margin = 4 * (0.7 * 0.3 / total) ** 0.5 + 0.01  # four standard errors, and the odd sample in main() or work()
    assert leaves["seventy"] / total == pytest.approx(0.7, abs=margin)
    assert leaves["thirty"] / total == pytest.approx(0.3, abs=margin)
    assert whole / total > 0.95  # a prologue or epilogue hides the caller now and then


def test_a_stack_of_27_frames(built):
    path = built / "deep_loop"
    with running(path) as child:
        seen = sample(1.5, pids=(child.pid,))
    depths = Counter()
    for _, frames, value in seen.of(child.pid):
        depths[tuple(names(seen, frames, path))] += value
    assert depths.most_common(1)[0][0][:27] == ("spin", *["descend"] * 25, "main")


def test_no_stack_is_short_in_silence(built):
    """Each ends at the process's first frame or says why it does not."""
    path = built / "deep_loop"
    with running(path) as child:
        seen = sample(1.2, pids=(child.pid,), hz=250)
    ends = Counter()
    for _, frames, value in seen.of(child.pid):
        last = frames[-1]
        ends[ENDS[last.address][0] if last.kind == RawKind.END else names(seen, frames[-1:], path)[0]] += value
    assert ends["_start"] + ends["frame_pointer"] >= 0.9 * sum(ends.values()) > 10


@pytest.mark.parametrize("hz", [100, 997])
def test_books_close_in_each_window(built, hz):
    with running(built / "seventy_thirty"):
        started = time.monotonic()
        seen = sample(4, hz=hz)
        seconds = time.monotonic() - started
    for window in seen.windows:
        books = window.books
        assert books.produced == books.idle + books.filtered + books.delivered + sum(books.drops.values())
        assert books.delivered == int(window.value.sum())
    period = seen.windows[0].period
    assert period == round(1e9 / hz * 0.9973013)
    covered = sum(window.duration for window in seen.windows)
    assert covered / 1e9 <= seconds
    expected = covered / period * os.cpu_count()
    assert seen.total("produced") == pytest.approx(expected, rel=0.02, abs=4)
    assert seen.total("delivered") > 0.3 * expected  # one CPU is busy
    assert all(window.duration == pytest.approx(1e9, abs=2e6) for window in seen.windows[1:-1])


def test_windows_start_at_whole_seconds_and_follow_each_other():
    seen = sample(3.2)
    middle = seen.windows[1:-1]
    assert len(middle) >= 2
    assert all(window.start_unix % 1_000_000_000 == 0 for window in middle)
    assert {b.start_unix - a.start_unix for a, b in itertools.pairwise(middle)} == {1_000_000_000}
    assert abs(middle[0].start_unix / 1e9 - time.time()) < 6


CHILDREN = """
import subprocess, sys, time
busy = "import time\\nend = time.time() + 20\\nwhile time.time() < end: pass"
between = "import subprocess, sys\\nprint(subprocess.Popen([sys.executable, '-S', '-c', sys.argv[1]]).pid, flush=True)"
early = subprocess.Popen([sys.executable, "-S", "-c", busy])
print(early.pid, flush=True)
input()
late = subprocess.Popen([sys.executable, "-S", "-c", between, busy], stdout=subprocess.PIPE, text=True)
print(late.stdout.readline(), end="", flush=True)
time.sleep(20)
"""


@pytest.mark.parametrize("include", [True, False])
def test_pid_filter(built, include):
    """A child from before, and an orphan two generations down whose parent was gone before it was ever sampled."""
    parent = subprocess.Popen(
        [sys.executable, "-S", "-c", CHILDREN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    early, late = int(parent.stdout.readline()), 0

    def more() -> None:
        nonlocal late
        parent.stdin.write("\n")
        parent.stdin.flush()
        late = int(parent.stdout.readline())

    try:
        with running(built / "seventy_thirty") as other:
            seen = sample(2, during=more, pids=(parent.pid,), include_children=include)
    finally:
        for pid in (early, late, parent.pid):
            os.kill(pid, signal.SIGKILL) if pid else None
        parent.wait()
    sampled = {process.pid for process, *_ in seen.rows()}
    assert other.pid not in sampled
    assert ({early, late} <= sampled) == include
    assert sampled <= {parent.pid, early, late} | {
        process.pid for process in seen.processes if process.ppid in (parent.pid, 1)
    }
    assert seen.total("filtered") > 20
    assert not seen.drops()["stack_table_full"]


NESTED = """
import os, subprocess, sys, time
from gpustrobe.agent.sampler import *
busy = "import time\\nend = time.time() + 20\\nwhile time.time() < end: pass"
child = subprocess.Popen([sys.executable, "-S", "-c", busy])
for pids in ((), (child.pid,), (1,)):
    with_children = Sampler(SamplerOptions(pids=pids))
    with_children.start()
    late = subprocess.Popen([sys.executable, "-S", "-c", busy])
    time.sleep(1)
    seen = [process for window in with_children.stop() for process in window.processes]
    late.kill()
    late.wait()
    found = {process.pid: process for process in seen}
    outside = "seventy_thirty" in {process.comm for process in seen}
    print(outside, child.pid in found and busy in found[child.pid].cmdline, late.pid in found, flush=True)
child.kill()
"""


def test_in_a_pid_namespace_of_its_own(built):
    """PIDs are those of the /proc at hand; processes that cannot be seen there are filtered."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", NESTED]
    with running(built / "seventy_thirty"):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines() == ["False True True", "False True False", "False True True"], done.stderr


def kernel_symbol(name: str) -> tuple[int, int]:
    addresses = sorted(
        (int(line.split()[0], 16), line.split()[2])
        for line in Path("/proc/kallsyms").read_text().splitlines()[:200_000]
    )
    starts = [address for address, _ in addresses]
    start = next(address for address, symbol in addresses if symbol == name)
    return start, starts[bisect.bisect_right(starts, start)]


def test_kernel_frames_then_user_frames():
    script = "import os\nfd = os.open('/dev/zero', 0)\nbuffer = bytearray(1 << 24)\nwhile True: os.readv(fd, [buffer])"
    with running(sys.executable, "-S", "-c", script) as child:
        seen = sample(1.5, pids=(child.pid,), hz=500)
    start, end = kernel_symbol("vfs_readv")
    reading = 0
    for _, frames, value in seen.of(child.pid):
        kinds = [frame.kind for frame in frames]
        kernel = kinds.count(RawKind.KERNEL)
        assert kinds[:kernel] == [RawKind.KERNEL] * kernel  # kernel before user
        if any(start <= frame.address < end for frame in frames[:kernel]):
            assert RawKind.NATIVE in kinds[kernel:]  # the system call's own caller: registers of a task in the kernel
            reading += value
    assert reading > 40
    none = sample(0.5, pids=(os.getpid(),), kernel_stacks=False)
    assert not any(frame.kind == RawKind.KERNEL for frame in none.frames)


def test_short_lives_keep_name_and_file(built, tmp_path):
    """Processes of 25 ms, each with a name of its own."""
    script = tmp_path / "brief"
    script.symlink_to(built / "seventy_thirty")

    def start() -> None:
        for i in range(12):
            name = tmp_path / f"brief-{i}"
            name.symlink_to(built / "seventy_thirty")
            with running(name):
                time.sleep(0.045)

    seen = sample(1.5, during=start, hz=400)
    brief = [process for process in seen.processes if process.comm.startswith("brief-")]
    assert len({process.comm for process in brief}) >= 8
    assert len({(process.pid, process.start_boottime) for process in brief}) >= 8
    boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert all(0 < boot - process.start_boottime < 60e9 for process in brief)
    named = [frames for process, _, frames, _ in seen.rows() if process in brief]
    where = Counter(
        seen.files.get(frame.owner, "?") for frames in named for frame in frames[:1] if frame.kind == RawKind.NATIVE
    )
    assert where[str(built / "seventy_thirty")] >= 8


def test_exec_splits_a_process(built):
    """Each part with its own name and command line, although nobody asked /proc before the exec."""
    loop = "i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done; exec " + str(built / "seventy_thirty") + " 20"
    with running("bash", "-c", loop) as child:
        seen = sample(2.5, pids=(child.pid,))
    lives = [process for process in seen.processes if process.pid == child.pid]
    assert [(process.comm, process.cmdline[0]) for process in lives] == [
        ("bash", "bash"),
        ("seventy_thirty", str(built / "seventy_thirty")),
    ]
    assert len({process.start_boottime for process in lives}) == 1


def test_a_reused_pid_is_another_process(built):
    """clone3 with set_tid gives a second process the first one's PID."""
    script = """
import ctypes, os, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def clone(pid):
    tid = ctypes.c_int(pid)
    args = struct.pack("<11Q", 0, 0, 0, 0, 17, 0, 0, 0, ctypes.addressof(tid) if pid else 0, 1 if pid else 0, 0)
    child = libc.syscall(435, args, len(args))
    if child == 0:
        while time.process_time() < 0.3: pass
        os._exit(0)
    return child
first = clone(0)
os.waitpid(first, 0)
second = clone(first)
if second > 0: os.waitpid(second, 0)
print(first, second, ctypes.get_errno(), flush=True)
"""
    pids = []

    def start() -> None:
        done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True)
        pids.extend(int(word) for word in done.stdout.split())

    seen = sample(0, during=start)
    assert pids[0] == pids[1], f"clone3 with set_tid failed: {os.strerror(pids[2])}"
    lives = [process for process in seen.processes if process.pid == pids[0]]
    assert len({process.start_boottime for process in lives}) == 2
    values = Counter()
    for process, _, _, value in seen.rows():
        if process.pid == pids[0]:
            values[process.start_boottime] += value
    assert all(value > 10 for value in values.values())


def test_late_taker_and_full_ring_are_counted(built):
    with running(built / "seventy_thirty"), running(built / "seventy_thirty"):
        late = sample(0, during=lambda: time.sleep(3.5), max_windows=1)
        full = sample(0, during=lambda: time.sleep(2), hz=500, ring_bytes=1 << 16, flags=loader.STALL)
    assert len(late.windows) == 1
    assert late.drops()["window_late"] > 100
    assert late.total("produced") == late.total("idle") + late.total("delivered") + sum(late.drops().values())
    assert full.drops()["ring_full"] > 200
    assert full.total("delivered") > 100  # what the ring held is not lost
    period = full.windows[0].period
    expected = sum(window.duration for window in full.windows) / period * os.cpu_count()
    assert full.total("produced") == pytest.approx(expected, rel=0.02, abs=4)
    for window in full.windows:
        assert window.books.produced == window.books.idle + window.books.delivered + sum(window.books.drops.values())


def programs(pid: int) -> set[int]:
    """Ids of the BPF programs a process holds."""
    lines: list[str] = []
    for info in list(Path(f"/proc/{pid}/fdinfo").iterdir()):
        with suppress(FileNotFoundError):  # the listing's own descriptor
            lines += info.read_text().splitlines()
    return {int(line.split()[1]) for line in lines if line.startswith("prog_id:")}


def loaded(program: int) -> bool:
    """BPF_PROG_GET_FD_BY_ID"""
    attributes = struct.pack("<IIQ", program, 0, 0)
    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    fd = ctypes.CDLL(None, use_errno=True).syscall(number, 13, attributes, len(attributes))
    if fd >= 0:
        os.close(fd)
    else:
        assert ctypes.get_errno() in (0, errno.ENOENT)
    return fd >= 0


def gone(ids: set[int]) -> bool:
    """The kernel frees programs some time after their last descriptor is closed."""
    deadline = time.monotonic() + 5
    while any(loaded(program) for program in ids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(loaded(program) for program in ids)


def test_kill_9_leaves_nothing_loaded():
    script = (
        "import time\nfrom gpustrobe.agent.sampler import *\n"
        f"s = Sampler(SamplerOptions(pids=({os.getpid()},)))\ns.start()\nprint('on', flush=True)\ntime.sleep(60)"
    )
    with running(sys.executable, "-c", script) as child:
        assert child.stdout.readline() == "on\n"
        ids = programs(child.pid)
        assert len(ids) >= 4  # profile, walk, two tracepoints, leaf_hint where the kernel has it
        assert all(loaded(program) for program in ids)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert gone(ids)


def test_stop_leaves_nothing_loaded():
    before = programs(os.getpid())
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with Sampler() as sampler:
        ids = programs(os.getpid()) - before
        window = sampler.take(2)
        close_files(window)
    assert ids
    assert gone(ids)
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_counters_tell_cost(built):
    with running(built / "deep_loop"):
        sampler = Sampler()
        sampler.start()
        time.sleep(1.1)
        counters = sampler.counters()
        for window in sampler.stop():
            close_files(window)
    assert counters["cpus"] == os.cpu_count()
    assert 50 < counters["bpf_runs"] <= counters["entered"] + 5
    assert 500 < counters["bpf_time_ns"] / counters["bpf_runs"] < 200_000
    assert 1 << 20 < counters["bpf_map_bytes"] < 32 << 20
    assert counters["windows"] >= 1
    assert sampler.counters()["delivered"] >= counters["delivered"]


def test_the_drain_does_not_wait_for_python(built):
    """A thread that holds the GIL: windows keep their second all the same."""
    with running(built / "seventy_thirty"):
        sampler = Sampler()
        sampler.start()
        time.sleep(0.2)
        holder = threading.Thread(target=lambda: sorted(range(-6_000_000, 0), key=abs))
        holder.start()
        holder.join()
        windows = sampler.stop()
        for window in windows:
            close_files(window)
    assert sum(sum(window.books.drops.values()) - window.books.drops["kernel_skipped"] for window in windows) == 0
    assert all(window.duration == pytest.approx(1e9, abs=2e6) for window in windows[1:-1])


def test_without_the_right_to_it(tmp_path):
    """Neither root nor capabilities: one error with a fix."""
    script = (
        "import os\nfrom gpustrobe.agent.errors import KernelProblem\nfrom gpustrobe.agent.sampler import *\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try:\n    Sampler().start()\n"
        "except KernelProblem as error:\n    print(error.exit_code, error.message, error.fix)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("3 Not permitted to load BPF programs."), done.stdout + done.stderr
    assert "CAP_BPF" in done.stdout
