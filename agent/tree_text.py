# SPDX-License-Identifier: Apache-2.0
"""Answers of the store as text for a terminal. Pure: JSON answers in, lines out; docs/api.md has the shapes.

A chain of only children does not indent, so a stack of 60 frames still fits 80 columns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TextIO

BAR_CELLS = 8
EIGHTHS = " ▏▎▍▌▋▊▉█"
SPARKS = "▁▂▃▄▅▆▇█"
SUFFIX_ROOM = 24  # columns of a name below which module and line are left out


@dataclass(frozen=True, slots=True)
class Look:
    """Of the terminal that will show the lines."""

    width: int = 100
    unicode: bool = True
    colour: bool = False

    def dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.colour and text else text


def look_of(stream: TextIO, environment: dict[str, str] | Any) -> Look:
    import shutil

    terminal = stream.isatty()
    width = shutil.get_terminal_size((100, 24)).columns if terminal or "COLUMNS" in environment else 160
    encoding = (getattr(stream, "encoding", None) or sys.getdefaultencoding()).lower().replace("-", "")
    return Look(
        max(40, width),
        encoding.startswith("utf"),
        terminal and "NO_COLOR" not in environment and environment.get("TERM") != "dumb",
    )


def cut(text: str, width: int, look: Look) -> str:
    """At most `width` columns; the middle goes, as both ends of a C++ name tell it apart."""
    mark = "…" if look.unicode else "~"
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return text[:head] + mark + text[len(text) - (width - 1 - head) :] if width > 1 else text[:width]


def bar(share: float, look: Look) -> str:
    if not look.unicode:
        return ("#" * round(share * BAR_CELLS)).ljust(BAR_CELLS)
    eighths = min(BAR_CELLS * 8, max(round(share * BAR_CELLS * 8), 1 if share > 0 else 0))
    return ("█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")).ljust(BAR_CELLS)


def _clock(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def amount(value: float, answer: dict[str, Any]) -> str:
    """A total in what it means: cores for CPU samples, seconds for times. Never samples that pose as seconds."""
    seconds = answer.get("seconds") or 0
    if answer["unit"] == "samples" and seconds and answer.get("period_ns"):
        return f"{value * answer['period_ns'] / 1e9 / seconds:.3f}"
    if answer["unit"] == "nanoseconds":
        return f"{value / 1e9:.3f}"
    return f"{value:,.0f}"


def _amount_name(answer: dict[str, Any]) -> str:
    if answer["unit"] == "samples":
        return "cores" if answer.get("seconds") else "samples"
    return "seconds" if answer["unit"] == "nanoseconds" else answer["unit"]


def _samples(answer: dict[str, Any]) -> float:
    return answer.get("samples", answer["total"])


def head_line(answer: dict[str, Any]) -> str:
    """Type, range, evidence and losses of an answer, in one line."""
    parts = [
        answer["type"],
        f"{_clock(answer['from_ms'])} to {_clock(answer['to_ms']).split(' ')[1]} UTC",
        f"{amount(answer['total'], answer)} s"
        if answer["unit"] == "nanoseconds"
        else f"{_samples(answer):,.0f} samples",
    ]
    if answer["unit"] == "samples" and answer.get("cores") and answer.get("seconds"):
        parts.append(f"{amount(answer['total'], answer)} of {answer['cores']:g} cores")
    drops = sum((answer.get("books") or {}).get("drops", {}).values())
    if drops:
        parts.append(f"{drops:,} {'waits' if answer['type'] == 'off_cpu' else 'samples'} lost")
    return "  ".join(parts)


def label_of(frames: dict[str, Sequence[Any]], index: int) -> tuple[str, str]:
    """(name, what to show beside it muted) of a frame."""
    kind, name = frames["kind"][index], frames["name"][index]
    module, file, line = frames["module"][index], frames["file"][index], frames["line"][index]
    if kind in ("root", "process", "thread"):
        return name, " ".join(part for part in (module, file) if part)
    reason = frames["reason"][index]
    if reason:
        return name, reason
    where = f"{file.rsplit('/', 1)[-1]}:{line}" if file and line else file.rsplit("/", 1)[-1]
    return name, where or module


def children_of(parents: Sequence[int]) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(node)
    return children


def flame_lines(answer: dict[str, Any], look: Look, min_share: float = 0.01) -> Iterator[str]:
    """An indented tree, widest first. Branches below `min_share` of the total are counted in a last line."""
    total = answer["total"]
    totals, frames, nodes = answer["nodes"]["total"], answer["frames"], answer["nodes"]
    all_children = children_of(nodes["parent"])
    children = [[child for child in some if totals[child] >= min_share * total] for some in all_children]
    yield head_line(answer)
    yield look.dim(f"  share {_amount_name(answer):>9}")
    hidden = 0
    pending: list[tuple[int, str, str]] = [(0, "", "")]  # node, its connector, prefix of what is below it
    while pending:
        node, lead, below = pending.pop()
        share = totals[node] / total if total else 0.0
        columns = f"{share * 100:5.1f} % {amount(totals[node], answer):>9}  {bar(share, look)}  "
        run = run_of(node, nodes["frame"], frames, children)
        yield columns + _named(*_run_label(run, nodes["frame"], frames), lead, look.width - len(columns), look)
        hidden += sum(len(all_children[one]) - len(children[one]) for one in run)
        pending.extend(_below(children[run[-1]], below, look))
    if hidden or answer.get("merged", {}).get("nodes"):
        yield look.dim(f"{hidden:,} branches below {min_share * 100:g} % are not shown (--min-share 0 shows all)")


def _below(shown: Sequence[int], below: str, look: Look) -> Iterator[tuple[int, str, str]]:
    """Children to show, the first of them last, as a stack wants it; an only child does not indent."""
    if len(shown) == 1:
        yield shown[0], below, below
        return
    fork, last, pipe = ("├ ", "└ ", "│ ") if look.unicode else ("|-", "`-", "| ")
    for child in reversed(shown):
        is_last = child == shown[-1]
        yield child, below + (last if is_last else fork), below + ("  " if is_last else pipe)


def run_of(node: int, frame_of: Sequence[int], frames: dict[str, Any], children: Sequence[Sequence[int]]) -> list[int]:
    """The node and those below it that one line stands for: direct recursion, or frames of a module without names."""
    run, key = [node], _run_key(frames, frame_of[node])
    while key and len(children[run[-1]]) == 1 and _run_key(frames, frame_of[children[run[-1]][0]]) == key:
        run.append(children[run[-1]][0])
    return run


def _run_key(frames: dict[str, Any], index: int) -> tuple[str, ...]:
    if frames["kind"][index] in ("root", "process", "thread"):
        return ()
    reason, module = frames["reason"][index], frames["module"][index]
    return (reason, module) if reason else ("", module, frames["name"][index], frames["file"][index])


def _run_label(run: Sequence[int], frame_of: Sequence[int], frames: dict[str, Any]) -> tuple[str, str]:
    name, suffix = label_of(frames, frame_of[run[0]])
    if len(run) == 1:
        return name, suffix
    if frames["reason"][frame_of[run[0]]]:
        return f"{len(run)} frames of {frames['module'][frame_of[run[0]]] or 'unknown code'}", suffix
    return f"{name} (recursive, {len(run)} deep)", suffix


def _named(name: str, suffix: str, lead: str, width: int, look: Look) -> str:
    room = max(8, width - len(lead))
    shown = cut(name, room, look)
    left = room - len(shown) - 2
    if suffix and (left >= len(suffix) or left >= SUFFIX_ROOM):
        return f"{look.dim(lead)}{shown}  {look.dim(cut(suffix, left, look))}"
    return f"{look.dim(lead)}{shown}"


def top_lines(answer: dict[str, Any], look: Look) -> Iterator[str]:
    total = answer["total"]
    yield look.dim(f"{'self':>7}  {'total':>7}            function")
    for row in answer["rows"]:
        own, whole = (row["self"] / total, row["total"] / total) if total else (0.0, 0.0)
        columns = f"{own * 100:5.1f} %  {whole * 100:5.1f} %  {bar(own, look)}  "
        where = (
            f"{row['file'].rsplit('/', 1)[-1]}:{row['line']}"
            if row.get("file") and row.get("line")
            else row.get("module", "")
        )
        yield columns + _named(row["name"], where, "", look.width - len(columns), look)


def spark(values: Sequence[float | None], cells: int, look: Look) -> str:
    """A line of blocks, scaled to the largest value; a gap stays empty."""
    if not look.unicode or not values:
        return ""
    step = max(1, -(-len(values) // cells))
    groups = [[value for value in values[at : at + step] if value is not None] for at in range(0, len(values), step)]
    means = [sum(group) / len(group) if group else None for group in groups]
    top = max((mean for mean in means if mean is not None), default=0) or 1
    return "".join(" " if mean is None else SPARKS[min(7, int(max(mean, 0) / top * 7.999))] for mean in means)


def series_lines(answer: dict[str, Any], look: Look) -> Iterator[str]:
    rows = [*answer["series"], *([answer["other"]] if answer.get("other") else [])]
    names = [" ".join(f"{name}={value}" for name, value in row["labels"].items()) or answer["name"] for row in rows]
    width = min(max(map(len, names), default=0), max(20, look.width // 3))
    yield look.dim(f"{answer['name']} ({answer['unit']})".ljust(width) + f"  {'mean':>10} {'min':>10} {'max':>10}")
    for name, row in zip(names, rows, strict=True):
        known = [value for value in row["mean"] if value is not None]
        numbers = (
            f"{sum(known) / len(known):10.4g} {min(row_values(row, 'min')):10.4g} {max(row_values(row, 'max')):10.4g}"
            if known
            else f"{'no data':>32}"
        )
        line = spark(row["mean"], max(8, look.width - width - 38), look)
        yield f"{cut(name, width, look):<{width}}  {numbers}  {line}".rstrip()
    if answer.get("left_out"):
        yield look.dim(f"{answer['left_out']} more series are not shown (--limit)")


def row_values(row: dict[str, Any], name: str) -> list[float]:
    """The column without its gaps; `mean` where the answer has no such column."""
    return [value for value in (row.get(name) or row["mean"]) if value is not None]


def labels_lines(answer: dict[str, Any], look: Look) -> Iterator[str]:
    for name, values in sorted(answer["labels"].items()):
        for row in values:
            yield f"{name:<12} {row['samples']:>12,}  {cut(str(row['value']), look.width - 27, look)}"
        missing = answer.get("truncated", {}).get(name, 0)
        if missing:
            yield look.dim(f"{name:<12} {'':>12}  {missing:,} values in all; narrow with --match")
