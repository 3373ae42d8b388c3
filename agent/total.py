# SPDX-License-Identifier: Apache-2.0
"""Many seconds summed into one profile: what `record` writes. Memory follows distinct stacks, not time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.agent.model import Books, Profiles, ProfileWindow

if TYPE_CHECKING:
    from gpustrobe.agent.model import Frame


class Total:
    """Sums windows of one sample type by (label set, stack); passes over the others."""

    def __init__(self, sample_type: str = "cpu") -> None:
        self.sample_type = sample_type
        self._stacks: dict[tuple[Frame, ...], int] = {}
        self._labels: dict[tuple[tuple[str, str], ...], int] = {}
        self._places: dict[int, tuple[object, int]] = {}  # id of a stack seen -> (the stack, kept alive; its number)
        self._values: dict[tuple[int, int], int] = {}
        self._books: dict[str, int] = {}
        self._drops: dict[str, int] = {}
        self._span: tuple[int, int] | None = None
        self._period = 0

    def add(self, profiles: Profiles) -> None:
        windows = [window for window in profiles.windows if window.sample_type == self.sample_type]
        if not windows:
            return
        stacks = [self._stack(stack) for stack in profiles.stacks]
        labels = [self._label_set(labels) for labels in profiles.label_sets]
        for window in windows:
            self._add_window(window, stacks, labels)

    def _add_window(self, window: ProfileWindow, stacks: list[int], labels: list[int]) -> None:
        rows = zip(window.labels.tolist(), window.stack.tolist(), window.value.tolist(), strict=True)
        for label, stack, value in rows:
            key = (labels[label], stacks[stack])
            self._values[key] = self._values.get(key, 0) + value
        start, end = window.start_unix, window.start_unix + window.duration
        self._span = (start, end) if self._span is None else (min(start, self._span[0]), max(end, self._span[1]))
        self._period = window.period
        if window.books:
            for name in ("produced", "idle", "filtered", "delivered"):
                self._books[name] = self._books.get(name, 0) + getattr(window.books, name)
            for name, count in window.books.drops.items():
                self._drops[name] = self._drops.get(name, 0) + count

    def _stack(self, stack: tuple[Frame, ...]) -> int:
        """Hashing 40 frames takes 7 us; the folder gives the same object for the same stack, so once is enough."""
        known = self._places.get(id(stack))
        if known is None:
            known = self._places[id(stack)] = (stack, self._stacks.setdefault(stack, len(self._stacks)))
        return known[1]

    def _label_set(self, labels: Mapping[str, str]) -> int:
        return self._labels.setdefault(tuple(sorted(labels.items())), len(self._labels))

    def _innermost(self, stack: tuple[Frame, ...]) -> str:
        if not stack:
            return "(no stack)"
        if self.sample_type == "cpu":
            return stack[0].name
        return next((frame.name for frame in stack if frame.kind != "kernel"), stack[-1].name)

    @property
    def books(self) -> Books:
        get = self._books.get
        return Books(get("produced", 0), get("idle", 0), get("filtered", 0), get("delivered", 0), dict(self._drops))

    @property
    def samples(self) -> int:
        return sum(self._values.values())

    @property
    def lost(self) -> int:
        return sum(self._drops.values())

    @property
    def seconds(self) -> float:
        return (self._span[1] - self._span[0]) / 1e9 if self._span else 0.0

    @property
    def period(self) -> int:
        return self._period

    def profiles(self) -> Profiles:
        """One window over the whole time; rows in the order in which they were first seen."""
        if self._span is None:
            return Profiles((), (), ())
        pairs = np.array(list(self._values), np.uint32).reshape(-1, 2)
        window = ProfileWindow(
            self.sample_type,
            self._span[0],
            self._span[1] - self._span[0],
            self._period,
            pairs[:, 0],
            pairs[:, 1],
            np.fromiter(self._values.values(), np.uint64, len(self._values)),
            self.books,
        )
        return Profiles((window,), tuple(self._stacks), tuple(dict(labels) for labels in self._labels))

    def top(self, count: int) -> list[tuple[str, int]]:
        """(function, value where it was the innermost frame), most first; of waits, the innermost user frame."""
        stacks = list(self._stacks)
        own: dict[str, int] = {}
        for (_, stack), value in self._values.items():
            name = self._innermost(stacks[stack])
            own[name] = own.get(name, 0) + value
        return sorted(own.items(), key=lambda item: -item[1])[:count]
