# SPDX-License-Identifier: Apache-2.0
"""Results on disk, by content key: functions found in SQLite, symcaches as files. Bounded, shared, and never trusted.

Addresses are not kept: there is no end of them, and from functions and a symcache each costs a few microseconds.
What is broken is thrown away and made again; without a directory to write to, everything works and is only slower.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpustrobe.symbolizer.elf import Function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_VERSION = 1  # of the content: what a name looks like, and the tables
_SCHEMA = """
CREATE TABLE IF NOT EXISTS functions(key TEXT, low INTEGER, high INTEGER, start INTEGER, linkage TEXT, shown TEXT,
    PRIMARY KEY(key, low)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS used(key TEXT PRIMARY KEY, day INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS marks(key TEXT PRIMARY KEY, reason TEXT) WITHOUT ROWID;
"""
_DAY = 86400
# What SQLite says when the file may well be whole; error codes are known to Python from 3.11 on only.
_PASSING = ("locked", "full", "readonly", "unable to open", "disk I/O")
_LARGEST = 2**63 - 1  # SQLite's integers are signed; nothing that runs in a process lies above


class Line(NamedTuple):
    """One frame of an address: function as shown, source file, line (0 = unknown)."""

    name: str
    file: str = ""
    line: int = 0


Lines = tuple[Line, ...]  # innermost inlined frame first


class FunctionCache:
    """Functions found in past runs. Several processes may share the file; not thread-safe within one."""

    def __init__(self, directory: Path | None, limit: int = 64 << 20, clock: Callable[[], float] = time.time) -> None:
        self._path = directory / "functions.sqlite" if directory else None
        self._limit, self._clock = limit, clock
        self._used: set[str] = set()
        self._database: sqlite3.Connection | None = None
        self.errors = 0
        self._open()

    def _open(self) -> None:
        for _ in range(2):
            try:
                self._database = self._connect() if self._path else None
                return
            except sqlite3.DatabaseError:
                self._discard()

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=1, isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA auto_vacuum=INCREMENTAL")
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=OFF")  # a cache: after a power cut it may be broken, then it is made anew
        database.execute("PRAGMA cache_size=-512")  # KiB
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            database.close()
            raise sqlite3.DatabaseError(f"version {version}")
        database.executescript(_SCHEMA)
        database.execute(f"PRAGMA user_version={_VERSION}")
        return database

    def _discard(self) -> None:
        """Removes a broken file. What cannot be removed is not used either."""
        self.errors += 1
        with contextlib.suppress(sqlite3.Error):
            if self._database:
                self._database.close()
        self._database = None
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                Path(f"{self._path}{suffix}").unlink()

    @contextlib.contextmanager
    def _guarded(self):
        """A locked or full disk is an error to count; a broken file is removed."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and any(word in str(error) for word in _PASSING):
                self.errors += 1
                return
            self._discard()
            self._open()

    def load(self, key: str, limit: int) -> list[Function]:
        """What is known about the functions of one content, at most `limit` rows."""
        if not self._database:
            return []
        query = "SELECT low, high, start, linkage, shown FROM functions WHERE key = ? ORDER BY low LIMIT ?"
        with self._guarded():
            rows = self._database.execute(query, (key, limit)).fetchall()
            return [row for row in map(_function, rows) if row]
        return []

    def put(self, found: Mapping[str, Iterable[Function]]) -> None:
        """One transaction for the functions that a batch found, by key. Rows without a name are not kept."""
        rows = [
            (key, f.low, f.high, f.start, f.linkage, f.lines[0].name)
            for key, some in found.items()
            for f in some
            if f.lines and f.high <= _LARGEST
        ]
        if not self._database or not rows:
            return
        today = int(self._clock()) // _DAY
        with self._guarded():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                self._database.executemany("INSERT OR REPLACE INTO functions VALUES (?, ?, ?, ?, ?, ?)", rows)
                fresh = [(key, today) for key in found if key not in self._used]
                self._database.executemany("INSERT OR REPLACE INTO used VALUES (?, ?)", fresh)
            finally:
                self._database.execute("COMMIT")
            self._used.update(found)
            self._prune()

    def _size(self) -> int:
        names = "page_count", "freelist_count", "page_size"
        pages, free, size = (self._database.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
        return (pages - free) * size

    def _prune(self) -> None:
        """Forgets the contents used longest ago until a quarter of the room is free again."""
        if self._size() <= self._limit:
            return
        keys = [key for (key,) in self._database.execute("SELECT key FROM used ORDER BY day, key")]
        for key in keys:
            self._database.execute("DELETE FROM functions WHERE key = ?", (key,))
            self._database.execute("DELETE FROM used WHERE key = ?", (key,))
            self._used.discard(key)
            if self._size() <= self._limit * 3 // 4:
                break
        self._database.execute("PRAGMA incremental_vacuum")
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def mark(self, key: str, reason: str) -> None:
        """Remembers that the file's debug information must not be tried again."""
        if self._database:
            with self._guarded():
                self._database.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (key, reason))

    def marked(self, key: str) -> str:
        """The reason given to `mark`, or ""."""
        if self._database:
            with self._guarded():
                row = self._database.execute("SELECT reason FROM marks WHERE key = ?", (key,)).fetchone()
                return str(row[0]) if row else ""
        return ""

    def close(self) -> None:
        if self._database:
            with contextlib.suppress(sqlite3.Error):
                self._database.close()
        self._database = None


def _function(row: tuple) -> Function | None:
    """A row as `put` wrote it; None if it cannot be that."""
    low, high, start, linkage, shown = row
    if not (all(type(n) is int for n in (low, high, start)) and type(linkage) is str and type(shown) is str and shown):
        return None
    return Function(low, high, start, sys.intern(linkage), (Line(sys.intern(shown)),)) if low < high else None


class SymcacheStore:
    """Symcaches as files KEY.symcache; without a directory, in memory files that live as long as this object."""

    def __init__(self, directory: Path | None, limit: int = 256 << 20) -> None:
        self._directory, self._limit = directory, limit
        self._memory: dict[str, int] = {}
        if directory:
            for left in directory.glob("*.partial"):
                with contextlib.suppress(OSError):
                    if time.time() - left.stat().st_mtime > 3600:  # of an agent that died
                        left.unlink()

    def _path(self, key: str) -> Path | None:
        return self._directory / f"{key}.symcache" if self._directory else None

    def open(self, key: str) -> int | None:
        """A descriptor of the caller's, or None if there is no such symcache."""
        path = self._path(key)
        try:
            if path is None:
                return os.dup(self._memory[key]) if key in self._memory else None
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            with contextlib.suppress(OSError):
                os.utime(fd)
            return fd
        except OSError:
            return None

    def create(self, key: str) -> int:
        """A descriptor to write a new symcache to; `keep` makes it known. OSError if the disk is full or read-only."""
        path = self._path(key)
        if path is None:
            return os.memfd_create("gpustrobe-symcache", os.MFD_CLOEXEC)
        self._prune()
        return os.open(f"{path}.{os.getpid()}.partial", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def keep(self, key: str, fd: int, complete: bool) -> None:
        """Takes `fd` back from whoever wrote to it."""
        path = self._path(key)
        if path is None:
            if complete:
                self._keep_in_memory(key, fd)
                return
        else:
            partial = Path(f"{path}.{os.getpid()}.partial")
            with contextlib.suppress(OSError):
                if complete:
                    partial.replace(path)
                else:
                    partial.unlink()
        os.close(fd)

    def _keep_in_memory(self, key: str, fd: int) -> None:
        self._memory[key] = fd
        while len(self._memory) > 1 and sum(os.fstat(f).st_size for f in self._memory.values()) > self._limit // 4:
            os.close(self._memory.pop(next(iter(self._memory))))

    def drop(self, key: str) -> None:
        """Forgets a symcache that turned out to be broken."""
        path = self._path(key)
        with contextlib.suppress(OSError):
            if path is None:
                os.close(self._memory.pop(key, -1))
            else:
                path.unlink()

    def _prune(self) -> None:
        for path in _oldest_beyond(self._directory.glob("*.symcache"), self._limit):
            with contextlib.suppress(OSError):
                path.unlink()

    def close(self) -> None:
        for fd in self._memory.values():
            os.close(fd)
        self._memory.clear()


def _oldest_beyond(paths: Iterable[Path], limit: int) -> list[Path]:
    """The least recently used files that must go for the rest to fit `limit` bytes."""
    aged = []
    for path in paths:
        with contextlib.suppress(OSError):
            status = path.stat()
            aged.append((status.st_mtime, status.st_size, path))
    kept, gone = 0, []
    for _, size, path in sorted(aged, reverse=True):
        kept += size
        if kept > limit:
            gone.append(path)
    return gone
