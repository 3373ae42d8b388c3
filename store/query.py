# SPDX-License-Identifier: Apache-2.0
"""Answers made of samples: flame graph, top, stacks, labels, processes. Formats: docs/api.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.store import sql
from gpustrobe.store.errors import QueryError
from gpustrobe.store.flame import Level, Tree, by_frame, climb, merge, prune, sort_children
from gpustrobe.store.schema import LABELS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpustrobe.store.content import Contents, Part
    from gpustrobe.store.database import Reader
    from gpustrobe.store.question import Question
    from numpy.typing import NDArray

MAX_LABEL_VALUES = 200
TOP_KINDS = ("root", "process", "thread")


@dataclass(frozen=True, slots=True)
class Types:
    """The rows of `types` that a type's name stands for: numbers, unit, period of each."""

    numbers: list[int]
    unit: str
    periods: dict[int, int]


def types_of(reader: Reader, name: str) -> Types:
    found = [(number, unit, period) for number, known, unit, period in reader.rows(sql.TYPES) if known == name]
    unit = found[0][1] if found else "samples" if name == "cpu" else ""
    return Types([number for number, _, _ in found], unit, {number: period for number, _, period in found})


@dataclass(frozen=True, slots=True)
class Top:
    """Levels above the frames: root, processes, threads. parents as flame.merge wants them; texts per node (name, kind,
    module, file)."""

    parents: list[list[int]]
    texts: list[tuple[str, str, str, str]]
    group_of_series: dict[int, int]


@dataclass(frozen=True, slots=True)
class Profile:
    """All that flamegraph, top and stacks are made of."""

    tree: Tree
    top: Top
    texts: dict[int, tuple[str, str, str, str, str]]  # function id -> name, kind, module, file, reason
    unit: str
    period: float
    total: int
    all_total: int
    seconds: float  # covered by windows
    rows: PickedRows
    levels: list[list[Level]]  # of each part of `rows`
    places: list[list[NDArray[np.int64]]]  # the tree's nodes that the levels' pairs became


def series_texts(reader: Reader, ids: NDArray[np.int64]) -> list[dict[str, object]]:
    """Label sets of series ids, in the order of the distinct ids."""
    data = reader.lookup(sql.SERIES_OF, np.unique(ids))
    names = list(data)
    return [dict(zip(names, row, strict=True)) for row in zip(*(data[name].tolist() for name in names), strict=True)]


def process_name(labels: dict[str, object]) -> str:
    return labels["comm"] or (f"pid {labels['pid']}" if labels["pid"] >= 0 else "unknown process")


def thread_name(labels: dict[str, object]) -> str:
    return labels["thread"] or (f"tid {labels['tid']}" if labels["tid"] >= 0 else "unnamed thread")


def _top(rows: list[dict[str, object]], by_gpu: bool = False) -> Top:
    """Processes of one comm and script (and GPU, in GPU profiles) are one node, their threads of one name too."""
    processes: dict[tuple[str, str, int], int] = {}
    threads: dict[tuple[int, str], int] = {}
    pids: dict[int, set] = defaultdict(set)
    tids: dict[int, set] = defaultdict(set)
    group_of = {}
    for row in rows:
        gpu = row["gpu_index"] if by_gpu else -1
        process = processes.setdefault((process_name(row), row["script"], gpu), len(processes))
        thread = threads.setdefault((process, thread_name(row)), len(threads))
        pids[process].add((row["node"], row["pid"]))
        tids[thread].add((row["node"], row["pid"], row["tid"]))
        group_of[row["series"]] = thread
    # flame.totals wants nodes of one parent together.
    order = sorted(threads, key=lambda key: key[0])
    place = {threads[key]: index for index, key in enumerate(order)}
    texts = [("all", "root", "", "")]
    for (name, script, gpu), index in processes.items():
        where = [_count(pids[index], "pid", "processes"), f"GPU {gpu}" if gpu >= 0 else ""]
        texts.append((name, "process", script, ", ".join(filter(None, where))))
    texts += [(key[1], "thread", "", _count(tids[threads[key]], "tid", "threads")) for key in order]
    parents = [[-1], [0] * len(processes), [process + 1 for process, _ in order]]
    return Top(parents, texts, {series: place[thread] for series, thread in group_of.items()})


def _count(ids: set[tuple], one: str, many: str) -> str:
    if len(ids) > 1:
        return f"{len(ids)} {many}"
    number = next(iter(ids))[-1]
    return f"{one} {number}" if number >= 0 else ""


def read_profile(
    reader: Reader,
    contents: Contents,
    question: Question,
    focus: str = "",
    exclude: str = "",
    lines: bool = False,
    seconds: NDArray[np.int64] | None = None,
) -> Profile:
    """`seconds`: only these Unix seconds of the range."""
    types = types_of(reader, question.type)
    rows = pick_rows(reader, contents, question, types, focus, exclude, seconds)
    series, value, parts = rows.series, rows.value, rows.parts
    period = rows.period
    top = _top(series_texts(reader, series), by_gpu=question.type.startswith("gpu_"))
    known = np.array(sorted(top.group_of_series), dtype=np.int64)
    group = np.array([top.group_of_series[number] for number in known.tolist()], dtype=np.int64)[
        np.searchsorted(known, series)
    ]
    climbed = [(climb(group[part.rows], part.leaf, value[part.rows], part.content), part.content) for part in parts]
    places: list[list[NDArray[np.int64]]] = []
    tree = merge(climbed, top.parents, lines, places)
    levels = [levels for levels, _ in climbed]
    seconds_covered = covered(reader, question, types.numbers)
    return Profile(
        tree, top, {}, types.unit, period, int(value.sum()), rows.all_total, seconds_covered, rows, levels, places
    )


@dataclass(frozen=True, slots=True)
class PickedRows:
    """Sample rows of a range, (n,), summed by series and stack."""

    series: NDArray[np.int64]
    stack: NDArray[np.int64]
    value: NDArray[np.int64]
    parts: list[Part]
    period: float
    all_total: int  # without focus and exclude


def pick_rows(
    reader: Reader,
    contents: Contents,
    question: Question,
    types: Types,
    focus: str = "",
    exclude: str = "",
    seconds: NDArray[np.int64] | None = None,
) -> PickedRows:
    picked = question.picked(types.numbers)
    text, parameters = picked.text, picked.parameters
    if seconds is not None:
        text, parameters = text + sql.IN_SECONDS, {**parameters, "seconds": seconds.tolist()}
    data = reader.columns(sql.STACK_VALUES.format(picked=text), parameters)
    series, stack, value = data["series"], data["stack"], data["value"]
    all_total, period = int(value.sum()), _period(types, data["type"], value)
    parts = contents.parts(reader, stack)
    if focus or exclude:
        kept = _focused(reader, parts, len(stack), focus, exclude)
        series, stack, value = series[kept], stack[kept], value[kept]
        parts = contents.parts(reader, stack)
    return PickedRows(series, stack, value, parts, period, all_total)


def covered(reader: Reader, question: Question, types: list[int]) -> float:
    """Seconds of the range that windows cover, on the node that has most: what a total is divided by to give cores. The
    range itself would make a program look idle for the time before its node was profiled."""
    conditions, parameters = question.node_conditions()
    bounds = {"first": question.span.first, "last": question.span.last, "types": types}
    text = sql.COVERED.format(among=f" AND {conditions}" if conditions else "")
    found = reader.columns(text, {**parameters, **bounds})["covered"]
    return float(found[0]) / 1e9 if len(found) and found[0] else 0.0


def with_texts(
    reader: Reader, profile: Profile, frames: NDArray[np.int64]
) -> dict[int, tuple[str, str, str, str, str]]:
    """Names of the functions that `frames` (indices into tree.frames) mean."""
    if not len(frames):
        return {}
    ids = np.array([profile.tree.frames[frame][0] for frame in frames.tolist()], dtype=np.int64)
    data = reader.lookup(sql.FUNCTION_TEXT, np.unique(ids))
    columns = [data[name].tolist() for name in ("function", "name", "kind", "module", "file", "reason")]
    return {row[0]: row[1:] for row in zip(*columns, strict=True)}


def _period(types: Types, kinds: NDArray, value: NDArray) -> float:
    """Mean period, weighted by value, so that total * period is exact when nodes sample at different rates."""
    if len(types.periods) == 1 or not len(value):
        return next(iter(types.periods.values()), 0)
    weights = np.array([types.periods[kind] for kind in kinds.tolist()], dtype=np.float64)
    return float((weights * value).sum() / max(int(value.sum()), 1))


def _focused(reader: Reader, parts: list[Part], count: int, focus: str, exclude: str) -> NDArray[np.bool_]:
    """Which rows have a stack with a function that matches `focus` and none that matches `exclude` (RE2, found
    anywhere)."""
    kept = np.ones(count, dtype=bool)
    for expression, wanted in ((focus, True), (exclude, False)):
        if not expression:
            continue
        matching = reader.columns(sql.FUNCTIONS_LIKE, {"expression": expression})["function"]
        for part in parts:
            content = part.content
            flags = np.zeros(len(content.hash), dtype=bool)
            mine = matching - content.first_function
            flags[mine[(mine >= 0) & (mine < len(flags))]] = True
            kept[part.rows] &= _on_path(flags[content.function], part) == wanted
    return kept


def _on_path(frame_matches: NDArray[np.bool_], part: Part) -> NDArray[np.bool_]:
    found = np.zeros(len(part.leaf), dtype=bool)
    node, rows = part.leaf, np.arange(len(part.leaf))
    while len(rows := rows[node > 0]):
        node = node[node > 0]
        hit = frame_matches[part.content.frame[node]]
        found[rows[hit]] = True
        rows, node = rows[~hit], part.content.parent[node][~hit].astype(np.int64)
    return found


class _Frames:
    """Numbers frames of an answer, in order of first use; index 0 is the root."""

    def __init__(self, profile: Profile, texts: dict[int, tuple[str, str, str, str, str]]) -> None:
        self.profile, self.texts = profile, texts
        self.number: dict[int, int] = {}

    def of(self, frames: NDArray[np.int64]) -> list[int]:
        number = self.number
        return [number.setdefault(frame, len(number)) for frame in frames.tolist()]

    def columns(self) -> dict[str, list]:
        rows = [self.row(frame) for frame in self.number]
        names = ("name", "kind", "module", "file", "line", "reason")
        return {name: [row[place] for row in rows] for place, name in enumerate(names)}

    def row(self, frame: int) -> tuple[str, str, str, str, int, str]:
        if frame < 0:
            return (*self.profile.top.texts[-1 - frame], 0, "")
        function, line = self.profile.tree.frames[frame]
        name, kind, module, file, reason = self.texts[function]
        return name, kind, module, file, line, reason


def flamegraph(
    reader: Reader,
    contents: Contents,
    question: Question,
    *,
    focus: str = "",
    exclude: str = "",
    lines: bool = False,
    min_share: float = 0.0,
    max_nodes: int = 100_000,
    halves: Callable[[Profile], NDArray[np.float64] | None] | None = None,
) -> dict[str, object]:
    """`halves`: from a profile to half widths of the intervals of its nodes' totals."""
    profile = read_profile(reader, contents, question, focus, exclude, lines)
    if halves is not None:
        profile = replace(profile, tree=replace(profile.tree, half=halves(profile)))
    tree, gone, below = prune(profile.tree, min_share, max_nodes)
    tree = sort_children(tree)
    frames = _Frames(profile, with_texts(reader, profile, np.unique(tree.frame[tree.frame >= 0])))
    return {
        "type": question.type,
        "unit": profile.unit,
        "period_ns": profile.period,
        **question.span.milliseconds(),
        "seconds": profile.seconds,
        "total": profile.total,
        "samples": profile.total,
        "all_total": profile.all_total,
        "nodes": {
            "parent": tree.parent.tolist(),
            "frame": frames.of(tree.frame),
            "self": tree.own.tolist(),
            "total": tree.total.tolist(),
            **({} if tree.half is None else {"half": np.rint(tree.half).astype(np.int64).tolist()}),
        },
        "frames": frames.columns(),
        "merged": {"nodes": gone, "below": below},
    }


def top(
    reader: Reader,
    contents: Contents,
    question: Question,
    *,
    focus: str = "",
    exclude: str = "",
    lines: bool = False,
    limit: int = 100,
) -> dict[str, object]:
    profile = read_profile(reader, contents, question, focus, exclude, lines)
    frame, own, total = by_frame(profile.tree)
    order = np.lexsort((frame, -total, -own))[:limit]
    frames = _Frames(profile, with_texts(reader, profile, frame[order]))
    rows = []
    for place in order.tolist():
        name, kind, module, file, line, reason = frames.row(int(frame[place]))
        rows.append(
            {
                "name": name,
                "kind": kind,
                "module": module,
                "file": file,
                "line": line,
                "reason": reason,
                "self": int(own[place]),
                "total": int(total[place]),
            }
        )
    return {
        "type": question.type,
        "unit": profile.unit,
        "period_ns": profile.period,
        **question.span.milliseconds(),
        "seconds": profile.seconds,
        "total": profile.total,
        "all_total": profile.all_total,
        "functions": len(frame),
        "rows": rows,
    }


def stacks(
    reader: Reader,
    contents: Contents,
    question: Question,
    *,
    focus: str = "",
    exclude: str = "",
    lines: bool = False,
    limit: int = 10_000,
) -> dict[str, object]:
    profile = read_profile(reader, contents, question, focus, exclude, lines)
    tree = profile.tree
    leaves = np.flatnonzero(tree.own)
    order = leaves[np.lexsort((leaves, -tree.own[leaves]))][:limit]
    paths = [_path(tree, int(leaf)) for leaf in order]
    used = np.unique(np.array([frame for path in paths for frame in path if frame >= 0], dtype=np.int64))
    frames = _Frames(profile, with_texts(reader, profile, used))
    rows = []
    for leaf, path in zip(order.tolist(), paths, strict=True):
        process, thread = profile.top.texts[-1 - path[1]], profile.top.texts[-1 - path[2]]
        pid = (
            process[3].removeprefix("pid ").split(",")[0] if process[3].startswith("pid ") else ""
        )  # of one process, not of merged ones
        labels = {"comm": process[0], "script": process[2], "thread": thread[0], "pid": pid}
        rows.append(
            {
                "frames": frames.of(np.array(path[3:], dtype=np.int64)),
                "value": int(tree.own[leaf]),
                "process": process[0],
                "labels": {name: text for name, text in labels.items() if text},
            }
        )
    return {
        "type": question.type,
        "unit": profile.unit,
        "period_ns": profile.period,
        **question.span.milliseconds(),
        "seconds": profile.seconds,
        "total": profile.total,
        "rows": rows,
        "frames": frames.columns(),
        "left_out": len(leaves) - len(order),
    }


def _path(tree: Tree, node: int) -> list[int]:
    """Frames from the root to `node`."""
    path = []
    while node >= 0:
        path.append(int(tree.frame[node]))
        node = int(tree.parent[node])
    return path[::-1]


def _by_series(reader: Reader, question: Question) -> tuple[list[dict[str, object]], dict[int, tuple[int, int, int]]]:
    """Label sets in the range, and per series (value, first second, last second)."""
    types = types_of(reader, question.type)
    picked = question.picked(types.numbers)
    data = reader.columns(sql.SERIES_VALUES.format(picked=picked.text), picked.parameters)
    values: dict[int, tuple[int, int, int]] = {}
    for series, value, first, last in zip(
        *(data[name].tolist() for name in ("series", "value", "first", "last")), strict=True
    ):
        seen = values.get(series)
        values[series] = (
            (value, first, last) if seen is None else (seen[0] + value, min(seen[1], first), max(seen[2], last))
        )
    return series_texts(reader, data["series"]), values


def labels(reader: Reader, question: Question, name: str = "") -> dict[str, object]:
    rows, values = _by_series(reader, question)
    counts: dict[str, Counter] = defaultdict(Counter)
    for row in rows:
        value = values[row["series"]][0]
        texts = {label: row[label] if isinstance(row[label], str) else _number(row[label]) for label in LABELS}
        for label, text in {**texts, **row["labels"]}.items():
            if text and (not name or label == name):
                counts[label][text] += value
    answer: dict[str, object] = {
        "labels": {
            label: [{"value": text, "samples": count} for text, count in counter.most_common(MAX_LABEL_VALUES)]
            for label, counter in sorted(counts.items())
        }
    }
    truncated = {label: len(counter) for label, counter in sorted(counts.items()) if len(counter) > MAX_LABEL_VALUES}
    return {**answer, "truncated": truncated} if truncated else answer


def _number(value: int) -> str:
    return str(value) if value >= 0 else ""


def processes(reader: Reader, question: Question) -> dict[str, object]:
    rows, values = _by_series(reader, question)
    found: dict[tuple, dict[str, object]] = {}
    for row in rows:
        value, first, last = values[row["series"]]
        key = tuple(row[name] for name in ("node", "pid", "comm", "script", "container"))
        process = found.setdefault(
            key,
            {
                **{name: row[name] for name in ("node", "pid", "comm", "script", "container", "pod")},
                "value": 0,
                "first_ms": first * 1000,
                "last_ms": last * 1000,
                "gpu_memory": 0,
                "gpu_time": 0,
            },
        )
        process["value"] += value
        process["first_ms"] = min(process["first_ms"], first * 1000)
        process["last_ms"] = max(process["last_ms"], last * 1000 + 1000)
    _add_memory(reader, question, found)
    _add_gpu_time(reader, question, found)
    return {
        "rows": sorted(found.values(), key=lambda process: (-process["value"], process["pid"]))[:1000],
        "count": len(found),
    }


def _add_gpu_time(reader: Reader, question: Question, found: dict[tuple, dict[str, object]]) -> None:
    """Device time of each process; 0 = none was measured."""
    rows, values = _by_series(reader, replace(question, type="gpu_time"))
    spent: Counter = Counter()
    for row in rows:
        spent[(row["node"], row["pid"])] += values[row["series"]][0]
    for process in found.values():
        process["gpu_time"] = spent.get((process["node"], process["pid"]), 0)


def _add_memory(reader: Reader, question: Question, found: dict[tuple, dict[str, object]]) -> None:
    """GPU memory of each process: the mean over the range, summed over GPUs."""
    conditions, parameters = question.node_conditions()
    parameters |= {
        "first": question.span.first,
        "last": question.span.last,
        "name": "gpu.process.memory",
        "step": 1 << 62,
    }
    data = reader.columns(sql.READINGS.format(among=sql.among_series(conditions)), parameters)
    if not len(data["metric"]):
        return
    held: Counter = Counter()
    metric_labels = {
        row[0]: row
        for row in zip(*(c.tolist() for c in reader.lookup(sql.METRIC_LABELS, data["metric"]).values()), strict=True)
    }
    for metric, mean in zip(data["metric"].tolist(), data["mean"].tolist(), strict=True):
        _, _, _, _, node, _, _, pid, _, _ = metric_labels[metric]
        held[(node, pid)] += mean
    if all(matcher.label == "node" for matcher in question.matchers):
        _add_silent(found, held, {(row[4], row[7]): row[8] for row in metric_labels.values()})
    for process in found.values():
        process["gpu_memory"] = held.get((process["node"], process["pid"]), 0)


def _add_silent(found: dict, held: Counter, comms: dict[tuple, str]) -> None:
    """Processes that hold GPU memory and had no sample: no value, no times."""
    sampled = {(process["node"], process["pid"]) for process in found.values()}
    for node, pid in sorted(set(held) - sampled):
        if pid >= 0 and held[(node, pid)] > 0:
            texts = {"node": node, "pid": pid, "comm": comms[(node, pid)], "script": "", "container": "", "pod": ""}
            times = {"value": 0, "first_ms": None, "last_ms": None, "gpu_memory": 0, "gpu_time": 0}
            found[(node, pid, texts["comm"], "", "")] = {**texts, **times}


def check_type(name: str) -> str:
    if not name.replace("_", "").replace(".", "").isalnum() or len(name) > 64:
        raise QueryError(
            "bad_type",
            f"type: {name[:64]!r} is no sample type",
            "cpu, off_cpu, gpu_time, gpu_launches, gpu_idle, gpu_copy",
        )
    return name
