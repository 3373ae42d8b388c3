# SPDX-License-Identifier: Apache-2.0
"""The form all file formats are written from: whole stacks with their values, of `record`'s Profiles or of a store's
answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gpustrobe.agent.model import Books, Frame

if TYPE_CHECKING:
    from gpustrobe.agent.model import Profiles, ProfileWindow

# Sample type -> (unit of a value, what a person reads)
UNITS = {
    "cpu": ("samples", "CPU"),
    "off_cpu": ("nanoseconds", "Off-CPU"),
    "gpu_time": ("nanoseconds", "GPU time"),
    "gpu_launches": ("launches", "GPU launches"),
    "gpu_idle": ("nanoseconds", "GPU idle"),
    "gpu_copy": ("bytes", "GPU copies"),
}
LEVELS = ("root", "process", "thread")  # kinds of the levels above a stack's frames


class Row(NamedTuple):
    """One distinct stack of one label set. `frames` are places in Stacks.frames, root first."""

    labels: Mapping[str, str]
    frames: tuple[int, ...]
    value: int

    @property
    def process(self) -> str:
        return self.labels.get("comm", "")


@dataclass(frozen=True)
class Stacks:
    sample_type: str
    unit: str  # of values: samples, nanoseconds, launches, bytes
    period: int  # ns that one sample stands for; 0 where values are no samples
    start_unix: int
    duration: int
    frames: tuple[Frame, ...]
    rows: tuple[Row, ...]
    books: Books | None = None
    left_out: int = 0  # stacks that the answer had no room for
    node: str = ""
    total: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(row.value for row in self.rows))

    @property
    def loss(self) -> str:
        """A sentence about what is missing; "" if nothing is."""
        sentences = []
        if self.books and any(self.books.drops.values()):
            busy = self.books.produced - self.books.idle - self.books.filtered
            names = ", ".join(f"{name} {count}" for name, count in self.books.drops.items() if count)
            sentences.append(f"lost {sum(self.books.drops.values())} of {busy} samples: {names}")
        if self.left_out:
            sentences.append(f"{self.left_out} more stacks were left out")
        return "; ".join(sentences)


def from_profiles(profiles: Profiles, sample_type: str = "cpu", node: str = "") -> Stacks:
    """All windows of one sample type, summed."""
    windows = [window for window in profiles.windows if window.sample_type == sample_type]
    values: dict[tuple[int, int], int] = {}
    for window in windows:
        for key_value in zip(window.labels.tolist(), window.stack.tolist(), window.value.tolist(), strict=True):
            key = key_value[:2]
            if key_value[2]:
                values[key] = values.get(key, 0) + key_value[2]
    places: dict[Frame, int] = {}
    known: dict[int, int] = {}  # id(frame) -> place: hashing a frame takes 1 us, and stacks share their frames
    paths: dict[int, tuple[int, ...]] = {}
    for _, stack in values:
        if stack not in paths:
            frames = profiles.stacks[stack][::-1]
            for frame in frames:
                if id(frame) not in known:
                    known[id(frame)] = places.setdefault(frame, len(places))
            paths[stack] = tuple([known[id(frame)] for frame in frames])
    start = min((window.start_unix for window in windows), default=0)
    return Stacks(
        sample_type=sample_type,
        unit=UNITS[sample_type][0],
        period=windows[0].period if windows and sample_type == "cpu" else 0,
        start_unix=start,
        duration=max((window.start_unix + window.duration for window in windows), default=0) - start,
        frames=tuple(places),
        rows=tuple(Row(profiles.label_sets[label], paths[stack], value) for (label, stack), value in values.items()),
        books=_books(windows),
        node=node,
    )


def _books(windows: Sequence[ProfileWindow]) -> Books | None:
    books = [window.books for window in windows if window.books]
    if not books:
        return None
    drops: dict[str, int] = {}
    for book in books:
        for name, count in book.drops.items():
            drops[name] = drops.get(name, 0) + count
    names = ("produced", "idle", "filtered", "delivered")
    return Books(*(sum(getattr(book, name) for book in books) for name in names), drops)


def from_answer(answer: Mapping[str, Any], sample_type: str = "") -> Stacks:
    """From /api/v1/stacks (docs/api.md).

    Levels above the frames are known from the row's labels, and left away here.
    """
    kind = sample_type or answer.get("type", "cpu")
    columns = answer["frames"]
    fields = [columns[name] for name in ("name", "kind", "module", "file", "line", "reason")]
    frames = tuple(Frame(n, k, m, f, int(line), reason=r) for n, k, m, f, line, r in zip(*fields, strict=True))
    rows = []
    for row in answer["rows"]:
        labels = {"comm": row["process"], **row.get("labels", {})}
        path = tuple(place for place in row["frames"] if frames[place].kind not in LEVELS)
        rows.append(Row(labels, path, int(row["value"])))
    start, end = (int(answer.get(name, 0) * 1_000_000) for name in ("from_ms", "to_ms"))
    return Stacks(
        sample_type=kind,
        unit=answer.get("unit") or UNITS.get(kind, ("", ""))[0],
        period=int(answer.get("period_ns", 0)) if kind == "cpu" else 0,
        start_unix=start,
        duration=end - start,
        frames=frames,
        rows=tuple(rows),
        left_out=int(answer.get("left_out", 0)),
    )
