# SPDX-License-Identifier: Apache-2.0
"""From (group, leaf node, value) to one merged tree, level by level with numpy; pure.

The store keeps stacks as a calling context tree per generation (schema.py, `nodes`). `climb` adds up a generation's
leaves into the nodes above them; `merge` joins the generations' trees by what frames are called, under process and
thread levels given by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Content:
    """A generation as arrays. Node i has parent[i] < i; node 0 is the root. frame indexes `function` and `line`."""

    parent: NDArray[np.uint32]
    frame: NDArray[np.uint32]
    depth: NDArray[np.uint16]
    function: NDArray[np.uint32]  # of each frame: index into `hash`
    line: NDArray[np.int32]
    hash: NDArray[np.uint64]  # content of each function
    first_function: int  # id of function 0 of `hash`


@dataclass(frozen=True, slots=True)
class Level:
    """Distinct (group, node) pairs at one depth of one generation; `up` indexes the level above (its groups at depth
    1)."""

    group: NDArray[np.int64]
    node: NDArray[np.int64]
    own: NDArray[np.int64]
    up: NDArray[np.int64]


def climb(group: NDArray, leaf: NDArray, value: NDArray, content: Content) -> list[Level]:
    """Levels 0 (the root of each group: empty stacks) to the deepest. Arrays (n,): group, leaf node, value."""
    size = len(content.parent)
    key = group.astype(np.int64) * size + leaf
    depth = content.depth[leaf].astype(np.int64)
    order = np.argsort(depth, kind="stable")
    key, value = key[order], value[order]
    bounds = np.searchsorted(depth[order], np.arange(int(depth.max(initial=0)) + 2))
    levels: list[Level] = []
    above, from_below = np.zeros(0, np.int64), None
    for at in range(len(bounds) - 2, -1, -1):
        here = slice(bounds[at], bounds[at + 1])
        count = bounds[at + 1] - bounds[at]
        padded = np.concatenate((value[here], np.zeros(len(above), dtype=np.int64)))
        keys, inverse, own = grouped(np.concatenate((key[here], above)), padded)
        if levels:
            below = levels[-1]
            levels[-1] = Level(below.group, below.node, below.own, inverse[count:])
        nodes, groups = keys % size, keys // size
        levels.append(Level(groups, nodes, own, from_below))
        above = groups * size + content.parent[nodes]
    return levels[::-1]


@dataclass(frozen=True, slots=True)
class Tree:
    """Merged tree, breadth first. `frame`: index into `keys`, -1 - i for the caller's top nodes. Arrays (n,)."""

    parent: NDArray[np.int64]
    frame: NDArray[np.int64]
    own: NDArray[np.int64]
    total: NDArray[np.int64]
    starts: NDArray[np.int64]  # first node of each level, and the end
    frames: list[tuple[int, int]]  # (function id, line) of each frame
    half: NDArray[np.float64] | None = None  # half widths of the intervals of `total`, where they are estimates


def merge(
    parts: Sequence[tuple[list[Level], Content]],
    top: Sequence[Sequence[int]],
    lines: bool,
    places: list[list[NDArray[np.int64]]] | None = None,
) -> Tree:
    """Join generations. `top`: parents of the nodes of each level above the frames, the last being the groups' nodes.

    `places` takes, for each part and level, the node that each of the level's pairs became.

    top = [[-1], [0, 0], [1, 1, 2]]: the root, two processes under it, three threads = groups 0-2.
    """
    names = _Names(parts, lines)
    parents = [np.array(level, dtype=np.int64) for level in top]
    frames, owns, start = [], [], 0
    for level in parents:
        frames.append(-1 - np.arange(start, start + len(level)))
        owns.append(np.zeros(len(level), dtype=np.int64))
        start += len(level)
    first = start - len(parents[-1])
    where = []
    for levels, _ in parts:
        np.add.at(owns[-1], levels[0].group, levels[0].own)
        where.append(levels[0].group + first)
        if places is not None:
            places.append([where[-1]])
    for at in range(1, max((len(levels) for levels, _ in parts), default=0)):
        above, kinds, own, owners = [], [], [], []
        for number, (levels, _) in enumerate(parts):
            if at < len(levels):
                above.append(where[number][levels[at].up])
                kinds.append(names.of(number, levels[at].node))
                own.append(levels[at].own)
                owners.append(number)
        keys, inverse, sums = grouped(np.concatenate(above) * names.count + np.concatenate(kinds), np.concatenate(own))
        split = np.cumsum([len(part) for part in above])[:-1]
        for number, mine in zip(owners, np.split(inverse, split), strict=True):
            where[number] = mine + start
            if places is not None:
                places[number].append(where[number])
        parents.append(keys // names.count)
        frames.append(keys % names.count)
        owns.append(sums)
        start += len(keys)
    starts = np.concatenate(([0], np.cumsum([len(level) for level in parents])))
    parent, own = np.concatenate(parents), np.concatenate(owns)
    return Tree(parent, np.concatenate(frames), own, totals(parent, own, starts), starts, names.frames)


class _Names:
    """Numbers frames by content (function, and line if asked) over all generations, only those that occur."""

    def __init__(self, parts: Sequence[tuple[list[Level], Content]], lines: bool) -> None:
        used, keys, frames = [], [], []
        for levels, content in parts:
            flags = np.zeros(len(content.function), dtype=bool)
            for level in levels[1:]:
                flags[content.frame[level.node]] = True
            mine = np.flatnonzero(flags)
            function = content.function[mine]
            line = content.line[mine].astype(np.uint64) if lines else np.zeros(len(mine), np.uint64)
            used.append(mine)
            keys.append(content.hash[function] + line * np.uint64(0x9E3779B97F4A7C15))
            frames.append((function.astype(np.int64) + content.first_function, line.astype(np.int64)))
        every = np.concatenate(keys) if keys else np.zeros(0, np.uint64)
        _, first, inverse = np.unique(every, return_index=True, return_inverse=True)
        self.count = max(len(first), 1)
        functions = np.concatenate([f for f, _ in frames])[first] if frames else []
        numbers = np.concatenate([n for _, n in frames])[first] if frames else []
        self.frames = list(zip(map(int, functions), map(int, numbers), strict=True))
        self._number, self._frame = [], [content.frame for _, content in parts]
        at = 0
        for mine, (_, content) in zip(used, parts, strict=True):
            table = np.zeros(len(content.function), dtype=np.int64)
            table[mine] = inverse[at : at + len(mine)]
            self._number.append(table)
            at += len(mine)

    def of(self, part: int, nodes: NDArray) -> NDArray[np.int64]:
        return self._number[part][self._frame[part][nodes]]


def grouped(keys: NDArray[np.int64], values: NDArray[np.int64]) -> tuple[NDArray, NDArray, NDArray]:
    """Distinct keys in ascending order, the place of each key among them, and the sum of each one's values."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    heads = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=heads[1:])
    inverse = np.empty(len(keys), dtype=np.int64)
    inverse[order] = np.cumsum(heads) - 1
    starts = np.flatnonzero(heads)
    sums = np.add.reduceat(values[order], starts) if len(starts) else values
    return keys[starts], inverse, sums


def totals(parent: NDArray, own: NDArray, starts: NDArray) -> NDArray[np.int64]:
    """Self plus everything below, from the deepest level up. Within a level, nodes of one parent stand together."""
    total = own.copy()
    for at in range(len(starts) - 2, 0, -1):
        here = slice(starts[at], starts[at + 1])
        above = parent[here]
        if len(above):
            heads = np.flatnonzero(np.concatenate(([True], above[1:] != above[:-1])))
            total[above[heads]] += np.add.reduceat(total[here], heads)
    return total


def keep(tree: Tree, mask: NDArray[np.bool_]) -> Tree:
    """The tree without the nodes outside `mask` (which holds the parent of every node it holds); totals stay."""
    number = np.cumsum(mask) - 1
    parent = tree.parent[mask]
    starts = np.concatenate(([0], np.cumsum(mask)))[tree.starts]
    return Tree(
        np.where(parent < 0, -1, number[parent]),
        tree.frame[mask],
        tree.own[mask],
        tree.total[mask],
        starts,
        tree.frames,
        None if tree.half is None else tree.half[mask],
    )


def sort_children(tree: Tree) -> Tree:
    """Breadth first with the children of each node by falling total."""
    order = np.zeros(len(tree.parent), dtype=np.int64)  # new position -> old
    place = np.zeros(len(tree.parent), dtype=np.int64)  # old -> new
    for at in range(len(tree.starts) - 1):
        here = np.arange(tree.starts[at], tree.starts[at + 1])
        above = place[tree.parent[here]] if at else np.zeros(len(here), dtype=np.int64)
        sequence = np.lexsort((tree.frame[here], -tree.total[here], above))
        order[here] = here[sequence]
        place[here[sequence]] = here
    parent = tree.parent[order]
    return Tree(
        np.where(parent < 0, -1, place[parent]),
        tree.frame[order],
        tree.own[order],
        tree.total[order],
        tree.starts,
        tree.frames,
        None if tree.half is None else tree.half[order],
    )


def prune(tree: Tree, min_share: float, max_nodes: int) -> tuple[Tree, int, float]:
    """The tree without nodes below `min_share` of its total, and its `max_nodes` largest; how many went, and the bound
    in shares."""
    whole = max(int(tree.total[0]), 1)
    bound = min_share * whole
    mask = tree.total >= bound
    if mask.sum() > max_nodes:
        least = np.partition(tree.total, len(tree.total) - max_nodes)[len(tree.total) - max_nodes]
        mask &= tree.total > least
        bound = float(least) + 1
        if mask.sum() < max_nodes:  # of those equal to the bound, the ones nearest to the root, so that parents stay
            equal = np.flatnonzero(tree.total == least)[: max_nodes - int(mask.sum())]
            mask[equal] = True
    mask[0] = True
    gone = int(len(mask) - mask.sum())
    return (keep(tree, mask) if gone else tree), gone, (bound / whole if gone else 0.0)


def intervals(tree: Tree) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Depth-first [in, out) of each node: b lies below a exactly if in[a] < in[b] < out[a]."""
    size = totals(tree.parent, np.ones(len(tree.parent), dtype=np.int64), tree.starts)
    enter = np.zeros(len(size), dtype=np.int64)
    for at in range(1, len(tree.starts) - 1):
        here = np.arange(tree.starts[at], tree.starts[at + 1])
        if not len(here):
            continue
        here = here[np.argsort(tree.parent[here], kind="stable")]
        parent, sizes = tree.parent[here], size[here]
        before = np.cumsum(sizes) - sizes
        heads = np.concatenate(([True], parent[1:] != parent[:-1]))
        base = before[np.flatnonzero(heads)][np.cumsum(heads) - 1]
        enter[here] = enter[parent] + 1 + before - base
    return enter, enter + size


def by_frame(tree: Tree) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(frame, self, total) of each frame that occurs, process and thread levels left out; recursion counted once."""
    enter, leave = intervals(tree)
    nodes = np.flatnonzero(tree.frame >= 0)
    nodes = nodes[np.lexsort((enter[nodes], tree.frame[nodes]))]
    frame = tree.frame[nodes]
    # Within a frame, in depth-first order: a node is nested if an earlier one of the same frame has not ended yet.
    span = int(leave[0]) + 1 if len(leave) else 1
    ended = np.maximum.accumulate(leave[nodes] + frame * span) - frame * span if len(nodes) else nodes
    nested = np.zeros(len(nodes), dtype=bool)
    nested[1:] = (frame[1:] == frame[:-1]) & (ended[:-1] > enter[nodes][1:])
    which, inverse = np.unique(frame, return_inverse=True)
    own, total = np.zeros(len(which), np.int64), np.zeros(len(which), np.int64)
    np.add.at(own, inverse, tree.own[nodes])
    np.add.at(total, inverse[~nested], tree.total[nodes][~nested])
    return which, own, total
