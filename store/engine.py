# SPDX-License-Identifier: Apache-2.0
"""The engine: one thread owns the write connection, commits what waits together, and answers only after the commit is
on disk.

request bytes -> queue -> decode (pure) -> append all that wait -> COMMIT (fsync) -> each request's future
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import duckdb
from gpustrobe.store.database import Limits, Readers, open_database, used_bytes
from gpustrobe.store.decode import decode_profiles
from gpustrobe.store.decode_metrics import decode_metrics
from gpustrobe.store.errors import DiskFull, Oversized, Refused, Stopping, StoreError
from gpustrobe.store.retention import Retention, drop_before, enforce
from gpustrobe.store.state import State
from gpustrobe.store.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpustrobe.store.batch import Batch

log = logging.getLogger("gpustrobe.store")

MAX_REQUEST = 16 << 20
MAX_WAITING_BYTES = 64 << 20  # of requests in the queue; past it senders are told to come again
MAX_GROUP_ROWS = 200_000  # rows of one commit
CHECK_SECONDS = 60.0  # between looks at age and size
DECODERS = {"profiles": decode_profiles, "metrics": decode_metrics}


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a request."""

    kind: str
    rows: int
    duplicate: bool
    ignored: int


@dataclass
class Counters:
    """Since this process started. Written by the writer thread, and for refusals at the door by the loop; read by
    /metrics."""

    requests: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DECODERS, 0))
    refused: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    rows: int = 0
    values: int = 0
    points: int = 0
    ignored: int = 0
    commits: int = 0
    commit_seconds: float = 0.0
    failed_commits: int = 0
    reopened: int = 0
    waiting_bytes: int = 0
    deleted_to: int = 0  # Unix second before which retention has deleted
    queries: dict[str, tuple[int, float]] = field(default_factory=dict)  # name -> count, seconds
    failed_queries: dict[tuple[str, str], int] = field(default_factory=dict)  # name, code -> count
    lock: threading.Lock = field(default_factory=threading.Lock)

    def refuse(self, reason: str) -> None:
        with self.lock:
            self.refused[reason] = self.refused.get(reason, 0) + 1

    def query(self, name: str, seconds: float, code: str) -> None:
        """Count a query; `code` of its error or ""."""
        with self.lock:
            count, total = self.queries.get(name, (0, 0.0))
            self.queries[name] = (count + 1, total + seconds)
            if code:
                self.failed_queries[name, code] = self.failed_queries.get((name, code), 0) + 1


@dataclass(frozen=True, slots=True)
class _Request:
    kind: str
    data: bytes
    future: Future


@dataclass(frozen=True, slots=True)
class _Call:
    work: Callable[[], object]
    future: Future


_STOP = object()


class Engine:
    """`submit` from any thread; `readers` for questions; `close` commits what waits, checkpoints and closes."""

    def __init__(
        self,
        folder: Path,
        retention: Retention | None = None,
        memory: str = "512MB",
        threads: int = 2,
        reserve: int = 64 << 20,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """`reserve`: free bytes of the disk below which batches are refused, so that checkpoints and deletes still have
        room."""
        self.folder, self.retention, self.reserve, self.clock = folder, retention or Retention(), reserve, clock
        self._open = lambda: open_database(folder, memory, threads)
        self._connection = self._open()
        self.readers = Readers(self._connection)
        self.counters = Counters()
        self.state = State()
        self.state.load(self._connection, clock())
        self.writer = Writer(self._connection)
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    # -- any thread

    def submit(self, kind: str, data: bytes) -> Future:
        """A future of Done; it raises Refused. `kind`: profiles or metrics."""
        future: Future = Future()
        if len(data) > MAX_REQUEST:
            return self.refuse(future, Oversized("oversized", f"{len(data):,} bytes are more than {MAX_REQUEST:,}"))
        with self._lock:
            if self._stopping:
                return self.refuse(future, Stopping("stopping", "the store is stopping"))
            if self.counters.waiting_bytes and self.counters.waiting_bytes + len(data) > MAX_WAITING_BYTES:
                return self.refuse(future, Stopping("busy", "too many requests are waiting; send again"))
            self.counters.waiting_bytes += len(data)
            self._queue.put(_Request(kind, data, future))
        return future

    def call(self, work: Callable[[], object]) -> Future:
        """Run `work` on the writer thread, between commits."""
        future: Future = Future()
        with self._lock:
            if self._stopping:
                return self.refuse(future, Stopping("stopping", "the store is stopping"))
            self._queue.put(_Call(work, future))
        return future

    def used_bytes(self) -> int:
        """Bytes of data on disk."""
        with self.readers.reader(Limits()) as reader:
            return used_bytes(reader.cursor)

    def keep(self) -> Future:
        """Apply retention now."""
        return self.call(self._enforce)

    def close(self) -> None:
        """Commit what waits, checkpoint, close. Idempotent."""
        with self._lock:
            first, self._stopping = not self._stopping, True
        if first:
            self._queue.put(_STOP)
        self._thread.join()

    def refuse(self, future: Future, error: Refused) -> Future:
        self.counters.refuse(error.reason)
        future.set_exception(error)
        return future

    # -- the writer thread

    def _run(self) -> None:
        due = time.monotonic() + 1.0
        held = None
        while True:
            try:
                item = held or self._queue.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                due = time.monotonic() + CHECK_SECONDS
                self._safely(self._enforce)
                continue
            held = None
            if item is _STOP:
                break
            if isinstance(item, _Call):
                self._answer_call(item)
            else:
                held = self._commit_group(item)
        self._safely(self._finish)

    def _safely(self, work: Callable[[], object]) -> None:
        try:
            work()
        except (duckdb.Error, StoreError, OSError) as error:
            log.warning("%s: %s", getattr(work, "__name__", "work"), error)
            self._recover(error)

    def _answer_call(self, call: _Call) -> None:
        try:
            call.future.set_result(call.work())
        except Exception as error:  # noqa: BLE001 - the caller gets it
            call.future.set_exception(error)
            self._recover(error)

    def _finish(self) -> None:
        self._connection.execute("CHECKPOINT")
        self._connection.close()

    def _commit_group(self, first: _Request) -> object:
        """Commit `first` and whatever waits behind it; returns an item of another kind that was taken from the
        queue."""
        group: list[tuple[_Request, Batch]] = []
        item: object = first
        rows = 0
        while isinstance(item, _Request):
            with self._lock:
                self.counters.waiting_bytes -= len(item.data)
            self.counters.requests[item.kind] += 1
            try:
                batch = DECODERS[item.kind](item.data, self.clock())
            except Refused as error:
                self.refuse(item.future, error)
            except Exception as error:
                log.exception("decoding a request")
                self.refuse(item.future, Refused("malformed", f"{type(error).__name__} while decoding"))
            else:
                group.append((item, batch))
                rows += batch.rows
            if rows > MAX_GROUP_ROWS:
                item = None
                break
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                item = None
        if group:
            self._commit(group)
        return item

    def _commit(self, group: list[tuple[_Request, Batch]]) -> None:
        started = time.perf_counter()
        try:
            self._check_room()
            fresh = self._store([batch for _, batch in group])
        except (duckdb.Error, OSError, StoreError, DiskFull) as error:
            self.counters.failed_commits += 1
            refusal = error if isinstance(error, DiskFull) else self._recover(error)
            for request, _ in group:
                self.refuse(request.future, refusal)
            return
        self.counters.commits += 1
        self.counters.commit_seconds += time.perf_counter() - started
        for (request, batch), new in zip(group, fresh, strict=True):
            self._count(batch, new)
            request.future.set_result(Done(batch.kind, batch.rows, not new, batch.ignored))

    def _store(self, batches: list[Batch]) -> list[bool]:
        now = self.clock() // 1_000_000_000
        self.writer.turn(now)
        self._connection.begin()
        fresh = [self.writer.append(batch, now) for batch in batches]
        self.writer.flush()
        self._connection.commit()
        return fresh

    def _count(self, batch: Batch, new: bool) -> None:
        counters = self.counters
        if not new:
            counters.duplicates += 1
            return
        counters.rows += batch.rows
        counters.values += sum(window.total for window in batch.windows)
        counters.points += len(batch.readings.time) if batch.readings else 0
        counters.ignored += batch.ignored
        self.state.add(batch)

    def _check_room(self) -> None:
        disk = os.statvfs(self.folder)
        free = disk.f_bavail * disk.f_frsize
        if free < self.reserve:
            raise DiskFull(
                "disk_full", f"the disk of {self.folder} has {free >> 20} MiB left, less than {self.reserve >> 20} MiB"
            )

    def _recover(self, error: Exception) -> Refused:
        """After a failed transaction: roll back, or open the database again where DuckDB has given it up."""
        with contextlib.suppress(duckdb.Error):  # no transaction is open any more
            self._connection.rollback()
        try:
            self._connection.execute("SELECT 1 FROM meta").fetchall()
            self.writer.restart()
        except duckdb.Error:
            self._reopen()
        if "No space left" in str(error) or "disk" in str(error).lower():
            return DiskFull("disk_full", "no room on the store's disk")
        log.error("a commit failed: %s", error)
        return Stopping("busy", "the store could not commit; send again")

    def _reopen(self) -> None:
        self._connection.close()
        try:
            self._connection = self._open()
        except (StoreError, duckdb.Error) as error:
            log.error("the database cannot be opened again: %s", error)
            return
        self.counters.reopened += 1
        self.readers.replace(self._connection)
        self.writer = Writer(self._connection)

    def _enforce(self) -> int:
        """Apply retention; the second before which everything is gone (0: nothing was deleted)."""
        before = enforce(self._connection, self.retention, self.clock() // 1_000_000_000, used_bytes, drop_before)
        if before:
            self.counters.deleted_to = before
            self.state.load(self._connection, self.clock())
        return before
