# SPDX-License-Identifier: Apache-2.0
"""One ELF file: which content it is, from file offset to virtual address, and the functions found in it so far."""

from __future__ import annotations

import bisect
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpustrobe.bpf import elf_names

if TYPE_CHECKING:
    from gpustrobe.bpf.elf_names import ElfFacts, ElfName

_EXECUTABLE = 1  # PF_X


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
    held = [s for s in facts.segments if s.file_offset <= offset < s.file_offset + s.file_size]
    if not held:
        return None
    best = next((s for s in held if s.flags & _EXECUTABLE), held[0])
    return best.vaddr + offset - best.file_offset


@dataclass(slots=True)
class Functions:
    """Intervals of a file that are named already, so that a second address of a function costs no pass over the tables.

    A pass over libjax takes 8 ms; distinct addresses keep coming for hours, distinct functions soon do not.
    """

    limit: int = 20_000
    _lows: list[int] = field(default_factory=list)
    _rows: list[tuple[int, str, int]] = field(default_factory=list)  # high, name, start

    def find(self, address: int) -> tuple[str, int] | None:
        """(name, start) of the function, ("", 0) if it is known that there is none, None if nothing is known."""
        at = bisect.bisect_right(self._lows, address) - 1
        if at < 0 or address >= self._rows[at][0]:
            return None
        return self._rows[at][1:]

    def add(self, found: ElfName, name: str) -> None:
        if len(self._lows) >= self.limit:
            self._lows.clear()
            self._rows.clear()
        at = bisect.bisect_left(self._lows, found.low)
        if at < len(self._lows) and self._lows[at] == found.low:
            return
        self._lows.insert(at, found.low)
        self._rows.insert(at, (found.high, name, found.start))


def names_of(fd: int, functions: Functions, addresses: list[int]) -> dict[int, tuple[str, int]]:
    """(symbol, its start) of each virtual address; ("", 0) where no symbol covers it. ValueError with the reason."""
    known = {address: functions.find(address) for address in addresses}
    missing = [address for address, hit in known.items() if hit is None]
    if missing:
        for address, found in elf_names.names(fd, missing).items():
            name = found.name.decode("utf-8", "replace").split("@", 1)[0]  # memcpy@@GLIBC_2.14
            functions.add(found, name)
            known[address] = (name, found.start)
    return {address: hit or ("", 0) for address, hit in known.items()}
