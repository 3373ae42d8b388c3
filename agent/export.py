# SPDX-License-Identifier: Apache-2.0
"""Sends batches to the store, in order, on a thread of its own; keeps them in memory and then on disk while it is away.

What the store acknowledged is done; what it did not is sent again, byte for byte, so a store that knows batches by
content takes each once. Losses have names (bpf/drops.h): `export_queue_full` (memory and spool are bounded; the oldest
go), `export_refused` (the store said that it will never take this), `export_unsent` (the agent ended, without a spool,
before the store was back), `spool_damaged`.

Idle, the thread sleeps on a condition without a timeout. One request of 330 kB and one of 20 kB every 5 s take 0.66 ms
of CPU a second over loopback (agent/connection.py), of the 6 that the whole agent may take.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpustrobe.agent.channel import Channel, Endpoint, SendFailure
from gpustrobe.agent.spool import Batch, Spool

# The store is away, busy or does not know us: true for the next batch as well, so wait. Tokens and rights get mended.
AWAY = {
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "RESOURCE_EXHAUSTED",
    "ABORTED",
    "CANCELLED",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
}
# A hiccup on the way, or a fault that this batch provokes each time.
DOUBTFUL = {"INTERNAL", "UNKNOWN", "OUT_OF_RANGE", "DATA_LOSS"}
DOUBTFUL_TRIES = 5
TOO_LARGE = "message larger than max"  # both grpc-core and grpc-go say so, under RESOURCE_EXHAUSTED
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds
NOTHING_REJECTED = (b"", b"\x0a\x00")
LOSSES = ("export_queue_full", "export_refused", "export_unsent", "spool_damaged")  # in samples
COUNTS = (
    *("sent_batches", "sent_bytes", "sent_samples", "retries", "refused_batches", "dropped_batches", "damaged_batches"),
    *("rejected_profiles", "rejected_points", "spooled_batches", "spool_failures", "faults"),
    *LOSSES,
)


@dataclass(frozen=True, slots=True)
class ExporterOptions:
    endpoint: Endpoint
    queue_bytes: int = 32 << 20
    spool_folder: Path | None = None
    spool_bytes: int = 256 << 20


class Sender(Protocol):
    """agent/channel.py's Channel, or a test's twin."""

    def send(self, kind: str, request: bytes, timeout: float | None = None) -> bytes: ...

    def close(self) -> None: ...


class Exporter:
    """`submit` from any thread; the rest happens on our own, from `start()` to `close()`.

    Raises StoreProblem where the spool cannot be used.
    """

    def __init__(
        self,
        options: ExporterOptions,
        sender: Sender | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        logger: logging.Logger | None = None,
    ) -> None:
        self._options = options
        self._logger = logger or logging.getLogger("gpustrobe")
        self._sender = sender or Channel(options.endpoint, self._logger)
        self._clock = clock
        self._jitter = jitter
        self._spool = Spool(options.spool_folder, options.spool_bytes) if options.spool_folder else None
        self._changed = threading.Condition()
        self._queue: deque[Batch] = deque()
        self._queue_size = 0
        self._deadline: float | None = None  # set by close()
        self._tries = self._doubtful = 0  # of the batch at the front
        self._retry_at = 0.0
        self._away_since: float | None = None
        self._trouble = self._refusal = ""  # last said
        self._disk_trouble: str | None = None
        self._counts = dict.fromkeys(COUNTS, 0)
        self._thread = threading.Thread(target=self._loop, name="exporter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, kind: str, request: bytes, samples: int) -> None:
        """Never waits for network or disk. `kind` is profiles or metrics.

        `samples` is what is lost if the request is.
        """
        with self._changed:
            self._put(Batch(kind, request, samples), front=False)
            self._changed.notify()

    def counters(self) -> dict[str, int]:
        """Totals since start, losses in samples under the names of bpf/drops.h.

        And what waits now: queue_*, spool_*.
        """
        with self._changed:
            counts = {**self._counts, "queue_batches": len(self._queue), "queue_bytes": self._queue_size}
            counts["connected"] = int(self._trouble == "" and counts["sent_batches"] > 0)
        if self._spool is not None:
            counts["export_queue_full"] += self._spool.overflow_samples
            counts["dropped_batches"] += self._spool.overflow_batches
            counts |= {"spool_batches": len(self._spool), "spool_bytes": self._spool.size}
            counts |= {"spool_damaged": self._spool.damaged_samples, "damaged_batches": self._spool.damaged_batches}
        return counts

    def close(self, deadline: float = 10.0) -> None:
        """Send what waits for at most `deadline` seconds.

        The rest goes to the spool, or is counted as export_unsent.
        """
        with self._changed:
            self._deadline = self._clock() + deadline
            self._retry_at = 0.0
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(deadline + self._options.endpoint.timeout)
        self._keep_rest()
        self._sender.close()
        if self._spool is not None:
            self._spool.close()

    # Our thread.

    def _loop(self) -> None:
        while True:
            try:
                wait = self.step()
            except Exception as error:  # top of the thread: counted, logged, tried again
                self._count("faults")
                self._logger.exception("exporter: %s", error)
                wait = LONGEST_WAIT
            with self._changed:
                if self._deadline is not None and self._finished(wait):
                    return
                if wait == 0 or (wait is None and self._queue):
                    continue
                if self._deadline is not None:
                    wait = min(wait, max(0.0, self._deadline - self._clock()))
                self._changed.wait(wait)

    def _finished(self, wait: float | None) -> bool:
        """All is sent; or time is up; or the store is away and the disk keeps what is left."""
        return wait is None or self._clock() >= self._deadline or (wait > 0 and self._spool is not None)

    def step(self) -> float | None:
        """Try to send the oldest batch. Seconds until the next step makes sense.

        None: not before there is something new.
        """
        self._spill()
        wait = self._retry_at - self._clock()
        if wait > 0:
            return wait
        batch = self._spool.peek() if self._spool is not None and len(self._spool) else None
        if batch is not None:
            return self._try(batch, self._spool.acknowledge, lambda: None)
        with self._changed:
            if not self._queue:
                return None
            batch = self._queue.popleft()
            self._queue_size -= len(batch.request)
        return self._try(batch, lambda: None, lambda: self._put_back(batch))

    def _try(self, batch: Batch, done: Callable[[], None], again: Callable[[], None]) -> float:
        try:
            answer = self._sender.send(batch.kind, batch.request, self._time_left())
        except SendFailure as failure:
            if self._is_final(failure):
                done()
                self._refused(batch, failure)
                return 0.0
            again()
            return self._wait(failure)
        except BaseException:
            again()
            raise
        done()
        self._sent(batch, answer)
        return 0.0

    def _is_final(self, failure: SendFailure) -> bool:
        if failure.code in AWAY:
            return TOO_LARGE in failure.message
        self._doubtful += 1
        return failure.code not in DOUBTFUL or self._doubtful >= DOUBTFUL_TRIES

    def _wait(self, failure: SendFailure) -> float:
        """Twice as long each time, and by chance up to half of it shorter, so that a fleet does not come back as
        one.
        """
        longest = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(self._tries, 10))
        wait = longest * (1 - self._jitter() / 2)
        self._tries += 1
        self._count("retries")
        self._retry_at = self._clock() + wait
        if self._away_since is None:
            self._away_since = self._clock()
        if failure.code != self._trouble:
            self._trouble = failure.code
            self._logger.warning(
                "%s takes no batches (%s): they are kept and sent later", self._options.endpoint.target, failure
            )
        return wait

    def _sent(self, batch: Batch, answer: bytes) -> None:
        if self._away_since is not None:
            seconds, waiting = self._clock() - self._away_since, len(self._queue) + len(self._spool or ())
            self._logger.info(
                "%s is back after %.0f s; %d batches follow", self._options.endpoint.target, seconds, waiting
            )
        self._settled()
        self._count("sent_batches")
        self._count("sent_bytes", len(batch.request))
        self._count("sent_samples", batch.samples)
        if answer not in NOTHING_REJECTED:
            self._partly(batch.kind, answer)

    def _refused(self, batch: Batch, failure: SendFailure) -> None:
        self._settled()
        self._count("refused_batches")
        self._count("export_refused", batch.samples)
        if failure.code != self._refusal:
            self._refusal = failure.code
            self._logger.error("%s refused %s for good: %s", self._options.endpoint.target, batch.kind, failure)

    def _settled(self) -> None:
        self._tries = self._doubtful = 0
        self._retry_at = 0.0
        self._away_since, self._trouble = None, ""

    def _partly(self, kind: str, answer: bytes) -> None:
        """Of what the store left out it says only how many profiles or points it was."""
        rejected, message = _rejected(kind, answer)
        self._count("rejected_profiles" if kind == "profiles" else "rejected_points", rejected)
        if message and message != self._refusal:
            self._refusal = message
            self._logger.warning("%s rejected %d of %s: %s", self._options.endpoint.target, rejected, kind, message)

    def _time_left(self) -> float | None:
        return None if self._deadline is None else max(0.1, self._deadline - self._clock())

    # The queue and the disk.

    def _put(self, batch: Batch, front: bool) -> None:
        """Under the lock."""
        (self._queue.appendleft if front else self._queue.append)(batch)
        self._queue_size += len(batch.request)
        while self._queue_size > self._options.queue_bytes:
            lost = self._queue.popleft()
            self._queue_size -= len(lost.request)
            self._counts["export_queue_full"] += lost.samples
            self._counts["dropped_batches"] += 1

    def _put_back(self, batch: Batch) -> None:
        with self._changed:
            self._put(batch, front=True)

    def _spill(self) -> None:
        """Move the oldest batches to disk until a quarter of the queue's bound is used.

        A full disk leaves them in memory.
        """
        while self._spool is not None and self._queue_size > self._options.queue_bytes // 4 and self._to_disk():
            pass

    def _to_disk(self) -> bool:
        with self._changed:
            if not self._queue:
                return False
            batch = self._queue.popleft()
            self._queue_size -= len(batch.request)
        try:
            self._spool.append(batch)
        except OSError as error:
            self._put_back(batch)
            self._count("spool_failures")
            if error.strerror != self._disk_trouble:
                self._disk_trouble = error.strerror
                self._logger.error("the spool %s takes nothing: %s", self._options.spool_folder, error.strerror)
            return False
        self._disk_trouble = None
        self._count("spooled_batches")
        return True

    def _keep_rest(self) -> None:
        while self._spool is not None and self._to_disk():
            pass
        with self._changed:
            samples = sum(batch.samples for batch in self._queue)
            if self._queue:
                self._logger.error("%d samples not sent: the store is away and there is no spool", samples)
            self._counts["export_unsent"] += samples
            self._queue.clear()
            self._queue_size = 0

    def _count(self, name: str, by: int = 1) -> None:
        with self._changed:
            self._counts[name] += by


def _rejected(kind: str, answer: bytes) -> tuple[int, str]:
    from google.protobuf.message import DecodeError
    from gpustrobe.proto import otlp

    try:
        if kind == "profiles":
            partial = otlp.ExportProfilesServiceResponse.FromString(answer).partial_success
            return partial.rejected_profiles, partial.error_message
        partial = otlp.ExportMetricsServiceResponse.FromString(answer).partial_success
        return partial.rejected_data_points, partial.error_message
    except DecodeError:
        return 0, ""
