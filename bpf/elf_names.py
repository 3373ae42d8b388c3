# SPDX-License-Identifier: Apache-2.0
"""ctypes twin of bpf/elf_names.h: facts of an ELF file, and function names for a batch of addresses."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.bpf.loader import library

if TYPE_CHECKING:
    from collections.abc import Sequence

SEGMENTS = 16
NAME_MAX = 16383
NONE, SIZED, NEAREST, NO_ROOM = range(4)  # enum gs_elf_name_how


class _Segment(ctypes.Structure):
    _fields_ = [
        ("file_offset", ctypes.c_uint64), ("file_size", ctypes.c_uint64), ("vaddr", ctypes.c_uint64),
        ("memory_size", ctypes.c_uint64), ("flags", ctypes.c_uint32), ("pad", ctypes.c_uint32),
    ]  # fmt: skip


class _Facts(ctypes.Structure):
    _fields_ = [
        ("symbols", ctypes.c_uint64), ("dynamic_symbols", ctypes.c_uint64), ("debug_bytes", ctypes.c_uint64),
        ("minidebug_offset", ctypes.c_uint64), ("minidebug_size", ctypes.c_uint64), ("machine", ctypes.c_uint32),
        ("n_segments", ctypes.c_uint32), ("lost_segments", ctypes.c_uint32), ("debug_link_crc", ctypes.c_uint32),
        ("build_id_length", ctypes.c_uint32), ("build_id", ctypes.c_uint8 * 32), ("debug_link", ctypes.c_char * 256),
        ("segments", _Segment * SEGMENTS),
    ]  # fmt: skip


class _Index(ctypes.Structure):
    _fields_ = [
        ("rows", ctypes.c_void_p), ("base", ctypes.c_uint64), ("count", ctypes.c_uint32), ("pad", ctypes.c_uint32),
        ("size", ctypes.c_int64), ("mtime", ctypes.c_int64),
    ]  # fmt: skip


_NAME = np.dtype(
    [(name, "<u8") for name in ("start", "low", "high")] + [(name, "<u4") for name in ("text", "length", "how", "pad")]
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A PT_LOAD; `flags` as p_flags (1 = executable)."""

    file_offset: int
    file_size: int
    vaddr: int
    flags: int


@dataclass(frozen=True, slots=True)
class ElfFacts:
    """What the headers say. Sizes in bytes, symbols in entries; "" and (0, 0) where there is none."""

    machine: int
    build_id: str
    symbols: int
    dynamic_symbols: int
    debug_bytes: int
    minidebug: tuple[int, int]  # offset and size of .gnu_debugdata
    debug_link: str
    debug_link_crc: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class ElfName:
    """The function at an address, b"" where there is none. Every address in [low, high) has the same answer."""

    name: bytes
    start: int
    low: int
    high: int
    sized: bool


@functools.cache
def _core() -> ctypes.CDLL:
    core = library()
    core.gs_elf_inspect.argtypes = [ctypes.c_int, ctypes.POINTER(_Facts)]
    core.gs_elf_inspect.restype = ctypes.c_char_p
    u32, pointer = ctypes.c_uint32, ctypes.c_void_p
    core.gs_elf_names.argtypes = [ctypes.c_int, pointer, pointer, u32, pointer, pointer, u32]
    core.gs_elf_index_build.argtypes = [ctypes.c_int, pointer]
    core.gs_elf_index_build.restype = ctypes.c_char_p
    core.gs_elf_index_free.argtypes = [pointer]
    core.gs_elf_index_free.restype = None
    core.gs_elf_names.restype = ctypes.c_char_p
    return core


def inspect(fd: int) -> ElfFacts:
    """Raises ValueError with the reason if `fd` is no ELF file that we can read."""
    raw = _Facts()
    reason = _core().gs_elf_inspect(fd, ctypes.byref(raw))
    if reason:
        raise ValueError(reason.decode())
    return ElfFacts(
        machine=raw.machine,
        build_id=bytes(raw.build_id[: raw.build_id_length]).hex(),
        symbols=raw.symbols,
        dynamic_symbols=raw.dynamic_symbols,
        debug_bytes=raw.debug_bytes,
        minidebug=(raw.minidebug_offset, raw.minidebug_size),
        debug_link=raw.debug_link.decode("utf-8", "surrogateescape"),
        debug_link_crc=raw.debug_link_crc,
        segments=tuple(Segment(s.file_offset, s.file_size, s.vaddr, s.flags) for s in raw.segments[: raw.n_segments]),
    )


class Index:
    """Functions of a file sorted by address: 12 bytes each. ValueError with the reason if there can be none."""

    def __init__(self, fd: int) -> None:
        self._raw = _Index()
        reason = _core().gs_elf_index_build(fd, ctypes.byref(self._raw))
        if reason:
            raise ValueError(reason.decode())

    def __len__(self) -> int:
        return self._raw.count

    @property
    def pointer(self) -> int:
        return ctypes.addressof(self._raw)

    def close(self) -> None:
        _core().gs_elf_index_free(ctypes.byref(self._raw))


def names(fd: int, addresses: Sequence[int], index: Index | None = None) -> dict[int, ElfName]:
    """Function at each virtual address, by the index or one pass over the tables. ValueError with the reason."""
    found: dict[int, ElfName] = {}
    wanted = np.unique(np.fromiter(addresses, np.uint64, len(addresses)))
    while len(wanted):
        rows, text = _one_pass(fd, wanted, index)
        ready = rows["how"] != NO_ROOM
        for address, row in zip(wanted[ready].tolist(), rows[ready].tolist(), strict=True):
            start, low, high, at, length, how, _ = row
            found[address] = ElfName(text[at : at + length], start, low, high, how == SIZED)
        if not ready.any():
            raise ValueError("a symbol's name does not fit the buffer")
        wanted = wanted[~ready]
    return found


def _one_pass(fd: int, wanted: np.ndarray, index: Index | None) -> tuple[np.ndarray, bytes]:
    rows = np.zeros(len(wanted), _NAME)
    text = ctypes.create_string_buffer(4 * NAME_MAX + 160 * len(wanted))
    by = index.pointer if index else None
    reason = _core().gs_elf_names(fd, by, wanted.ctypes.data, len(wanted), rows.ctypes.data, text, len(text))
    if reason:
        raise ValueError(reason.decode())
    used = int((rows["text"] + rows["length"]).max())
    return rows, text.raw[:used] if used else b""
