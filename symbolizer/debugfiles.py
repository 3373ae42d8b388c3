# SPDX-License-Identifier: Apache-2.0
"""Where the debug information of a stripped file lies: by build id, by .gnu_debuglink, or inside it as .gnu_debugdata.

Places as GDB searches them (manual, "Debugging Information in Separate Files"), first in the process's root, then in
ours.
"""

from __future__ import annotations

import lzma
import os
import zlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from gpustrobe.bpf import elf_names
from gpustrobe.symbolizer.root import open_beneath, process_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpustrobe.bpf.elf_names import ElfFacts

_DEBUG_ROOT = "/usr/lib/debug"
_CRC_LIMIT = 1 << 30  # a debug link without build ids is checked by reading all of the file: 0.5 s per GiB
_MINIDEBUG_LIMIT = 32 << 20  # unpacked; Fedora's libc has 0.4 MB


def candidates(path: str, facts: ElfFacts) -> Iterator[str]:
    """Paths at which a debug file for `path` may lie, best first."""
    if len(facts.build_id) > 2:
        yield f"{_DEBUG_ROOT}/.build-id/{facts.build_id[:2]}/{facts.build_id[2:]}.debug"
    link = facts.debug_link
    if link and "/" not in link:
        directory = PurePosixPath(path).parent
        yield f"{directory}/{link}"
        yield f"{directory}/.debug/{link}"
        yield f"{_DEBUG_ROOT}{directory}/{link}"


def find_debug_file(path: str, pid: int, facts: ElfFacts, proc_root: str = "/proc") -> tuple[int, ElfFacts] | None:
    """Descriptor (the caller's) and facts of the debug file that belongs to the file, if there is one."""
    for root_pid in (str(pid), "self"):
        try:
            with process_root(proc_root, root_pid) as root:
                for place in candidates(path, facts):
                    found = _open_matching(root, place, facts)
                    if found:
                        return found
        except OSError:
            continue  # the process is gone: our own root may still have it
    return None


def _open_matching(root: int, place: str, facts: ElfFacts) -> tuple[int, ElfFacts] | None:
    try:
        fd = open_beneath(root, place)
    except OSError:
        return None
    try:
        theirs = elf_names.inspect(fd)
        if _belongs(fd, theirs, facts):
            return os.dup(fd), theirs
    except (ValueError, OSError):
        return None
    finally:
        os.close(fd)
    return None


def _belongs(fd: int, theirs: ElfFacts, ours: ElfFacts) -> bool:
    """Equal build ids; where one has none, the checksum that the debug link states."""
    if theirs.symbols == 0 and theirs.debug_bytes == 0:
        return False
    if ours.build_id and theirs.build_id:
        return ours.build_id == theirs.build_id
    return bool(ours.debug_link) and crc_of(fd) == ours.debug_link_crc


def crc_of(fd: int) -> int | None:
    """CRC-32 of the file's content; None if it is larger than the limit."""
    if os.fstat(fd).st_size > _CRC_LIMIT:
        return None
    crc = offset = 0
    while piece := os.pread(fd, 1 << 20, offset):
        crc = zlib.crc32(piece, crc)
        offset += len(piece)
    return crc


def unpack_minidebug(fd: int, facts: ElfFacts) -> int | None:
    """A memory file with the symbol table that Fedora and RHEL pack into stripped files; None if there is none."""
    offset, size = facts.minidebug
    if not 0 < size <= _MINIDEBUG_LIMIT:
        return None
    unpacker = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=64 << 20)
    try:
        data = unpacker.decompress(os.pread(fd, size, offset), max_length=_MINIDEBUG_LIMIT)
    except (lzma.LZMAError, OSError):
        return None
    if not unpacker.eof:
        return None
    memory = os.memfd_create("gpustrobe-minidebug", os.MFD_CLOEXEC)
    with open(memory, "wb", closefd=False) as file:
        file.write(data)
    return memory
