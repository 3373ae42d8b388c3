# SPDX-License-Identifier: Apache-2.0
"""The store's answers by brute force: plain Python over the samples that were sent, no numpy, no SQL, nothing of
store/."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from typing import NamedTuple

from tests.otlp_batches import F


class Sent(NamedTuple):
    second: int
    labels: dict[str, str]  # label names of the API
    stack: tuple[F, ...]  # leaf first
    value: int


ATTRIBUTE = {
    "service": "service.name",
    "namespace": "k8s.namespace.name",
    "pod": "k8s.pod.name",
    "container": "container.name",
    "comm": "process.executable.name",
    "script": "gpustrobe.process.script",
    "pid": "process.pid",
    "tid": "thread.id",
    "thread": "thread.name",
}


def attributes(labels: dict[str, str]) -> dict[str, str]:
    return {ATTRIBUTE.get(name, name): value for name, value in labels.items() if name != "node"}


def path(sent: Sent, lines: bool = False) -> tuple:
    """Root first: (name, kind, module, file[, line], reason) of process, thread and frames."""
    labels = sent.labels
    top = (
        (labels.get("comm") or f"pid {labels['pid']}", "process", labels.get("script", "")),
        (labels.get("thread") or f"tid {labels['tid']}", "thread"),
    )
    frames = tuple((f.name, f.kind, f.module, f.file, f.line if lines else 0, f.reason) for f in reversed(sent.stack))
    return top + frames


def tree(samples: list[Sent], lines: bool = False) -> dict[tuple, tuple[int, int]]:
    """Path -> (self, total)."""
    own, total = Counter(), Counter()
    for sent in samples:
        whole = path(sent, lines)
        own[whole] += sent.value
        for depth in range(len(whole) + 1):
            total[whole[:depth]] += sent.value
    return {key: (own[key], total[key]) for key in total}


def top(samples: list[Sent], lines: bool = False) -> dict[tuple, tuple[int, int]]:
    own, total = Counter(), Counter()
    for sent in samples:
        frames = path(sent, lines)[2:]
        for frame in set(frames):
            total[frame] += sent.value
        if frames:
            own[frames[-1]] += sent.value
    return {frame: (own[frame], total[frame]) for frame in total}


def matches(sent: Sent, label: str, operator: str, value: str) -> bool:
    text = sent.labels.get(label, "")
    return {
        "=": text == value,
        "!=": text != value,
        "=~": re.fullmatch(value, text) is not None,
        "!~": re.fullmatch(value, text) is None,
    }[operator]


def on_stack(sent: Sent, expression: str) -> bool:
    return any(re.search(expression, frame.name) for frame in sent.stack)


def answered_tree(answer: dict) -> dict[tuple, tuple[int, int]]:
    """A flamegraph answer in the form of `tree`; also checks its order."""
    nodes, frames = answer["nodes"], answer["frames"]
    paths: list[tuple] = []
    out, before = {}, {}
    for index, (parent, frame, own, total) in enumerate(
        zip(nodes["parent"], nodes["frame"], nodes["self"], nodes["total"], strict=True)
    ):
        text = tuple(frames[name][frame] for name in ("name", "kind", "module", "file", "line", "reason"))
        if parent < 0:
            assert index == 0
            paths.append(())
        else:
            assert parent < index, "not breadth first"
            assert total <= before.get(parent, total), "children not by falling total"
            before[parent] = total
            kind = text[1]
            paths.append((*paths[parent], text[:3] if kind == "process" else text[:2] if kind == "thread" else text))
        assert paths[-1] not in out, "two nodes of one path"
        out[paths[-1]] = (own, total)
    return out


def invented(seed: int, first: int, seconds: int, rows: int, node: str) -> list[Sent]:
    """Samples with shared prefixes, recursion, empty stacks, kernel and Python frames, and odd text."""
    dice = random.Random(seed)
    names = ["main", "run", "walk", "ünï\u00e9", "a<b>::c", 'quote"\\', "collate", "x" * 300]
    frames = [
        F(
            dice.choice(names),
            dice.choice(["python", "native", "kernel"]),
            dice.choice(["", "libc.so.6", "vmlinux"]),
            dice.choice(["", "/src/a.py"]),
            dice.randrange(3),
            dice.choice(["", "", "no symbol"]),
        )
        for _ in range(25)
    ]
    stacks = [
        tuple(dice.choice(frames[: 3 + 3 * depth]) for depth in range(dice.randint(0, 9), 0, -1)) for _ in range(60)
    ]
    people = []
    for number in range(6):
        labels = {
            "node": node,
            "pid": str(100 + number),
            "tid": str(200 + number),
            "comm": dice.choice(["python3", "cc1", "server"]),
        }
        for name, values in (
            ("thread", ["main", "io"]),
            ("script", ["train.py", ""]),
            ("pod", ["p-0", ""]),
            ("team", ["red", ""]),
        ):
            if value := dice.choice(values):
                labels[name] = value
        people.append(labels)
    out = []
    for second in range(first, first + seconds):
        seen = defaultdict(int)
        for _ in range(rows):
            seen[dice.randrange(len(people)), dice.randrange(len(stacks))] += dice.randint(1, 5)
        out += [Sent(second, people[who], stacks[stack], value) for (who, stack), value in seen.items()]
    return out
