# SPDX-License-Identifier: Apache-2.0
"""ctypes twin of bpf/text_names.h: functions of the kernel, and perf maps of JIT compilers."""

from __future__ import annotations

import ctypes
import functools
from typing import NamedTuple

import numpy as np
from gpustrobe.bpf.loader import library


class _KernelSymbols(ctypes.Structure):
    _fields_ = [
        ("addresses", ctypes.POINTER(ctypes.c_uint64)), ("names", ctypes.POINTER(ctypes.c_uint32)),
        ("text", ctypes.c_void_p), ("count", ctypes.c_uint32), ("capacity", ctypes.c_uint32),
        ("text_used", ctypes.c_uint32), ("text_capacity", ctypes.c_uint32), ("hidden", ctypes.c_uint32),
    ]  # fmt: skip


class _PerfMap(ctypes.Structure):
    _fields_ = [
        ("rows", ctypes.c_void_p), ("count", ctypes.c_uint32), ("capacity", ctypes.c_uint32),
        ("limit", ctypes.c_uint32), ("bad", ctypes.c_uint32), ("consumed", ctypes.c_uint64),
    ]  # fmt: skip


class _PerfRow(ctypes.Structure):
    _fields_ = [
        ("start", ctypes.c_uint64), ("size", ctypes.c_uint64),
        ("name_at", ctypes.c_uint64, 40), ("name_length", ctypes.c_uint64, 24),
    ]  # fmt: skip


@functools.cache
def _core() -> ctypes.CDLL:
    core, pointer = library(), ctypes.c_void_p
    for name, result, arguments in (
        ("gs_kernel_symbols_read", ctypes.c_char_p, [ctypes.c_int, pointer]),
        ("gs_kernel_symbols_free", None, [pointer]),
        ("gs_kernel_symbols_find", ctypes.c_int64, [pointer, ctypes.c_uint64]),
        ("gs_perf_map_grow", ctypes.c_char_p, [ctypes.c_int, pointer]),
        ("gs_perf_map_free", None, [pointer]),
        ("gs_perf_map_find", None, [pointer, pointer, ctypes.c_uint32, pointer]),
    ):
        function = getattr(core, name)
        function.argtypes, function.restype = arguments, result
    return core


class KernelSymbol(NamedTuple):
    name: str
    module: str  # "" = vmlinux
    start: int


class KernelSymbols:
    """Functions of /proc/kallsyms (or a file like it). ValueError carries the reason: kptr_restrict, none."""

    def __init__(self, fd: int) -> None:
        self._raw = _KernelSymbols()
        reason = _core().gs_kernel_symbols_read(fd, ctypes.byref(self._raw))
        if reason:
            raise ValueError(reason.decode())

    def __len__(self) -> int:
        return self._raw.count

    def find(self, address: int) -> KernelSymbol | None:
        """The last function that starts at or before `address`; kallsyms states no sizes."""
        at = _core().gs_kernel_symbols_find(ctypes.byref(self._raw), address)
        if at < 0:
            return None
        text = ctypes.string_at(self._raw.text + self._raw.names[at]).decode("utf-8", "replace")
        name, _, module = text.partition("\t")
        return KernelSymbol(name, module, self._raw.addresses[at])

    def first_of_kernel(self) -> int:
        """Start of the kernel's own text: modules lie above it on x86, below it on arm64."""
        for at in range(self._raw.count):
            if b"\t" not in ctypes.string_at(self._raw.text + self._raw.names[at]):
                return self._raw.addresses[at]
        return 0

    def close(self) -> None:
        _core().gs_kernel_symbols_free(ctypes.byref(self._raw))


class PerfRow(NamedTuple):
    start: int
    size: int
    name_at: int  # file offset
    name_length: int


class PerfMap:
    """Rows of one perf map, without their names; 24 bytes a row, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._raw = _PerfMap(limit=limit)

    def __len__(self) -> int:
        return self._raw.count

    @property
    def bad_lines(self) -> int:
        return self._raw.bad

    def grow(self, fd: int) -> str:
        """Takes what was appended since the last call. Returns "" or the reason why it stopped short."""
        reason = _core().gs_perf_map_grow(fd, ctypes.byref(self._raw))
        return reason.decode() if reason else ""

    def find(self, addresses: list[int]) -> list[PerfRow | None]:
        """The newest row that contains each of the ascending `addresses`."""
        wanted = np.array(addresses, np.uint64)
        out = np.empty(len(wanted), np.int64)
        _core().gs_perf_map_find(ctypes.byref(self._raw), wanted.ctypes.data, len(wanted), out.ctypes.data)
        return [self._row(at) if at >= 0 else None for at in out.tolist()]

    def _row(self, at: int) -> PerfRow:
        raw = _PerfRow.from_address(self._raw.rows + at * ctypes.sizeof(_PerfRow))
        return PerfRow(raw.start, raw.size, raw.name_at, raw.name_length)

    def close(self) -> None:
        _core().gs_perf_map_free(ctypes.byref(self._raw))
