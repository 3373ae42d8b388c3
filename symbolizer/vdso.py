# SPDX-License-Identifier: Apache-2.0
"""Frames in the vdso, the code that the kernel maps into each process. Ours is everybody's, which is checked."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from gpustrobe.bpf import elf_names
from gpustrobe.symbolizer.elf import functions_at, vaddr_of

_AT_SYSINFO_EHDR = 33  # linux/auxvec.h
_IMAGES = 8  # a 32-bit or time-namespace process has another; no more kinds are known


def vdso_base(auxv: bytes) -> int:
    """Address of the vdso in the auxiliary vector of a 64-bit process; 0 if it has none."""
    for at in range(0, len(auxv) - 15, 16):
        kind, value = struct.unpack_from("=QQ", auxv, at)
        if kind == _AT_SYSINFO_EHDR:
            return value
    return 0


class VdsoNames:
    """Not thread-safe."""

    def __init__(self, proc_root: str = "/proc") -> None:
        self._proc = Path(proc_root)
        self._own = _own_image()
        self._images: dict[bytes, _Image] = {}

    def resolve(self, pid: int, offsets: list[int]) -> dict[int, str]:
        """Function at each offset of the vdso of process `pid`; "" where there is none."""
        image = self._image(self._read(pid) or self._own)
        return image.names(offsets)

    def _read(self, pid: int) -> bytes:
        """The process's vdso, as long as ours; b"" if it is gone or may not be read: then it is taken to have ours."""
        try:
            base = vdso_base((self._proc / str(pid) / "auxv").read_bytes())
            if not base:
                return b""
            fd = os.open(self._proc / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.pread(fd, len(self._own), base)
        except (OSError, OverflowError):
            return b""
        finally:
            os.close(fd)

    def _image(self, content: bytes) -> _Image:
        if content not in self._images:
            if len(self._images) >= _IMAGES:
                return self._images[self._own] if self._own in self._images else _Image(b"")
            self._images[content] = _Image(content)
        return self._images[content]

    def close(self) -> None:
        for image in self._images.values():
            image.close()
        self._images.clear()


class _Image:
    """One vdso in a memory file."""

    def __init__(self, content: bytes) -> None:
        self._fd = os.memfd_create("gpustrobe-vdso", os.MFD_CLOEXEC)
        with open(self._fd, "wb", closefd=False) as file:
            file.write(content)
        try:
            self._facts = elf_names.inspect(self._fd)
        except ValueError:
            self._facts = None

    def names(self, offsets: list[int]) -> dict[int, str]:
        places = {offset: vaddr_of(self._facts, offset) if self._facts else None for offset in offsets}
        wanted = [vaddr for vaddr in places.values() if vaddr is not None]
        try:
            found = functions_at(self._fd, wanted) if wanted else {}
        except ValueError:
            found = {}
        return {offset: found[vaddr].linkage if vaddr in found else "" for offset, vaddr in places.items()}

    def close(self) -> None:
        os.close(self._fd)


def _own_image() -> bytes:
    """Our own vdso, read from our own memory; b"" if the kernel was started without one."""
    with open("/proc/self/maps") as maps:
        line = next((line for line in maps if line.rstrip().endswith("[vdso]")), "")
    if not line:
        return b""
    start, end = (int(part, 16) for part in line.split(maxsplit=1)[0].split("-"))
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), end - start, start)
