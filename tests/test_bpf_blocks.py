# SPDX-License-Identifier: Apache-2.0
"""Tables published to real BPF maps: moved, withdrawn, evicted, never torn."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from pathlib import Path

import pytest
from gpustrobe.bpf import mappings as bm
from gpustrobe.bpf.mappings import Mappings

from tests.proc_children import MAPS, SECOND, TICK, Child, false_process, false_processes


@pytest.fixture
def child():
    started = Child()
    yield started
    started.end()


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
