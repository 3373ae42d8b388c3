# SPDX-License-Identifier: Apache-2.0
"""The kernel table: GPU time by what ran on the device, with what launched it. Format: docs/api.md."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.store import estimate, sql
from gpustrobe.store.estimate import Recording, Rows
from gpustrobe.store.query import PickedRows, covered, pick_rows, series_texts, types_of

if TYPE_CHECKING:
    from gpustrobe.store.content import Contents, Part
    from gpustrobe.store.database import Reader
    from gpustrobe.store.question import Question
    from numpy.typing import NDArray

CATEGORY = {"cuda": "compute", "collective": "collective", "copy": "copy"}
SHAPE = ("registers", "grid", "block", "shared")
BUCKET = "gpu.duration.bucket"
MIN_P99 = 100  # recorded launches: of fewer the 99th percentile is the longest one
# Libraries that launch for others: no place to change anything.
_LAUNCHERS = re.compile(
    r"lib(cuda|cudart|cublas|cublasLt|cudnn\w*|nccl|cufft|cusparse|cusolver|cupti|caffe2_nvrtc)\.so"
)
_AUTOGRAD = re.compile(r"(\w+Backward\d*)(::apply)?$")
EXACT = ("gpu_launches", "gpu_durations")  # no estimates where launches are counted
NOT_SHIPPED = "the agent of this range does not ship it"


@dataclass(frozen=True, slots=True)
class Leaves:
    """Rows of one sample type with the function their stack ends in."""

    rows: PickedRows
    key: NDArray[np.uint64]  # (n,) content hash of the leaf's function; 0 = empty stack
    function: NDArray[np.int64]  # (n,) its id


def read_leaves(
    reader: Reader, contents: Contents, question: Question, kind: str, focus: str = "", exclude: str = ""
) -> Leaves:
    rows = pick_rows(reader, contents, replace(question, type=kind), types_of(reader, kind), focus, exclude)
    return Leaves(rows, *_leaf_functions(rows.parts, len(rows.stack)))


def _leaf_functions(parts: list[Part], count: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    key, function = np.zeros(count, np.uint64), np.full(count, -1, np.int64)
    for part in parts:
        content = part.content
        at = content.function[content.frame[part.leaf]].astype(np.int64)
        there = part.leaf > 0
        key[part.rows[there]] = content.hash[at[there]]
        function[part.rows[there]] = at[there] + content.first_function
    return key, function


def read_binned(
    reader: Reader, contents: Contents, question: Question, kind: str, step: int, leaves: Leaves, keys: NDArray
) -> Rows:
    """The same rows by time; `part` = place of their leaf in `keys`, which are sorted."""
    types = types_of(reader, kind)
    picked = replace(question, type=kind).picked(types.numbers)
    data = reader.columns(sql.STACK_BINS.format(picked=picked.text), {**picked.parameters, "step": step})
    kept = np.isin(data["stack"], leaves.rows.stack)  # focus and exclude
    bins, stack, value = data["bin"][kept], data["stack"][kept], data["value"][kept]
    key, _ = _leaf_functions(contents.parts(reader, stack), len(stack))
    place = np.searchsorted(keys, key)
    inside = place < len(keys)
    inside[inside] = keys[place[inside]] == key[inside]
    return Rows(place[inside], bins[inside], value[inside])


def kernels(
    reader: Reader, contents: Contents, question: Question, *, focus: str = "", exclude: str = "", limit: int = 200
) -> dict[str, object]:
    recording = estimate.read_recording(reader, question)
    filters = (focus, exclude)
    time = read_leaves(reader, contents, question, "gpu_time", *filters)
    launches = read_leaves(reader, contents, question, "gpu_launches", *filters)
    queue = read_leaves(reader, contents, question, "gpu_queue", *filters)
    # The stacks of durations are the device frame alone: a focus on callers does not apply to them.
    durations = read_leaves(reader, contents, question, "gpu_durations")
    keys, part = np.unique(time.key, return_inverse=True)
    totals = _sums(keys, time)
    halves = _halves(reader, contents, question, recording, time, launches, keys)
    order = np.lexsort((keys, -totals))[:limit]
    labels = _Labels(reader, (time, launches, durations))
    counts, waits = _sums(keys, launches), _sums(keys, queue)
    texts = _texts(reader, time.function, part, order)
    origins = _origins(reader, time)
    percentiles = _percentiles(durations, labels)
    whole = int(totals.sum())
    out = []
    for at in order.tolist():
        name, kind, module, full, _ = texts.get(
            at, ("no stack", "reason", "", "", "no stack was taken of these launches")
        )
        mine, count = part == at, int(counts[at])
        p99, why = percentiles.get(int(keys[at]), (None, NOT_SHIPPED))
        low_high = None if halves is None else estimate.bounds(float(totals[at]), float(halves[0][at]))
        out.append(
            {
                "name": name,
                "full": full or name,
                "kind": kind,
                "module": module,
                "category": labels.heaviest(time, mine, "category") or CATEGORY.get(kind, "compute"),
                "time": int(totals[at]),
                "interval": low_high,
                "share": float(totals[at]) / whole if whole else 0.0,
                "launches": count if len(launches.key) else None,
                "mean_ns": float(totals[at]) / count if count else None,
                "p99_ns": p99,
                "p99_why": why,
                "queue_ns": float(waits[at]) / count if count and len(queue.key) else None,
                **{name: labels.heaviest(launches, launches.key == keys[at], f"gpu.kernel.{name}") for name in SHAPE},
                "from": _heaviest_origin(origins, mine, time.rows.value),
            }
        )
    missing = {"queue": queue, "launches": launches, "p99": durations}
    return {
        "kernels": out,
        "count": len(keys),
        "total": whole,
        "launches": int(counts.sum()) if len(launches.key) else None,
        "unit": "nanoseconds",
        **question.span.milliseconds(),
        "seconds": covered(reader, question, types_of(reader, "gpu_time").numbers),
        "estimate": described(recording, float(whole), None if halves is None else halves[1]),
        "missing": {name: NOT_SHIPPED for name, leaves in missing.items() if not len(leaves.key)},
    }


def _sums(keys: NDArray[np.uint64], leaves: Leaves) -> NDArray[np.int64]:
    place = np.searchsorted(keys, leaves.key)
    inside = place < len(keys)
    inside[inside] = keys[place[inside]] == leaves.key[inside]
    out = np.zeros(len(keys), np.int64)
    np.add.at(out, place[inside], leaves.rows.value[inside])
    return out


def _halves(reader, contents, question, recording: Recording, time: Leaves, launches: Leaves, keys) -> tuple | None:
    grid = recording.grid(len(time.key))
    if grid is None or not len(keys):
        return None
    x = read_binned(reader, contents, question, "gpu_time", grid.step, time, keys)
    if not recording.counted:
        return estimate.halves(grid, x, len(keys))
    return estimate.halves(
        grid, x, len(keys), read_binned(reader, contents, question, "gpu_launches", grid.step, launches, keys)
    )


def described(recording: Recording, total: float, half: float | None) -> dict[str, object]:
    """What an answer says of its estimate. `interval` is null where there is none: nothing estimated, or not known."""
    return {
        "recorded": recording.fraction,
        "counted": recording.counted,
        "windows": recording.windows,
        "gpus": recording.gpus,
        "gpu_seconds": recording.gpu_seconds,
        "interval": None if half is None or not recording.windows else estimate.bounds(total, half),
    }


def gpu_estimate(
    reader: Reader, contents: Contents, question: Question, focus: str = "", exclude: str = ""
) -> dict[str, object]:
    """The estimate behind a profile of one of the gpu_* types."""
    recording, kind = estimate.read_recording(reader, question), question.type
    leaves = read_leaves(reader, contents, question, kind, focus, exclude)
    keys, half, grid = np.unique(leaves.key), None, recording.grid(len(leaves.key))
    if kind == "gpu_time":
        launches = read_leaves(reader, contents, question, "gpu_launches", focus, exclude)
        found = _halves(reader, contents, question, recording, leaves, launches, keys)
        half = None if found is None else found[1]
    elif grid is not None and not (kind in EXACT and recording.counted):
        half = estimate.halves(grid, read_binned(reader, contents, question, kind, grid.step, leaves, keys), len(keys))[
            1
        ]
    return described(recording, float(leaves.rows.value.sum()), half)


def _texts(reader: Reader, function: NDArray, part: NDArray, wanted: NDArray) -> dict[int, tuple]:
    """Part -> name, kind, module, full name, reason."""
    first: dict[int, int] = {}
    for at, number in zip(part.tolist(), function.tolist(), strict=True):
        first.setdefault(at, number)
    ids = np.array([first[at] for at in wanted.tolist() if first.get(at, -1) >= 0], dtype=np.int64)
    known = function_texts(reader, ids)
    return {at: known[first[at]] for at in wanted.tolist() if first.get(at, -1) in known}


def function_texts(reader: Reader, ids: NDArray[np.int64]) -> dict[int, tuple[str, str, str, str, str]]:
    if not len(ids):
        return {}
    data = reader.lookup(sql.FUNCTION_TEXT, np.unique(ids))
    columns = [data[name].tolist() for name in ("function", "name", "kind", "module", "file", "reason")]
    return {row[0]: row[1:] for row in zip(*columns, strict=True)}


class _Labels:
    """Labels of rows, by series."""

    def __init__(self, reader: Reader, leaves: tuple[Leaves, ...]) -> None:
        ids = np.unique(np.concatenate([one.rows.series for one in leaves]))
        self.of = {row["series"]: row["labels"] for row in series_texts(reader, ids)} if len(ids) else {}

    def heaviest(self, leaves: Leaves, mask: NDArray[np.bool_], name: str) -> str:
        """The value of a label that holds most of the masked rows; "" where none has it."""
        sums: dict[str, int] = defaultdict(int)
        for series, value in zip(leaves.rows.series[mask].tolist(), leaves.rows.value[mask].tolist(), strict=True):
            sums[self.of[series].get(name, "")] += value
        sums.pop("", None)
        return max(sorted(sums), key=lambda text: sums[text]) if sums else ""


def _percentiles(durations: Leaves, labels: _Labels) -> dict[int, tuple[float | None, str]]:
    """Leaf -> (99th percentile in ns, why there is none), from recorded launches by quarter octave."""
    counts: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for key, series, value in zip(
        durations.key.tolist(), durations.rows.series.tolist(), durations.rows.value.tolist(), strict=True
    ):
        text = labels.of[series].get(BUCKET, "")
        if text.lstrip("-").isdigit():
            counts[key][int(text)] += value
    return {key: percentile(buckets) for key, buckets in counts.items()}


def percentile(buckets: dict[int, int], share: float = 0.99) -> tuple[float | None, str]:
    """From {k: launches of 2^(k/4) ns or longer and shorter than 2^((k+1)/4)}; within a bucket the logarithm is even."""
    whole = sum(buckets.values())
    if whole < MIN_P99:
        return None, f"{whole} launches were recorded here, fewer than {MIN_P99}"
    left = share * whole
    for bucket in sorted(buckets):
        if left <= buckets[bucket]:
            return 2 ** ((bucket + left / buckets[bucket]) / 4), ""
        left -= buckets[bucket]
    return 2 ** ((max(buckets) + 1) / 4), ""


# -- who launched it


def _origins(reader: Reader, time: Leaves) -> list[tuple | None]:
    """Of each row: (name, kind, module, file, line) of the nearest Python frame above its leaf; for a backward kernel its
    autograd node; else the nearest native frame outside the CUDA libraries."""
    out: list[tuple | None] = [None] * len(time.key)
    for part in time.rows.parts:
        content = part.content
        frames = _frames_above(part)
        functions = content.function[frames].astype(np.int64)
        texts = function_texts(reader, functions + content.first_function)
        rank: dict[int, tuple[int, tuple]] = {}
        for frame, function in zip(frames.tolist(), functions.tolist(), strict=True):
            name, kind, module, file, _ = texts[function + content.first_function]
            rank[frame] = (_rank(name, kind, module), (name, kind, module, file, int(content.line[frame])))
        found: dict[int, tuple | None] = {}
        for row, leaf in zip(part.rows.tolist(), part.leaf.tolist(), strict=True):
            if leaf not in found:
                found[leaf] = _nearest(content, leaf, rank)
            out[row] = found[leaf]
    return out


def _frames_above(part: Part) -> NDArray[np.int64]:
    content, node, seen = part.content, np.unique(part.leaf), []
    while len(node := node[node > 0]):
        seen.append(content.frame[node])
        node = np.unique(content.parent[node].astype(np.int64))
    return np.unique(np.concatenate(seen)).astype(np.int64) if seen else np.zeros(0, np.int64)


def _rank(name: str, kind: str, module: str) -> int:
    if kind == "python":
        return 3
    if kind not in ("native", "guessed") or _LAUNCHERS.match(module):
        return 0
    return 2 if _AUTOGRAD.search(name) else 1


def _nearest(content, leaf: int, rank: dict[int, tuple]) -> tuple | None:
    best: tuple | None = None
    node = int(content.parent[leaf]) if leaf else 0
    while node > 0:
        level, text = rank[int(content.frame[node])]
        if level == 3:
            return text if best is None or best[0] < 2 else best[1]
        if level and (best is None or level > best[0]):
            best = (level, text)
        node = int(content.parent[node])
    return None if best is None else best[1]


def _heaviest_origin(origins: list[tuple | None], mine: NDArray[np.bool_], value: NDArray) -> dict[str, object] | None:
    sums: dict[tuple, int] = defaultdict(int)
    whole = 0
    for row in np.flatnonzero(mine).tolist():
        whole += int(value[row])
        if origins[row] is not None:
            sums[origins[row]] += int(value[row])
    if not sums:
        return None
    text = max(sorted(sums), key=lambda key: sums[key])
    name, kind, module, file, line = text
    node = _AUTOGRAD.search(name) if kind != "python" else None
    return {
        "name": node[1] if node else name,
        "kind": kind,
        "module": module,
        "file": file,
        "line": line,
        "share": sums[text] / whole if whole else 0.0,
        "others": len(sums) - 1,
    }
