# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random

import numpy as np
from gpustrobe.store.flame import Content, by_frame, climb, intervals, merge, prune, sort_children
from gpustrobe.store.intern import IdTable, mix
from gpustrobe.store.writer import chain_hashes


def random_content(dice: random.Random, nodes: int, frames: int) -> Content:
    parent = [0] + [dice.randrange(number) for number in range(1, nodes)]
    depth = [0] * nodes
    for number in range(1, nodes):
        depth[number] = depth[parent[number]] + 1
    return Content(
        np.array(parent, np.uint32),
        np.array([0] + [dice.randrange(frames) for _ in range(1, nodes)], np.uint32),
        np.array(depth, np.uint16),
        np.arange(frames, dtype=np.uint32),
        np.zeros(frames, np.int32),
        np.arange(1000, 1000 + frames, dtype=np.uint64),
        0,
    )


def frames_of(content: Content, node: int) -> tuple[int, ...]:
    out = []
    while node:
        out.append(int(content.frame[node]))
        node = int(content.parent[node])
    return tuple(out[::-1])


def built(dice: random.Random):
    """A tree of two generations and three groups, and {path: [self, total]} by brute force."""
    wanted: dict[tuple, list[int]] = {}
    parts = []
    for _ in range(2):
        content = random_content(dice, 200, 9)
        group, leaf, value = [], [], []
        for _ in range(300):
            group.append(dice.randrange(3))
            leaf.append(dice.randrange(200))
            value.append(dice.randint(1, 1 << 40))
            path = (group[-1], *frames_of(content, leaf[-1]))
            wanted.setdefault(path, [0, 0])[0] += value[-1]
            for end in range(1, len(path) + 1):
                wanted.setdefault(path[:end], [0, 0])[1] += value[-1]
        arrays = (np.array(group), np.array(leaf), np.array(value))
        parts.append((climb(*arrays, content), content))
    return merge(parts, [[-1], [0, 0], [1, 1, 2]], False), wanted


def paths_of(tree) -> list[tuple]:
    paths: list[tuple] = []
    for index, parent in enumerate(tree.parent.tolist()):
        level = int(np.searchsorted(tree.starts, index, side="right")) - 1
        if level < 2:
            paths.append(())
        else:
            own = int(-1 - tree.frame[index] - 3) if level == 2 else tree.frames[tree.frame[index]][0]
            paths.append((*paths[parent], own))
    return paths


def test_merged_tree_equals_brute_force_with_exact_integers():
    for seed in range(5):
        tree, wanted = built(random.Random(seed))
        found = {
            path: [own, total]
            for path, own, total in zip(paths_of(tree), tree.own.tolist(), tree.total.tolist(), strict=True)
            if path
        }
        assert found == wanted
        assert tree.total[0] == sum(own for own, _ in wanted.values())


def test_sorting_keeps_every_path_and_prune_keeps_parents():
    tree, wanted = built(random.Random(3))
    ordered = sort_children(tree)
    assert dict(zip(paths_of(ordered), ordered.total.tolist(), strict=True)) == dict(
        zip(paths_of(tree), tree.total.tolist(), strict=True)
    )
    for most in (1, 5, 50, 200):
        small, gone, _ = prune(tree, 0.0, most)
        assert len(small.parent) == min(most, len(tree.parent))
        assert gone == len(tree.parent) - len(small.parent)
        assert all(path in wanted for path in paths_of(small) if path)


def test_intervals_nest_like_the_tree():
    tree, _ = built(random.Random(4))
    enter, leave = intervals(tree)
    assert sorted(enter.tolist()) == list(range(len(enter)))
    for node, parent in enumerate(tree.parent.tolist()):
        if parent >= 0:
            assert enter[parent] < enter[node] < leave[node] <= leave[parent]


def test_by_frame_counts_recursion_once():
    tree, wanted = built(random.Random(5))
    own, total = {}, {}
    for path, (value, _) in wanted.items():
        for frame in set(path[1:]):
            total[frame] = total.get(frame, 0) + value
        if len(path) > 1:
            own[path[-1]] = own.get(path[-1], 0) + value
    which, selfs, totals = by_frame(tree)
    names = [tree.frames[frame][0] for frame in which.tolist()]
    assert dict(zip(names, totals.tolist(), strict=True)) == total
    assert {name: value for name, value in zip(names, selfs.tolist(), strict=True) if value} == {
        k: v for k, v in own.items() if v
    }


def test_id_table_equals_a_dict():
    dice = np.random.default_rng(1)
    table, truth = IdTable(100, slots=8), {}
    for _ in range(30):
        hashes = dice.integers(0, 3000, 200).astype(np.uint64) * np.uint64(1 << 50)  # many collide in their low bits
        ids, new = table.intern(hashes)
        fresh = []
        for position, key in enumerate(hashes.tolist()):
            key = key or 1  # zero means "free" in the table, and shares the id of 1
            if key not in truth:
                truth[key] = 100 + len(truth)
                fresh.append(position)
        assert ids.tolist() == [truth[key or 1] for key in hashes.tolist()]
        assert new.tolist() == fresh
    assert table.next_id == 100 + len(truth)


def test_chain_hashes_depend_on_the_whole_path():
    frame = np.array([7, 8, 9, 7, 8, 7, 9, 8], np.uint64)
    offsets = np.array([0, 3, 3, 5, 8])  # (7 8 9) () (7 8) (7 9 8)
    chain = chain_hashes(offsets, frame).tolist()
    assert chain[0] == chain[3] == chain[5]
    assert chain[1] == chain[4]
    assert len(set(chain)) == 5
    assert chain[0] == int(mix(np.zeros(1, np.uint64), frame[:1])[0])
