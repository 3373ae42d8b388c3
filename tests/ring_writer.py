# SPDX-License-Identifier: Apache-2.0
"""A writer of the ring in plain Python: what the injected library does, one record at a time, for tests."""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np
from gpustrobe.cupti import ring

F_ADD_SEALS, SHRINK_AND_GROW = 1033, 0x6


class RingWriter:
    """Owns the memfd; records are numpy voids or keyword fields of a type's dtype."""

    def __init__(self, slots: int = 256, arena: int = 1 << 16, pid: int | None = None, seal: bool = True, **layout):
        ring_offset = ring.CONTROL_SIZE
        arena_offset = ring_offset + slots * ring.RECORD_SIZE
        size = arena_offset + arena
        self.fd = os.memfd_create(ring.NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        self.map = mmap.mmap(self.fd, size)
        self.data = np.frombuffer(self.map, np.uint8)
        head = np.zeros(1, ring.LAYOUT)
        values = {
            "magic": ring.MAGIC,
            "version": ring.VERSION,
            "control_size": ring.CONTROL_SIZE,
            "total_size": size,
            "ring_offset": ring_offset,
            "ring_slots": slots,
            "record_size": ring.RECORD_SIZE,
            "arena_offset": arena_offset,
            "arena_size": arena,
            "counters_offset": ring.COUNTERS_OFFSET,
            "n_counters": len(ring.COUNTERS),
            "pid": os.getpid() if pid is None else pid,
            "writer": 1,
            **layout,
        }
        for name, value in values.items():
            head[name] = value
        self.data[: ring.LAYOUT.itemsize] = head.view(np.uint8)
        self.slots, self.ring_offset, self.arena_offset = slots, ring_offset, arena_offset
        self.head = self.data[ring.HEAD_OFFSET :][:8].view("<u8")
        self.tail = self.data[ring.TAIL_OFFSET :][:8].view("<u8")
        self.agent = self.data[ring.AGENT_OFFSET :][: ring.AGENT.itemsize].view(ring.AGENT)
        self.library = self.data[ring.LIBRARY_OFFSET :][: ring.LIBRARY.itemsize].view(ring.LIBRARY)
        self.counters = self.data[ring.COUNTERS_OFFSET :][: 8 * len(ring.COUNTERS)].view("<u8")
        self.arena_at = 8
        if seal:
            fcntl.fcntl(self.fd, F_ADD_SEALS, SHRINK_AND_GROW)

    def close(self) -> None:
        for name in ("data", "head", "tail", "agent", "library", "counters"):
            self.__dict__.pop(name, None)
        self.map.close()
        os.close(self.fd)

    def put(self, type_: ring.Record, commit: bool = True, **fields) -> int:
        """The record's number."""
        number = int(self.head[0])
        record = np.zeros(1, ring.RECORDS[type_])
        for name, value in fields.items():
            record[name] = value
        record["type"] = type_
        self.put_rows(record, commit)
        return number

    def put_rows(self, records: np.ndarray, commit: bool = True) -> None:
        """Records of one dtype with `type` filled in, as many as there is room for: the others would be dropped."""
        rows = records.view(np.uint8).reshape(-1, ring.RECORD_SIZE).copy()
        first = int(self.head[0])
        assert first + rows.shape[0] - int(self.tail[0]) <= self.slots
        numbers = first + np.arange(rows.shape[0])
        if commit:
            rows[:, :4] = (numbers + 1).astype("<u4").view(np.uint8).reshape(-1, 4)
        slots = self.data[self.ring_offset : self.ring_offset + self.slots * ring.RECORD_SIZE]
        slots.reshape(self.slots, ring.RECORD_SIZE)[numbers % self.slots] = rows
        self.head[0] = first + rows.shape[0]

    def commit(self, number: int) -> None:
        at = self.ring_offset + number % self.slots * ring.RECORD_SIZE
        self.data[at : at + 4].view("<u4")[0] = number + 1

    def _entry(self, content: bytes, **fields) -> int:
        place, size = self.arena_at, -(-len(content) // 8) * 8
        at = self.arena_offset + place
        self.data[at : at + len(content)] = np.frombuffer(content, np.uint8)
        self.arena_at += size
        self.data[at : at + 4].view("<u4")[0] = size
        return place

    def string(self, text: str) -> int:
        encoded = text.encode()
        head = np.zeros(1, ring.STRING)
        head["type"], head["length"] = ring.Entry.STRING, len(encoded)
        return self._entry(head.tobytes() + encoded + b"\0")

    def shape(self, name: str, grid=(1, 1, 1), block=(32, 1, 1), registers: int = 32, shared: int = 0) -> int:
        entry = np.zeros(1, ring.SHAPE)
        entry["type"], entry["name"] = ring.Entry.SHAPE, self.string(name)
        entry["grid"], entry["block"], entry["registers"], entry["static_shared"] = grid, block, registers, shared
        return self._entry(entry.tobytes())
