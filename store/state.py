# SPDX-License-Identifier: Apache-2.0
"""What the status page needs of each node, kept in memory: loaded once at the start, then updated by each committed
batch."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpustrobe.store import sql
from gpustrobe.store.schema import LABELS

if TYPE_CHECKING:
    import duckdb
    from gpustrobe.store.batch import Batch

SECOND = 1_000_000_000
RECENT = 3600 * SECOND  # latest values older than this before the start are not looked for
# metric -> field of Node.latest; the attribute, where there is one, holds the text.
LATEST = (
    "gpustrobe.agent.cpu",
    "gpustrobe.agent.bpf",
    "gpustrobe.agent.memory",
    "gpustrobe.agent.state",
    "gpustrobe.gpu.duty",
    "gpustrobe.gpu.budget",
    "system.cpu.logical.count",
)
_NODE, _GPU, _GPU_INDEX = LABELS.index("node"), LABELS.index("gpu"), LABELS.index("gpu_index")


@dataclass
class Node:
    first: int = 0  # Unix ns
    last: int = 0
    total: int = 0  # CPU samples; values of other types are no counts
    types: set[str] = field(default_factory=set)
    latest: dict[str, tuple[int, float, str]] = field(default_factory=dict)  # metric -> time, value, text
    gpus: dict[str, tuple[int, str]] = field(default_factory=dict)  # uuid -> index, name
    resource: dict[str, str] = field(default_factory=dict)

    def saw(self, start: int, end: int) -> None:
        self.first = min(self.first or start, start)
        self.last = max(self.last, end)

    def took(self, metric: str, time: int, value: float, text: str) -> None:
        if time >= self.latest.get(metric, (0,))[0]:
            self.latest[metric] = (time, value, text)


class State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.nodes: dict[str, Node] = {}
        self.newest = 0  # Unix ns; end of the newest window or reading

    def load(self, connection: duckdb.DuckDBPyConnection, now: int) -> None:
        """Read everything anew from the database."""
        nodes: dict[str, Node] = {}
        types = {number: name for number, name, _, _ in connection.execute(sql.TYPES).fetchall()}
        for name, kind, first, last, total in connection.execute(sql.NODE_SPANS).fetchall():
            node = nodes.setdefault(name, Node())
            node.saw(first, last)
            node.total += total if types[kind] == "cpu" else 0
            node.types.add(types[kind])
        for name, first, last in connection.execute(sql.METRIC_SPANS).fetchall():
            nodes.setdefault(name, Node()).saw(first, last)
        newest = max((node.last for node in nodes.values()), default=now)
        text, parameters = sql.render(sql.LATEST, {"since": (newest - RECENT) // SECOND, "names": list(LATEST)})
        for name, metric, labels, time, value in connection.execute(text, parameters).fetchall():
            nodes.setdefault(name, Node()).took(metric, time, value, labels.get("gpu", ""))
        for name, uuid, index, model in connection.execute(sql.GPUS).fetchall():
            nodes.setdefault(name, Node()).gpus[uuid] = (index, model or "")
        for _, name, attributes in connection.execute(sql.RESOURCES).fetchall():
            nodes.setdefault(name, Node()).resource = dict(attributes)
        with self.lock:
            self.nodes = nodes
            self.newest = max((node.last for node in nodes.values()), default=0)

    def add(self, batch: Batch) -> None:
        """Take a committed batch into account."""
        with self.lock:
            for window in batch.windows:
                node = self.nodes.setdefault(window.node, Node())
                node.saw(window.start, window.start + window.duration)
                kind = batch.types[window.type].name
                node.total += window.total if kind == "cpu" else 0
                node.types.add(kind)
            for name, attributes in batch.resources:
                self.nodes.setdefault(name, Node()).resource = dict(attributes)
            if batch.readings is not None:
                self._add_readings(batch)
            self.newest = max([self.newest, *(node.last for node in self.nodes.values())])

    def _add_readings(self, batch: Batch) -> None:
        readings = batch.readings
        for metric, time, value in zip(
            readings.metric.tolist(), readings.time.tolist(), readings.value.tolist(), strict=True
        ):
            series = batch.metrics[metric]
            labels = batch.label_sets[series.labels]
            node = self.nodes.setdefault(labels[_NODE], Node())
            node.saw(time, time)
            if series.name in LATEST:
                node.took(series.name, time, value, dict(labels[-1]).get("gpu", ""))
            if labels[_GPU] and labels[_GPU] not in node.gpus:
                node.gpus[labels[_GPU]] = (labels[_GPU_INDEX], dict(labels[-1]).get("gpu.name", ""))
