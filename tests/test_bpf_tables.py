# SPDX-License-Identifier: Apache-2.0
"""Placing unwind tables into shared arrays; memory files stand in for the BPF arrays, mapped just the same."""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import contextmanager

import pytest
from gpustrobe.bpf import unwind_rows
from gpustrobe.bpf.loader import library
from gpustrobe.bpf.unwind_rows import Cfa, Rule

LIBC = "/lib/x86_64-linux-gnu/libc.so.6"
LIBZ = "/lib/x86_64-linux-gnu/libz.so.1"
LIBM = "/lib/x86_64-linux-gnu/libm.so.6"
SECOND = 1_000_000_000


class BuildId(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint8), ("reason", ctypes.c_uint8), ("bytes", ctypes.c_uint8 * 32)]


class Options(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("tables_fd", "words_fd", "rules_fd")),
        *((name, ctypes.c_uint32) for name in ("max_tables", "max_words", "max_rules", "build_share")),
    ]


def core():
    lib = library()
    lib.gs_tables_open.restype = ctypes.c_void_p
    lib.gs_tables_open.argtypes = [ctypes.POINTER(Options)]
    lib.gs_tables_close.argtypes = [ctypes.c_void_p]
    lib.gs_tables_want.restype = ctypes.c_uint32
    lib.gs_tables_want.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(BuildId),
        ctypes.c_uint64,
        ctypes.c_int,
        ctypes.c_uint64,
    ]
    lib.gs_tables_tick.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    lib.gs_tables_settled.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    lib.gs_tables_counters.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)]
    lib.gs_table_counter_name.restype = ctypes.c_char_p
    lib.gs_tables_find.restype = Rule
    lib.gs_tables_find.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64]
    return lib


class Tables:
    def __init__(self, max_tables=16, max_words=1 << 18) -> None:
        self.core = core()
        fds = [os.memfd_create(name) for name in ("tables", "words", "rules")]
        for fd, size in zip(fds, (max_tables * 24, max_words * 4, 4096 * 8), strict=True):
            os.ftruncate(fd, (size + 4095) // 4096 * 4096)
        self.handle = self.core.gs_tables_open(Options(*fds, max_tables, max_words, 4096, 1000))
        for fd in fds:
            os.close(fd)
        assert self.handle

    def want(self, path: str, now: int, key: int | None = None, build_id: bytes = b"") -> int:
        identity = BuildId(len(build_id), 0, (ctypes.c_uint8 * 32)(*build_id))
        fd = os.open(path, os.O_RDONLY)
        try:
            return self.core.gs_tables_want(self.handle, identity, key or os.fstat(fd).st_ino, fd, now)
        finally:
            os.close(fd)

    def settle(self) -> None:
        assert self.core.gs_tables_settled(self.handle, 10_000)

    def find(self, table: int, offset: int) -> Rule:
        return self.core.gs_tables_find(self.handle, table, offset)

    def counters(self) -> dict[str, int]:
        values = (ctypes.c_uint64 * 64)()
        self.core.gs_tables_counters(self.handle, values)
        names = []
        while name := self.core.gs_table_counter_name(len(names)):
            names.append(name.decode())
        return dict(zip(names, values, strict=False))


@contextmanager
def tables(**sizes):
    t = Tables(**sizes)
    try:
        yield t
    finally:
        t.core.gs_tables_close(t.handle)


def now() -> int:
    return time.monotonic_ns()


@pytest.mark.parametrize("path", [LIBC, LIBZ, LIBM])
def test_placed_rules_equal_built_rules(path):
    with tables() as t, open(path, "rb") as file, unwind_rows.build(file.fileno()) as rows:
        t.want(LIBZ if path != LIBZ else LIBM, now())  # something else lies in front
        table = t.want(path, now())
        t.settle()
        for offset in range(0, os.fstat(file.fileno()).st_size, 1009):
            rule, expected = t.find(table, offset), rows.find(offset)
            assert (rule.cfa, rule.cfa_offset, rule.bp, rule.bp_offset) == expected_tuple(expected)


def expected_tuple(rule) -> tuple[int, int, int, int]:
    return (rule.cfa, rule.cfa_offset, rule.bp, rule.bp_offset)


def test_equal_build_ids_share_one_table():
    with tables() as t:
        first = t.want(LIBZ, now(), key=1, build_id=b"same" * 5)
        assert t.want(LIBZ, now(), key=2, build_id=b"same" * 5) == first
        t.settle()
        assert t.counters()["tables_built"] == 1


def test_file_without_unwind_information_is_tried_once(tmp_path):
    (tmp_path / "text").write_text("no ELF")
    with tables() as t:
        table = t.want(str(tmp_path / "text"), now())
        t.settle()
        assert t.want(str(tmp_path / "text"), now()) == table
        t.settle()
        assert t.counters()["tables_failed"] == 1
        assert t.find(table, 0).cfa == Cfa.NONE


def test_a_full_array_evicts_what_nobody_wants_and_stale_numbers_find_nothing():
    with tables(max_tables=3, max_words=1 << 15) as t:
        old = t.want(LIBZ, now() - 100 * SECOND, key=1)
        t.settle()
        with open(LIBZ, "rb") as file, unwind_rows.build(file.fileno()) as rows:
            probe = next(o for o in range(0x2000, 0x20000) if rows.find(o).cfa == Cfa.SP)
        assert t.find(old, probe).cfa == Cfa.SP
        t.want("/bin/true", now(), key=2)
        third = t.want("/bin/false", now(), key=3)  # no number left: the old one's is given again
        t.settle()
        assert third & 0xFFFF == old & 0xFFFF
        assert third != old
        assert t.find(old, probe).cfa == Cfa.NONE
        assert t.counters()["tables_evicted"] == 1


def test_no_room_is_counted_and_tables_in_use_stay():
    with tables(max_words=1 << 14) as t:
        small = t.want("/bin/true", now())
        t.want(LIBC, now())
        t.settle()
        assert t.counters()["tables_no_room"] == 1
        assert t.counters()["tables_built"] == 1
        assert t.counters()["words_used"] > 0
        assert small


def test_unwanted_tables_expire():
    with tables() as t:
        t.want(LIBZ, now())
        t.settle()
        used = t.counters()["words_used"]
        assert used
        t.core.gs_tables_tick(t.handle, now() + 700 * SECOND)
        assert t.counters()["tables_expired"] == 1
        again = t.want(LIBZ, now())
        t.settle()
        assert t.counters()["tables_built"] == 2
        assert again


def test_close_with_builds_queued():
    with tables(max_words=1 << 20) as t:
        for key in range(1, 15):
            t.want(LIBC, now(), key=key)
