# SPDX-License-Identifier: Apache-2.0
"""Generations of content as arrays, read once and kept: a live page then reads only what is new since its last
question."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.store import sql
from gpustrobe.store.flame import Content

if TYPE_CHECKING:
    from gpustrobe.store.database import Reader
    from numpy.typing import NDArray

MAX_BYTES = 96 << 20  # a full generation takes about 20 MB


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one generation: positions in the caller's columns, and leaf nodes as indices into `content`."""

    rows: NDArray[np.intp]
    leaf: NDArray[np.int64]
    content: Content


class Contents:
    """Thread-safe. A generation's arrays only grow, so a longer copy replaces a shorter one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[int, Content] = OrderedDict()

    def clear(self) -> None:
        with self._lock:
            self._held.clear()

    def parts(self, reader: Reader, stacks: NDArray[np.int64]) -> list[Part]:
        """Divide rows by the generation of their stacks (n,)."""
        if not len(stacks):
            return []
        generations = reader.columns(sql.GENERATIONS)
        first = generations["node"]
        which = np.searchsorted(first, stacks, side="right") - 1
        which[stacks == 0] = len(first) - 1  # the empty stack belongs to none
        parts = []
        for index in np.unique(which).tolist():
            rows = np.flatnonzero(which == index)
            leaf = np.where(stacks[rows] == 0, 0, stacks[rows] - first[index] + 1)
            parts.append(Part(rows, leaf, self._content(reader, generations, index, int(leaf.max()))))
        return parts

    def _content(self, reader: Reader, generations: dict[str, NDArray], index: int, deepest: int) -> Content:
        number = int(generations["generation"][index])
        with self._lock:
            held = self._held.get(number)
            if held is not None:
                self._held.move_to_end(number)
        if held is not None and deepest < len(held.parent):
            return held
        content = _load(reader, generations, index, held)
        with self._lock:
            self._held[number] = content
            self._held.move_to_end(number)
            while len(self._held) > 1 and sum(map(_bytes, self._held.values())) > MAX_BYTES:
                self._held.popitem(last=False)
        return content


def _bytes(content: Content) -> int:
    return sum(getattr(content, name).nbytes for name in ("parent", "frame", "depth", "function", "line", "hash"))


def _load(reader: Reader, generations: dict[str, NDArray], index: int, held: Content | None) -> Content:
    def span(name: str, have: int) -> dict[str, int]:
        first = int(generations[name][index])
        last = int(generations[name][index + 1]) if index + 1 < len(generations[name]) else 1 << 62
        return {"first": first + have, "last": last}

    bounds = span("node", len(held.parent) - 1 if held else 0)
    nodes = _nodes(reader.columns(sql.CHAINS, bounds), reader.columns(sql.CHAIN_FRAMES, bounds))
    frames = reader.columns(sql.FRAMES, span("frame", len(held.function) if held else 0))
    functions = reader.columns(sql.FUNCTIONS, span("function", len(held.hash) if held else 0))
    first_node, first_frame, first_function = (int(generations[name][index]) for name in ("node", "frame", "function"))
    parent = nodes["parent"]
    root = np.zeros(0 if held else 1, dtype=np.int64)
    return Content(
        parent=_join(held and held.parent, root, np.where(parent == 0, 0, parent - first_node + 1), np.uint32),
        frame=_join(held and held.frame, root, nodes["frame"] - first_frame, np.uint32),
        depth=_join(held and held.depth, root, nodes["depth"], np.uint16),
        function=_join(held and held.function, root[:0], frames["function"] - first_function, np.uint32),
        line=_join(held and held.line, root[:0], frames["line"], np.int32),
        hash=_join(held and held.hash, root[:0].view(np.uint64), functions["hash"].view(np.uint64), np.uint64),
        first_function=first_function,
    )


def _nodes(chains: dict[str, NDArray], flat: dict[str, NDArray]) -> dict[str, NDArray]:
    """Chains to one row a node, in order of node: parent, frame, depth."""
    frame = flat["frame"]
    if np.any(np.diff(flat["node"]) != 1):
        frame = frame[np.argsort(flat["node"])]
    length = chains["length"].astype(np.int64)
    starts = np.cumsum(length) - length
    within = np.arange(int(length.sum())) - np.repeat(starts, length)
    parent = np.repeat(chains["node"], length) + within - 1
    parent[starts] = chains["parent"]
    return {"parent": parent, "frame": frame, "depth": np.repeat(chains["depth"].astype(np.int64), length) + within}


def _join(held: NDArray | None, head: NDArray, tail: NDArray, kind: type) -> NDArray:
    pieces = [] if held is None else [held]
    return np.concatenate([*pieces, head.astype(kind), tail.astype(kind)])
