# SPDX-License-Identifier: Apache-2.0
"""Kernel frames by /proc/kallsyms: vmlinux, modules, BPF programs, trampolines. Modules that load later are noticed."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from gpustrobe.agent.model import Frame
from gpustrobe.bpf.text_names import KernelSymbols
from gpustrobe.symbolizer.names import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpustrobe.bpf.text_names import KernelSymbol

# kallsyms states starts only. No function is longer than this; what is further from the last start is in something new.
_FURTHEST = 1 << 20
_FURTHEST_BPF = 1 << 16
# Reading it costs 33 ms in the kernel and 40 ms here (122 k symbols), so an unknown address does it only so often.
_REFRESH_SECONDS = 60
_NT_GNU_BUILD_ID = 3


class KernelNames:
    """Not thread-safe. Reads nothing until the first kernel frame."""

    def __init__(
        self, proc_root: str = "/proc", sys_root: str = "/sys", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kallsyms = Path(proc_root, "kallsyms")
        self._modules_file = Path(proc_root, "modules")
        self._sys, self._clock = Path(sys_root), clock
        self._symbols: KernelSymbols | None = None
        self._modules: dict[str, tuple[int, int]] = {}  # name -> start, end
        self._build_ids: dict[str, str] = {}
        self._read_at = float("-inf")
        self._base = 0
        self._reason = ""
        self.counts: Counter[str] = Counter()

    def resolve(self, addresses: Iterable[int]) -> dict[int, Frame]:
        """Addresses in the frame are relative to the kernel's or module's start, as KASLR moves both at each boot."""
        return {address: self._frame(address) for address in addresses}

    def _frame(self, address: int) -> Frame:
        symbol = self._find(address)
        if symbol is None:
            reason = self._reason or "no kernel symbol"
            return Frame("[kernel]", "kernel", "vmlinux", reason=reason)
        module = symbol.module
        if module in ("", "__builtin__ftrace"):
            return self._named(symbol, "vmlinux", "", address - self._base)
        if module == "bpf":
            return self._named(symbol, "bpf", None, 0)
        start = self._modules.get(module, (address, 0))[0]
        return self._named(symbol, f"{printable(module)}.ko", module, address - start)

    def _named(self, symbol: KernelSymbol, shown: str, module: str | None, address: int) -> Frame:
        name, build_id = sys.intern(printable(symbol.name)), "" if module is None else self._build_id(module)
        return Frame(name, "kernel", sys.intern(shown), build_id=build_id, address=address)

    def _find(self, address: int) -> KernelSymbol | None:
        age = self._clock() - self._read_at
        if self._symbols is None and age > _REFRESH_SECONDS:
            self._read()
        symbol = self._covering(address)
        # Where BPF programs live, one makes room for the next: an old table would give the old one's name.
        stale = symbol is None or symbol.module == "bpf"
        if stale and self._clock() - self._read_at > _REFRESH_SECONDS:
            self._read()
            symbol = self._covering(address)
        return symbol

    def _covering(self, address: int) -> KernelSymbol | None:
        symbol = self._symbols.find(address) if self._symbols else None
        if symbol is None:
            return None
        if address - symbol.start > (_FURTHEST_BPF if symbol.module == "bpf" else _FURTHEST):
            return None
        owner = next((name for name, (low, high) in self._modules.items() if low <= address < high), None)
        return None if owner is not None and owner != symbol.module else symbol

    def _read(self) -> None:
        self._read_at = self._clock()
        self.counts["kallsyms_reads"] += 1
        try:
            fd = os.open(self._kallsyms, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._reason = f"kallsyms: {error.strerror}"
            return
        try:
            fresh = KernelSymbols(fd)
        except ValueError as error:
            self._reason = str(error)
            return
        finally:
            os.close(fd)
        if self._symbols:
            self._symbols.close()
        self._symbols, self._reason, self._base = fresh, "", fresh.first_of_kernel()
        self._modules = self._read_modules()
        self._build_ids.clear()

    def _read_modules(self) -> dict[str, tuple[int, int]]:
        """/proc/modules: name size references users state address. A kernel without modules has no such file."""
        try:
            lines = self._modules_file.read_text().splitlines()
        except OSError:
            return {}
        ranges = {}
        for fields in map(str.split, lines):
            if len(fields) >= 6 and int(fields[5], 16):
                start = int(fields[5], 16)
                ranges[fields[0]] = start, start + int(fields[1])
        return ranges

    def _build_id(self, module: str) -> str:
        if module not in self._build_ids:
            notes = f"module/{module}/notes/.note.gnu.build-id" if module else "kernel/notes"
            self._build_ids[module] = _gnu_build_id(self._sys / notes)
        return self._build_ids[module]

    def close(self) -> None:
        if self._symbols:
            self._symbols.close()
            self._symbols = None


def _gnu_build_id(path: Path) -> str:
    """Hex of the NT_GNU_BUILD_ID note in a file of ELF notes; "" if there is none."""
    try:
        notes = path.read_bytes()
    except OSError:
        return ""
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = (int.from_bytes(notes[at + i : at + i + 4], sys.byteorder) for i in (0, 4, 8))
        content = at + 12 + (name_size + 3 & ~3)
        if kind == _NT_GNU_BUILD_ID and notes[at + 12 : at + 16] == b"GNU\0":
            return notes[content : content + size].hex()
        at = content + (size + 3 & ~3)
    return ""
