# SPDX-License-Identifier: Apache-2.0
"""Unwind rows of one file, as bpf/unwind_rows.c builds them; for tests, `make bench` and questions about a library."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import NamedTuple

from elftools.elf.elffile import ELFFile
from gpustrobe.bpf.loader import library


class Cfa(IntEnum):
    """enum gs_cfa in bpf/rules.h"""

    NONE, SP, BP, SP_DEREF, BP_DEREF, LEAF, PLT, SIGNAL, STOP, BAD = range(10)


class Bp(IntEnum):
    """enum gs_bp in bpf/rules.h"""

    SAME, CFA, BP, SP, UNKNOWN = range(5)


class Rule(ctypes.Structure):
    """struct gs_rule in bpf/rules.h"""

    _fields_ = [
        ("cfa_offset", ctypes.c_int32),
        ("bp_offset", ctypes.c_int16),
        ("cfa", ctypes.c_uint8),
        ("bp", ctypes.c_uint8),
    ]


class RuleValue(NamedTuple):
    cfa: Cfa
    cfa_offset: int
    bp: Bp
    bp_offset: int


class _Rows(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_uint64),
        ("pages", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("n_rules", ctypes.c_uint32),
        ("index", ctypes.POINTER(ctypes.c_uint32)),
        ("rows", ctypes.POINTER(ctypes.c_uint32)),
        ("rules", ctypes.POINTER(Rule)),
        ("functions", ctypes.c_uint64),
        ("unsupported", ctypes.c_uint64),
        ("bad_rules", ctypes.c_uint64),
    ]


def _functions():
    core = library()
    core.gs_rows_build.argtypes = [ctypes.c_int, ctypes.POINTER(_Rows)]
    core.gs_rows_build.restype = ctypes.c_char_p
    core.gs_rows_free.argtypes = [ctypes.POINTER(_Rows)]
    core.gs_rows_free.restype = None
    core.gs_rows_find.argtypes = [ctypes.POINTER(_Rows), ctypes.c_uint64]
    core.gs_rows_find.restype = Rule
    return core


class Rows:
    """Rows of one file; a context manager that frees them."""

    def __init__(self, core, raw: _Rows) -> None:
        self._core, self._raw = core, raw

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *exc: object) -> None:
        self._core.gs_rows_free(ctypes.byref(self._raw))

    def find(self, file_offset: int) -> RuleValue:
        rule = self._core.gs_rows_find(ctypes.byref(self._raw), file_offset)
        return RuleValue(Cfa(rule.cfa), rule.cfa_offset, Bp(rule.bp), rule.bp_offset)

    @property
    def count(self) -> int:
        return self._raw.count

    @property
    def n_rules(self) -> int:
        return self._raw.n_rules

    @property
    def bad(self) -> int:
        """Rows whose rule cannot be expressed, before equal neighbours were merged."""
        return self._raw.bad_rules

    @property
    def unsupported(self) -> int:
        return self._raw.unsupported

    @property
    def bytes_per_row(self) -> float:
        return (4 * self.count + 4 * (self._raw.pages + 1)) / self.count


def build(fd: int) -> Rows:
    """Rows of the ELF file behind `fd`. Raises ValueError with the reason if there are none."""
    core, raw = _functions(), _Rows()
    reason = core.gs_rows_build(fd, ctypes.byref(raw))
    if reason:
        raise ValueError(reason.decode())
    return Rows(core, raw)


def executable_segments(path: str) -> list[tuple[int, int, int]]:
    """(virtual address, file offset, size in the file) of each executable PT_LOAD."""
    with open(path, "rb") as file:
        return [
            (s["p_vaddr"], s["p_offset"], s["p_filesz"])
            for s in ELFFile(file).iter_segments("PT_LOAD")
            if s["p_flags"] & 1
        ]
