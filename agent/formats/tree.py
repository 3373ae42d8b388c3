# SPDX-License-Identifier: Apache-2.0
"""The merged tree of a profile as columns, breadth first, children by falling total: as /api/v1/flamegraph answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpustrobe.agent.model import Frame

if TYPE_CHECKING:
    from gpustrobe.agent.formats.stacks import Stacks

Key = tuple[str, str, str, str, int, str]  # name, kind, module, file, line, reason


class _Node:
    __slots__ = ("children", "key", "own", "processes", "total")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.own = self.total = 0
        self.children: dict[Key, _Node] = {}
        self.processes: set[str] | None = None

    def child(self, key: Key) -> _Node:
        node = self.children.get(key)
        if node is None:
            node = self.children[key] = _Node(key)
        return node


def columns(stacks: Stacks) -> dict[str, Any]:
    """`frames` (name, kind, module, file, line, reason) and `nodes` (parent, frame, self, total), lists of equal length
    each.

    Levels: all, process (by comm and script), thread (by name), frames.
    """
    root = _Node(("all", "root", stacks.node, "", 0, ""))
    keys = [_key(frame) for frame in stacks.frames]
    for row in stacks.rows:
        node = root
        node.total += row.value
        for key in (*_levels(row.labels), *[keys[place] for place in row.frames]):
            node = node.child(key)
            node.total += row.value
            if key[1] == "process":
                node.processes = (node.processes or set()) | {row.labels.get("pid", "")}
        node.own += row.value
    return _flatten(root)


def _levels(labels: Mapping[str, str]) -> tuple[Key, Key]:
    process = (labels.get("comm", ""), "process", labels.get("script", ""), "", 0, "")
    return process, (labels.get("thread") or labels.get("comm", ""), "thread", "", "", 0, "")


def _key(frame: Frame) -> Key:
    return frame.name, frame.kind, frame.module, frame.file, frame.line, frame.reason


def _flatten(root: _Node) -> dict[str, Any]:
    frames: dict[Key, int] = {}
    nodes: dict[str, list[int]] = {name: [] for name in ("parent", "frame", "self", "total")}
    queue: list[tuple[_Node, int]] = [(root, -1)]
    for number, (node, parent) in enumerate(queue):
        key = node.key
        if node.processes:
            pids = node.processes
            text = f"pid {next(iter(pids))}" if len(pids) == 1 and "" not in pids else f"{len(pids)} processes"
            key = (*key[:3], "" if pids == {""} else text, *key[4:])
        for name, value in zip(nodes, (parent, frames.setdefault(key, len(frames)), node.own, node.total), strict=True):
            nodes[name].append(value)
        children = sorted(node.children.values(), key=lambda child: (-child.total, child.key))
        queue.extend((child, number) for child in children)
    names = ("name", "kind", "module", "file", "line", "reason")
    texts = list(zip(*frames, strict=True))
    return {"frames": {name: list(text) for name, text in zip(names, texts, strict=True)}, "nodes": nodes}
