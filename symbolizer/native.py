# SPDX-License-Identifier: Apache-2.0
"""Frames in files: memory, disk cache, symbol tables, DWARF, demangling, in that order, a batch at a time."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gpustrobe.symbolizer.cache import Line, Lines
from gpustrobe.symbolizer.elf import Function, functions_at, vaddr_of
from gpustrobe.symbolizer.indexes import Indexes
from gpustrobe.symbolizer.names import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpustrobe.bpf.elf_names import Index
    from gpustrobe.symbolizer.cache import FunctionCache
    from gpustrobe.symbolizer.demangler import Demangler
    from gpustrobe.symbolizer.files import Binary, FileTable
    from gpustrobe.symbolizer.lines import LineReader, RawLine

_FILE_LIMIT = 512  # characters of a source path
_LOADED_FUNCTIONS = 10_000  # of past runs, per content: about 3 MB


class Named(NamedTuple):
    """Answer for one address: its frames, or none and the reason. `vaddr` is -1 where the offset has none."""

    lines: Lines
    vaddr: int
    build_id: str
    reason: str = ""


@dataclass(slots=True)
class _Batch:
    """What is asked of one binary, by virtual address."""

    binary: Binary
    file_id: int
    places: list[tuple[int, int, int]] = field(default_factory=list)  # file id, offset, vaddr
    fresh: list[Function] = field(default_factory=list)  # found now, in no cache yet
    raw: dict[int, list[RawLine]] = field(default_factory=dict)
    reason: str = ""  # why symbols could not be read


class NativeNames:
    """Not thread-safe. Addresses in files with lines are remembered one by one, others by their function."""

    def __init__(
        self, files: FileTable, cache: FunctionCache, lines: LineReader, demangler: Demangler, limit: int = 16_384
    ) -> None:
        self._files, self._cache, self._lines, self._demangler = files, cache, lines, demangler
        self._limit = limit
        self._indexes = Indexes()
        self._known: OrderedDict[tuple[str, int], Lines] = OrderedDict()
        self.counts: Counter[str] = Counter()

    def resolve(self, wanted: Mapping[int, Sequence[int]], deadline: float) -> dict[tuple[int, int], Named]:
        """`wanted`: file offsets by file id. Returns one answer for each (file id, offset)."""
        answers: dict[tuple[int, int], Named] = {}
        batches: dict[str, _Batch] = {}
        for file_id, offsets in wanted.items():
            self._place(file_id, offsets, answers, batches)
        for batch in batches.values():
            self._read(batch, deadline)
        shown = self._show(batches.values())
        for batch in batches.values():
            self._answer(batch, shown, answers)
        self._cache.put({batch.binary.cache_key: batch.fresh for batch in batches.values() if batch.fresh})
        while len(self._known) > self._limit:
            self._known.popitem(last=False)
        return answers

    def _place(self, file_id, offsets, answers, batches) -> None:
        """Sorts a file's offsets into the batch of its content, or answers why it cannot."""
        mapped = self._files.get(file_id)
        if mapped is None:
            answers.update({(file_id, offset): Named((), -1, "", "file not known") for offset in offsets})
            return
        binary = self._files.binary(file_id, mapped)
        if not binary.facts:
            answers.update({(file_id, o): Named((), -1, binary.build_id, binary.reason) for o in offsets})
            return
        batch = batches.setdefault(binary.key, _Batch(binary, file_id))
        for offset in offsets:
            vaddr = vaddr_of(binary.facts, offset)
            if vaddr is None:
                answers[file_id, offset] = Named((), -1, binary.build_id, "offset in no segment of the file")
            else:
                batch.places.append((file_id, offset, vaddr))

    @contextlib.contextmanager
    def _opened(self, batch: _Batch) -> Iterator[int]:
        """A descriptor of the file, or -1 with the batch's reason set."""
        try:
            fd = self._files.open(batch.file_id)
        except OSError as error:
            batch.reason = error.args[0] if len(error.args) == 1 else "file gone"
            yield -1
            return
        try:
            yield fd
        finally:
            os.close(fd)

    def _read(self, batch: _Batch, deadline: float) -> None:
        """Functions and lines of what is not in memory."""
        binary = batch.binary
        if not binary.loaded:
            binary.loaded = True
            for row in self._cache.load(binary.cache_key, _LOADED_FUNCTIONS):
                binary.functions.add(row)
                self.counts["functions_loaded"] += 1
        missing = {vaddr for _, _, vaddr in batch.places if binary.functions.find(vaddr) is None}
        if missing or not binary.lines:
            with self._opened(batch) as fd:
                if fd >= 0 or not binary.debug_bytes:
                    self._lines.settle(binary, fd, deadline)
                if fd >= 0 and missing:
                    self._read_functions(batch, fd, sorted(missing))
        if binary.lines == "ready":
            key = binary.key
            nameless = sorted({vaddr for _, _, vaddr in batch.places if (key, vaddr) not in self._known})
            if nameless:
                batch.raw = self._lines.lookup(binary, nameless) or {}
                self.counts["lines_read"] += len(batch.raw)

    def _read_functions(self, batch: _Batch, fd: int, missing: list[int]) -> None:
        """From the file's own tables first, so that names do not depend on which debug packages a host has."""
        binary = batch.binary
        found = self._pass(fd, missing, batch, self._indexes.get(binary, fd))
        if binary.debug_fd >= 0:
            nameless = [vaddr for vaddr in missing if vaddr not in found or not found[vaddr].linkage]
            for vaddr, row in self._pass(binary.debug_fd, nameless, batch).items():
                found[vaddr] = _within(found.get(vaddr), row)
        for row in {id(row): row for row in found.values()}.values():
            binary.functions.add(row)
            batch.fresh.append(row)

    def _pass(self, fd: int, addresses: list[int], batch: _Batch, index: Index | None = None) -> dict[int, Function]:
        if not addresses:
            return {}
        self.counts["index_lookups" if index else "symbol_passes"] += 1
        try:
            return functions_at(fd, addresses, index)
        except ValueError as error:
            batch.reason = str(error)
            self._indexes.drop(batch.binary)
            if batch.reason != "no symbols":
                self.counts["symbol_tables_refused"] += 1
            return {}

    def close(self) -> None:
        self._indexes.close()

    def _show(self, batches: Iterable[_Batch]) -> dict[str, str]:
        """Shown names of all linkage names that the batches found, demangled at once."""
        linkages = {row.linkage for batch in batches for row in batch.fresh if row.linkage}
        for batch in batches:
            linkages.update(line.name for lines in batch.raw.values() for line in lines)
        return {linkage: sys.intern(name) for linkage, name in self._demangler.demangle(linkages).items()}

    def _answer(self, batch: _Batch, shown: dict[str, str], answers: dict[tuple[int, int], Named]) -> None:
        binary, build_id, with_lines = batch.binary, batch.binary.build_id, batch.binary.lines == "ready"
        for row in batch.fresh:
            row.lines = (Line(shown[row.linkage]),) if row.linkage else ()
        for file_id, offset, vaddr in batch.places:
            row = binary.functions.find(vaddr)
            lines = row.lines if row else ()
            if with_lines:
                lines = self._lines_at(binary.key, vaddr, row, batch.raw.get(vaddr), shown) or lines
            reason = "" if lines else batch.reason or "no symbols"
            answers[file_id, offset] = Named(lines, vaddr, build_id, reason)

    def _lines_at(self, key: str, vaddr: int, row: Function | None, raw, shown: dict[str, str]) -> Lines:
        place = key, vaddr
        if raw is None:
            if place in self._known:
                self._known.move_to_end(place)
            return self._known.get(place, ())
        lines = merge(row, raw, shown)
        self._known[place] = lines
        return lines


def _within(own: Function | None, row: Function) -> Function:
    """The debug file's row, cut to the gap it fills in the file's own table."""
    if own is None:
        return row
    return Function(max(own.low, row.low), min(own.high, row.high), row.start, row.linkage)


def merge(row: Function | None, raw: list[RawLine], shown: Mapping[str, str]) -> Lines:
    """The frames of an address, innermost first; () if nothing has a name. `shown` has every linkage name's shown name.

    The function itself is named by the symbol table where both speak of the same function: so it is called alike with
    and without debug information (`write`, where DWARF says `__GI___libc_write`).
    """
    # Without a source line symbolic guesses by its own symbol table, which states no sizes: _init for all of the PLT.
    if not raw or not (raw[-1].file or raw[-1].line):
        return ()
    outer, by_table = raw[-1], row.lines[0].name if row and row.lines else ""
    title = by_table if by_table and outer.start in (row.start, -1) else shown.get(outer.name, "") or by_table
    if not title:
        return ()
    inlined = (Line(shown.get(line.name, "") or "[inlined]", _path(line.file), line.line) for line in raw[:-1])
    return (*inlined, Line(title, _path(outer.file), outer.line))


def _path(file: str) -> str:
    return sys.intern(printable(file, _FILE_LIMIT))
