# SPDX-License-Identifier: Apache-2.0
"""Content hashes to dense ids, vectorized: a hash table in two numpy arrays (12 bytes a slot, filled to a half at
most).

A dict of Python ints costs about 100 bytes an entry and 80 ns a look-up; this costs 24-48 bytes and about 20 ns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def mix(parent: NDArray[np.uint64], child: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash of a chain's next link from the hash so far; the finalizer of splitmix64 over both."""
    x = (parent * _MULTIPLIER) ^ child
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


class IdTable:
    """Gives ids first_id, first_id + 1, ... to 64-bit hashes it has not seen."""

    SLOTS = 1 << 15

    def __init__(self, first_id: int, slots: int = SLOTS) -> None:
        self.first_id = first_id
        self.count = 0
        self._keys = np.zeros(slots, dtype=np.uint64)  # 0 = free
        self._ids = np.zeros(slots, dtype=np.uint32)  # relative to first_id

    @property
    def next_id(self) -> int:
        return self.first_id + self.count

    @property
    def slots(self) -> int:
        return len(self._keys)

    def find(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Ids of hashes (n,), -1 where there is none."""
        found = self._find(np.where(hashes == 0, np.uint64(1), hashes))
        return np.where(found < 0, -1, found + self.first_id)

    def intern(self, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        """Ids of hashes (n,), and the positions of those that are new: first occurrences, in ascending order of their
        new ids.

        New ids are given in order of first occurrence.
        """
        hashes = np.where(hashes == 0, np.uint64(1), hashes)
        found = self._find(hashes)
        missing = np.flatnonzero(found < 0)  # mostly none: what follows sorts
        if not len(missing):
            return found + self.first_id, missing
        unique, first, inverse = np.unique(hashes[missing], return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        while 2 * (self.count + len(unique)) > len(self._keys):
            self._grow()
        fresh = np.empty(len(unique), dtype=np.int64)
        fresh[order] = np.arange(self.count, self.count + len(unique))
        self._insert(unique, fresh)
        self.count += len(unique)
        found[missing] = fresh[inverse]
        return found + self.first_id, missing[first[order]]

    def _slots(self, keys: NDArray[np.uint64]) -> NDArray[np.intp]:
        shift = np.uint64(65 - len(self._keys).bit_length())
        return ((keys * _MULTIPLIER) >> shift).astype(np.intp)

    def _find(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        found = np.full(len(keys), -1, dtype=np.int64)
        pending, slots, mask = np.arange(len(keys)), self._slots(keys), len(self._keys) - 1
        while len(pending):
            held = self._keys[slots]
            hit = held == keys[pending]
            found[pending[hit]] = self._ids[slots[hit]]
            going = ~hit & (held != 0)
            pending, slots = pending[going], (slots[going] + 1) & mask
        return found

    def _insert(self, keys: NDArray[np.uint64], ids: NDArray[np.int64]) -> None:
        pending, slots, mask = np.arange(len(keys)), self._slots(keys), len(self._keys) - 1
        while len(pending):
            free = self._keys[slots] == 0
            self._keys[slots[free]] = keys[pending[free]]  # several may write one slot: the last one holds it
            won = self._keys[slots] == keys[pending]
            self._ids[slots[won]] = ids[pending[won]]
            pending, slots = pending[~won], (slots[~won] + 1) & mask

    def _grow(self) -> None:
        keys, ids = self._keys, self._ids
        taken = keys != 0
        self._keys = np.zeros(2 * len(keys), dtype=np.uint64)
        self._ids = np.zeros(2 * len(keys), dtype=np.uint32)
        self._insert(keys[taken], ids[taken].astype(np.int64))
