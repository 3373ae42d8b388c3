# SPDX-License-Identifier: Apache-2.0
"""Tables of the store and the label columns. docs/decisions/0002-store-schema.md says why they look like this.

All tables are append-only, have no index and no NULL: missing text is '', a missing number is -1. Ids count up and are
given by the one writer; an id names content within one *generation* (intern.py), so two ids may stand for the same
content and readers merge by content. Order within a table is the order of arrival, which is the order of time save for
late batches: zone maps prune by `second`.
"""

from __future__ import annotations

VERSION = 1

# label name -> OTLP attribute names, the first that is present wins (docs/architecture.md, "Names on the wire").
TEXT_LABELS = {
    "node": ("host.name",),
    "service": ("service.name",),
    "namespace": ("k8s.namespace.name",),
    "pod": ("k8s.pod.name",),
    "container": ("container.name", "container.id"),
    "comm": ("process.executable.name",),
    "script": ("gpustrobe.process.script",),
    "thread": ("thread.name",),
    "gpu": ("gpu.uuid",),
}
NUMBER_LABELS = {"pid": ("process.pid",), "tid": ("thread.id",), "gpu_index": ("gpu.index",)}
LABELS = (*TEXT_LABELS, *NUMBER_LABELS)
# Labels in the map whose name is not the attribute's.
MAP_LABELS = {"gpu.stream": "stream", "gpu.category": "category", "gpu.graph": "graph"}
ATTRIBUTE_LABEL = {name: label for label, names in {**TEXT_LABELS, **NUMBER_LABELS}.items() for name in names}

# Sample type on the wire -> its name in the store; any other type keeps its own name.
TYPE_NAMES = {("samples", "count"): "cpu", ("cpu", "nanoseconds"): "cpu_time"}

TABLES = {
    "meta": "name VARCHAR, value VARCHAR",
    # One row per (name, unit, period): nodes may sample at different rates.
    "types": "type UTINYINT, name VARCHAR, unit VARCHAR, period BIGINT",
    # First id of each table in a generation: retention drops what older generations own.
    "generations": "generation INTEGER, node BIGINT, frame BIGINT, function BIGINT, series BIGINT, metric BIGINT, "
    "started BIGINT",
    "series": ", ".join(
        [
            "series BIGINT",
            *(f"{name} VARCHAR" for name in TEXT_LABELS),
            *(f"{name} BIGINT" for name in NUMBER_LABELS),
            "labels MAP(VARCHAR, VARCHAR)",
        ]
    ),
    "functions": "function BIGINT, hash BIGINT, name VARCHAR, kind VARCHAR, module VARCHAR, file VARCHAR, "
    "reason VARCHAR",
    "frames": "frame BIGINT, function BIGINT, line INTEGER",
    # The calling context tree: a stack is its leaf node, and new nodes come in chains. frames[i] is the frame of node +
    # i - 1, whose parent is the node before it; `parent` is that of the first, 0 = the root (empty stack), and `depth`
    # the depth of the first.
    "chains": "node BIGINT, parent BIGINT, depth USMALLINT, frames BIGINT[]",
    "samples": "second BIGINT, type UTINYINT, series BIGINT, stack BIGINT, value BIGINT",
    # One row per profile received: what was measured when, also where no sample fell. Times in ns, total in the type's
    # unit.
    "windows": "second BIGINT, type UTINYINT, node VARCHAR, start BIGINT, duration BIGINT, total BIGINT",
    # kind: gauge, delta, cumulative
    "metrics": "metric BIGINT, name VARCHAR, unit VARCHAR, kind VARCHAR, series BIGINT",
    "readings": "second BIGINT, metric BIGINT, time BIGINT, value DOUBLE",
    "batches": "second BIGINT, hash BIGINT",
    "resources": "second BIGINT, node VARCHAR, attributes MAP(VARCHAR, VARCHAR)",
}

# intDiv and fullMatch make the query text the same in ClickHouse, where intDiv exists and fullMatch is a one-line
# function.
MACROS = (
    "CREATE OR REPLACE TEMP MACRO intDiv(a, b) AS a // b",
    "CREATE OR REPLACE TEMP MACRO fullMatch(a, b) AS regexp_full_match(a, b)",
    "CREATE OR REPLACE TEMP MACRO arrayJoin(a) AS unnest(a)",
    "CREATE OR REPLACE TEMP MACRO partMatch(a, b) AS regexp_matches(a, b)",
)


def create_statements() -> list[str]:
    return [f"CREATE TABLE IF NOT EXISTS {name} ({columns})" for name, columns in TABLES.items()]


def columns(table: str) -> list[str]:
    """Column names of a table, in order."""
    return [part.strip().split(" ")[0] for part in TABLES[table].replace("MAP(VARCHAR, VARCHAR)", "MAP").split(",")]
