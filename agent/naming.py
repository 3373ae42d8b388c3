# SPDX-License-Identifier: Apache-2.0
"""Windows of numbers to Profiles with names: what the agent's loop and `record` do with each window, sampling aside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpustrobe.agent.fold import Folder
    from gpustrobe.agent.model import Frame, Profiles, RawFrame, Window
    from gpustrobe.symbolizer.symbolizer import Symbolizer

PATIENCE = 10.0  # seconds a round waits for names; what has none then ships with that reason and is asked for again
CHUNK = 512  # frames asked for between two looks at the clock


class Naming:
    """Not thread-safe: one thread adds and takes rounds."""

    def __init__(
        self,
        symbolizer: Symbolizer,
        folder: Folder,
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
    ) -> None:
        self._symbolizer = symbolizer
        self._folder = folder
        self._clock = clock
        self._patience = patience
        self._epoch: int | None = None

    @property
    def waiting(self) -> int:
        """Windows added and not yet in a round."""
        return self._folder.waiting

    def add(self, window: Window) -> None:
        self._symbolizer.learn(window.files, window.processes)
        self._folder.add(window)

    def round(self) -> Iterator[Profiles]:
        """Profiles of all windows added so far; one per epoch they are of."""
        deadline = self._clock() + self._patience
        while self._folder.waiting:
            self._turn(self._folder.epoch)
            yield self._folder.flush(self._names(self._folder.unnamed(), deadline))

    def _turn(self, epoch: int | None) -> None:
        """A new epoch has begun: the ids of the one before mean nothing any more."""
        if self._epoch is not None and epoch != self._epoch:
            self._symbolizer.forget(self._epoch)
        self._epoch = epoch

    def _names(self, frames: list[RawFrame], deadline: float) -> list[tuple[Frame, ...] | None]:
        names: list[tuple[Frame, ...] | None] = []
        while len(names) < len(frames):
            if self._clock() >= deadline:
                names.extend([None] * (len(frames) - len(names)))
            else:
                names.extend(self._symbolizer.resolve(frames[len(names) : len(names) + CHUNK]))
        return names
