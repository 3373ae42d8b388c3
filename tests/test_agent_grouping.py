# SPDX-License-Identifier: Apache-2.0
"""Against numpy's own, on columns of every kind."""

from __future__ import annotations

import numpy as np
import pytest
from gpustrobe.agent.grouping import group, sums


@pytest.mark.parametrize("high", [3, 1000, 1 << 40, (1 << 63) - 1])
@pytest.mark.parametrize("columns", [1, 2, 5, 9])
def test_groups_are_those_of_unique(high, columns):
    random = np.random.default_rng(high % 1000 + columns)
    values = random.integers(-high if high < 1 << 60 else 0, high, (400, columns))
    values = values[random.integers(0, 50, 400)]
    distinct, place = np.unique(values, axis=0, return_inverse=True)
    found, one = group(*values.T)
    assert (found == place.ravel()).all() and (values[one] == distinct).all()


def test_no_rows_and_unsigned_columns():
    place, one = group(np.zeros(0, np.int64), np.zeros(0, np.uint32))
    assert place.size == one.size == 0
    place, one = group(np.array([(1 << 64) - 1, 0, (1 << 64) - 1], np.uint64))
    assert place.tolist() == [1, 0, 1]
    place, one = group(np.full(3, (1 << 64) - 1, np.uint64), np.array([1, 0, 1], np.uint8))
    assert place.tolist() == [1, 0, 1]


def test_sums_by_group():
    assert sums(np.array([1, 0, 1]), np.array([[1.0, 2], [3, 4], [5, 6]]), 3).tolist() == [[3, 4], [6, 8], [0, 0]]
