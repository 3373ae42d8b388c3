# SPDX-License-Identifier: Apache-2.0
"""Status of the nodes, the books of losses, and marks on the time axis. Formats: docs/api.md."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
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
ACCOUNTS = {"off_cpu": "gpustrobe.waits."}  # of other sample types than CPU
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
            "gpu_duty": latest("gpustrobe.gpu.duty"),
            "gpu_budget": latest("gpustrobe.gpu.budget"),
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
    prefix = ACCOUNTS.get(question.type, PREFIX)
    text = sql.BOOKS.format(accounts=prefix, among=f" AND {conditions}" if conditions else "")
    data = reader.columns(text, parameters)
    sums: Counter = Counter({"produced": 0, "idle": 0, "filtered": 0, "delivered": 0})
    drops: Counter = Counter()
    seconds: Counter = Counter()
    for name, reason, second, value in zip(
        *(data[key].tolist() for key in ("name", "reason", "second", "value")), strict=True
    ):
        short = name.removeprefix(prefix)
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
        "share": _share(account, drops, meant, lost),
        "unexplained": unexplained,
        "drops": [
            {"name": name, "count": count, "help": HELP.get(name, "")}
            for name, count in sorted(drops.items(), key=lambda d: -d[1])
        ],
        "seconds": _binned(seconds),
    }


def _share(account: dict[str, object], drops: dict[str, int], meant: int, lost: int) -> float:
    """Share of the samples of busy CPUs that were lost. Of a period that the kernel skipped nobody knows whether its CPU was
    idle, so these are shared out as the known ones are: on a machine that idles, a few are no tenth of what ran."""
    skipped = drops.get("kernel_skipped", 0)
    known = meant - skipped
    certain = (lost - skipped) / known if known > 0 else 0.0
    unknown = skipped / account["produced"] if account["produced"] > 0 else 0.0
    return min(certain + unknown, 1.0)


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
    spells = _spells(reader, question, types)
    found = (_gap_marks(question, spells) + _process_marks(reader, question, types, spells))[:MAX_MARKS]
    return {"marks": sorted(found, key=lambda mark: mark["t_ms"])}


AROUND = 600  # seconds: a process seen this long before or after the range did not start or end in it
QUIET = 5.0  # mean distances between a process's samples that it must be silent for to have started or ended
MIN_QUIET = {"start": 2, "exit": 8}  # seconds, at least


@dataclass(frozen=True, slots=True)
class _Spell:
    """Unix ns from and to which windows came from a node without a gap."""

    start: int
    end: int
    before: int  # ns of silence before it, -1: it begins where we began to look, 0: the node's first data

    def seconds_before(self, second: int) -> float:
        return float("inf") if self.before < 0 else second - self.start / SECOND


def _spells(reader: Reader, question: Question, types: list[int]) -> dict[str, list[_Spell]]:
    conditions, parameters = question.node_conditions()
    text = sql.WINDOWS.replace("GROUP BY", f"AND {conditions} GROUP BY" if conditions else "GROUP BY", 1)
    first, last = question.span.first - AROUND, question.span.last + AROUND
    data = reader.columns(text, {**parameters, "first": first, "last": last, "types": types})
    out = {}
    names = data["node"].astype(str)
    for node in np.unique(names).tolist():
        mine = names == node
        start, end = data["start"][mine], data["start"][mine] + data["duration"][mine]
        breaks = np.flatnonzero(start[1:] - end[:-1] >= GAP * SECOND) + 1
        heads, tails = [0, *breaks.tolist()], [*(breaks - 1).tolist(), len(start) - 1]
        silent = [-1 if start[0] // SECOND <= first + GAP else 0, *(start[breaks] - end[breaks - 1]).tolist()]
        out[node] = [
            _Spell(int(start[head]), int(end[tail]), before)
            for head, tail, before in zip(heads, tails, silent, strict=True)
        ]
    return out


def _gap_marks(question: Question, spells: dict[str, list[_Spell]]) -> list[dict[str, object]]:
    """Where a node's data begins for the first time, and where it comes back after a gap."""
    out = []
    for node, found in spells.items():
        for spell in found:
            if spell.before >= 0 and question.span.first <= spell.start // SECOND < question.span.last:
                name, gap = node or "node", spell.before / SECOND
                text = f"{name}: data again after {gap:.0f} s without" if gap else f"{name}: data begins"
                out.append({"t_ms": spell.start / MS, "kind": "agent_start", "text": text, "labels": {"node": node}})
    return out


@dataclass(slots=True)
class _Life:
    value: int
    first: int  # Unix seconds
    last: int
    row: dict[str, object]

    @property
    def quiet(self) -> float:
        """Seconds of silence that mean something: a process sampled once a minute has not ended after ten seconds."""
        return QUIET * (self.last - self.first + 1) / self.value


def _process_marks(
    reader: Reader, question: Question, types: list[int], spells: dict[str, list[_Spell]]
) -> list[dict[str, object]]:
    lives = sorted(_lives(reader, question, types).items(), key=lambda item: -item[1].value)[:MAX_MARKS]
    before, after = _seen_outside(reader, question, types)
    out = []
    for key, life in lives:
        node, pid, comm, script = key
        labels = {"node": node, "pid": str(pid), "comm": comm, **({"script": script} if script else {})}
        labels |= {name: life.row[name] for name in ("container", "pod") if life.row[name]}
        start = next((s for s in spells.get(node, []) if s.start <= (life.first + 1) * SECOND <= s.end + SECOND), None)
        end = next((s for s in spells.get(node, []) if s.start <= life.last * SECOND + SECOND // 2 <= s.end), None)
        text = script or comm
        if start and key not in before and start.seconds_before(life.first) >= max(MIN_QUIET["start"], life.quiet):
            out.append(
                {"t_ms": life.first * 1000, "kind": "process_start", "text": f"{text} first seen", "labels": labels}
            )
        if end and key not in after and end.end / SECOND - life.last >= max(MIN_QUIET["exit"], life.quiet):
            out.append(
                {"t_ms": life.last * 1000 + 1000, "kind": "process_exit", "text": f"{text} last seen", "labels": labels}
            )
    return out


def _lives(reader: Reader, question: Question, types: list[int]) -> dict[tuple, _Life]:
    picked = question.picked(types)
    data = reader.columns(sql.SERIES_VALUES.format(picked=picked.text), picked.parameters)
    rows = {row["series"]: row for row in series_texts(reader, data["series"])}
    lives: dict[tuple, _Life] = {}
    for series, value, first, last in zip(
        *(data[name].tolist() for name in ("series", "value", "first", "last")), strict=True
    ):
        row = rows[series]
        key = (row["node"], row["pid"], process_name(row), row["script"])
        life = lives.setdefault(key, _Life(0, first, last, row))
        life.value += value
        life.first, life.last = min(life.first, first), max(life.last, last)
    return lives


def _seen_outside(reader: Reader, question: Question, types: list[int]) -> list[set[tuple]]:
    """The processes seen before, and those seen after the range."""
    span, sides = question.span, []
    for first, last in ((span.first - AROUND, span.first), (span.last, span.last + AROUND)):
        rows = reader.rows(sql.PROCESSES_SEEN, {"first": first, "last": last, "types": types})
        sides.append(
            {(node, pid, process_name({"comm": comm, "pid": pid}), script) for node, pid, comm, script in rows}
        )
    return sides
