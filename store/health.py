# SPDX-License-Identifier: Apache-2.0
"""Status of the nodes, the books of losses, and marks on the time axis. Formats: docs/api.md."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.store import sql
from gpustrobe.store.query import process_name, series_texts, types_of

if TYPE_CHECKING:
    from gpustrobe.store.database import Reader
    from gpustrobe.store.question import Question
    from gpustrobe.store.state import Node, State

SECOND = 1_000_000_000
MS = 1_000_000
LIVE = 15 * SECOND  # a node is live if something came within this time
MAX_MARKS = 50
GAP = 3  # whole seconds without a window that make a gap
MAX_LOSS_SECONDS = 4000
PREFIX = "gpustrobe.samples."

# What a person reads of each drop; names are those of bpf/drops.h, and of the store's own refusals.
HELP = {
    "kernel_skipped": "the kernel did not run the sampler: timer delayed, vCPU stolen or another BPF program running",
    "scratch_busy": "the sampler interrupted itself on this CPU",
    "ring_full": "the ring buffer was full: the agent did not drain in time",
    "bad_record": "a record in the ring had an impossible length or version",
    "stack_table_full": "the table of distinct stacks was full in this window",
    "window_full": "the window had no room for another row",
    "window_late": "Python did not take a window before it had to be reused",
    "export_queue_full": "the store was away and the bounded queue was full",
    "export_refused": "the store refused the batch for good",
    "encode_too_large": "a single window exceeded the request limit",
}


def status(state: State, version: str, now: int, used: int) -> dict[str, object]:
    with state.lock:
        nodes = {name: node for name, node in sorted(state.nodes.items()) if node.last}
        answers = [_node(name, node, now) for name, node in nodes.items()]
        oldest = min((node.first for node in nodes.values()), default=0)
        total = sum(node.total for node in nodes.values())
        newest = state.newest
    return {
        "version": version,
        "now_ms": now / MS,
        "data": {"oldest_ms": oldest / MS or None, "newest_ms": newest / MS or None, "bytes": used, "samples": total},
        "nodes": answers,
    }


def _node(name: str, node: Node, now: int) -> dict[str, object]:
    def latest(metric: str) -> float | None:
        return node.latest[metric][1] if metric in node.latest else None

    cpu, bpf, cores = latest("gpustrobe.agent.cpu"), latest("gpustrobe.agent.bpf"), latest("system.cpu.logical.count")
    own = None if cpu is None or not cores else (cpu + (bpf or 0)) / cores
    state = node.latest.get("gpustrobe.agent.state", (0, 0.0, ""))[2]
    gpus = sorted(node.gpus.items(), key=lambda item: item[1])
    return {
        "node": name,
        "first_ms": node.first / MS,
        "last_ms": node.last / MS,
        "cores": int(cores) if cores else None,
        "agent": {
            "version": node.resource.get("service.version", ""),
            "cpu_cores": cpu,
            "bpf_cores": bpf,
            "memory_bytes": latest("gpustrobe.agent.memory"),
            "cpu_share": own,
        },
        "gpus": [{"uuid": uuid, "index": index, "name": model} for uuid, (index, model) in gpus],
        "gpu_state": state or ("ok" if gpus else "no GPU readings have come from this node"),
        "types": sorted(node.types),
        "live": now - node.last < LIVE,
    }


def cores_of(state: State, names: list[str]) -> int | None:
    """Cores of these nodes together; None where one did not say."""
    with state.lock:
        found = [state.nodes[name].latest.get("system.cpu.logical.count") for name in names if name in state.nodes]
    return int(sum(value for _, value, _ in found)) if found and all(found) else None


def nodes_in(reader: Reader, question: Question) -> list[str]:
    """Nodes that sent a window of the question's type in its range."""
    conditions, parameters = question.node_conditions()
    text = sql.WINDOW_NODES + (f" AND {conditions}" if conditions else "")
    types = types_of(reader, question.type).numbers
    rows = reader.rows(text, {**parameters, "first": question.span.first, "last": question.span.last, "types": types})
    return sorted(name for (name,) in rows)


# -- losses


def books(reader: Reader, question: Question) -> tuple[dict[str, object], dict[int, int]]:
    """Accounts of the range, and lost samples by second."""
    conditions, parameters = question.node_conditions()
    parameters |= {"first": question.span.first, "last": question.span.last}
    data = reader.columns(sql.BOOKS.format(among=f" AND {conditions}" if conditions else ""), parameters)
    sums: Counter = Counter({"produced": 0, "idle": 0, "filtered": 0, "delivered": 0})
    drops: Counter = Counter()
    seconds: Counter = Counter()
    for name, reason, second, value in zip(
        *(data[key].tolist() for key in ("name", "reason", "second", "value")), strict=True
    ):
        short = name.removeprefix(PREFIX)
        if short == "dropped":
            if value:
                drops[reason or "unnamed"] += value
                seconds[second] += value
        elif short in sums:
            sums[short] += value
    return {**sums, "drops": dict(drops)}, dict(seconds)


def losses(reader: Reader, question: Question) -> dict[str, object]:
    account, seconds = books(reader, question)
    drops = account.pop("drops")
    meant = account["produced"] - account["idle"] - account["filtered"]
    lost = sum(drops.values())
    unexplained = meant - account["delivered"] - lost
    return {
        **account,
        "share": lost / meant if meant > 0 else 0.0,
        "unexplained": unexplained,
        "drops": [
            {"name": name, "count": count, "help": HELP.get(name, "")}
            for name, count in sorted(drops.items(), key=lambda d: -d[1])
        ],
        "seconds": _binned(seconds),
    }


def _binned(seconds: dict[int, int]) -> list[list[int]]:
    """[[t_ms, lost], ...], one a second, or coarser where there would be more than MAX_LOSS_SECONDS."""
    if not seconds:
        return []
    step = -(-(max(seconds) - min(seconds) + 1) // MAX_LOSS_SECONDS)
    bins: Counter = Counter()
    for second, count in seconds.items():
        bins[second // step * step] += count
    return [[second * 1000, count] for second, count in sorted(bins.items())]


# -- marks


def marks(reader: Reader, question: Question) -> dict[str, object]:
    """What began and ended in the range, the heaviest processes first; then in order of time.

    A process is known by its samples: it is "first seen" and "last seen", since it may have slept before.
    """
    types = types_of(reader, question.type).numbers
    found = _process_marks(reader, question, types)[:MAX_MARKS]
    found = (_gap_marks(reader, question, types) + found)[:MAX_MARKS]
    return {"marks": sorted(found, key=lambda mark: mark["t_ms"])}


def _process_marks(reader: Reader, question: Question, types: list[int]) -> list[dict[str, object]]:
    picked = question.picked(types)
    data = reader.columns(sql.SERIES_VALUES.format(picked=picked.text), picked.parameters)
    if not len(data["series"]):
        return []
    rows = {row["series"]: row for row in series_texts(reader, data["series"])}
    lives: dict[tuple, list] = {}
    for series, value, first, last in zip(
        *(data[name].tolist() for name in ("series", "value", "first", "last")), strict=True
    ):
        row = rows[series]
        key = (row["node"], row["pid"], process_name(row), row["script"])
        life = lives.setdefault(key, [0, first, last, row])
        life[0] += value
        life[1], life[2] = min(life[1], first), max(life[2], last)
    heaviest = sorted(lives.items(), key=lambda item: -item[1][0])[:MAX_MARKS]
    outside = _seen_outside(reader, question, types, [key for key, _ in heaviest])
    out = []
    for key, (_, first, last, row) in heaviest:
        node, pid, comm, script = key
        labels = {"node": node, "pid": str(pid), "comm": comm, **({"script": script} if script else {})}
        labels |= {name: row[name] for name in ("container", "pod") if row[name]}
        before, after = outside[key]
        if not before:
            out.append(
                {
                    "t_ms": first * 1000,
                    "kind": "process_start",
                    "text": f"{script or comm} first seen",
                    "labels": labels,
                }
            )
        if not after:
            out.append(
                {
                    "t_ms": (last + 1) * 1000,
                    "kind": "process_exit",
                    "text": f"{script or comm} last seen",
                    "labels": labels,
                }
            )
    return out


AROUND = 600  # seconds: a process seen this long before or after the range did not start or end in it


def _seen_outside(
    reader: Reader, question: Question, types: list[int], keys: list[tuple]
) -> dict[tuple, tuple[bool, bool]]:
    """Whether each process was seen before and after the range; "after" also where the range ends too near to the
    data's end."""
    sides = []
    span = question.span
    newest = reader.rows(sql.NEWEST_WINDOW, {"first": span.last, "last": span.last + AROUND})[0][0]
    recent = span.last - 5  # whoever was seen in the last 5 s of the data has not ended yet, as far as anyone knows
    for first, last in ((span.first - AROUND, span.first), (span.last if newest else recent, span.last + AROUND)):
        rows = reader.rows(sql.PROCESSES_SEEN, {"first": first, "last": last, "types": types})
        sides.append(
            {(node, pid, process_name({"comm": comm, "pid": pid}), script) for node, pid, comm, script in rows}
        )
    return {key: (key in sides[0], key in sides[1]) for key in keys}


def _gap_marks(reader: Reader, question: Question, types: list[int]) -> list[dict[str, object]]:
    """Where a node's data begins for the first time, and where it comes back after a gap."""
    conditions, parameters = question.node_conditions()
    text = sql.WINDOWS.replace("GROUP BY", f"AND {conditions} GROUP BY" if conditions else "GROUP BY", 1)
    span = question.span
    data = reader.columns(text, {**parameters, "first": span.first - AROUND, "last": span.last, "types": types})
    out = []
    for node in np.unique(data["node"].astype(str)).tolist():
        mine = data["node"] == node
        start, duration = data["start"][mine], data["duration"][mine]
        silent = np.diff(start) - duration[:-1]
        begins = [(int(start[0]), 0)] if start[0] // SECOND > span.first - AROUND + GAP else []
        begins += [(int(start[place + 1]), int(silent[place])) for place in np.flatnonzero(silent >= GAP * SECOND)]
        for time, gap in begins:
            if span.first <= time // SECOND < span.last:
                text = (
                    f"{node or 'node'}: data again after {gap / SECOND:.0f} s without"
                    if gap
                    else f"{node or 'node'}: data begins"
                )
                out.append({"t_ms": time / MS, "kind": "agent_start", "text": text, "labels": {"node": node}})
    return out
