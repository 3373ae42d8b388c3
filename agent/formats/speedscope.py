# SPDX-License-Identifier: Apache-2.0
"""speedscope's file format (www.speedscope.app/file-format-schema.json): one sampled profile per thread, heaviest
first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpustrobe.agent.formats.stacks import Row, Stacks

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def render(stacks: Stacks, exporter: str = "gpustrobe") -> bytes:
    threads: dict[tuple[str, ...], list[Row]] = {}
    for row in stacks.rows:
        threads.setdefault(_thread(row.labels), []).append(row)
    heaviest = sorted(threads.values(), key=lambda rows: -sum(row.value for row in rows))
    document = {
        "$schema": SCHEMA,
        "name": _title(stacks),
        "exporter": exporter,
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(frame.name, frame.file or frame.module, frame.line) for frame in stacks.frames]},
        "profiles": [_profile(stacks, rows) for rows in heaviest],
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _thread(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in ("comm", "pid", "thread", "tid"))


def _frame(name: str, file: str, line: int) -> dict[str, Any]:
    return {"name": name, **({"file": file} if file else {}), **({"line": line} if line > 0 else {})}


def _profile(stacks: Stacks, rows: list[Row]) -> dict[str, Any]:
    """Samples have no order in time in what we are given; equal neighbours are put together."""
    rows = sorted(rows, key=lambda row: row.frames)
    scale = stacks.period or 1
    weights = [row.value * scale for row in rows]
    return {
        "type": "sampled",
        "name": _thread_name(*_thread(rows[0].labels)),
        "unit": _unit(stacks),
        "startValue": 0,
        "endValue": sum(weights),
        "samples": [list(row.frames) for row in rows],
        "weights": weights,
    }


def _unit(stacks: Stacks) -> str:
    if stacks.unit == "samples":
        return "nanoseconds" if stacks.period else "none"
    return stacks.unit if stacks.unit in ("nanoseconds", "bytes") else "none"


def _thread_name(comm: str, pid: str, thread: str, tid: str) -> str:
    process = f"{comm} [{pid}]" if pid else comm
    own = f"{thread} [{tid}]" if tid else thread
    return process if not own or (own == process) else f"{process} {own}"


def _title(stacks: Stacks) -> str:
    title = f"{stacks.sample_type}, {stacks.duration / 1e9:.0f} s"
    return " ".join(
        filter(None, (title, f"on {stacks.node}" if stacks.node else "", f"({stacks.loss})" if stacks.loss else ""))
    )
