# SPDX-License-Identifier: Apache-2.0
"""CUDA processes with the injected library: found, attached, steered and drained ten times a second on a thread."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpustrobe.agent import governor, kernels
from gpustrobe.agent.governor import Limits, Setting
from gpustrobe.agent.join import Batch, ProcessRecords
from gpustrobe.agent.kernels import Library, Refused, Ring, Wish
from gpustrobe.cupti import ring

LOG = logging.getLogger("gpustrobe.gpu")
DRAIN, STEER = 0.1, 1.0  # seconds
# A process loads the library when it initializes CUDA, which may be minutes after its start: new ones are looked at each
# second for a while, all others now and then. A look at a process with 20 descriptors takes 20 us.
LOOK, YOUNG, LOOK_AT_ALL = 1.0, 30.0, 30.0
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class GpuOptions:
    mode: int = ring.Mode.AUTO
    limits: Limits = field(default_factory=Limits)
    counting: bool = False


@dataclass
class Recorded:
    """One process that is being recorded."""

    pid: int
    start_time: str  # of the process, in clock ticks, as /proc writes it: tells it from a later one with its PID
    ring: Ring
    setting: Setting
    records: ProcessRecords = field(default_factory=ProcessRecords)
    lock: threading.Lock = field(default_factory=threading.Lock)
    gone: bool = False
    empty: bool = False  # gone, and its ring holds nothing more
    failed: str = ""
    steered: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    cost: float = 0.0
    policy: int = 0  # enum gs_mode that AUTO means there; 0 = CUPTI is not known yet
    no_stacks: str = ""  # why its launches have no stacks

    def library(self) -> Library:
        return self.ring.library()


class GpuProcesses:
    """`processes` may be read by any thread."""

    def __init__(
        self,
        options: GpuOptions,
        cover: Callable[[int], str] = lambda pid: "",
        proc_root: Path = Path("/proc"),
        clock: Callable[[], int] = time.monotonic_ns,
        watched: Callable[[int], bool] = lambda pid: True,
        possible: Callable[[], bool] = lambda: True,
    ) -> None:
        """`possible`: whether CUDA can run here at all; where it cannot, no process is looked at."""
        self._possible = possible
        self.options, self._cover, self._proc_root, self._clock, self._watched = (
            options, cover, proc_root, clock, watched,
        )  # fmt: skip
        self.processes: dict[int, Recorded] = {}
        self.refused: dict[int, str] = {}  # PIDs that have a ring we do not read, and why
        self.lost: Counter[str] = Counter()
        self.faults = 0
        self._seen: dict[int, tuple[float, float]] = {}  # PID -> first seen, last looked at; seconds
        self._looked = self._looked_at_all = -1e9
        self._detail_until = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="gpu", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Gives all rings up after a last drain; what they hold then is for the next agent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self.step()

    def close(self) -> None:
        for process in list(self.processes.values()):
            process.ring.wish(Wish(mode=ring.Mode.OFF))
            process.ring.close()
        self.processes.clear()

    def detail(self, seconds: float) -> int:
        """Records without gaps for so long; mono ns when it ends."""
        self._detail_until = self._clock() + int(seconds * SECOND)
        for process in list(self.processes.values()):
            self._wish(process)
        return self._detail_until

    def _loop(self) -> None:
        while not self._stop.wait(DRAIN if self.processes else LOOK):
            try:
                self.step()
            except Exception:
                self.faults += 1
                if self.faults in (1, 10, 100):
                    LOG.exception("draining failed (%d times)", self.faults)

    def step(self) -> None:
        now = self._clock()
        if now / SECOND - self._looked >= LOOK and self._possible():
            self._looked = now / SECOND
            self._look(now / SECOND)
        for process in list(self.processes.values()):
            self._drain(process, now)

    # finding

    def _look(self, now: float) -> None:
        pids = {int(name) for name in os.listdir(self._proc_root) if name.isdigit()}  # noqa: PTH208
        everything = now - self._looked_at_all >= LOOK_AT_ALL
        if everything:
            self._looked_at_all = now
        self._seen = {pid: seen for pid, seen in self._seen.items() if pid in pids}
        self.refused = {pid: why for pid, why in self.refused.items() if pid in pids}
        for pid in pids - self.processes.keys():
            since, _ = self._seen.setdefault(pid, (now, 0.0))
            if (everything or now - since < YOUNG) and pid != os.getpid():
                self._attach(pid)

    def _attach(self, pid: int) -> None:
        for path in kernels.find(pid, self._proc_root):
            if not self._watched(pid):
                continue
            try:
                opened = kernels.open_ring(pid, path, self._proc_root)
            except Refused as error:
                if self.refused.get(pid) != str(error):
                    LOG.info("the GPU records of process %d are not read: %s", pid, error)
                self.refused[pid] = str(error)
                continue
            self.refused.pop(pid, None)
            process = Recorded(pid, self._start_time(pid), opened, governor.first(self.options.limits))
            process.no_stacks = self._cover(pid)
            opened.beat(self._clock())
            self._wish(process)
            self.processes[pid] = process
            LOG.info("recording GPU time of process %d%s", pid, f"; {process.no_stacks}" if process.no_stacks else "")
            return

    def _start_time(self, pid: int) -> str:
        try:
            text = (self._proc_root / str(pid) / "stat").read_text("utf-8", "replace")
        except OSError:
            return ""
        fields = text[text.rfind(")") + 2 :].split()
        return fields[19] if len(fields) > 19 else ""

    # steering and draining

    def _wish(self, process: Recorded) -> None:
        options, setting = self.options, process.setting
        in_windows = ring.Mode.WINDOWS in (options.mode, process.policy) and options.mode <= ring.Mode.WINDOWS
        process.ring.wish(
            Wish(
                mode=options.mode,
                window_ns=setting.window_ns if in_windows else 0,
                period_ns=setting.period_ns if in_windows else 0,
                probability=setting.probability,
                counting=int(options.counting),
                seed=process.pid * 2654435761 % (1 << 63) + 1,
                detail_until=self._detail_until if self._detail_until > self._clock() else 0,
            )
        )

    def _drain(self, process: Recorded, now: int) -> None:
        if process.failed or process.empty:
            return
        gone = process.gone
        try:
            process.ring.beat(now)
            records = process.ring.drain(now, gone)
        except Refused as error:
            process.failed = str(error)
            self.lost["ring_damaged"] += 1
            LOG.warning("the ring of process %d is given up: %s", process.pid, error)
            return
        with process.lock:
            process.records.add(records)
        process.empty = gone and process.ring.waiting == 0
        if now - process.steered >= STEER * SECOND:
            process.gone = self._start_time(process.pid) != process.start_time
            if not process.gone:
                self._steer(process, now)
            process.steered = now

    def _steer(self, process: Recorded, now: int) -> None:
        said = process.ring.library()
        counters = said.counters
        if said.policy != process.policy:
            process.policy = said.policy
            self._wish(process)
        if process.counters:
            elapsed = now - process.steered
            process.cost = governor.cost(counters, process.counters, elapsed)
            launches = (counters.get("launches", 0) - process.counters.get("launches", 0)) * SECOND / max(1, elapsed)
            wanted = governor.steer(process.setting, self.options.limits, process.cost, max(0.0, launches))
            change = abs(wanted.window_ns - process.setting.window_ns) > process.setting.window_ns // 20
            chance = abs(wanted.probability - process.setting.probability) > process.setting.probability // 5
            if change or chance:
                process.setting = wanted
                self._wish(process)
        process.counters = counters

    def take(self, process: Recorded, now: int) -> tuple[Batch, bool]:
        """The joined records of one process, and whether they were the last: then `let_go` of it, when its names are known."""
        with process.lock:
            last = process.empty or bool(process.failed)
            return process.records.take(now, last), last

    def let_go(self, process: Recorded) -> None:
        self.lost += process.records.lost
        self.processes.pop(process.pid, None)
        process.ring.close()

    def setting_of_all(self) -> Setting | None:
        """That of the process which is recorded least; None without any."""
        settings = [process.setting for process in list(self.processes.values())]
        return min(settings, key=lambda setting: setting.duty, default=None)
