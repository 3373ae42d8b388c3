# SPDX-License-Identifier: Apache-2.0
"""One ELF file: which content it is, from file offset to virtual address, and the functions found in it so far."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpustrobe.bpf import elf_names

if TYPE_CHECKING:
    import os

    from gpustrobe.bpf.elf_names import ElfFacts, Index
    from gpustrobe.symbolizer.cache import Lines

_EXECUTABLE = 1  # PF_X
_MASK = 2**64 - 1  # what a header claims may wrap around


def content_key(status: os.stat_result, build_id: str) -> str:
    """Name under which results about a file are cached: equal key, equal content.

    The build id, as far as it can be believed: anybody can write libc's build id into a file of his own, so only files
    of root share it. Without one, inode, size and times, which hold on this machine only.
    """
    if build_id:
        return build_id if status.st_uid == 0 else f"{build_id}-u{status.st_uid}"
    return f"i{status.st_dev:x}-{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ctime_ns:x}"


def vaddr_of(facts: ElfFacts, offset: int) -> int | None:
    """Virtual address of the byte at file offset `offset`; where segments share a page, the executable one's."""
    data = None
    for segment in facts.segments:
        within = offset - segment.file_offset
        if 0 <= within < segment.file_size:
            vaddr = (segment.vaddr + within) & _MASK
            if segment.flags & _EXECUTABLE:
                return vaddr
            data = vaddr if data is None else data
    return data


@dataclass(slots=True)
class Function:
    """Addresses [low, high) with one answer: a function, or none (`linkage` is "")."""

    low: int
    high: int
    start: int
    linkage: str  # as in the symbol table
    lines: Lines = ()  # as shown, without source line; () until it is demangled


class Functions:
    """Functions of a file that are named already, so that another address of one costs no pass over the symbol tables.

    A pass over libjax takes 8 ms. Distinct addresses keep coming for hours; distinct functions soon do not.
    """

    def __init__(self, limit: int = 20_000) -> None:
        self._limit = limit
        self._lows: list[int] = []
        self._rows: list[Function] = []

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, address: int) -> Function | None:
        """The row that holds the address; None if nothing is known about it."""
        at = bisect.bisect_right(self._lows, address) - 1
        if at < 0 or address >= self._rows[at].high:
            return None
        return self._rows[at]

    def add(self, row: Function) -> None:
        if len(self._lows) >= self._limit:  # rare enough to begin anew
            self._lows.clear()
            self._rows.clear()
        at = bisect.bisect_left(self._lows, row.low)
        if at < len(self._lows) and self._lows[at] == row.low:
            self._rows[at] = row
        else:
            self._lows.insert(at, row.low)
            self._rows.insert(at, row)


def functions_at(fd: int, addresses: list[int], index: Index | None = None) -> dict[int, Function]:
    """The row of each virtual address, by the index or one pass over the symbol tables. ValueError with the reason."""
    rows: dict[int, Function] = {}
    found: dict[int, Function] = {}
    for address, name in elf_names.names(fd, addresses, index).items():
        row = rows.get(name.low)
        if row is None:
            linkage = name.name.decode("utf-8", "replace").split("@", 1)[0]  # memcpy@@GLIBC_2.14
            row = rows[name.low] = Function(name.low, name.high, name.start, linkage)
        found[address] = row
    return found
