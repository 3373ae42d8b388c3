# SPDX-License-Identifier: Apache-2.0
"""What the agent itself costs: CPU of its processes, BPF time, memory.

CPU comes from the kernel's per-process CPU clocks (nanoseconds), because /proc/PID/stat counts in steps of 10 ms, about
what the agent uses in two seconds. Children that ended are in RUSAGE_CHILDREN once they have been waited for.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

PAGE_SIZE = resource.getpagesize()


@dataclass(frozen=True, slots=True)
class BpfCost:
    """Since the programs were loaded. Map bytes are memory charged for maps, not what is in use in them."""

    seconds: float = 0.0
    runs: int = 0
    map_bytes: int = 0
    mapped_bytes: int = 0  # of these, mapped into the agent, so that they are in its resident set too


@dataclass(frozen=True, slots=True)
class Cost:
    """Totals since the agent started, and `*_cores` over the interval since the sample before.

    `resident` sums resident sets: a page shared by two of our processes counts twice, so it is an upper bound.
    """

    time_unix: int
    cpu_seconds: float
    bpf: BpfCost
    cpu_cores: float
    bpf_cores: float
    resident: int
    processes: int

    @property
    def memory(self) -> int:
        """Bytes of processes and BPF maps; what of the maps is mapped counts once."""
        return self.resident + self.bpf.map_bytes - self.bpf.mapped_bytes


def cpu_clock(pid: int) -> int:
    """clockid of all threads of a process, as clock_getcpuclockid(3) makes it: ~pid << 3 | CPUCLOCK_SCHED."""
    return (~pid << 3) | 2


def process_cpu(pid: int) -> float | None:
    """CPU seconds of a living process; None if there is none."""
    try:
        return time.clock_gettime_ns(cpu_clock(pid)) / 1e9
    except OSError:
        return None


def reaped_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def resident(pid: int, proc: str = "/proc") -> int:
    """Resident bytes; 0 for a process that is gone."""
    try:
        return int(Path(proc, str(pid), "statm").read_bytes().split()[1]) * PAGE_SIZE
    except (OSError, IndexError, ValueError):
        return 0


def proportional(pid: int, proc: str = "/proc") -> int | None:
    """Proportional set size: shared pages divided among their sharers. The kernel walks the page tables for it."""
    try:
        lines = Path(proc, str(pid), "smaps_rollup").read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), None)


class OwnCost:
    """Cost of this process and of the `children` it names: helpers that are part of the agent, not the store of `up`.

    `exempt` gives the CPU seconds of children that are no part of the agent and have been waited for, which
    RUSAGE_CHILDREN cannot tell apart.
    """

    def __init__(
        self,
        children: Callable[[], Iterable[int]] = tuple,
        bpf: Callable[[], BpfCost] = BpfCost,
        *,
        proc: str = "/proc",
        exempt: Callable[[], float] = float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._children, self._bpf, self._proc, self._exempt, self._clock = children, bpf, proc, exempt, clock
        self._before = (clock(), self._cpu(), bpf().seconds)

    def _cpu(self) -> float:
        living = sum(process_cpu(pid) or 0.0 for pid in self._children())
        return time.process_time() + living + reaped_cpu() - self._exempt()

    def take(self) -> Cost:
        """Call it once an interval; between two calls of no distance the cores are those of nothing, 0."""
        now, bpf = self._clock(), self._bpf()
        at, cpu_before, bpf_before = self._before
        # A child between its end and being waited for is counted nowhere: totals never fall.
        cpu = max(cpu_before, self._cpu())
        self._before = (now, cpu, bpf.seconds)
        pids = [os.getpid(), *self._children()]
        seconds = now - at
        return Cost(
            time.time_ns(),
            cpu,
            bpf,
            *(value / seconds if seconds > 0 else 0.0 for value in (cpu - cpu_before, bpf.seconds - bpf_before)),
            sum(resident(pid, self._proc) for pid in pids),
            len(pids),
        )

    def proportional(self) -> int | None:
        """Memory of all our processes with shared pages divided; None where the kernel does not tell."""
        sizes = [proportional(pid, self._proc) for pid in (os.getpid(), *self._children())]
        return sum(filter(None, sizes)) if any(sizes) else None
