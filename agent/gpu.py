# SPDX-License-Identifier: Apache-2.0
"""GPU time of this node, put together: processes' records, stacks of launches, names, device time, the idle profile."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gpustrobe.agent import device_time
from gpustrobe.agent.governor import Limits
from gpustrobe.agent.gpu_names import RULES, Rule, read_rules
from gpustrobe.agent.gpu_processes import GpuOptions, GpuProcesses, Recorded
from gpustrobe.agent.gpu_profiles import GpuProfiles, Origin
from gpustrobe.agent.idle import Gap, Moments, idle_profile, moments_of
from gpustrobe.agent.join import GRACE, SECOND, Joined, Window
from gpustrobe.agent.launches import LaunchStacks, Probes
from gpustrobe.agent.model import Profiles, Reading
from gpustrobe.cupti import ring

if TYPE_CHECKING:
    from gpustrobe.agent.config import Settings
    from gpustrobe.agent.sampler import Sampler
    from numpy.typing import NDArray

SETTLED = GRACE + 2 * SECOND  # a second's readings are sent this long after it: its windows have closed and are joined
MOMENTS = 4  # batches kept: a gap is known a few seconds after its moments
INTERNAL = ("launch", "moment")


def uuid_text(raw: bytes) -> str:
    """A device's UUID as NVML and nvidia-smi write it."""
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


def options_of(settings: Settings, recording: bool = False) -> GpuOptions:
    """`recording`: someone waits for this one file, and `auto` means everything."""
    mode = {"on-demand": ring.Mode.ON_DEMAND}.get(settings.gpu_mode) or ring.Mode[settings.gpu_mode.upper()]
    if recording and mode == ring.Mode.AUTO:
        mode = ring.Mode.ALWAYS
    limits = Limits(settings.gpu_budget, settings.gpu_duty, round(settings.gpu_period * SECOND))
    return GpuOptions(int(mode), limits, settings.gpu_counting)


def rules_of(settings: Settings) -> tuple[Rule, ...]:
    return (*(read_rules(settings.gpu_rules) if settings.gpu_rules else ()), *RULES)


@dataclass
class _Second:
    """One GPU's second."""

    known: NDArray[np.int64]  # ns of compute, collective, copy, idle
    shares: list[float]
    counted: bool = True


class GpuTime:
    """`learn` and `round` belong to one thread, once a batch; `take` gives the readings that came with it."""

    def __init__(
        self,
        options: GpuOptions,
        sampler: Sampler | None,
        demangle: Callable[[Iterable[str]], Mapping[str, str]],
        indexes: Callable[[], Mapping[str, str]] = dict,
        rules: Sequence[Rule] = RULES,
        proc_root: Path = Path("/proc"),
        clock: Callable[[], int] = time.monotonic_ns,
        watched: Callable[[int], bool] = lambda pid: True,
        possible: Callable[[], bool] = lambda: True,
    ) -> None:
        self._sampler, self._indexes, self._clock, self._proc_root = sampler, indexes, clock, proc_root
        self._probes = Probes(sampler.probe_launches, proc_root) if sampler else None
        self.processes = GpuProcesses(options, self._cover, proc_root, clock, watched, possible)
        self.stacks = LaunchStacks()
        self._profiles = GpuProfiles(self.stacks, demangle, rules)
        self._moments: deque[Moments] = deque(maxlen=MOMENTS)
        self._seconds: dict[tuple[str, int], _Second] = {}
        self._gaps: list[Gap] = []
        self._tids: dict[tuple[int, int], int] = {}  # (pid, tid in its namespace) -> host tid
        self._owners: dict[int, Mapping[str, str]] = {}  # host tid -> labels of its process
        self._readings: list[Reading] = []
        self._sent = 0  # the last second whose readings were made
        self._learned = 0  # unix ns: stacks and moments are known up to here
        self._watched_tids: list[int] = []
        self.now_unix = time.time_ns

    def start(self) -> None:
        self.processes.start()

    def _cover(self, pid: int) -> str:
        """A process was found. Until its launching threads are known, its main thread is looked at."""
        if self._sampler is None or self._probes is None:
            return "launch stacks need the sampler"
        self._sampler.watch_moments(sorted({pid, *self.processes.processes, *self._watched_tids}))
        return self._probes.cover(pid)

    def learn(self, profiles: Profiles) -> None:
        """Stacks and moments of named windows."""
        self.stacks.add(profiles)
        ends = [w.start_unix + w.duration for w in profiles.windows if w.sample_type == "moment"]
        self._learned = max(self._learned, *ends) if ends else self._learned
        if any(window.sample_type == "moment" and window.stack.size for window in profiles.windows):
            self._moments.append(moments_of(profiles))

    @staticmethod
    def public(profiles: Profiles) -> Profiles:
        """Without the windows that are for us."""
        kept = tuple(window for window in profiles.windows if window.sample_type not in INTERNAL)
        return profiles if len(kept) == len(profiles.windows) else replace(profiles, windows=kept)

    def round(self, last_round: bool = False) -> list[Profiles]:
        """Profiles of what has been joined since the last round."""
        indexes, now = self._indexes(), self._clock()
        if self._sampler is not None and not last_round:  # no further than stacks and moments are named
            now = min(now, self._learned - self.now_unix() + now + GRACE)
        for process in list(self.processes.processes.values()):
            uuids = {ordinal: uuid_text(raw) for ordinal, raw in process.records.devices.items()}
            live = set(process.records.streams)
            batch, last = self.processes.take(process, now)
            uuids |= {ordinal: uuid_text(raw) for ordinal, raw in process.records.devices.items()}
            live |= set(process.records.streams)
            labels = self._labels_of(process.pid)
            origin = Origin(process.pid, labels, uuids, indexes, process.ring.shape)
            self._profiles.add(origin, batch.joined)
            self._device_time(process, origin, batch.joined, batch.windows, batch.syncs, live)
            self._shares(uuids, batch.joined, batch.seconds)
            self._own_cost(process)
            if last:
                self.processes.let_go(process)
        self._watch()
        found = [self._profiles.flush()]
        gaps, self._gaps = self._gaps, []
        if gaps:
            found.append(idle_profile(gaps, list(self._moments), indexes, self._owners))
        self._send_seconds(indexes, 1 << 63 if last_round else now - self._clock() + self.now_unix())
        return [profiles for profiles in found if profiles.windows]

    def detail(self, seconds: float) -> dict[str, Any]:
        """Records everything for so long; says of each process what that is likely to cost."""
        self.processes.detail(seconds)
        found = list(self.processes.processes.values())
        costs = [f"process {process.pid}: {_expected_cost(process)}" for process in found]
        return {"processes": len(found), "seconds": seconds, "costs": costs}

    def take(self) -> list[Reading]:
        readings, self._readings = self._readings, []
        return readings

    def stop(self) -> list[Profiles]:
        """The tail."""
        self.processes.stop()
        found = self.round(last_round=True)
        self.processes.close()
        return found

    # one process's batch

    def _labels_of(self, pid: int) -> Mapping[str, str]:
        known = self.stacks.labels_of(pid)
        if known:
            return known
        try:
            comm = (self._proc_root / str(pid) / "comm").read_text("utf-8", "replace").rstrip("\n")
        except OSError:
            comm = ""
        return {"comm": comm, "pid": str(pid)}

    def _device_time(
        self,
        process: Recorded,
        origin: Origin,
        joined: Joined,
        windows: list[Window],
        syncs: NDArray,
        live: set[tuple[int, int]],
    ) -> None:
        names, name = self._profiles.names_of(origin, joined)
        classes = np.array([device_time.CLASSES.index(known.category) for known in names] or [0], np.int64)
        category = classes[name] if len(joined) else np.zeros(0, np.int64)
        place = np.flatnonzero(joined.first)
        launch = np.where(joined.launch >= 0, joined.launch, joined.start)[place]
        for window in windows:
            rows = place[(launch >= window.begin) & (launch < window.end)]
            for span in device_time.spans(window, joined, rows, category, syncs, live):
                gpu = origin.uuids.get(span.device, "")
                self._add_span(process, origin, gpu, window, span, joined)

    def _add_span(
        self, process: Recorded, origin: Origin, gpu: str, window: Window, span: device_time.Span, joined: Joined
    ) -> None:
        for second, known in device_time.per_second(span, window.unix_minus_mono).items():
            self._second(gpu, second).known += known
        for at in np.flatnonzero(span.kind < 0).tolist():
            after = int(span.after[at])
            tid = self._host_tid(process.pid, int(joined.tid[after])) if after >= 0 else 0
            self._owners.setdefault(tid, origin.labels)
            self._gaps.append(Gap(gpu, int(span.begin[at]), int(span.end[at]), tid, window.unix_minus_mono))

    def _shares(self, uuids: Mapping[int, str], joined: Joined, seconds: Mapping[int, tuple[float, bool]]) -> None:
        if not len(joined):
            return
        pairs = np.unique(np.column_stack((joined.device, joined.second)), axis=0).tolist()
        for device, second in pairs:
            share, counted = seconds.get(second, (1.0, False))
            entry = self._second(uuids.get(device, ""), second // SECOND * SECOND)
            entry.shares.append(share)
            entry.counted &= counted

    def _second(self, gpu: str, second: int) -> _Second:
        return self._seconds.setdefault((gpu, second), _Second(np.zeros(len(device_time.CLASSES) + 1, np.int64), []))

    def _host_tid(self, pid: int, tid: int) -> int:
        """The thread's number as the sampler sees it, where the process lives in a PID namespace of its own."""
        if tid and (pid, tid) not in self._tids:
            self._tids.update(threads_of(pid, self._proc_root))
            self._tids.setdefault((pid, tid), tid)
        return self._tids.get((pid, tid), 0)

    def _watch(self) -> None:
        """Moments are wanted of all threads that launch."""
        tids = {tid for tid in self._owners if tid}
        for process in list(self.processes.processes.values()):
            seen = process.records.launching_threads()
            tids |= {self._host_tid(process.pid, tid) for tid in seen}
        if self._sampler:
            self._watched_tids = sorted(tids - {0})[:4096]
            self._sampler.watch_moments(self._watched_tids)
        if len(self._owners) > 10_000:
            self._owners.clear()
            self._tids.clear()

    # readings

    def _send_seconds(self, indexes: Mapping[str, str], until: int) -> None:
        """`until`: unix time up to which windows are joined."""
        now = self.now_unix()
        late = [key for key in self._seconds if key[1] <= self._sent]
        for key in late:
            del self._seconds[key]
        self.processes.lost["late_device_time"] += len(late)
        ready = [key for key in self._seconds if key[1] + SECOND < until - SETTLED]
        self._sent = max([self._sent, *(second for _, second in ready)])
        totals: dict[tuple[str, int], _Second] = {key: self._seconds.pop(key) for key in ready}
        for (gpu, second), entry in sorted(totals.items(), key=lambda item: item[0][1]):
            attributes = {"gpu.uuid": gpu, "gpu.index": indexes.get(gpu, "")}
            at = second + SECOND
            known = entry.known.astype(float)
            if known.sum() > SECOND:  # several processes cover the same moments
                known *= SECOND / known.sum()
            names = (*device_time.CLASSES, "idle", "unknown")
            for name, value in zip(names, (*known.tolist(), SECOND - known.sum()), strict=True):
                self._readings.append(Reading(f"gpu.time.{name}", "ns/s", at, round(value), attributes))
            if entry.shares:
                share = sum(entry.shares) / len(entry.shares)
                self._readings.append(Reading("gpu.time.recorded", "1", at, share, attributes))
                self._readings.append(Reading("gpu.time.counted", "1", at, float(entry.counted), attributes))
        setting = self.processes.setting_of_all()
        if setting is not None:
            self._readings.append(Reading("gpustrobe.gpu.duty", "1", now, setting.duty, {}))
            self._readings.append(Reading("gpustrobe.gpu.budget", "1", now, self.processes.options.limits.budget, {}))

    def _own_cost(self, process: Recorded) -> None:
        labels = {"process.pid": str(process.pid)}
        self._readings.append(Reading("gpustrobe.gpu.cost", "1", self.now_unix(), process.cost, labels))


def descends(pid: int, roots: Sequence[int], proc_root: Path = Path("/proc")) -> bool:
    """Whether the process is one of these or was started by one."""
    for _ in range(64):
        if pid in roots:
            return True
        try:
            text = (proc_root / str(pid) / "stat").read_text("utf-8", "replace")
            pid = int(text[text.rfind(")") + 2 :].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False


def _expected_cost(process: Recorded) -> str:
    """In words: from what windows cost so far, scaled to all the time."""
    if process.cost > 0 and process.setting.duty < 1:
        share = min(1.0, process.cost / process.setting.duty)
        return f"about {share * 100:.1f} % of its time while it lasts, by what windows cost"
    return "not known yet: nothing of it has been recorded so far"


def threads_of(pid: int, proc_root: Path) -> dict[tuple[int, int], int]:
    """(pid, thread's number in its innermost PID namespace) -> its number here."""
    found: dict[tuple[int, int], int] = defaultdict(int)
    try:
        for task in (proc_root / str(pid) / "task").iterdir():
            for line in (task / "status").read_text("utf-8", "replace").splitlines():
                if line.startswith("NSpid:"):
                    found[pid, int(line.split()[-1])] = int(task.name)
    except (OSError, ValueError):
        pass
    return found
