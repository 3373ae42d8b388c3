# SPDX-License-Identifier: Apache-2.0
"""Listing and naming the mappings of real processes, and of those that are gone or another by now."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from gpustrobe.bpf import mappings as bm
from gpustrobe.bpf.loader import DETAILS, DetailsHead
from gpustrobe.bpf.mappings import Listing, Mappings, PlaceKind

from tests.proc_children import LIBZ, MAPS, SECOND, TICK, Child, false_process, false_processes, shape, start_of, twin

BOTH = pytest.mark.parametrize("text_only", [False, True], ids=["query", "text"])
ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="needs root")


@pytest.fixture
def child():
    started = Child()
    yield started
    started.end()


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


def test_cost_of_listing_three_hundred_mappings(child, capsys):
    child.do("m = [memory(4096, 5) for _ in range(600)]; [x.close() for x in m[::2]]")
    costs = {}
    for name, text_only in (("query", False), ("text", True)):
        with Mappings(text_only=text_only) as m:
            m.refresh(child.pid, child.start)
            count = len(m.rows(child.pid, child.start))
            assert count >= 300
            taken = []
            for _ in range(15):
                before = time.thread_time_ns()
                m.refresh(child.pid, child.start)
                taken.append(time.thread_time_ns() - before)
            costs[name] = min(taken) / 1000, m.counters()["listings_by_text"]
    with capsys.disabled():
        print(f"\n  {costs} us for {len(twin(Path(f'/proc/{child.pid}/maps').read_bytes()))} mappings", end="")
    if not costs["query"][1]:
        assert costs["query"][0] < costs["text"][0]


# ---- lives of processes


def test_another_life_of_the_pid_is_refused(child):
    with Mappings() as m:
        assert m.refresh(child.pid, child.start + TICK) == Listing.REUSED
        assert m.refresh(child.pid, child.start - TICK) == Listing.REUSED
        assert m.rows(child.pid, child.start + TICK) == []
        assert m.counters()["pid_reused"] == 2
        assert m.refresh(child.pid, child.start) == Listing.LISTED


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


def test_a_process_that_is_sampled_again_was_not_gone(tmp_path):
    folder, now = false_process(tmp_path, 1, ticks=1, maps=MAPS), time.monotonic_ns()
    with Mappings(str(tmp_path)) as m:
        folder.rename(tmp_path / "away")
        assert m.sampled(1, TICK, bm.NO_TABLE, now=now) == Listing.GONE
        assert m.sampled(1, TICK, bm.NO_TABLE, now=now) == Listing.GONE, "answered from memory"
        (tmp_path / "away").rename(folder)
        assert m.sampled(1, TICK, bm.NO_TABLE, now=now + SECOND) == Listing.LISTED
        assert m.counters()["process_gone"] == 1
