# SPDX-License-Identifier: Apache-2.0
"""Indexes of large symbol tables that are asked again and again, within a bound of memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from gpustrobe.bpf.elf_names import Index

if TYPE_CHECKING:
    from gpustrobe.symbolizer.files import Binary

# A pass over this many symbols takes half a millisecond, as much as anything else in a batch.
_WORTH_SYMBOLS = 50_000
_WORTH_PASSES = 3
_ROW_BYTES = 12


class Indexes:
    """Not thread-safe. The index used longest ago goes first."""

    def __init__(self, max_bytes: int = 16 << 20) -> None:
        self._max_bytes = max_bytes
        self._known: OrderedDict[str, Index] = OrderedDict()
        self.built = 0

    def get(self, binary: Binary, fd: int) -> Index | None:
        """An index if there is one or it is time to make one; None: read the tables."""
        if binary.key in self._known:
            self._known.move_to_end(binary.key)
            return self._known[binary.key]
        binary.passes += 1
        symbols = binary.facts.symbols + binary.facts.dynamic_symbols
        if binary.passes <= _WORTH_PASSES or symbols < _WORTH_SYMBOLS or symbols * _ROW_BYTES > self._max_bytes:
            return None
        try:
            made = Index(fd)
        except ValueError:
            return None
        self.built += 1
        self._known[binary.key] = made
        while sum(len(index) * _ROW_BYTES for index in self._known.values()) > self._max_bytes:
            self._known.popitem(last=False)[1].close()
        return self._known.get(binary.key)

    def drop(self, binary: Binary) -> None:
        """The file changed: its index is void."""
        index = self._known.pop(binary.key, None)
        if index:
            index.close()

    def close(self) -> None:
        for index in self._known.values():
            index.close()
        self._known.clear()
