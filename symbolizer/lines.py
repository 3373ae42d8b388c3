# SPDX-License-Identifier: Apache-2.0
"""Source lines and inlined frames of files with DWARF: converted once in a child, looked up in another, blamed by file.

A file whose debug information kills its child twice, or that symbolic refuses, is marked on disk and never tried again;
its functions keep their names from the symbol table.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from gpustrobe.symbolizer.child import ChildDied, ChildLimits, Converter, Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpustrobe.symbolizer.cache import FunctionCache, SymcacheStore
    from gpustrobe.symbolizer.files import Binary

_KILLS = 2


class RawLine(NamedTuple):
    """One frame as DWARF has it: linkage name, file, line, start of the function (-1 for an inlined one)."""

    name: str
    file: str
    line: int
    start: int


class LineReader:
    """Not thread-safe. At most one conversion runs at a time, so that memory is bounded."""

    def __init__(
        self,
        reader: Reader,
        cache: FunctionCache,
        symcaches: SymcacheStore,
        limits: ChildLimits,
        max_debug_bytes: int = 256 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader, self._cache, self._symcaches = reader, cache, symcaches
        self._limits, self._max_debug_bytes, self._clock = limits, max_debug_bytes, clock
        self._running: tuple[Binary, Converter, int] | None = None  # with the descriptor written to
        self.failures: Counter[str] = Counter()

    def settle(self, binary: Binary, fd: int, deadline: float) -> None:
        """Brings binary.lines to none, ready or failed; leaves it "" where the deadline came first."""
        if binary.lines:
            return
        if not binary.debug_bytes:
            binary.lines = "none"
        elif reason := self._cache.marked(binary.key):
            self._fail(binary, reason, remember=False)
        elif (known := self._symcaches.open(binary.key)) is not None:
            os.close(known)
            binary.lines = "ready"
        elif binary.debug_bytes > self._max_debug_bytes:
            self._fail(binary, "debug information too large", remember=False)
        else:
            self._convert(binary, fd, deadline)

    def _convert(self, binary: Binary, fd: int, deadline: float) -> None:
        if self._running and self._running[0].key != binary.key:
            self._collect(deadline)
        if not self._running:
            source = fd if binary.facts and binary.facts.debug_bytes else binary.debug_fd
            try:
                target = self._symcaches.create(binary.key)
            except OSError as error:
                self._fail(binary, f"cache not writable: {error.strerror}", remember=False)
                return
            self._running = binary, Converter(self._limits, source, target, self._clock), target
        if self._running[0].key == binary.key:
            self._running = binary, *self._running[1:]
            self._collect(deadline)

    def _collect(self, deadline: float) -> None:
        """Waits for the running conversion until the deadline."""
        binary, converter, target = self._running
        reason = converter.finished(deadline - self._clock())
        if reason is None:
            return
        self._running = None
        self._symcaches.keep(binary.key, target, complete=not reason)
        if not reason:
            binary.lines = "ready"
        elif reason.startswith("reading its debug information"):
            self._blame(binary, reason)
        else:
            self._fail(binary, reason, remember=True)

    def _blame(self, binary: Binary, reason: str) -> None:
        binary.kills += 1
        if binary.kills >= _KILLS:
            self._fail(binary, reason, remember=True)

    def _fail(self, binary: Binary, reason: str, *, remember: bool) -> None:
        binary.lines = "failed"
        self.failures[reason.split(":", 1)[0]] += 1
        if remember:
            self._cache.mark(binary.key, reason)

    def lookup(self, binary: Binary, addresses: Sequence[int]) -> dict[int, list[RawLine]] | None:
        """Frames at each address, innermost first; None where the child died or the symcache was broken."""
        answers = None
        while answers is None and binary.lines == "ready":
            answers = self._ask(binary, list(addresses))
        if answers is None:
            return None
        if len(answers) != len(addresses):
            self._broken_symcache(binary)
            return None
        return {
            address: [RawLine(str(n), str(f), int(line), int(start)) for n, f, line, start in answer]
            for address, answer in zip(addresses, answers, strict=True)
        }

    def _ask(self, binary: Binary, addresses: list[int]) -> list[list] | None:
        """None where the child died of it, which is the file's fault if it happens again."""
        fd = self._symcaches.open(binary.key)
        if fd is None:
            binary.lines = ""
            return None
        try:
            request = {"op": "lines", "key": binary.key, "addresses": addresses}
            return [answer for part in self._reader.ask(request, [fd]) for answer in part]
        except ChildDied:
            self._blame(binary, "reading its debug information killed the reader")
            return None
        finally:
            os.close(fd)

    def _broken_symcache(self, binary: Binary) -> None:
        self._symcaches.drop(binary.key)
        binary.lines = ""
        self._blame(binary, "its symcache is broken")

    def close(self) -> None:
        if self._running:
            binary, converter, target = self._running
            converter.kill()
            self._symcaches.keep(binary.key, target, complete=False)
            self._running = None
