# SPDX-License-Identifier: Apache-2.0
"""Frames in files: memory, disk cache, symbol tables, DWARF, demangling, in that order, a batch at a time."""

from __future__ import annotations

import os
import sys
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gpustrobe.symbolizer.cache import Line, Lines
from gpustrobe.symbolizer.elf import names_of, vaddr_of
from gpustrobe.symbolizer.names import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpustrobe.symbolizer.cache import FrameCache
    from gpustrobe.symbolizer.demangler import Demangler
    from gpustrobe.symbolizer.files import Binary, FileTable
    from gpustrobe.symbolizer.lines import LineReader, RawLine

_FILE_LIMIT = 512  # characters of a source path


class Named(NamedTuple):
    """Answer for one address: its frames, or none and the reason. `vaddr` is -1 where the offset has none."""

    lines: Lines
    vaddr: int
    build_id: str
    reason: str = ""


@dataclass(slots=True)
class _Batch:
    """What is asked of one binary. Symbols and raw lines are by virtual address."""

    binary: Binary
    file_id: int
    missing: set[int] = field(default_factory=set)
    symbols: dict[int, tuple[str, int]] = field(default_factory=dict)
    raw: dict[int, list[RawLine]] = field(default_factory=dict)
    reason: str = ""  # why symbols could not be read
    complete: bool = True  # nothing better will come later


class NativeNames:
    """Not thread-safe."""

    def __init__(
        self, files: FileTable, cache: FrameCache, lines: LineReader, demangler: Demangler, limit: int = 32_768
    ) -> None:
        self._files, self._cache, self._lines, self._demangler = files, cache, lines, demangler
        self._limit = limit
        self._known: OrderedDict[tuple[str, int], Lines] = OrderedDict()
        self.counts: Counter[str] = Counter()

    def resolve(self, wanted: Mapping[int, Sequence[int]], deadline: float) -> dict[tuple[int, int], Named]:
        """`wanted`: file offsets by file id. Returns one answer for each (file id, offset)."""
        answers: dict[tuple[int, int], Named] = {}
        places: dict[tuple[int, int], tuple[str, int]] = {}
        batches: dict[str, _Batch] = {}
        for file_id, offsets in wanted.items():
            self._place(file_id, offsets, answers, places, batches, deadline)
        for batch in batches.values():
            self._read(batch)
        found = self._name(batches.values())
        for place, (key, vaddr) in places.items():
            lines = found.get((key, vaddr)) or self._known.get((key, vaddr)) or ()
            batch = batches[key]
            answers[place] = Named(lines, vaddr, batch.binary.build_id, "" if lines else batch.reason or "no symbols")
        self._trim()
        return answers

    def _place(self, file_id, offsets, answers, places, batches, deadline) -> None:
        """Sorts a file's offsets into the batch of its content, or answers why it cannot."""
        mapped = self._files.get(file_id)
        if mapped is None:
            answers.update({(file_id, offset): Named((), -1, "", "file not known") for offset in offsets})
            return
        binary = self._files.binary(file_id, mapped)
        if not binary.facts:
            self.counts["files_unreadable"] += 1
            answers.update({(file_id, o): Named((), -1, binary.build_id, binary.reason) for o in offsets})
            return
        batch = batches.setdefault(binary.key, _Batch(binary, file_id))
        self._settle(batch, deadline)
        for offset in offsets:
            vaddr = vaddr_of(binary.facts, offset)
            if vaddr is None:
                answers[file_id, offset] = Named((), -1, binary.build_id, "offset in no segment of the file")
            else:
                places[file_id, offset] = binary.key, vaddr
                batch.missing.add(vaddr)
        self._from_caches(batch)

    def _settle(self, batch: _Batch, deadline: float) -> None:
        if batch.binary.lines:
            return
        try:
            fd = self._files.open(batch.file_id)
        except OSError:
            fd = -1
        try:
            if fd >= 0 or batch.binary.debug_fd >= 0 or not batch.binary.debug_bytes:
                self._lines.settle(batch.binary, fd, deadline)
        finally:
            if fd >= 0:
                os.close(fd)

    def _from_caches(self, batch: _Batch) -> None:
        key = batch.binary.key
        for vaddr in [v for v in batch.missing if (key, v) in self._known]:
            self._known.move_to_end((key, vaddr))
            batch.missing.discard(vaddr)
            self.counts["memory_hits"] += 1
        if batch.missing:
            found = self._cache.get(batch.binary.cache_key, list(batch.missing))
            self.counts["disk_hits"] += len(found)
            batch.missing.difference_update(found)
            self._known.update({(key, vaddr): lines for vaddr, lines in found.items()})

    def _read(self, batch: _Batch) -> None:
        """Symbols and lines of what no cache knew."""
        if not batch.missing:
            return
        binary, missing = batch.binary, sorted(batch.missing)
        self._read_symbols(batch, missing)
        if binary.lines == "ready":
            raw = self._lines.lookup(binary, missing)
            batch.complete = raw is not None
            batch.raw = raw or {}
        else:
            batch.complete = bool(binary.lines)

    def _read_symbols(self, batch: _Batch, missing: list[int]) -> None:
        """From the file's own tables first, so that names do not depend on which debug packages a host has."""
        binary = batch.binary
        try:
            fd = self._files.open(batch.file_id)
        except OSError as error:
            batch.reason, batch.complete = str(error), False
            return
        try:
            batch.symbols = self._pass(fd, binary.functions, missing, batch)
        finally:
            os.close(fd)
        nameless = [vaddr for vaddr in missing if not batch.symbols.get(vaddr, ("", 0))[0]]
        if nameless and binary.debug_fd >= 0:
            batch.symbols.update(self._pass(binary.debug_fd, binary.debug_functions, nameless, batch))

    def _pass(self, fd, functions, addresses, batch: _Batch) -> dict[int, tuple[str, int]]:
        try:
            return names_of(fd, functions, addresses)
        except ValueError as error:
            batch.reason = str(error)
            if batch.reason != "no symbols":
                self.counts["symbol_tables_refused"] += 1
            return {}

    def _name(self, batches) -> dict[tuple[str, int], Lines]:
        """Demangles all distinct names of the batches at once, remembers what is complete."""
        plain = {
            (batch.binary.key, vaddr): frames
            for batch in batches
            for vaddr in batch.missing
            if (frames := merge(batch.symbols.get(vaddr, ("", 0)), batch.raw.get(vaddr, [])))
        }
        shown = self._demangler.demangle({name for frames in plain.values() for name, _, _ in frames})
        shown = {name: sys.intern(text) for name, text in shown.items()}
        found = {
            place: tuple(Line(shown[name], _path(file), line) for name, file, line in frames)
            for place, frames in plain.items()
        }
        self._remember(batches, found)
        return found

    def _remember(self, batches, found: dict[tuple[str, int], Lines]) -> None:
        results: dict[str, dict[int, Lines]] = {}
        for batch in batches:
            key = batch.binary.key
            fresh = {vaddr: found[key, vaddr] for vaddr in batch.missing if (key, vaddr) in found}
            self.counts["read"] += len(batch.missing)
            if batch.complete and fresh:
                results[batch.binary.cache_key] = fresh
                self._known.update({(key, vaddr): lines for vaddr, lines in fresh.items()})
        self._cache.put(results)

    def _trim(self) -> None:
        while len(self._known) > self._limit:
            self._known.popitem(last=False)


def _path(file: str) -> str:
    return sys.intern(printable(file, _FILE_LIMIT))


def merge(symbol: tuple[str, int], raw: list[RawLine]) -> list[tuple[str, str, int]]:
    """(linkage name, file, line) of each frame, innermost first; empty if nothing has a name.

    The function itself is named by the symbol table where both speak of the same function: so it is called alike with
    and without debug information (`write`, where DWARF says `__GI___libc_write`).
    """
    name, start = symbol
    if not raw:
        return [(name, "", 0)] if name else []
    frames = [(line.name or "[inlined]", line.file, line.line) for line in raw[:-1]]
    outer = raw[-1]
    title = name if name and outer.start in (start, -1) else outer.name or name
    return [*frames, (title, outer.file, outer.line)] if title else []
