# SPDX-License-Identifier: Apache-2.0
"""Batches on disk while the store is away: a bounded first-in first-out queue that survives the agent and the machine.

A folder of segments NNNNNNNNNNNNNNNN.spool, appended to and flushed to disk batch by batch. A record is a header, then
the request:

    magic "gsp1" | CRC-32 of the rest of the header | CRC-32 of the request | its length | kind (u8), 3 zero bytes |
    samples (u64); CRCs and length u32, all little-endian

`position` names the first record not acknowledged; it is not flushed, so after a power loss a batch may be sent again,
which a store that knows batches by content ignores. Damaged records are counted and skipped to the next sound one.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpustrobe.agent.errors import StoreProblem

HEADER = struct.Struct("<4sIIIB3xQ")
BEHIND_CRC = 8  # what the header's own CRC covers begins here
MAGIC = b"gsp1"
KINDS = ("profiles", "metrics")
SEGMENT = 4 << 20  # bytes after which a new file is begun: what is deleted at once when the spool is full


@dataclass(frozen=True, slots=True)
class Batch:
    """A serialized request, and how many samples are lost with it."""

    kind: str  # profiles or metrics
    request: bytes
    samples: int


@dataclass(slots=True)
class _Segment:
    path: Path
    size: int = 0
    records: deque[tuple[int, int, int]] = field(default_factory=deque)  # offset, bytes in all, samples


class Spool:
    """One process at a time, one thread. Raises StoreProblem where the folder cannot be used."""

    def __init__(
        self, folder: Path, limit: int, segment_size: int = SEGMENT, sync: Callable[[int], None] = os.fdatasync
    ) -> None:
        self._folder = folder
        self._limit = limit
        self._segment_size = min(segment_size, max(1, limit // 4))
        self._sync = sync
        self._file = -1  # the last segment, open for appending
        self.overflow_samples = self.overflow_batches = 0
        self.damaged_samples = self.damaged_batches = 0
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreProblem(
                f"{folder} cannot be used as spool: {error.strerror}.", "Name another --data."
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._segments = self._scan()
        except OSError as error:
            os.close(self._lock)
            reason = "another agent uses it" if error.errno in (11, 13) else error.strerror
            raise StoreProblem(f"{folder} cannot be used as spool: {reason}.", "Name another --data.") from error

    def __len__(self) -> int:
        """Batches not acknowledged."""
        return sum(len(segment.records) for segment in self._segments)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(segment.size for segment in self._segments)

    def append(self, batch: Batch) -> None:
        """On disk when this returns. Deletes the oldest segments where there is no room.

        Raises OSError: then nothing was added.
        """
        record = _encode(batch)
        if len(record) > self._limit:
            self._overflow([(0, 0, batch.samples)])
            return
        while self.size + len(record) > self._limit:
            self._drop_oldest()
        segment = self._writable()
        try:
            _write_all(self._file, record)
            self._sync(self._file)
        except OSError:
            os.ftruncate(self._file, segment.size)  # a torn record would hide those behind it
            raise
        segment.records.append((segment.size, len(record), batch.samples))
        segment.size += len(record)

    def peek(self) -> Batch | None:
        """The oldest batch not acknowledged; damaged ones before it are counted and left behind."""
        while (segment := self._first()) is not None:
            offset, length, samples = segment.records[0]
            batch = _read(segment.path, offset, length)
            if batch is not None:
                return batch
            self.damaged_batches += 1
            self.damaged_samples += samples
            self.acknowledge()
        return None

    def acknowledge(self) -> None:
        """Forget the batch that `peek` gave. Raises IndexError if there is none."""
        segment = self._segments[0]
        segment.records.popleft()
        if not segment.records:
            self._remove(segment)
        self._save_position()

    def close(self) -> None:
        self._close_file()
        os.close(self._lock)

    def _first(self) -> _Segment | None:
        return self._segments[0] if self._segments else None

    def _writable(self) -> _Segment:
        last = self._segments[-1] if self._segments else None
        if last is None or self._file < 0 or last.size >= self._segment_size:
            self._close_file()
            last = _Segment(self._folder / f"{self._next_number:016d}.spool")
            self._file = os.open(last.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._next_number += 1
            self._segments.append(last)
            folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
            os.fsync(folder)
            os.close(folder)
        return last

    def _drop_oldest(self) -> None:
        segment = self._segments[0]
        self._overflow(segment.records)
        self._remove(segment)
        self._save_position()

    def _overflow(self, records: deque[tuple[int, int, int]] | list[tuple[int, int, int]]) -> None:
        self.overflow_batches += len(records)
        self.overflow_samples += sum(samples for *_, samples in records)

    def _remove(self, segment: _Segment) -> None:
        if segment is self._segments[-1]:
            self._close_file()
        self._segments.remove(segment)
        segment.path.unlink(missing_ok=True)

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _save_position(self) -> None:
        first = self._first()
        text = f"{first.path.stem} {first.records[0][0]:012d}\n" if first and first.records else "none\n"
        (self._folder / "position").write_text(text)

    # What an earlier process left.

    def _scan(self) -> list[_Segment]:
        paths = sorted(path for path in self._folder.glob("*.spool") if path.stem.isdecimal())
        self._next_number = int(paths[-1].stem) + 1 if paths else 0
        position = self._read_position()
        segments = []
        for path in paths:
            segment = self._scan_segment(path, position[1] if position and position[0] == path.stem else 0)
            if segment.records and not (position and path.stem < position[0]):
                segments.append(segment)
            else:
                path.unlink()
        return segments

    def _read_position(self) -> tuple[str, int] | None:
        try:
            stem, _, offset = (self._folder / "position").read_text().partition(" ")
            return stem, int(offset)
        except (OSError, ValueError):
            return None

    def _scan_segment(self, path: Path, start: int) -> _Segment:
        segment = _Segment(path, path.stat().st_size)
        if not segment.size:
            return segment
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            offset = start
            while offset < len(data):
                length, samples = _header(data, offset)
                if length:
                    segment.records.append((offset, length, samples))
                    offset += length
                else:
                    self.damaged_batches += 1
                    self.damaged_samples += samples
                    offset = _next_header(data, offset + 1)
        return segment


def _encode(batch: Batch) -> bytes:
    fields = (zlib.crc32(batch.request), len(batch.request), KINDS.index(batch.kind), batch.samples)
    header = HEADER.pack(MAGIC, 0, *fields)
    return HEADER.pack(MAGIC, zlib.crc32(header[BEHIND_CRC:]), *fields) + batch.request


def _header(data: mmap.mmap, offset: int) -> tuple[int, int]:
    """(bytes of the record with its header, samples), or (0, samples) where it is cut short, (0, 0) where none
    stands.
    """
    if len(data) - offset < HEADER.size:
        return 0, 0
    magic, own_crc, _, length, _, samples = HEADER.unpack_from(data, offset)
    if magic != MAGIC or own_crc != zlib.crc32(data[offset + BEHIND_CRC : offset + HEADER.size]):
        return 0, 0
    whole = HEADER.size + length
    return (whole if offset + whole <= len(data) else 0), samples


def _next_header(data: mmap.mmap, offset: int) -> int:
    """Where the next record begins, or the end."""
    while (offset := data.find(MAGIC, offset)) >= 0:
        if _header(data, offset)[0]:
            return offset
        offset += 1
    return len(data)


def _decode(record: bytes) -> Batch | None:
    if len(record) < HEADER.size:
        return None
    _, _, crc, _, kind, samples = HEADER.unpack_from(record)
    request = record[HEADER.size :]
    return Batch(KINDS[kind], request, samples) if kind < len(KINDS) and crc == zlib.crc32(request) else None


def _read(path: Path, offset: int, length: int) -> Batch | None:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return _decode(file.read(length))
    except OSError:  # gone, or the disk fails: counted as damaged by the caller
        return None


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
