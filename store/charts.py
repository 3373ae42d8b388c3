# SPDX-License-Identifier: Apache-2.0
"""Series over time: device metrics, and `cpu` in cores from samples. A second without data is a gap (None), never
bridged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.store import match, sql
from gpustrobe.store.errors import QueryError, TooLarge
from gpustrobe.store.query import types_of
from gpustrobe.store.schema import LABELS

if TYPE_CHECKING:
    from gpustrobe.store.database import Reader
    from gpustrobe.store.question import Question
    from numpy.typing import NDArray

SECOND = 1_000_000_000
MAX_POINTS = 4000
# Labels that tell the series of one metric apart; others (node aside) are shown too where they are set.
SHOWN = ("node", "gpu", "gpu_index", "pid", "comm")


@dataclass(frozen=True, slots=True)
class Bins:
    """Bins of `step` seconds, aligned to multiples of it, that cover a span."""

    first: int  # Unix second of the first bin
    step: int  # seconds
    count: int

    @property
    def times(self) -> list[int]:
        return [(self.first + index * self.step) * 1000 for index in range(self.count)]


def bins(question: Question, step_ms: int) -> Bins:
    if step_ms % 1000:
        raise QueryError("bad_step_ms", "step_ms is not a multiple of 1000")
    step = step_ms // 1000
    first = question.span.first // step * step
    count = -(-(question.span.last - first) // step)
    if count > MAX_POINTS:
        fitting = -(-question.span.seconds // (MAX_POINTS - 1)) * 1000
        raise TooLarge(f"{count:,} points are more than {MAX_POINTS:,}", f"step_ms={fitting} or a shorter range")
    return Bins(first, step, count)


def series(
    reader: Reader, question: Question, name: str, by: str = "", step_ms: int = 1000, limit: int = 8
) -> dict[str, object]:
    grid = bins(question, step_ms)
    if name == "cpu":
        return _cpu(reader, question, by, grid, limit)
    return _metric(reader, question, name, grid, limit)


# -- cpu


def _cpu(reader: Reader, question: Question, by: str, grid: Bins, limit: int) -> dict[str, object]:
    types = types_of(reader, question.type)
    picked = question.picked(types.numbers)
    if by:
        parameters = dict(picked.parameters)
        key = match.label_text(by, "by_name", parameters)
        # `series` is a table here, and its columns must not be taken for those of `samples`.
        text = sql.CPU_SERIES.format(key=key, picked=picked.text.replace("series IN", "samples.series IN"))
        data = reader.columns(text, parameters)
    else:
        data = reader.columns(sql.CPU_SECONDS.format(picked=picked.text), picked.parameters)
        data["key"] = np.full(len(data["second"]), "", dtype=object)
    cover = _coverage(reader, question, types.numbers, grid)
    # CPU time of each row in seconds; other types than counts of samples are in ns already (period 1).
    periods = np.array([types.periods[kind] for kind in data["type"].tolist()], dtype=np.float64)
    seconds = data["value"] * periods / SECOND
    place = (data["second"] - grid.first) // grid.step
    keys, inverse = np.unique(data["key"].astype(str), return_inverse=True)
    order = np.argsort(-np.bincount(inverse, seconds, minlength=len(keys)), kind="stable") if len(keys) else []
    lines = [
        (str(keys[key]), np.bincount(place[inverse == key], seconds[inverse == key], minlength=grid.count))
        for key in order[:limit]
    ]
    rest = [np.bincount(place[inverse == key], seconds[inverse == key], minlength=grid.count) for key in order[limit:]]
    if not by and not lines:
        lines = [("", np.zeros(grid.count))]
    answer = {"name": "cpu", "unit": "cores", "step_ms": grid.step * 1000, "t_ms": grid.times}
    answer["series"] = [_cores({by: key} if by else {}, line, cover) for key, line in lines]
    answer["other"] = _cores({"by": "other"}, sum(rest), cover) if rest else None
    return answer


def _coverage(reader: Reader, question: Question, types: list[int], grid: Bins) -> NDArray[np.float64]:
    """Measured seconds of each bin, (count,): of all nodes together, divided by how many there are in it; 0 = nothing
    came.

    Windows need not start on whole seconds. A window's samples all count to the second of its middle, so the time
    counted must be its own duration, not the bin's.
    """
    conditions, parameters = question.node_conditions()
    text = sql.WINDOWS.replace("GROUP BY", f"AND {conditions} GROUP BY" if conditions else "GROUP BY", 1)
    data = reader.columns(text, {**parameters, "first": grid.first, "last": question.span.last, "types": types})
    if not len(data["start"]):
        return np.zeros(grid.count)
    start, duration = data["start"], data["duration"]
    place = ((start + duration // 2) // SECOND - grid.first) // grid.step
    inside = (place >= 0) & (place < grid.count)
    nodes, node = np.unique(data["node"].astype(str), return_inverse=True)
    measured = np.zeros((len(nodes), grid.count))
    np.add.at(measured, (node[inside], place[inside]), duration[inside] / SECOND)
    present = measured > 0
    with np.errstate(invalid="ignore"):
        mean = np.where(present.any(axis=0), measured.sum(axis=0) / np.maximum(present.sum(axis=0), 1), 0)
    return mean


def _cores(labels: dict[str, str], seconds: NDArray, cover: NDArray) -> dict[str, object]:
    with np.errstate(divide="ignore", invalid="ignore"):
        cores = seconds / cover
    values = [
        round(value, 6) if there else None for value, there in zip(cores.tolist(), (cover > 0).tolist(), strict=True)
    ]
    return {"labels": labels, "mean": values, "min": values, "max": values}


# -- metrics


def _metric(reader: Reader, question: Question, name: str, grid: Bins, limit: int) -> dict[str, object]:
    conditions, parameters = question.conditions()
    parameters |= {
        "name": name,
        "first": grid.first,
        "last": question.span.last,
        "step": grid.step * SECOND,
    }
    among = sql.among_series(conditions)
    data = reader.columns(sql.READINGS.format(among=among), parameters)
    ids = np.unique(data["metric"])
    info = reader.lookup(sql.METRIC_LABELS, ids)
    rows = [
        dict(zip(info, row, strict=True)) for row in zip(*(column.tolist() for column in info.values()), strict=True)
    ]
    if any(row["kind"] == "cumulative" for row in rows):
        data = _rates(reader, among, parameters)
    kinds = {row["metric"]: row["kind"] for row in rows}
    # One label set may have several metric ids: one per generation.
    lines: dict[tuple, _Line] = {}
    for row in rows:
        labels = _labels(row)
        line = lines.setdefault(tuple(sorted(labels.items())), _Line(labels, grid.count))
        line.add(data, row["metric"], grid, kinds[row["metric"]])
    order = sorted(
        lines.values(), key=lambda line: (int(line.labels.get("gpu_index", 0)), -line.size, sorted(line.labels.items()))
    )
    return {
        "name": name,
        "unit": _unit(rows),
        "step_ms": grid.step * 1000,
        "t_ms": grid.times,
        "series": [line.answer() for line in order[:limit]],
        "other": None,
        "left_out": max(0, len(order) - limit),
    }


def _unit(rows: list[dict[str, object]]) -> str:
    if not rows:
        return ""
    unit, kind = rows[-1]["unit"], rows[-1]["kind"]
    return unit if kind == "gauge" else f"{unit}/s" if unit else "1/s"


def _labels(row: dict[str, object]) -> dict[str, str]:
    known = {
        name: row[name] if isinstance(row[name], str) else str(row[name]) for name in SHOWN if row[name] not in ("", -1)
    }
    return {**row["labels"], **known}


class _Line:
    """One series on the grid; mean over all points of a bin, also of several metric ids."""

    def __init__(self, labels: dict[str, str], count: int) -> None:
        self.labels = labels
        self.sum, self.weight = np.zeros(count), np.zeros(count)
        self.low, self.high = np.full(count, np.inf), np.full(count, -np.inf)

    @property
    def size(self) -> float:
        return float(self.sum.sum())

    def add(self, data: dict[str, NDArray], metric: int, grid: Bins, kind: str) -> None:
        mine = data["metric"] == metric
        place = data["bin"][mine] - grid.first // grid.step
        inside = (place >= 0) & (place < len(self.sum))
        place = place[inside]
        mean, low, high = (data[name][mine][inside] for name in ("mean", "low", "high"))
        if kind == "delta":
            mean = low = high = data["total"][mine][inside] / grid.step
        np.add.at(self.sum, place, mean)
        np.add.at(self.weight, place, 1.0)
        np.minimum.at(self.low, place, low)
        np.maximum.at(self.high, place, high)

    def answer(self) -> dict[str, object]:
        there = (self.weight > 0).tolist()
        mean = self.sum / np.maximum(self.weight, 1)
        columns = (column.tolist() for column in (mean, self.low, self.high))
        mean_l, low, high = (
            [value if has else None for value, has in zip(column, there, strict=True)] for column in columns
        )
        return {"labels": self.labels, "mean": mean_l, "min": low, "max": high}


def _rates(reader: Reader, among: str, parameters: dict[str, object]) -> dict[str, NDArray]:
    """Counters since a start to rates per second; a reset (a falling value) gives no rate."""
    raw = reader.columns(sql.READINGS_RAW.format(among=among), parameters)
    metric, time, value = raw["metric"], raw["time"], raw["value"]
    usable = (metric[1:] == metric[:-1]) & (time[1:] > time[:-1]) & (value[1:] >= value[:-1])
    rate = np.diff(value)[usable] / (np.diff(time)[usable] / SECOND)
    bin_ = time[1:][usable] // parameters["step"]
    keys, inverse = np.unique(np.stack((metric[1:][usable], bin_)), axis=1, return_inverse=True)
    inverse = inverse.ravel()
    low, high = np.full(keys.shape[1], np.inf), np.full(keys.shape[1], -np.inf)
    np.minimum.at(low, inverse, rate)
    np.maximum.at(high, inverse, rate)
    mean = np.bincount(inverse, rate, minlength=keys.shape[1]) / np.maximum(
        np.bincount(inverse, minlength=keys.shape[1]), 1
    )
    return {"metric": keys[0], "bin": keys[1], "mean": mean, "low": low, "high": high, "total": mean}


def known_label(name: str) -> str:
    """`by` as given, checked: a label name, never SQL."""
    if name and name not in LABELS and not all(char.isalnum() or char in "._-/" for char in name):
        raise QueryError("bad_by", f"by: {name[:64]!r} is no label name")
    return name
