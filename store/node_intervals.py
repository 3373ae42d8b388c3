# SPDX-License-Identifier: Apache-2.0
"""95 % intervals of the nodes of a GPU profile's tree.

Differences between windows, not residuals against counted launches: which stack a launch came from is itself sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.store import estimate, sql
from gpustrobe.store.query import types_of

if TYPE_CHECKING:
    from gpustrobe.store.content import Contents, Part
    from gpustrobe.store.database import Reader
    from gpustrobe.store.query import Profile
    from gpustrobe.store.question import Question
    from numpy.typing import NDArray

MAX_CELLS = 8_000_000  # nodes times bins; 64 MB


def node_halves(reader: Reader, contents: Contents, question: Question, profile: Profile) -> NDArray[np.float64] | None:
    """Half widths of the intervals of the nodes' totals, (n,); None where nothing is estimated or it would cost too
    much to tell."""
    recording, tree = estimate.read_recording(reader, question), profile.tree
    if recording.counted and question.type == "gpu_launches":
        return None
    grid = recording.grid(len(profile.rows.stack))
    if grid is None or len(tree.parent) * len(grid.bins) > MAX_CELLS:
        return None
    picked = question.picked(types_of(reader, question.type).numbers)
    data = reader.columns(sql.STACK_SERIES_BINS.format(picked=picked.text), {**picked.parameters, "step": grid.step})
    place, inside = grid.places(data["bin"])
    inside &= np.isin(data["stack"], profile.rows.stack)  # focus and exclude
    node = _nodes(reader, contents, profile, data["series"][inside], data["stack"][inside])
    count, bins = len(tree.parent), len(grid.bins)
    cells = np.bincount(node * bins + place[inside], data["value"][inside].astype(np.float64), minlength=count * bins)
    x = cells.reshape(count, bins)
    for at in range(len(tree.starts) - 2, 0, -1):
        here = slice(tree.starts[at], tree.starts[at + 1])
        np.add.at(x, tree.parent[here], x[here])
    return estimate.half_width(x)


def _nodes(
    reader: Reader, contents: Contents, profile: Profile, series: NDArray[np.int64], stack: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The tree's node at which a row's stack ends, (n,)."""
    groups = profile.top.group_of_series
    group = np.array([groups[number] for number in series.tolist()], dtype=np.int64)
    known = {part.content.first_function: place for place, part in enumerate(profile.rows.parts)}
    out = np.zeros(len(stack), dtype=np.int64)
    for part in contents.parts(reader, stack):
        number = known[part.content.first_function]
        out[part.rows] = _places(part, group[part.rows], profile, number)
    return out


def _places(part: Part, group: NDArray[np.int64], profile: Profile, number: int) -> NDArray[np.int64]:
    levels, places = profile.levels[number], profile.places[number]
    size = len(profile.rows.parts[number].content.parent)
    depth = part.content.depth[part.leaf].astype(np.int64)
    out = np.zeros(len(depth), dtype=np.int64)
    for at in np.unique(depth).tolist():
        mine = depth == at
        keys = levels[at].group * size + levels[at].node  # ascending (flame.climb)
        out[mine] = places[at][np.searchsorted(keys, group[mine] * size + part.leaf[mine])]
    return out
