# SPDX-License-Identifier: Apache-2.0
"""Processes for tests of bpf/mappings.c: real ones that do as told, false ones made of files; a twin of the parser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from gpustrobe.bpf import mappings as bm

SECOND = 1_000_000_000
TICK = SECOND // os.sysconf("SC_CLK_TCK")
LIBZ = Path("/lib/x86_64-linux-gnu/libz.so.1")
MAPS = "1000-2000 r-xp 00000000 00:00 0 \n3000-5000 rwxp 00000000 00:00 0 \n"


def start_of(pid: int) -> int:
    """A start_boottime that fits the process: the kernel knows it to the ns, /proc to the tick."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]) * TICK + TICK // 2


class Child:
    """tests/targets/commanded.py"""

    def __init__(self, *prefix: str) -> None:
        script = Path(__file__).parent / "targets" / "commanded.py"
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-S", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        self.do("import ctypes, mmap, os, threading, time; from mmap import MAP_ANONYMOUS, MAP_PRIVATE")
        self.do("memory = lambda size, prot=5: mmap.mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS, prot=prot)")
        self.start = start_of(self.pid)

    def do(self, statement: str) -> object:
        self.process.stdin.write(statement + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        """May be called again."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def twin(text: bytes) -> list[tuple[int, int, int, int, int, bool, bytes]]:
    """Executable mappings in a text of maps: (start, end, offset, inode, device, writable, path)."""
    rows, last = [], 0
    line = re.compile(
        rb"([0-9a-f]+)-([0-9a-f]+) ([r-][w-][x-][ps]) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) ([0-9]+)(?: +([^\n]*)|)"
    )
    for one in text.split(b"\n"):
        if not (m := line.fullmatch(one)):
            continue
        start, end, offset, major, minor = (int(m[i], 16) for i in (1, 2, 4, 5, 6))
        inode = int(m[7])
        if max(start, end, offset, inode) >= 1 << 64 or major >= 1 << 12 or minor >= 1 << 20 or start >= end:
            continue
        if m[3][2:3] != b"x" or start >> 63 or start < last:
            continue
        last = end
        rows.append((start, end, offset, inode, major << 20 | minor, m[3][1:2] == b"w", m[8] or b""))
    return rows


def shape(rows: list[bm.Row]) -> list[tuple[int, int, int, int, int, bool]]:
    return [(r.start, r.end, r.file_offset, r.inode, r.device, r.writable) for r in rows]


def false_process(root: Path, pid: int, *, ticks: int, stack: int = 0x7FFF00000000, maps: str | None = None) -> Path:
    folder = root / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    fields = ["S", "1", *["0"] * 17, str(ticks), "0", "0", "18446744073709551615", "1", "2", str(stack), *["0"] * 24]
    (folder / "stat").write_text(f"{pid} (a) b (c) {' '.join(fields)}\n")
    (folder / "comm").write_text("a) b (c\n")
    if maps is not None:
        (folder / "maps").write_text(maps)
    return folder


def false_processes(tmp_path: Path, count: int, rows: int = 2) -> None:
    maps = "".join(f"{0x1000 * (2 * i + 1):x}-{0x1000 * (2 * i + 2):x} r-xp 00000000 00:00 0 \n" for i in range(rows))
    for pid in range(1, count + 1):
        false_process(tmp_path, pid, ticks=pid, maps=maps)
