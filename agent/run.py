# SPDX-License-Identifier: Apache-2.0
"""The agent's main loop. The main thread takes one window a second; a second thread names, encodes and hands batches to
the exporter. Each part fails alone: what one raises is counted and logged, the others go on.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gpustrobe.agent.log import States

if TYPE_CHECKING:
    from gpustrobe.agent.encode import Encoder
    from gpustrobe.agent.export import Exporter
    from gpustrobe.agent.gpu import GpuTime
    from gpustrobe.agent.model import Profiles, Reading, Window
    from gpustrobe.agent.naming import Naming
    from gpustrobe.agent.sampler import Sampler

MOST_WAITING = 24  # windows between the threads; past that they wait in the core, which counts what it cannot keep
TAKE_TIMEOUT = 1.0  # seconds; also how long a signal may go unseen
CLOSE_DEADLINE = 10.0  # seconds for the tail to reach the store; what does not is on disk then


class Source(Protocol):
    """Whatever yields readings once a batch: NVML, own cost, books."""

    def take(self) -> list[Reading]: ...


@dataclass
class Parts:
    """Everything the loop drives; tests give twins."""

    sampler: Sampler
    naming: Naming
    encoder: Encoder
    exporter: Exporter
    sources: dict[str, Source]
    encode_readings: Callable[[list[Reading]], Iterable[bytes]]
    observe: Callable[[Profiles], None] = lambda profiles: None  # books for own metrics
    close: tuple[Callable[[], None], ...] = ()
    gpu: GpuTime | None = None  # also one of the sources


class Shipper:
    """Names, encodes and submits what was taken, every `interval` seconds, on a thread of its own."""

    def __init__(self, parts: Parts, interval: float, logger: logging.Logger) -> None:
        self._parts = parts
        self._interval = interval
        self._logger = logger
        self._states = States(logger)
        self._waiting: deque[Window] = deque()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="shipper", daemon=True)
        self.faults: dict[str, int] = {}

    def start(self) -> None:
        self._thread.start()

    @property
    def full(self) -> bool:
        return len(self._waiting) >= MOST_WAITING

    def put(self, window: Window) -> None:
        self._waiting.append(window)

    def finish(self, tail: Iterable[Window]) -> None:
        """Ships what is left, in the caller's thread once ours has ended."""
        self._stop.set()
        self._thread.join()
        self._waiting.extend(tail)
        self.ship(tail=True)

    def _loop(self) -> None:
        while not self._stop.wait(self._interval):
            self.ship()

    def ship(self, tail: bool = False) -> None:
        """One batch. Parts are independent: a fault in one costs that part's share of this batch only."""
        self._safely("profiles", self._profiles)
        self._safely("gpu time", lambda: self._gpu(tail))
        readings: list[Reading] = []
        for name, source in self._parts.sources.items():
            self._safely(name, lambda source=source: readings.extend(source.take()))
        self._safely("metrics", lambda: self._submit(readings))

    def _profiles(self) -> None:
        while self._waiting:
            self._parts.naming.add(self._waiting.popleft())
        gpu = self._parts.gpu
        for profiles in self._parts.naming.round():
            if gpu is not None:
                gpu.learn(profiles)
                profiles = gpu.public(profiles)
            self._send(profiles)

    def _gpu(self, tail: bool = False) -> None:
        if self._parts.gpu is not None:
            for profiles in self._parts.gpu.stop() if tail else self._parts.gpu.round():
                self._send(profiles)

    def _send(self, profiles: Profiles) -> None:
        self._parts.observe(profiles)
        for request in self._parts.encoder.encode(profiles):
            self._parts.exporter.submit("profiles", request.data, request.samples)

    def _submit(self, readings: list[Reading]) -> None:
        for request in self._parts.encode_readings(readings) if readings else ():
            self._parts.exporter.submit("metrics", request, 0)

    def _safely(self, part: str, step: Callable[[], Any]) -> None:
        try:
            step()
            self._states.say(part, "")
        except Exception as error:
            self.faults[part] = self.faults.get(part, 0) + 1
            if self._states.say(part, f"{part}: {type(error).__name__}: {error}", logging.ERROR):
                self._logger.error("%s failed; the agent goes on without this batch of it", part, exc_info=error)


def settle(collect: Callable[[], Any] = gc.collect) -> None:
    """Moves what start-up made out of the collector's sight and makes it run rarely: nearly all we allocate dies young
    by reference count, and a full collection over 300 k objects takes 17 ms."""
    collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


# mallopt(3): M_ARENA_MAX, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD. Windows are made in one thread and freed in another, and
# large numpy blocks leave holes: after a minute of a mixed load 204 MB were resident, with two arenas and thresholds of
# 128 kB (and the smaller tables of agent/sampling.py) 137 MB, at 5 % more CPU.
HEAP = {-8: 2, -1: 256 << 10, -3: 256 << 10}


def tune_heap() -> None:
    """To be called before any thread starts."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        for option, value in HEAP.items():
            libc.mallopt(option, value)


def loop(
    parts: Parts,
    interval: float,
    stopping: Callable[[], bool],
    logger: logging.Logger,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Runs until `stopping()`; `tick` runs about once a second. On return all that was sampled has been submitted."""
    shipper = Shipper(parts, interval, logger)
    parts.sampler.start()
    settle()
    shipper.start()
    try:
        while not stopping():
            window = None if shipper.full else parts.sampler.take(TAKE_TIMEOUT)
            if window is not None:
                shipper.put(window)
            elif shipper.full:
                time.sleep(TAKE_TIMEOUT)
            tick()
    finally:
        shipper.finish(parts.sampler.stop())
        close(parts, logger)


def close(parts: Parts, logger: logging.Logger) -> None:
    for step in (lambda: parts.exporter.close(CLOSE_DEADLINE), *parts.close):
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the end: each part gets its chance to close
            logger.error("while stopping: %s: %s", type(error).__name__, error)


def each(*sources: Callable[[], Iterator[Reading]]) -> list[Reading]:
    return [reading for source in sources for reading in source()]
