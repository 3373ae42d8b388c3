# SPDX-License-Identifier: Apache-2.0
"""Listing, naming and publishing the mappings of real processes; hostile text and PID reuse from a false /proc."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from gpustrobe.bpf import mappings as bm
from gpustrobe.bpf.loader import DETAILS, DetailsHead, find
from gpustrobe.bpf.mappings import Listing, Mappings, PlaceKind
from hypothesis import given, settings
from hypothesis import strategies as st

SECOND = 1_000_000_000
TICK = SECOND // os.sysconf("SC_CLK_TCK")
LIBZ = Path("/lib/x86_64-linux-gnu/libz.so.1")
ROOT = os.geteuid() == 0

BOTH = pytest.mark.parametrize("text_only", [False, True], ids=["query", "text"])
needs_root = pytest.mark.skipif(not ROOT, reason="needs root")


def start_of(pid: int) -> int:
    """A start_boottime that fits the process: the kernel knows it to the ns, /proc to the tick."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]) * TICK + TICK // 2


class Child:
    """tests/targets/commanded.py"""

    def __init__(self, *prefix: str) -> None:
        script = Path(__file__).parent / "targets" / "commanded.py"
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-S", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        self.do("import ctypes, mmap, os, threading, time; from mmap import MAP_ANONYMOUS, MAP_PRIVATE")
        self.do("memory = lambda size, prot=5: mmap.mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS, prot=prot)")
        self.start = start_of(self.pid)

    def do(self, statement: str) -> object:
        self.process.stdin.write(statement + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def child():
    started = Child()
    yield started
    started.end()


def twin(text: bytes) -> list[tuple[int, int, int, int, int, bool, bytes]]:
    """Executable mappings in a text of maps: (start, end, offset, inode, device, writable, path)."""
    rows, last = [], 0
    line = re.compile(
        rb"([0-9a-f]+)-([0-9a-f]+) ([r-][w-][x-][ps]) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) ([0-9]+)(?: +([^\n]*)|)"
    )
    for one in text.split(b"\n"):
        if not (m := line.fullmatch(one)):
            continue
        start, end, offset, major, minor = (int(m[i], 16) for i in (1, 2, 4, 5, 6))
        inode = int(m[7])
        if max(start, end, offset, inode) >= 1 << 64 or major >= 1 << 12 or minor >= 1 << 20 or start >= end:
            continue
        if m[3][2:3] != b"x" or start >> 63 or start < last:
            continue
        last = end
        rows.append((start, end, offset, inode, major << 20 | minor, m[3][1:2] == b"w", m[8] or b""))
    return rows


def shape(rows: list[bm.Row]) -> list[tuple[int, int, int, int, int, bool]]:
    return [(r.start, r.end, r.file_offset, r.inode, r.device, r.writable) for r in rows]


def file_at(mappings: Mappings, child: Child, path: str | Path) -> bm.Listed:
    """The file listed under this path; its descriptor is closed with the others."""
    taken = mappings.take_files()
    try:
        found = [f for f in taken if f.path == os.fsencode(path)]
        assert len(found) == 1, [f.path for f in taken]
        return found[0]
    finally:
        for f in taken:
            if f.fd >= 0:
                os.close(f.fd)


def content(fd: int) -> bytes:
    return os.pread(fd, 1 << 24, 0)


# ---- what a listing shows


@BOTH
def test_rows_are_the_executable_lines_of_proc_maps(child, text_only):
    child.do("import json, hashlib, ssl, sqlite3; m = memory(8192, 7)")
    with Mappings(text_only=text_only) as m:
        assert m.refresh(child.pid, child.start) == Listing.LISTED
        want = twin(Path(f"/proc/{child.pid}/maps").read_bytes())
        assert len(want) > 10
        assert shape(m.rows(child.pid, child.start)) == [w[:6] for w in want]
        assert {os.fsdecode(f.path) for f in m.take_files()} == {os.fsdecode(w[6]) for w in want if w[3]}
        counters = m.counters()
        assert counters["listings"] == 1
        assert counters["bad_maps_line"] == 0
        if text_only:
            assert counters["listings_by_text"] == 1


@BOTH
def test_listed_pages_sum_to_the_kernels_exec_vm(child, text_only):
    child.do("import ssl; a = memory(4096 * 5, 5); b = memory(4096 * 7, 7)")
    with Mappings(text_only=text_only) as m:
        m.refresh(child.pid, child.start)
        status = Path(f"/proc/{child.pid}/status").read_text()
        kilobytes = sum(int(x) for x in re.findall(r"^Vm(?:Exe|Lib):\s+(\d+) kB", status, re.MULTILINE))
        rows = m.rows(child.pid, child.start)
        assert sum(r.end - r.start for r in rows if not r.writable) == kilobytes * 1024


@BOTH
def test_places(child, text_only):
    child.do("import ctypes; lib = ctypes.CDLL(None)")
    strlen = child.do("answer = ctypes.cast(lib.getpid, ctypes.c_void_p).value")
    jit = child.do("j = memory(4096, 7); answer = ctypes.addressof(ctypes.c_char.from_buffer(j))")
    with Mappings(text_only=text_only) as m:
        assert m.normalize(child.pid, child.start, strlen).kind == PlaceKind.NO_PROCESS
        m.refresh(child.pid, child.start)
        place = m.normalize(child.pid, child.start, strlen)
        lines = Path(f"/proc/{child.pid}/maps").read_text().splitlines()
        covering = next(ln for ln in lines if _covers(ln, strlen))
        start, offset = int(covering.split("-")[0], 16), int(covering.split()[2], 16)
        assert (place.kind, place.offset) == (PlaceKind.NATIVE, strlen - start + offset)
        path = {f.file_id: f.path for f in m.take_files()}[place.file_id]
        assert os.fsdecode(path) == covering.split()[5]
        vdso = int(next(ln for ln in lines if ln.endswith("[vdso]")).split("-")[0], 16)
        assert m.normalize(child.pid, child.start, vdso + 100) == (PlaceKind.VDSO, 0, 100)
        assert m.normalize(child.pid, child.start, jit + 5) == (PlaceKind.ANONYMOUS, 0, jit + 5)
        assert m.normalize(child.pid, child.start, 4096).kind == PlaceKind.UNMAPPED
        assert m.normalize(child.pid, child.start + 1, strlen).kind == PlaceKind.NO_PROCESS


def _covers(line: str, address: int) -> bool:
    start, end = (int(x, 16) for x in line.split(" ")[0].split("-"))
    return start <= address < end


@BOTH
def test_a_library_that_comes_and_goes(child, text_only):
    now = time.monotonic_ns()
    with Mappings(text_only=text_only) as m:
        assert m.sampled(child.pid, child.start, bm.NO_TABLE, now=now) == Listing.LISTED
        before = shape(m.rows(child.pid, child.start))
        child.do(f"lib = ctypes.CDLL({str(LIBZ)!r})")
        assert m.sampled(child.pid, child.start, now=now + SECOND) == Listing.CACHED
        assert m.sampled(child.pid, child.start, bm.STALE_TABLE, now=now + SECOND) == Listing.LISTED
        assert len(shape(m.rows(child.pid, child.start))) == len(before) + 1
        child.do("ctypes.CDLL(None).dlclose(ctypes.c_void_p(lib._handle))")
        assert m.sampled(child.pid, child.start, bm.STALE_TABLE, now=now + 2 * SECOND) == Listing.LISTED
        assert shape(m.rows(child.pid, child.start)) == before


# ---- files in strange places


@BOTH
def test_deleted_file(child, tmp_path, text_only):
    copy = tmp_path / "lib gone.so"
    shutil.copy(LIBZ, copy)
    child.do(f"lib = ctypes.CDLL({str(copy)!r})")
    copy.unlink()
    with Mappings(text_only=text_only) as m:
        m.refresh(child.pid, child.start)
        taken = {f.path: f for f in m.take_files()}
        f = taken[os.fsencode(copy)]
        assert f.flags == bm.DELETED
        if ROOT:
            assert content(f.fd) == LIBZ.read_bytes()
            assert f.build_id
        place = m.normalize(child.pid, child.start, _start_of_mapping(child, b"lib gone.so"))
        assert (place.kind, place.file_id) == (PlaceKind.NATIVE, f.file_id)


def _start_of_mapping(child: Child, name: bytes) -> int:
    return next(w[0] for w in twin(Path(f"/proc/{child.pid}/maps").read_bytes()) if name in w[6])


@BOTH
def test_a_name_that_only_says_deleted(child, tmp_path, text_only):
    copy = tmp_path / "lib.so (deleted)"
    shutil.copy(LIBZ, copy)
    child.do(f"lib = ctypes.CDLL({str(copy)!r})")
    with Mappings(text_only=text_only) as m:
        m.refresh(child.pid, child.start)
        assert file_at(m, child, copy).flags == 0


@BOTH
def test_newlines_blanks_and_bytes_that_are_no_utf8(child, tmp_path, text_only):
    copy = os.fsencode(tmp_path) + b"/a\nb  c\xff\\ \n.so"
    shutil.copy(LIBZ, copy)
    child.do(f"lib = ctypes.CDLL(os.fsdecode({copy!r}))")
    with Mappings(text_only=text_only) as m:
        m.refresh(child.pid, child.start)
        assert file_at(m, child, os.fsdecode(copy)).flags == 0
        assert m.counters()["bad_maps_line"] == 0


@BOTH
def test_library_from_a_memfd(child, text_only):
    child.do("fd = os.memfd_create('plugin code')")
    child.do(f"os.write(fd, open({str(LIBZ)!r}, 'rb').read()); lib = ctypes.CDLL(f'/proc/self/fd/{{fd}}')")
    with Mappings(text_only=text_only) as m:
        m.refresh(child.pid, child.start)
        f = {f.path: f for f in m.take_files()}[b"/memfd:plugin code"]
        assert f.flags == bm.DELETED | bm.MEMFD
        if ROOT:
            assert content(f.fd) == LIBZ.read_bytes()


@BOTH
@needs_root
def test_jit_code_in_a_memfd_stays_raw(child, text_only):
    child.do("fd = os.memfd_create('doublemapper'); os.ftruncate(fd, 8192)")
    at = child.do("j = mmap.mmap(fd, 8192, prot=7); answer = ctypes.addressof(ctypes.c_char.from_buffer(j))")
    with Mappings(text_only=text_only) as m:
        m.refresh(child.pid, child.start)
        assert m.normalize(child.pid, child.start, at + 3) == (PlaceKind.ANONYMOUS, 0, at + 3)
        assert not [f for f in m.take_files() if b"doublemapper" in f.path]


def without_map_files(tmp_path: Path, pid: int) -> str:
    """A /proc with this one process, where only paths lead to files."""
    folder = tmp_path / "proc" / str(pid)
    folder.mkdir(parents=True)
    for name in ("stat", "maps", "comm", "cmdline", "cgroup", "status", "root", "exe"):
        (folder / name).symlink_to(f"/proc/{pid}/{name}")
    return str(tmp_path / "proc")


NEW_MOUNT = (
    "libc = ctypes.CDLL(None, use_errno=True); libc.unshare(0x20000); "
    "libc.mount(b'none', b'/', None, 0x44000, None); answer = libc.mount(b'tmpfs', b'{}', b'tmpfs', 0, None)"
)


@needs_root
@pytest.mark.parametrize("by_path", [False, True], ids=["map_files", "path"])
def test_file_only_its_mount_namespace_sees(child, tmp_path, by_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    assert child.do(NEW_MOUNT.format(hidden)) == 0
    child.do(f"open('{hidden}/libz.so', 'wb').write(open({str(LIBZ)!r}, 'rb').read())")
    child.do(f"lib = ctypes.CDLL('{hidden}/libz.so')")
    assert not (hidden / "libz.so").exists()
    root = without_map_files(tmp_path, child.pid) if by_path else "/proc"
    with Mappings(root) as m:
        assert m.refresh(child.pid, child.start) == Listing.LISTED
        f = {f.path: f for f in m.take_files()}[os.fsencode(hidden / "libz.so")]
        assert content(f.fd) == LIBZ.read_bytes()
        assert f.flags == 0
        assert (m.counters()["open_by_path"] > 0) == by_path


@needs_root
@pytest.mark.parametrize("by_path", [False, True], ids=["map_files", "path"])
def test_file_of_a_process_in_a_chroot(child, tmp_path, by_path):
    jail = tmp_path / "jail"
    jail.mkdir()
    shutil.copy(LIBZ, jail / "libz.so")
    child.do(f"os.chroot({str(jail)!r}); os.chdir('/'); lib = ctypes.CDLL('/libz.so')")
    root = without_map_files(tmp_path, child.pid) if by_path else "/proc"
    with Mappings(root) as m:
        m.refresh(child.pid, child.start)
        f = {f.path: f for f in m.take_files()}[os.fsencode(jail / "libz.so")]
        assert content(f.fd) == LIBZ.read_bytes()


@needs_root
def test_a_path_that_leads_elsewhere_by_now_is_not_opened(child, tmp_path):
    copy, other, fifo = tmp_path / "a.so", tmp_path / "b.so", tmp_path / "c.so"
    for path in (copy, fifo):
        shutil.copy(LIBZ, path)
    other.write_bytes(b"not the one")
    child.do(f"a = ctypes.CDLL({str(copy)!r}); c = ctypes.CDLL({str(fifo)!r})")
    for path in (copy, fifo):
        path.rename(path.with_suffix(".moved"))
    copy.symlink_to(other)
    os.mkfifo(fifo)
    text = Path(f"/proc/{child.pid}/maps").read_text().replace(".moved", ".so")
    root = without_map_files(tmp_path, child.pid)
    (Path(root) / str(child.pid) / "maps").unlink()
    (Path(root) / str(child.pid) / "maps").write_text(text)
    with Mappings(root) as m:
        m.refresh(child.pid, child.start)
        files = {f.path: f for f in m.take_files()}
        for path in (copy, fifo):
            assert (files[os.fsencode(path)].fd, files[os.fsencode(path)].build_id_reason) == (-1, "not_opened")
        assert m.counters()["open_gone"] == 2


# ---- lives of processes


def test_another_life_of_the_pid_is_refused(child):
    with Mappings() as m:
        assert m.refresh(child.pid, child.start + TICK) == Listing.REUSED
        assert m.refresh(child.pid, child.start - TICK) == Listing.REUSED
        assert m.rows(child.pid, child.start + TICK) == []
        assert m.counters()["pid_reused"] == 2
        assert m.refresh(child.pid, child.start) == Listing.LISTED


def false_process(root: Path, pid: int, *, ticks: int, stack: int = 0x7FFF00000000, maps: str | None = None) -> Path:
    folder = root / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    fields = ["S", "1", *["0"] * 17, str(ticks), "0", "0", "18446744073709551615", "1", "2", str(stack), *["0"] * 24]
    (folder / "stat").write_text(f"{pid} (a) b (c) {' '.join(fields)}\n")
    (folder / "comm").write_text("a) b (c\n")
    if maps is not None:
        (folder / "maps").write_text(maps)
    return folder


MAPS = "1000-2000 r-xp 00000000 00:00 0 \n3000-5000 rwxp 00000000 00:00 0 \n"


def change_while_listing(folder: Path, change) -> threading.Thread:
    """maps becomes a pipe: whoever reads it waits until `change` has happened."""
    os.mkfifo(folder / "maps")

    def feed() -> None:
        with open(folder / "maps", "w") as pipe:
            change()
            pipe.write(MAPS)

    thread = threading.Thread(target=feed)
    thread.start()
    return thread


def test_pid_reused_between_the_first_look_and_the_listing(tmp_path):
    folder = false_process(tmp_path, 42, ticks=1000)
    thread = change_while_listing(folder, lambda: false_process(tmp_path, 42, ticks=2000))
    with Mappings(str(tmp_path), text_only=True) as m:
        assert m.refresh(42, 1000 * TICK) == Listing.REUSED
        assert m.rows(42, 1000 * TICK) == []
    thread.join()


def test_exec_during_the_listing_lists_again(tmp_path):
    folder = false_process(tmp_path, 42, ticks=1000, stack=0x7FFF0000)

    def call_exec() -> None:
        false_process(tmp_path, 42, ticks=1000, stack=0x7FFE0000)
        (folder / "maps").unlink()
        (folder / "maps").write_text("9000-a000 r-xp 00000000 00:00 0 \n")

    thread = change_while_listing(folder, call_exec)
    with Mappings(str(tmp_path), text_only=True) as m:
        assert m.refresh(42, 1000 * TICK + 3) == Listing.LISTED
        assert [r.start for r in m.rows(42, 1000 * TICK + 3)] == [0x9000]
        assert (m.counters()["listings"], m.counters()["listing_torn"]) == (2, 0)
    thread.join()


def test_process_gone_before_listing_and_after():
    child = Child()
    with Mappings() as m:
        m.refresh(child.pid, child.start)
        address = m.rows(child.pid, child.start)[0].start
        place = m.normalize(child.pid, child.start, address)
        f = next(f for f in m.take_files() if f.file_id == place.file_id)
        child.end()
        assert m.refresh(child.pid, child.start) == Listing.GONE
        assert m.normalize(child.pid, child.start, address) == place, "a gone process keeps its names"
        assert unpack(m.details(child.pid, child.start))["comm"]
        assert m.refresh(child.pid, child.start + 7 * TICK) == Listing.GONE
        assert unpack(m.details(child.pid, child.start + 7 * TICK))["gone"] == 1
        assert m.counters()["process_gone"] == 2
        assert m.hint(f.device, f.inode, 0x123) == (PlaceKind.NATIVE, f.file_id, 0x123)
        assert m.hint(f.device, f.inode + 12345678, 0x123).kind == PlaceKind.NO_PROCESS
        counters = m.counters()
        assert (counters["hint_found"], counters["hint_unknown"]) == (1, 1)


def test_thread_that_outlives_its_leader(child):
    child.do("lib = ctypes.CDLL(None); threading.Thread(target=time.sleep, args=(60,)).start()")
    tid = next(int(t.name) for t in Path(f"/proc/{child.pid}/task").iterdir() if t.name != str(child.pid))
    with Mappings() as m:
        m.refresh(child.pid, child.start)
        want = m.rows(child.pid, child.start)
    child.process.stdin.write("lib.syscall(60, 0)\n")
    child.process.stdin.flush()
    while Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
        time.sleep(0.01)
    with Mappings() as m:
        assert m.sampled(child.pid, child.start, bm.NO_TABLE, tid=tid) == Listing.LISTED
        assert shape(m.rows(child.pid, child.start)) == shape(want)
    os.kill(child.pid, signal.SIGKILL)


def unpack(details: bytes) -> dict[str, object]:
    head = DetailsHead.from_buffer_copy(details)
    at, texts = ctypes.sizeof(DetailsHead), {}
    for name, length in zip(DETAILS, head.length, strict=True):
        texts[name] = details[at : at + length]
        at += length
    assert at == len(details)
    return {"uid": head.uid, "gone": head.gone, "cmdline_cut": head.cmdline_cut, **texts}


def test_details_are_proc_texts(child):
    with Mappings() as m:
        m.refresh(child.pid, child.start)
        details = unpack(m.details(child.pid, child.start))
    proc = Path(f"/proc/{child.pid}")
    assert details["comm"] == (proc / "comm").read_bytes().rstrip(b"\n")
    assert details["cmdline"] == (proc / "cmdline").read_bytes()
    assert details["cgroup"] == (proc / "cgroup").read_bytes()
    assert details["exe"] == os.fsencode((proc / "exe").readlink())
    assert details["nspid"].split() == [str(child.pid).encode()]
    assert details["stat"].split()[3] == str(os.getpid()).encode()
    assert (details["uid"], details["gone"], details["cmdline_cut"]) == (os.geteuid(), 0, 0)


def test_long_command_lines_are_cut_and_say_so(tmp_path):
    folder = false_process(tmp_path, 9, ticks=5, maps=MAPS)
    for length, cut in ((4096, 0), (4097, 1), (100_000, 1)):
        (folder / "cmdline").write_bytes(b"x" * length)
        with Mappings(str(tmp_path)) as m:
            m.refresh(9, 5 * TICK)
            details = unpack(m.details(9, 5 * TICK))
            assert (len(details["cmdline"]), details["cmdline_cut"]) == (4096, cut)


def test_exec_renews_details_and_rows(child):
    with Mappings() as m:
        m.refresh(child.pid, child.start)
        assert b"commanded.py" in unpack(m.details(child.pid, child.start))["cmdline"]
        child.process.stdin.write("os.execv('/bin/sleep', ['sleep', '60'])\n")
        child.process.stdin.flush()
        while Path(f"/proc/{child.pid}/comm").read_text() != "sleep\n":
            time.sleep(0.01)
        assert m.sampled(child.pid, child.start, bm.STALE_TABLE, now=time.monotonic_ns() + SECOND) == Listing.LISTED
        assert unpack(m.details(child.pid, child.start))["cmdline"] == b"sleep\x0060\x00"
        assert shape(m.rows(child.pid, child.start)) == [
            w[:6] for w in twin(Path(f"/proc/{child.pid}/maps").read_bytes())
        ]


def test_a_new_process_title_renews_details(child):
    now = time.monotonic_ns()
    with Mappings() as m:
        m.sampled(child.pid, child.start, comm=Path(f"/proc/{child.pid}/comm").read_bytes().strip(), now=now)
        child.do("open('/proc/self/comm', 'w').write('ray::step')")
        m.sampled(child.pid, child.start, comm=b"ray::step", now=now + 1)
        assert unpack(m.details(child.pid, child.start))["comm"] == b"ray::step"


@needs_root
def test_kernel_thread_has_details_and_no_listing():
    kthreadd = start_of(2) if Path("/proc/2/comm").read_text() == "kthreadd\n" else None
    if kthreadd is None:
        pytest.skip("kernel threads are not visible in this PID namespace")
    with Mappings() as m:
        m.sampled(2, kthreadd, bm.KTHREAD)
        assert unpack(m.details(2, kthreadd))["comm"] == b"kthreadd"
        assert m.counters()["listings"] == 0


# ---- when a listing is due


def listings(m: Mappings) -> int:
    return m.counters()["listings"]


def test_listings_are_rate_limited(child):
    now = time.monotonic_ns()
    with Mappings() as m:
        m.sampled(child.pid, child.start, now=now)
        for i in range(100):
            m.sampled(child.pid, child.start, now=now + i * SECOND // 20 + 1)
        assert listings(m) == 1, "no reason within 5 s"
        m.sampled(child.pid, child.start, now=now + 6 * SECOND)
        assert listings(m) == 2, "every 5 s without a reason"
        at, before = now + 6 * SECOND, listings(m)
        for i in range(2000):
            m.sampled(child.pid, child.start, bm.STALE_TABLE, now=at + i * SECOND // 100)
        assert 5 <= listings(m) - before <= 14, "20 s with a stamp that never fits: 20 ms, doubling up to 5 s"
        before = listings(m)
        child.do(f"lib = ctypes.CDLL({str(LIBZ)!r})")
        m.sampled(child.pid, child.start, now=at + 30 * SECOND)
        m.sampled(child.pid, child.start, bm.STALE_TABLE, now=at + 30 * SECOND + SECOND // 40)
        assert listings(m) - before == 2, "something new: 20 ms again"


def test_a_sample_older_than_the_listing_asks_for_none(child):
    now = time.monotonic_ns()
    with Mappings() as m:
        m.sampled(child.pid, child.start, bm.NO_TABLE, now=now)
        sample = bm.Sample(now - 1, child.start, 0, 1, child.pid, child.pid, b"", 0, 0, 0, bm.NO_TABLE)
        m._core.gs_mappings_sampled(m._handle, ctypes.byref(sample), now + SECOND)
        assert listings(m) == 1


def test_a_process_that_always_changes_takes_two_thousandths_of_a_core(child):
    """V8 changes exec_vm all the time. The core measures the cost by its own clock, so these are real listings."""
    now = time.monotonic_ns()
    with Mappings(text_only=True) as m:
        used = 0
        for i in range(250):  # 5 s
            child.do(f"m{i} = memory(4096 * {i % 2 + 1}, 5)")
            before = time.thread_time_ns()
            m.sampled(child.pid, child.start, bm.STALE_TABLE, now=now + i * SECOND // 50)
            used += time.thread_time_ns() - before
        assert 10 < listings(m) < 250
        assert used < 5 * SECOND * 0.002 + 10_000_000, "5 s at 0.2 %, one burst of 4 ms, the first listing, ctypes"


# ---- bounds


def false_processes(tmp_path: Path, count: int, rows: int = 2) -> None:
    maps = "".join(f"{0x1000 * (2 * i + 1):x}-{0x1000 * (2 * i + 2):x} r-xp 00000000 00:00 0 \n" for i in range(rows))
    for pid in range(1, count + 1):
        false_process(tmp_path, pid, ticks=pid, maps=maps)


def test_processes_are_bounded_least_recently_sampled_first(tmp_path):
    false_processes(tmp_path, 10)
    with Mappings(str(tmp_path), max_processes=4) as m:
        for pid in range(1, 11):
            m.refresh(pid, pid * TICK)
            m.sampled(1, TICK)
        assert [pid for pid in range(1, 11) if m.rows(pid, pid * TICK) is not None] == [1, 8, 9, 10]
        assert m.counters()["processes_evicted"] == 6


def test_memory_is_bounded(tmp_path):
    false_processes(tmp_path, 40, rows=100)
    with Mappings(str(tmp_path), memory_budget=50_000) as m:
        for pid in range(1, 41):
            m.refresh(pid, pid * TICK)
        kept = sum(len(m.rows(pid, pid * TICK) or ()) for pid in range(1, 41))
        assert 100 <= kept * ctypes.sizeof(bm.RowRecord) <= 50_000
        assert m.rows(40, 40 * TICK)


def test_gone_processes_are_forgotten_after_a_minute(tmp_path):
    false_processes(tmp_path, 2)
    now = time.monotonic_ns()
    with Mappings(str(tmp_path)) as m:
        for pid in (1, 2):
            m.refresh(pid, pid * TICK, now=now)
        shutil.rmtree(tmp_path / "1")
        m.tick(now + 10 * SECOND)
        assert m.counters()["processes_ended"] == 1
        assert m.rows(1, TICK) is not None
        m.tick(now + 80 * SECOND)
        assert m.rows(1, TICK) is None
        assert m.rows(2, 2 * TICK) is not None


# ---- hostile text


class VmaList(ctypes.Structure):
    _fields_ = (
        ("vmas", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
        ("room", ctypes.c_uint32),
        ("paths", ctypes.c_void_p),
        ("paths_used", ctypes.c_size_t),
        ("paths_room", ctypes.c_size_t),
        ("bad_lines", ctypes.c_uint32),
        ("by_text", ctypes.c_int),
        ("maps_fd", ctypes.c_int),
    )


VMA = struct.Struct("<QQQQIIII")


def parse(text: bytes) -> list[tuple[int, int, int, int, int, bool, bytes]]:
    core, found = ctypes.CDLL(str(find("core.so"))), VmaList(maps_fd=-1)
    core.gs_parse_maps.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(VmaList)]
    assert core.gs_parse_maps(text, len(text), ctypes.byref(found)) == 0
    rows = []
    raw = ctypes.string_at(found.vmas, found.count * VMA.size) if found.count else b""
    paths = ctypes.string_at(found.paths, found.paths_used) if found.paths else b""
    for start, end, offset, inode, device, flags, path, length in VMA.iter_unpack(raw):
        rows.append((start, end, offset, inode, device, bool(flags & 1), paths[path : path + length]))
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free(found.vmas)
    free(found.paths)
    return rows


def same_as_twin(text: bytes) -> None:
    want = [(*row[:6], row[6] if row[3] else b"") for row in twin(text)]
    assert parse(text) == want


HEX = st.integers(0, 1 << 66).map(lambda n: b"%x" % n) | st.integers(0, 1 << 20).map(lambda n: b"%08x" % n)
LINES = st.builds(
    lambda a, b, mode, offset, major, minor, inode, pad, path: (
        b"%s-%s %s %s %s:%s %d%s%s" % (a, b, mode, offset, major, minor, inode, b" " * pad, path)
    ),
    HEX,
    HEX,
    st.sampled_from([b"r-xp", b"rwxp", b"r-xs", b"r--p", b"--xp", b"r-x", b"rxxp", b"r-xp "]),
    HEX,
    st.sampled_from([b"fe", b"00", b"fff", b"1000", b""]),
    st.sampled_from([b"01", b"fffff", b"100000", b"g"]),
    st.integers(0, 1 << 65),
    st.integers(0, 30),
    st.binary(max_size=40) | st.sampled_from([b"[vdso]", b"/usr/lib/a b (deleted)", b"/x\\012y"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(LINES, max_size=8).map(b"\n".join) | st.binary(max_size=300))
def test_any_text_parses_as_its_twin(text):
    same_as_twin(text)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_mutated_text_parses_as_its_twin(data):
    text = bytearray(b"".join(line + b"\n" for line in Path("/proc/self/maps").read_bytes().split(b"\n")[:12]))
    for _ in range(data.draw(st.integers(1, 12))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(
            st.sampled_from(list(b"0123456789abcdef-: \nrwxps/\0\xff"))
        )
    same_as_twin(bytes(text))


@pytest.mark.parametrize("long", [100, 16_384, 65_000, 65_536, 200_000])
def test_very_long_lines_harm_no_other(tmp_path, long):
    maps = f"1000-2000 r-xp 0 00:00 0 \n2000-3000 r-xp 0 08:01 7 /{'x' * long}\n4000-5000 r-xp 0 00:00 0 \n"
    false_process(tmp_path, 3, ticks=1, maps=maps)
    with Mappings(str(tmp_path), text_only=True) as m:
        assert m.refresh(3, TICK) == Listing.LISTED
        kept = long < 65_536
        assert [r.start for r in m.rows(3, TICK)] == ([0x1000, 0x2000, 0x4000] if kept else [0x1000, 0x4000])
        assert m.counters()["bad_maps_line"] == (not kept)


def test_an_endless_maps_is_cut(tmp_path):
    rows = "".join(f"{i * 2 + 1:x}000-{i * 2 + 2:x}000 r-xp 0 00:00 0 \n" for i in range(70_000))
    false_process(tmp_path, 3, ticks=1, maps=rows)
    with Mappings(str(tmp_path), text_only=True) as m:
        assert m.refresh(3, TICK) == Listing.LISTED
        assert len(m.rows(3, TICK)) == 65_536


@pytest.mark.parametrize(
    "text", [b"", b"1", b"1 (x", b"1 (x)", b"1 (x) S 1 2", b"\0" * 900, b"1 (x) S " + b"1 " * 18 + b"-5 " + b"1 " * 30]
)
def test_stat_that_is_none(text):
    assert bm.parse_stat(text) is None


def test_stat_of_every_process_here():
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_bytes()
            except OSError:
                continue
            fields = text.rsplit(b")", 1)[1].split()
            assert bm.parse_stat(text) == (int(fields[19]), int(fields[25]))


# ---- publishing to BPF maps


class Attributes(ctypes.Structure):
    _fields_ = (
        ("map_type", ctypes.c_uint32),
        ("key_size", ctypes.c_uint32),
        ("value_size", ctypes.c_uint32),
        ("max_entries", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
        ("rest", ctypes.c_uint8 * 100),
    )


SYS_BPF, MAP_CREATE, MAP_LOOKUP = 321, 0, 1
HASH, ARRAY, MMAPABLE = 1, 2, 1 << 10
PROCESS, MAPPING = struct.Struct("<QQQIIII"), struct.Struct("<QQQII")


def bpf_map(kind: int, value_size: int, entries: int, flags: int = 0) -> int:
    attributes = Attributes(kind, 4, value_size, entries, flags)
    fd = ctypes.CDLL(None, use_errno=True).syscall(SYS_BPF, MAP_CREATE, ctypes.byref(attributes), 120)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    return fd


def lookup(fd: int, key: int, size: int) -> bytes | None:
    key_bytes, value = struct.pack("<I", key), ctypes.create_string_buffer(size)
    k = ctypes.create_string_buffer(key_bytes, 4)
    request = struct.pack("<IIQQQ", fd, 0, ctypes.addressof(k), ctypes.addressof(value), 0)
    buffer = ctypes.create_string_buffer(request, len(request))
    return None if ctypes.CDLL(None).syscall(SYS_BPF, MAP_LOOKUP, buffer, len(request)) else value.raw


class Published:
    def __init__(self, rows: int, processes: int = 64, flags: int = MMAPABLE) -> None:
        self.procs = bpf_map(HASH, PROCESS.size, processes)
        self.mappings = bpf_map(ARRAY, MAPPING.size, rows, flags)
        self.options = {"procs_fd": self.procs, "mappings_fd": self.mappings, "mapping_rows": rows}

    def process(self, tgid: int) -> tuple[int, ...] | None:
        value = lookup(self.procs, tgid, PROCESS.size)
        return PROCESS.unpack(value) if value else None

    def table(self, tgid: int) -> list[tuple[int, ...]]:
        _, _, _, first, count, _, _ = self.process(tgid)
        return [MAPPING.unpack(lookup(self.mappings, first + i, MAPPING.size)) for i in range(count)]

    def close(self) -> None:
        os.close(self.procs)
        os.close(self.mappings)


@pytest.mark.bpf
@pytest.mark.parametrize("flags", [MMAPABLE, 0], ids=["mapped", "by system call"])
def test_published_table_and_stamp(child, flags):
    maps = Published(256, flags=flags)
    with Mappings(**maps.options) as m:
        m.refresh(child.pid, child.start)
        rows = m.rows(child.pid, child.start)
        start, exec_vm, start_stack, _, count, _, _ = maps.process(child.pid)
        assert (start, count) == (child.start, len(rows))
        assert exec_vm * 4096 == sum(r.end - r.start for r in rows if not r.writable)
        assert start_stack == int(Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()[25])
        assert maps.table(child.pid) == [(r.start, r.end, r.file_offset, r.file_id, 0) for r in rows]
        assert any(r.file_id for r in rows)
    maps.close()


@pytest.mark.bpf
def test_a_changed_table_moves_and_its_old_rows_stay_for_a_second(tmp_path):
    maps, now = Published(6), time.monotonic_ns()
    false_process(tmp_path, 5, ticks=1, maps="1000-2000 r-xp 0 00:00 0 \n2000-3000 r-xp 0 00:00 0 \n")
    with Mappings(str(tmp_path), **maps.options) as m:
        m.refresh(5, TICK, now=now)
        old = maps.process(5)[3]
        m.refresh(5, TICK, now=now)
        assert maps.process(5)[3] == old, "unchanged: not moved"
        false_process(tmp_path, 5, ticks=1, maps="5000-6000 r-xp 0 00:00 0 \n7000-8000 r-xp 0 00:00 0 \n")
        m.refresh(5, TICK, now=now)
        first = maps.process(5)[3]
        assert first != old
        assert maps.table(5)[0][:2] == (0x5000, 0x6000)
        assert MAPPING.unpack(lookup(maps.mappings, old, MAPPING.size))[:2] == (0x1000, 0x2000)
        for pid in (6, 7):
            false_process(tmp_path, pid, ticks=pid, maps=MAPS)
            m.refresh(pid, pid * TICK, now=now + SECOND // 2)
        assert len(maps.table(6)) == 2
        assert maps.process(7) is None, "2 of 6 rows are in their grace period"
        assert m.counters()["rows_no_room"] == 1
        m.tick(now + SECOND + 1)
        m.refresh(7, 7 * TICK, now=now + SECOND + 1)
        assert maps.process(7)[3] == old
        assert maps.table(5)[0][:2] == (0x5000, 0x6000), "a full array harms no other table"
    maps.close()


@pytest.mark.bpf
def test_full_array_gives_up_the_least_recently_sampled(tmp_path):
    maps, now = Published(64), time.monotonic_ns()
    false_processes(tmp_path, 20, rows=8)
    with Mappings(str(tmp_path), **maps.options) as m:
        for pid in range(1, 9):
            m.refresh(pid, pid * TICK, now=now + pid)
        assert all(maps.process(pid) for pid in range(1, 9))
        m.tick(now + 10 * SECOND)
        assert maps.process(1) is None, "kept free: an eighth"
        assert maps.process(2) is not None
        assert m.rows(1, TICK), "names stay"
        m.tick(now + 12 * SECOND)
        m.refresh(20, 20 * TICK, now=now + 12 * SECOND)
        assert maps.process(20)
        m.sampled(1, TICK, bm.NO_TABLE, now=now + 13 * SECOND)
        m.tick(now + 15 * SECOND)
        m.sampled(1, TICK, bm.NO_TABLE, now=now + 16 * SECOND)
        assert maps.process(1), "sampled again: published again"
    maps.close()


@pytest.mark.bpf
def test_full_procs_map(tmp_path):
    maps = Published(64, processes=2)
    false_processes(tmp_path, 3)
    with Mappings(str(tmp_path), **maps.options) as m:
        for pid in (1, 2, 3):
            m.refresh(pid, pid * TICK)
        assert [pid for pid in (1, 2, 3) if maps.process(pid)] == [2, 3]
        assert m.counters()["publish_failed"] == 0
    maps.close()


@pytest.mark.bpf
def test_new_life_of_a_pid_replaces_the_table(tmp_path):
    maps = Published(64)
    false_process(tmp_path, 7, ticks=1, maps=MAPS)
    with Mappings(str(tmp_path), **maps.options) as m:
        m.refresh(7, TICK)
        false_process(tmp_path, 7, ticks=9, maps="9000-a000 r-xp 00000000 00:00 0 \n")
        m.refresh(7, 9 * TICK)
        assert maps.process(7)[0] == 9 * TICK
        m.refresh(7, TICK)
        m.tick(time.monotonic_ns() + 100 * SECOND)
        assert maps.process(7)[0] == 9 * TICK, "what is left of the old life does not take it away"
        assert len(maps.table(7)) == 1
    maps.close()


@pytest.mark.bpf
def test_more_mappings_than_fit_keeps_those_of_files(tmp_path):
    maps = Published(8192)
    rows = "".join(f"{i * 2 + 1:x}000-{i * 2 + 2:x}000 r-xp 0 00:00 0 \n" for i in range(5000))
    false_process(tmp_path, 7, ticks=1, maps=rows + "7f0000000000-7f0000001000 r-xp 0 08:01 77 /lib/x.so\n")
    with Mappings(str(tmp_path), **maps.options) as m:
        m.refresh(7, TICK)
        assert [t[0] for t in maps.table(7)] == [0x7F0000000000]
        assert m.counters()["rows_left_out"] == 5000
        assert len(m.rows(7, TICK)) == 5001
    maps.close()


def test_cost_of_listing_three_hundred_mappings(child, capsys):
    child.do("m = [memory(4096, 5) for _ in range(600)]; [x.close() for x in m[::2]]")
    costs = {}
    for name, text_only in (("query", False), ("text", True)):
        with Mappings(text_only=text_only) as m:
            m.refresh(child.pid, child.start)
            assert len(m.rows(child.pid, child.start)) >= 300
            taken = []
            for _ in range(15):
                before = time.thread_time_ns()
                m.refresh(child.pid, child.start)
                taken.append(time.thread_time_ns() - before)
            costs[name] = min(taken) / 1000, m.counters()["listings_by_text"]
    with capsys.disabled():
        print(f"\n  {costs} us for {len(child_rows(child))} mappings", end="")
    if not costs["query"][1]:
        assert costs["query"][0] < costs["text"][0]


def child_rows(child: Child) -> list:
    return twin(Path(f"/proc/{child.pid}/maps").read_bytes())
