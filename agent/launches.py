# SPDX-License-Identifier: Apache-2.0
"""Stacks of launches: a probe on each copy of the injected library, and which stack belongs to which correlation id."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpustrobe.agent.model import Frame, Profiles
    from numpy.typing import NDArray

PROBE = "gpustrobe_launch_probe"
LIBRARY = "libgpustrobe_cupti"
API = ("libcudart.so", "libcuda.so", "libcudart-")  # its frames are the CUDA API; PyTorch renames it libcudart-HASH.so
OURS = (LIBRARY, "libcupti.so")  # frames between the API and our probe: how we look, not what the program does
BATCHES = 18  # of stacks remembered: at the agent's 5 s, as long as join.RETENTION
NONE = -1


class Probes:
    """One probe for each copy of the library (a container has its own file), in all processes that map it, for ever: the
    library calls it only when an agent asks it to."""

    def __init__(self, attach: Callable[[str, str], None], proc_root: Path = Path("/proc")) -> None:
        self._attach, self._proc_root = attach, proc_root
        self._seen: dict[tuple[int, int], str] = {}  # (device, inode) -> "" or why there is no probe

    def cover(self, pid: int) -> str:
        """Makes sure that the library of this process is probed. "" or why it is not."""
        path = self._library_of(pid)
        if path is None:
            return f"{LIBRARY} is not among its files"
        try:
            status = os.stat(path)  # noqa: PTH116 - through /proc/PID/root, which Path would not change
            file = (status.st_dev, status.st_ino)
            if file not in self._seen:
                self._attach(str(path), PROBE)
                self._seen[file] = ""
        except OSError as error:
            return f"its launches cannot be probed: {error.strerror}"
        return self._seen[file]

    def _library_of(self, pid: int) -> Path | None:
        try:
            for line in (self._proc_root / str(pid) / "maps").read_text("utf-8", "replace").splitlines():
                fields = line.split(None, 5)
                if len(fields) == 6 and Path(fields[5]).name.startswith(LIBRARY):
                    return self._proc_root / str(pid) / "root" / fields[5].lstrip("/")
        except OSError:
            pass
        return None


class LaunchStacks:
    """Stacks and threads of launches, by process and correlation id, for as long as activity may come."""

    def __init__(self) -> None:
        self.stacks: list[tuple[Frame, ...]] = []  # without the frames that are ours
        self.labels: list[Mapping[str, str]] = []  # of the launching threads
        self._stack_places: dict[tuple[Frame, ...], int] = {}
        self._label_places: dict[tuple[tuple[str, str], ...], int] = {}
        self._batches: list[dict[int, tuple[NDArray, NDArray, NDArray]]] = []  # pid -> correlation, stack, labels
        self.threads: dict[int, Counter[str]] = {}  # pid -> launches by host tid

    def add(self, profiles: Profiles) -> None:
        """Takes the windows of type launch."""
        windows = [window for window in profiles.windows if window.sample_type == "launch" and window.stack.size]
        if not windows:
            return
        stacks = np.array([self._stack(stack) for stack in profiles.stacks], np.int64)
        labels = np.array([self._label_set(labels) for labels in profiles.label_sets], np.int64)
        pids = np.array([int(labels.get("pid", 0)) for labels in profiles.label_sets], np.int64)
        stack = np.concatenate([window.stack for window in windows])
        label = np.concatenate([window.labels for window in windows])
        correlation = np.concatenate([window.mark for window in windows]).astype(np.uint32)
        pid = pids[label]
        batch = {}
        for one in np.unique(pid).tolist():
            rows = pid == one
            order = np.argsort(correlation[rows], kind="stable")
            batch[one] = (correlation[rows][order], stacks[stack[rows]][order], labels[label[rows]][order])
            threads = self.threads.setdefault(one, Counter())
            for place, number in zip(*np.unique(label[rows], return_counts=True), strict=True):
                threads[profiles.label_sets[place].get("tid", "")] += int(number)
        self._batches.append(batch)
        self._batches = self._batches[-BATCHES:]

    def match(self, pid: int, correlation: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Places in `stacks` and `labels` of each launch; NONE where its stack is not here."""
        stack = np.full(correlation.size, NONE, np.int64)
        label = np.full(correlation.size, NONE, np.int64)
        for batch in self._batches:
            if pid in batch:
                known, stacks, labels = batch[pid]
                at = np.minimum(np.searchsorted(known, correlation), known.size - 1)
                found = known[at] == correlation
                stack[found], label[found] = stacks[at[found]], labels[at[found]]
        return stack, label

    def labels_of(self, pid: int) -> Mapping[str, str]:
        """What is known of the process itself, of its launching threads' labels."""
        for batch in reversed(self._batches):
            if pid in batch:
                labels = self.labels[int(batch[pid][2][0])]
                return {name: value for name, value in labels.items() if name not in ("tid", "thread")}
        return {}

    def _stack(self, stack: tuple[Frame, ...]) -> int:
        trimmed = program_frames(stack)
        place = self._stack_places.setdefault(trimmed, len(self.stacks))
        if place == len(self.stacks):
            self.stacks.append(trimmed)
        return place

    def _label_set(self, labels: Mapping[str, str]) -> int:
        place = self._label_places.setdefault(tuple(labels.items()), len(self.labels))
        if place == len(self.labels):
            self.labels.append(labels)
        return place


def program_frames(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """A launch's stack as the program made it: without our library and CUPTI at its leaf, the CUDA API named as such."""
    start = max((at + 1 for at, frame in enumerate(stack[:64]) if frame.module.startswith(OURS)), default=0)
    return tuple(
        replace(frame, kind="cuda_api") if frame.kind == "native" and frame.module.startswith(API) else frame
        for frame in stack[start:]
    )
