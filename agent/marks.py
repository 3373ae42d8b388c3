# SPDX-License-Identifier: Apache-2.0
"""Starts and exits of processes that took a noticeable share of the CPU.

A start is known from start_boottime, so it may lie before the first sample; it is told once the process has used
`NOTICEABLE` of CPU time. An exit is looked for when such a process has not been sampled for `QUIET`: one look at /proc.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.agent.model import Mark

if TYPE_CHECKING:
    from gpustrobe.agent.model import Process, Window

SECOND = 1_000_000_000
NOTICEABLE = SECOND // 2  # 50 samples at 100 Hz: a compiler run of 0.2 s is no event
QUIET = 3 * SECOND
MOST = 4096  # lives remembered; past that the longest unseen go


@dataclass(slots=True)
class _Life:
    process: Process
    used: int = 0  # ns of CPU
    last: int = 0  # end of the last window with a sample, unix ns
    looked: int = 0
    told: bool = False


class ProcessMarks:
    """Takes windows in order. `boot_unix`: CLOCK_REALTIME - CLOCK_BOOTTIME, ns; `is_alive` answers for (pid, start)."""

    def __init__(self, boot_unix: int, is_alive: Callable[[int, int], bool], since_unix: int = 0) -> None:
        self._boot = boot_unix
        self._is_alive = is_alive
        self._since = since_unix  # starts before it are older than the agent and no event
        self._epoch = -1
        self._lives: dict[tuple[int, int], _Life] = {}
        self._by_id: dict[int, _Life] = {}
        self._process_of: dict[int, int] = {}  # thread id -> process id
        self.forgotten = 0

    def take(self, window: Window) -> list[Mark]:
        """Marks that became known with this window."""
        self._learn(window)
        end = window.start_unix + window.duration
        started = self._add(window, end)
        marks = [self._start(life) for life in started if self._started(life) >= self._since]
        return marks + self._exits(end)

    def _learn(self, window: Window) -> None:
        if window.epoch != self._epoch:
            self._epoch = window.epoch
            self._by_id.clear()
            self._process_of.clear()
        for process in window.processes:
            life = self._lives.setdefault((process.pid, process.start_boottime), _Life(process))
            life.process = process
            self._by_id[process.process_id] = life
        for thread in window.threads:
            self._process_of[thread.thread_id] = thread.process_id

    def _add(self, window: Window, end: int) -> list[_Life]:
        """Adds CPU time per process; returns those that have just become noticeable."""
        threads, place = np.unique(window.thread, return_inverse=True)
        values = np.bincount(place, window.value, threads.size) if threads.size else ()
        unit = window.period if window.sample_type == "cpu" else 0
        noticed = []
        for thread, value in zip(threads.tolist(), values, strict=True):
            life = self._by_id.get(self._process_of.get(thread, -1))
            if life is None:
                continue
            self._lives[life.process.pid, life.process.start_boottime] = life  # it may have been quiet and forgotten
            life.used += int(value) * unit
            life.last = end
            if life.used >= NOTICEABLE and not life.told:
                life.told = True
                noticed.append(life)
        return noticed

    def _exits(self, end: int) -> list[Mark]:
        marks = []
        for key, life in list(self._lives.items()):
            if end - max(life.last, life.looked) < QUIET:
                continue
            life.looked = end
            if not life.told:
                del self._lives[key]
            elif not self._is_alive(*key):
                del self._lives[key]
                marks.append(self._mark("process_exit", life, life.last))
        self._bound()
        return marks

    def _bound(self) -> None:
        over = len(self._lives) - MOST
        if over > 0:
            for key in sorted(self._lives, key=lambda key: self._lives[key].last)[:over]:
                del self._lives[key]
            self.forgotten += over

    def _started(self, life: _Life) -> int:
        return self._boot + life.process.start_boottime

    def _start(self, life: _Life) -> Mark:
        return self._mark("process_start", life, self._started(life))

    def _mark(self, kind: str, life: _Life, time_unix: int) -> Mark:
        process, verb = life.process, "started" if kind == "process_start" else "ended"
        labels = {"comm": process.comm, "pid": str(process.pid), **process.labels}
        return Mark(kind, time_unix, f"{labels.get('script') or process.comm} {verb}", labels, life.used / SECOND)


def alive_below(proc_root: Path, tick_ns: int = 10_000_000) -> Callable[[int, int], bool]:
    """Whether a process of that PID and start time (CLOCK_BOOTTIME, ns) is still there."""

    def is_alive(pid: int, start_boottime: int) -> bool:
        try:
            stat = (proc_root / str(pid) / "stat").read_bytes()
        except OSError:
            return False
        fields = stat[stat.rfind(b")") + 1 :].split()
        return len(fields) > 19 and fields[0] != b"Z" and int(fields[19]) == start_boottime // tick_ns

    return is_alive
