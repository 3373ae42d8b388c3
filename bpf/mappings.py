# SPDX-License-Identifier: Apache-2.0
"""Process mappings as bpf/mappings.c lists them, without a running core: for tests, `make bench` and questions."""

from __future__ import annotations

import ctypes
import os
import time
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from gpustrobe.bpf.loader import DETAILS, BuildId, DetailsHead, FileRecord, find

DETAILS_MAX = 1024 + 64 + 4096 + 4096 + 4096 + 256

# enum gs_sample_flag
KTHREAD, NO_TABLE, STALE_TABLE, HINT, UNRESOLVED = 1, 2, 4, 8, 16

# enum gs_file_flag
DELETED, MEMFD, AGAIN = 1, 2, 4

BUILD_ID_REASONS = ("found", "not_opened", "unreadable", "not_elf", "truncated", "corrupt", "no_note")


class Listing(IntEnum):
    """enum gs_listing"""

    LISTED, CACHED, GONE, REUSED, FAILED = range(5)


class PlaceKind(IntEnum):
    """enum gs_place_kind"""

    NO_PROCESS, UNMAPPED, NATIVE, VDSO, ANONYMOUS = range(5)


class Options(Structure):
    _fields_ = (
        ("proc_root", c_char_p),
        ("procs_fd", c_int32),
        ("mappings_fd", c_int32),
        ("mapping_rows", c_uint32),
        ("max_processes", c_uint32),
        ("max_files", c_uint32),
        ("text_only", c_uint32),
        ("pad", c_uint32),
        ("memory_budget", c_uint64),
        ("tables", c_void_p),
    )


class Sample(Structure):
    _fields_ = (
        ("time_ns", c_uint64),
        ("start_boottime", c_uint64),
        ("cgroup_id", c_uint64),
        ("value", c_uint64),
        ("tgid", c_uint32),
        ("tid", c_uint32),
        ("comm", c_char * 16),
        ("cpu", ctypes.c_uint16),
        ("n_kernel", ctypes.c_uint16),
        ("n_user", ctypes.c_uint16),
        ("flags", ctypes.c_uint16),
    )


class LeafHint(Structure):
    _fields_ = (("inode", c_uint64), ("file_offset", c_uint64), ("device", c_uint32), ("pad", c_uint32))


class RowRecord(Structure):
    _fields_ = (
        ("start", c_uint64),
        ("end", c_uint64),
        ("file_offset", c_uint64),
        ("inode", c_uint64),
        ("device", c_uint32),
        ("file_id", c_uint32),
        ("kind", c_uint32),
        ("flags", c_uint32),
    )


class PlaceRecord(Structure):
    _fields_ = (("kind", c_uint32), ("file_id", c_uint32), ("offset", c_uint64))


class DetailsRecord(Structure):
    _fields_ = (("head", DetailsHead), ("text", c_char * DETAILS_MAX))


class Row(NamedTuple):
    """One executable mapping; device is major << 20 | minor."""

    start: int
    end: int
    file_offset: int
    inode: int
    device: int
    file_id: int
    kind: PlaceKind
    writable: bool


class Place(NamedTuple):
    kind: PlaceKind
    file_id: int
    offset: int


class Listed(NamedTuple):
    """A file as bpf/files.h describes it. `fd` is the caller's to close; -1 if it could not be opened."""

    file_id: int
    fd: int
    open_errno: int
    flags: int
    pid: int
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    build_id: str
    build_id_reason: str
    path: bytes


@cache
def _core() -> ctypes.CDLL:
    core = ctypes.CDLL(str(find("core.so")))
    handle = c_void_p
    for name, result, arguments in (
        ("gs_mappings_open", handle, (POINTER(Options),)),
        ("gs_mappings_close", None, (handle,)),
        ("gs_mappings_sampled", c_int, (handle, POINTER(Sample), c_uint64)),
        ("gs_mappings_refresh", c_int, (handle, c_uint32, c_uint32, c_uint64, c_uint64)),
        ("gs_mappings_tick", None, (handle, c_uint64)),
        ("gs_mappings_normalize", PlaceRecord, (handle, c_uint32, c_uint64, c_uint64)),
        ("gs_mappings_hint", PlaceRecord, (handle, POINTER(LeafHint))),
        ("gs_mappings_take_file", c_int, (handle, POINTER(FileRecord))),
        ("gs_mappings_details", c_int, (handle, c_uint32, c_uint64, POINTER(DetailsRecord))),
        ("gs_mappings_new_epoch", None, (handle,)),
        ("gs_mappings_wants_epoch", c_int, (handle,)),
        ("gs_mappings_counters", POINTER(c_uint64), (handle,)),
        ("gs_mapping_counter_name", c_char_p, (c_uint32,)),
        ("gs_mappings_rows", c_int, (handle, c_uint32, c_uint64, POINTER(RowRecord), c_uint32)),
        ("gs_read_build_id", BuildId, (c_int,)),
        ("gs_parse_stat", c_int, (c_char_p, c_size_t, POINTER(c_uint64 * 2))),
    ):
        function = getattr(core, name)
        function.restype, function.argtypes = result, arguments
    return core


def read_build_id(fd: int) -> tuple[str, str]:
    """(hex, reason): the GNU build id of an open file, or "" and one of BUILD_ID_REASONS."""
    record = _core().gs_read_build_id(fd)
    return bytes(record.bytes[: record.length]).hex(), BUILD_ID_REASONS[record.reason]


def parse_stat(text: bytes) -> tuple[int, int] | None:
    """(start time in ticks, start of the stack) of a /proc/PID/stat text; None if it is not one."""
    stamp = (c_uint64 * 2)()
    return None if _core().gs_parse_stat(text, len(text), byref(stamp)) else (stamp[0], stamp[1])


class Mappings:
    """bpf/mappings.h for one thread. Times are CLOCK_MONOTONIC nanoseconds; without `now` it is the present."""

    def __init__(
        self,
        proc_root: str = "/proc",
        *,
        procs_fd: int = -1,
        mappings_fd: int = -1,
        mapping_rows: int = 0,
        max_processes: int = 0,
        max_files: int = 0,
        text_only: bool = False,
        memory_budget: int = 0,
        tables: int | None = None,
    ) -> None:
        self._core = _core()
        options = Options(
            os.fsencode(proc_root),
            procs_fd,
            mappings_fd,
            mapping_rows,
            max_processes,
            max_files,
            int(text_only),
            0,
            memory_budget,
            tables,
        )
        self._handle = self._core.gs_mappings_open(byref(options))
        if not self._handle:
            raise OSError("gs_mappings_open failed")

    def close(self) -> None:
        if self._handle:
            self._core.gs_mappings_close(self._handle)
        self._handle = None

    def __enter__(self) -> Mappings:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def refresh(self, tgid: int, start_boottime: int, tid: int = 0, now: int | None = None) -> Listing:
        return Listing(self._core.gs_mappings_refresh(self._handle, tgid, tid, start_boottime, _now(now)))

    def sampled(
        self, tgid: int, start_boottime: int, flags: int = 0, tid: int = 0, comm: bytes = b"", now: int | None = None
    ) -> Listing:
        at = _now(now)
        sample = Sample(at, start_boottime, 0, 1, tgid, tid or tgid, comm, 0, 0, 0, flags)
        return Listing(self._core.gs_mappings_sampled(self._handle, byref(sample), at))

    def tick(self, now: int | None = None) -> None:
        self._core.gs_mappings_tick(self._handle, _now(now))

    def normalize(self, tgid: int, start_boottime: int, address: int) -> Place:
        place = self._core.gs_mappings_normalize(self._handle, tgid, start_boottime, address)
        return Place(PlaceKind(place.kind), place.file_id, place.offset)

    def hint(self, device: int, inode: int, file_offset: int) -> Place:
        place = self._core.gs_mappings_hint(self._handle, byref(LeafHint(inode, file_offset, device, 0)))
        return Place(PlaceKind(place.kind), place.file_id, place.offset)

    def rows(self, tgid: int, start_boottime: int) -> list[Row] | None:
        count = self._core.gs_mappings_rows(self._handle, tgid, start_boottime, None, 0)
        if count < 0:
            return None
        rows = (RowRecord * max(count, 1))()
        self._core.gs_mappings_rows(self._handle, tgid, start_boottime, rows, count)
        return [
            Row(r.start, r.end, r.file_offset, r.inode, r.device, r.file_id, PlaceKind(r.kind), bool(r.flags & 1))
            for r in rows[:count]
        ]

    def take_files(self) -> list[Listed]:
        record, taken = FileRecord(), []
        while self._core.gs_mappings_take_file(self._handle, byref(record)):
            path = ctypes.string_at(ctypes.addressof(record) + FileRecord.path.offset, record.path_length)
            taken.append(
                Listed(
                    *(getattr(record, name) for name in Listed._fields[:10]),
                    bytes(record.build_id.bytes[: record.build_id.length]).hex(),
                    BUILD_ID_REASONS[record.build_id.reason],
                    path,
                )
            )
        return taken

    def details(self, tgid: int, start_boottime: int) -> bytes | None:
        """The packed details as agent/processes.py takes them, or None."""
        record = DetailsRecord()
        if not self._core.gs_mappings_details(self._handle, tgid, start_boottime, byref(record)):
            return None
        return bytes(record)[: ctypes.sizeof(DetailsHead) + sum(record.head.length[: len(DETAILS)])]

    def new_epoch(self) -> None:
        self._core.gs_mappings_new_epoch(self._handle)

    def wants_epoch(self) -> bool:
        return bool(self._core.gs_mappings_wants_epoch(self._handle))

    def counters(self) -> dict[str, int]:
        values = self._core.gs_mappings_counters(self._handle)
        counters: dict[str, int] = {}
        while name := self._core.gs_mapping_counter_name(len(counters)):
            counters[name.decode()] = values[len(counters)]
        return counters


def _now(now: int | None) -> int:
    return time.monotonic_ns() if now is None else now
