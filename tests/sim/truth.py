# SPDX-License-Identifier: Apache-2.0
"""Reads what the simulated libcuda wrote about what it ran (cuda/truth.c): the truth that recordings are checked against."""

from __future__ import annotations

import re
from pathlib import Path

import numpy

KERNEL, COPY, SET, SYNC, GRAPH = 1, 2, 3, 6, 7
ROW = numpy.dtype(
    [
        *((name, "<i8") for name in ("api_ns", "start_ns", "end_ns", "bytes", "node_id", "realtime_offset")),
        *(
            (name, "<u4")
            for name in (
                "kind",
                "device",  # slot of the node, whatever the process calls it
                "context",
                "stream",
                "correlation",
                "tid",
                "name",
                "graph",
                "record",  # CUPTI was asked for it when it was launched
                "type",  # of a copy: CUpti_ActivityMemcpyKind; of a wait: CUpti_ActivitySynchronizationType
            )
        ),
        ("grid", "<u4", 3),
        ("block", "<u4", 3),
    ]
)


def read(path: Path, pid: int | None = None) -> dict[int, tuple[numpy.ndarray, list[str]]]:
    """By PID: rows in the order in which they ended, times CLOCK_MONOTONIC ns (plus realtime_offset: as CUPTI's), end 0 for what
    had not ended at exit; and names, row["name"] - 1 being the index."""
    found = {}
    for file in sorted(path.parent.glob(path.name + ".*")):
        if not re.fullmatch(re.escape(path.name) + r"\.\d+", file.name) or (pid and file.suffix != f".{pid}"):
            continue
        rows = numpy.fromfile(file, ROW)
        names = file.with_name(file.name + ".names").read_text("utf-8").splitlines()
        found[int(file.suffix[1:])] = rows[rows["kind"] != 0], names
    return found
