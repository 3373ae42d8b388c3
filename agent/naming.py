# SPDX-License-Identifier: Apache-2.0
"""Windows of numbers to Profiles with names: what the agent's loop and `record` do with each window, sampling aside."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpustrobe.agent.fold import Folder
    from gpustrobe.agent.model import Frame, Profiles, RawFrame, Window
    from gpustrobe.symbolizer.symbolizer import Symbolizer

PATIENCE = 10.0  # seconds a round waits for names; what has none then ships with that reason and is asked for again
CHUNK = 8192  # frames asked for between two looks at the clock; a call passes over each file's symbols once


class Naming:
    """Not thread-safe: one thread adds windows, in order, and takes rounds."""

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
        self._added: deque[Window] = deque()
        self._epoch: int | None = None

    def close(self) -> None:
        self._symbolizer.close()

    def add(self, window: Window) -> None:
        self._added.append(window)

    def round(self) -> Iterator[Profiles]:
        """Profiles of all windows added so far, one per epoch they are of.

        A new epoch voids every id, so names of the old one are asked for before the symbolizer learns the new ids.
        """
        deadline = self._clock() + self._patience
        while self._added:
            window = self._added.popleft()
            if window.epoch != self._epoch:
                yield from self._flush(deadline)
                self._symbolizer.forget(window.epoch)
                self._epoch = window.epoch
            self._symbolizer.learn(window.files, window.processes, window.codes, window.jits)
            self._folder.add(window)
        yield from self._flush(deadline)

    def _flush(self, deadline: float) -> Iterator[Profiles]:
        while self._folder.waiting:
            yield self._folder.flush(self._names(self._folder.unnamed(), deadline))

    def _names(self, frames: list[RawFrame], deadline: float) -> list[tuple[Frame, ...] | None]:
        names: list[tuple[Frame, ...] | None] = []
        while len(names) < len(frames):
            if self._clock() >= deadline:
                names.extend([None] * (len(frames) - len(names)))
            else:
                names.extend(self._symbolizer.resolve(frames[len(names) : len(names) + CHUNK]))
        return names
