# SPDX-License-Identifier: Apache-2.0
"""Growing tables whose rows are read as numpy columns: what a writer of dictionaries (OTLP, pprof) keeps between
messages."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from numpy.typing import NDArray


class Interned:
    """Values numbered from 1 in order of first sight; 0 is the zero element."""

    def __init__(self) -> None:
        self.ids: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self.ids) + 1

    def add(self, value: Hashable) -> int:
        return self.ids.setdefault(value, len(self.ids) + 1)


class Ragged:
    """Rows of 32-bit ids, of different lengths, numbered from 0."""

    def __init__(self) -> None:
        self.values = array("I")
        self.ends = array("I")

    def append(self, row: Iterable[int]) -> int:
        """The new row's number."""
        self.values.extend(row)
        self.ends.append(len(self.values))
        return len(self.ends) - 1

    def take(self, rows: NDArray) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        return take_rows(view(self.values), view(self.ends).astype(np.int64), rows)


def view(column: array) -> NDArray:
    """A column as numpy sees it, without a copy; the array cannot grow while the view lives."""
    return np.frombuffer(column, np.dtype(column.typecode)) if column else np.zeros(0, np.dtype(column.typecode))


def take_rows(values: NDArray, ends: NDArray[np.int64], rows: NDArray) -> tuple[NDArray, NDArray[np.int64]]:
    """Values of `rows` one row after the other, and how many each has; row i ends before values[ends[i]]."""
    stops = ends[rows]
    starts = np.where(rows > 0, ends[rows - 1], 0)
    counts = stops - starts
    at = np.repeat(stops - np.cumsum(counts), counts) + np.arange(int(counts.sum()))
    return values[at], counts


def local_numbers(used: NDArray, size: int) -> tuple[NDArray, NDArray[np.uint32]]:
    """Which of `size` ids are in `used`, ascending and without 0, and the map from id to place among them, from 1."""
    local = np.zeros(size, np.uint32)
    local[used] = 1
    local[0] = 0
    ids = np.flatnonzero(local)
    local[ids] = np.arange(1, ids.size + 1)
    return ids, local
