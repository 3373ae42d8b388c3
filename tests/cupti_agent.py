# SPDX-License-Identifier: Apache-2.0
"""The agent's side of the ring at its plainest, for tests of the library: opens, beats, wishes, drains. It trusts what it reads."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import time
from pathlib import Path

import numpy as np
from gpustrobe.cupti import ring

_futex = ctypes.CDLL(None, use_errno=True).syscall
SYS_FUTEX = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
FUTEX_WAKE = 1


def find(pid: int) -> int | None:
    """An own descriptor of the ring of process `pid`."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if str(link.readlink()) == ring.LINK:
                return os.open(link, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
    return None


def wait_for(pid: int, seconds: float = 5) -> int:
    end = time.monotonic() + seconds
    while (fd := find(pid)) is None:
        assert time.monotonic() < end, "no ring"
        time.sleep(0.01)
    return fd


class PlainAgent:
    def __init__(self, fd: int) -> None:
        self.fd = fd
        fcntl.flock(fd, fcntl.LOCK_EX)  # an agent may run on this machine: it keeps away then
        self.size = os.fstat(fd).st_size
        self.map = mmap.mmap(fd, self.size)
        self.bytes = np.frombuffer(self.map, np.uint8)
        self.layout = self.view(0, ring.LAYOUT)
        self.agent = self.view(ring.AGENT_OFFSET, ring.AGENT)
        self.library = self.view(ring.LIBRARY_OFFSET, ring.LIBRARY)
        self.taken: list[np.ndarray] = []

    def view(self, offset: int, dtype: np.dtype) -> np.ndarray:
        return self.bytes[offset : offset + dtype.itemsize].view(dtype)[0:1]

    def word(self, offset: int) -> np.ndarray:
        return self.bytes[offset : offset + 8].view("<u8")

    def seals(self) -> int:
        return fcntl.fcntl(self.fd, 1034)  # F_GET_SEALS

    def wish(self, **fields: int) -> None:
        self.agent["config_sequence"] += 1
        for name, value in fields.items():
            self.agent[name] = value
        self.agent["heartbeat"] = time.monotonic_ns()
        self.agent["config_sequence"] += 1
        self.agent["wake"] += 1
        address = self.bytes.ctypes.data + ring.AGENT_OFFSET
        _futex(SYS_FUTEX, ctypes.c_void_p(address), FUTEX_WAKE, 1, None, None, 0)

    def beat(self) -> None:
        self.agent["heartbeat"] = time.monotonic_ns()

    def run(self, seconds: float) -> None:
        """Beats and drains for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.beat()
            self.drain()
            time.sleep(0.02)

    def drain(self) -> np.ndarray:
        """What is committed, as rows of 64 bytes, shape (n, 64)."""
        slots = int(self.layout["ring_slots"][0])
        offset = int(self.layout["ring_offset"][0])
        slot = self.bytes[offset : offset + 64 * slots].reshape(slots, 64)
        head, tail = int(self.word(ring.HEAD_OFFSET)[0]), int(self.word(ring.TAIL_OFFSET)[0])
        numbers = np.arange(tail, head, dtype=np.uint64)
        commits = slot[:, :4].copy().view("<u4")[:, 0][numbers % slots]
        ready = commits == ((numbers + 1) & 0xFFFFFFFF).astype(np.uint32)
        n = len(ready) if ready.all() else int(np.argmin(ready))
        rows = slot[(numbers % slots)[:n]].copy()
        self.word(ring.TAIL_OFFSET)[0] = tail + n
        self.taken.append(rows)
        return rows

    def records(self, *types: ring.Record) -> np.ndarray:
        """All rows of these types so far, of the first one's dtype."""
        rows = np.concatenate([*self.taken, np.empty((0, 64), np.uint8)])
        chosen = np.isin(rows[:, 4], [int(t) for t in types])
        return rows[chosen].copy().view(ring.RECORDS[types[0]])[:, 0]

    def counters(self) -> dict[str, int]:
        values = self.bytes[ring.COUNTERS_OFFSET : ring.COUNTERS_OFFSET + 8 * len(ring.COUNTERS)].view("<u8")
        return dict(zip(ring.COUNTERS, (int(v) for v in values), strict=True))

    def state(self) -> str:
        return list(ring.STATES)[int(self.library["state"][0])]

    def reason(self) -> str:
        return list(ring.REASONS)[int(self.library["reason"][0])]

    def string(self, entry: int) -> str:
        at = int(self.layout["arena_offset"][0]) + entry
        size, kind, _, length, _ = struct.unpack_from("<IHHII", self.map, at)
        assert kind == ring.Entry.STRING and size >= 16 + length + 1
        return bytes(self.map[at + ring.TEXT_OFFSET : at + ring.TEXT_OFFSET + length]).decode()

    def shape(self, entry: int) -> np.void:
        at = int(self.layout["arena_offset"][0]) + entry
        shape = self.bytes[at : at + 64].copy().view(ring.SHAPE)[0]
        assert shape["type"] == ring.Entry.SHAPE
        return shape
