# SPDX-License-Identifier: Apache-2.0
"""One recording: sampler, names and total from start to file, with the signals and the command it may be about."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from gpustrobe.agent import launch, output
from gpustrobe.agent.errors import GpustrobeError
from gpustrobe.agent.total import Total

if TYPE_CHECKING:
    from gpustrobe.agent.config import Settings
    from gpustrobe.agent.gpu import GpuTime
    from gpustrobe.agent.naming import Naming
    from gpustrobe.agent.sampler import Sampler
    from gpustrobe.symbolizer.symbolizer import Symbolizer

LOOK = 0.2  # seconds between two looks at CMD, the clock and signals
NAME_EVERY = 3.0  # seconds; soon enough that a process's perf map and namespace are mostly still there
BAR_CELLS = 24


@dataclass(frozen=True)
class Plan:
    settings: Settings
    pids: tuple[int, ...]
    everything: bool
    seconds: float | None
    file: str
    form: str
    words: tuple[str, ...]


@dataclass
class Signals:
    """What signals asked for. Handlers only set flags; the loop looks at them."""

    child: launch.Command | None
    stop: bool = False
    snapshot: bool = False
    interrupts: int = field(default=0)

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._end)
        signal.signal(signal.SIGUSR1, self._snapshot)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.interrupts += 1
        if self.child is None or self.child.status is not None:
            if self.stop:
                raise KeyboardInterrupt
            self.stop = True
        elif number != signal.SIGINT or not os.isatty(0):  # a terminal has sent Ctrl-C to CMD itself
            self.child.send(number)
        elif self.interrupts > 1:
            self.stop = True

    def _snapshot(self, number: int, frame: FrameType | None) -> None:
        self.snapshot = True


class Recording:
    """Takes windows until told to stop, names them now and then, and sums them."""

    def __init__(
        self,
        sampler: Sampler,
        naming: Naming,
        clock: Callable[[], float] = time.monotonic,
        sample_type: str = "cpu",
        gpu: GpuTime | None = None,
    ) -> None:
        self.sampler = sampler
        self.naming = naming
        self.total = Total(sample_type)
        self.gpu = gpu
        self.gpu_total = Total("gpu_time")
        self.clock = clock
        self.started = clock()
        self._named = self.started

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started

    def step(self, timeout: float) -> None:
        window = self.sampler.take(timeout)
        if window is not None:
            self.naming.add(window)
        if self.clock() - self._named >= NAME_EVERY:
            self.name()

    def name(self) -> None:
        self._named = self.clock()
        for profiles in self.naming.round():
            self.total.add(profiles)
            if self.gpu:
                self.gpu.learn(profiles)
        for profiles in self.gpu.round() if self.gpu else ():
            self.gpu_total.add(profiles)

    def finish(self) -> None:
        for window in self.sampler.stop():
            self.naming.add(window)
        self.name()
        for profiles in self.gpu.stop() if self.gpu else ():
            self.gpu_total.add(profiles)


class Progress:
    """A bar on a terminal's standard error; nothing anywhere else."""

    def __init__(self, stream: TextIO, seconds: float | None) -> None:
        self._stream = stream if stream.isatty() else None
        self._seconds = seconds

    def show(self, recording: Recording) -> None:
        if self._stream is None:
            return
        elapsed, total = recording.elapsed, recording.total
        counts = measured(total) + (f", {total.lost:,} lost" if total.lost else "")
        if self._seconds:
            filled = min(BAR_CELLS, int(elapsed / self._seconds * BAR_CELLS))
            text = (
                f"{'█' * filled}{'░' * (BAR_CELLS - filled)} {min(elapsed, self._seconds):.0f} of {self._seconds:g} s"
            )
        else:
            text = f"recording, {elapsed:.0f} s"
        self._stream.write(f"\r\x1b[K{text}  {counts}  (Ctrl-C writes)")
        self._stream.flush()

    def clear(self) -> None:
        if self._stream is not None:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def run(plan: Plan) -> int:
    """The exit code: CMD's if there is one, else 0."""
    child = launch.prepare(plan.words, _injected(plan)) if plan.words else None
    signals = Signals(child)
    try:
        recording = _start(plan, child)
    except BaseException:
        if child:
            child.give_up()
        raise
    signals.install()
    if child:
        try:
            child.go()
        except launch.NotStarted:
            recording.sampler.stop()
            raise
    try:
        _record(plan, recording, child, signals)
    except GpustrobeError as error:
        if child is None:
            raise
        from gpustrobe.agent.cli import report

        report(error)
    return child.wait() if child else 0


def _injected(plan: Plan) -> dict[str, str]:
    """CMD's kernels are recorded too; without the library (a partial installation) it is CPU only."""
    if plan.settings.gpu_kernels == "off":
        return {}
    from gpustrobe.agent import injection
    from gpustrobe.agent.errors import EnvironmentProblem

    try:
        return injection.variables()
    except EnvironmentProblem:
        return {}


def _gpu_time(plan: Plan, sampler: Sampler, symbolizer: Symbolizer, pids: tuple[int, ...]) -> GpuTime | None:
    if plan.settings.gpu_kernels == "off":
        return None
    from gpustrobe.agent import gpu

    found = gpu.GpuTime(
        gpu.options_of(plan.settings, recording=True),
        sampler,
        symbolizer.demangle,
        rules=gpu.rules_of(plan.settings),
        watched=lambda pid: not pids or gpu.descends(pid, pids),
    )
    found.start()
    return found


def _start(plan: Plan, child: launch.Command | None) -> Recording:
    from gpustrobe.agent import sampling
    from gpustrobe.agent.fold import Folder
    from gpustrobe.agent.naming import Naming

    pids = (*plan.pids, *([child.pid] if child and not plan.everything else []))
    waits = plan.settings.off_cpu
    sampler = sampling.open_sampler(
        plan.settings.rate, pids, plan.settings.off_cpu_threshold if waits else None, plan.settings.gpu_kernels != "off"
    )
    symbolizer = sampling.open_symbolizer(plan.settings.symbol_cache)
    naming = Naming(symbolizer, Folder())
    sampler.start()
    gpu = _gpu_time(plan, sampler, symbolizer, pids)
    return Recording(sampler, naming, sample_type="off_cpu" if waits else "cpu", gpu=gpu)


def _record(plan: Plan, recording: Recording, child: launch.Command | None, signals: Signals) -> None:
    progress = Progress(sys.stderr, plan.seconds)
    while not _over(plan, recording, child, signals):
        left = plan.seconds - recording.elapsed if plan.seconds else LOOK
        recording.step(max(0.0, min(LOOK, left)))
        progress.show(recording)
        if signals.snapshot:
            signals.snapshot = False
            recording.name()
            _write_snapshot(plan, recording, progress)
    recording.finish()
    progress.clear()
    _write(plan, recording.total, plan.file)
    _write_gpu(plan, recording.gpu_total)


def _over(plan: Plan, recording: Recording, child: launch.Command | None, signals: Signals) -> bool:
    if signals.stop or (plan.seconds and recording.elapsed >= plan.seconds):
        return True
    if child:
        return child.poll() is not None
    return bool(plan.pids) and not any(Path(f"/proc/{pid}").exists() for pid in plan.pids)


def _write_snapshot(plan: Plan, recording: Recording, progress: Progress) -> None:
    """Standard output gets one profile, at the end; what SIGUSR1 asks for then goes to a dated file."""
    progress.clear()
    file = output.dated_name(datetime.now(), plan.form) if plan.file == "-" else plan.file
    _write(plan, recording.total, file)


def _write(plan: Plan, total: Total, file: str) -> None:
    from gpustrobe.agent.commands.record import deliver
    from gpustrobe.agent.formats.stacks import from_profiles

    stacks = from_profiles(total.profiles(), total.sample_type, node=socket.gethostname())
    deliver(output.render(plan.form, stacks), file)
    for line in summary(total, file):
        print(line, file=sys.stderr)


def _write_gpu(plan: Plan, total: Total) -> None:
    """GPU time in a file of its own beside the other: the formats hold one kind of value."""
    if not total.samples or plan.file == "-":
        return
    from gpustrobe.agent.commands.record import deliver
    from gpustrobe.agent.formats.stacks import from_profiles

    suffix = output.EXTENSION[plan.form]
    file = f"{plan.file.removesuffix(suffix)}.gpu{suffix}"
    deliver(output.render(plan.form, from_profiles(total.profiles(), "gpu_time", node=socket.gethostname())), file)
    print(f"{total.samples / 1e9:,.2f} s of GPU time", file=sys.stderr)
    for name, value in total.top(5):
        print(f"  {value / total.samples * 100:5.1f} %  {name}", file=sys.stderr)
    print(f"written to {file}", file=sys.stderr)


def measured(total: Total) -> str:
    if total.sample_type == "cpu":
        return f"{total.samples:,} samples"
    return f"{total.samples / 1e9:,.1f} s of waiting in {total.books.delivered:,} waits"


def summary(total: Total, file: str) -> list[str]:
    """What was recorded and lost, the heaviest functions, and where the file is."""
    cores = total.samples * total.period / 1e9 / total.seconds if total.seconds else 0.0
    busy = f", {cores:.2f} cores busy" if total.sample_type == "cpu" else ""
    loss = f"{total.lost:,} lost ({', '.join(f'{name} {n:,}' for name, n in total.books.drops.items() if n)})"
    lost = loss if total.lost else "none lost"
    lines = [f"{measured(total)} in {total.seconds:.1f} s{busy}, {lost}"]
    lines += [f"  {value / total.samples * 100:5.1f} %  {name}" for name, value in total.top(5)]
    if not total.samples:
        done = "ran on a CPU" if total.sample_type == "cpu" else "waited"
        lines.append(f"  nothing {done} while it was watched")
    return [*lines, *([f"written to {file}"] if file != "-" else [])]
