# SPDX-License-Identifier: Apache-2.0
"""The whole GPU side on the simulated node: the injected library, launch stacks by eBPF, joins, profiles, device time and
the idle profile, against what the simulated device really did."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from gpustrobe.agent.fold import Folder
from gpustrobe.agent.governor import Limits
from gpustrobe.agent.gpu import GpuTime
from gpustrobe.agent.gpu_processes import GpuOptions
from gpustrobe.agent.naming import Naming
from gpustrobe.agent.sampler import Sampler, SamplerOptions
from gpustrobe.cupti import library, ring
from gpustrobe.symbolizer.symbolizer import Symbolizer

from tests.sim import simulated_node, truth

TRAIN = Path(__file__).resolve().parent / "sim/workloads/train.py"
SECONDS = 12.0


class Run:
    """A training loop recorded as the agent does it, naming and joining every two seconds."""

    def __init__(self, folder: Path, mode: int) -> None:
        simulated_node.build()
        self.values: dict[str, Counter] = {}
        self.readings: list = []
        with simulated_node.Node.create(folder) as node:
            environment = node.environment(
                dict(os.environ), cupti="13.5", inject=str(library.path()), truth=folder / "truth"
            )
            sampler = Sampler(SamplerOptions(launches=True, off_cpu=True, off_cpu_threshold=0.001))
            symbolizer = Symbolizer(folder / "cache")
            naming = Naming(symbolizer, Folder())
            sampler.start()
            command = [sys.executable, TRAIN, "--seconds", str(SECONDS), "--cuda", "13"]
            with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
                options = GpuOptions(mode=mode, limits=Limits(budget=1.0, duty=0.2))
                gpu = GpuTime(options, sampler, symbolizer.demangle, watched=lambda pid: pid == process.pid)
                gpu.start()
                shipped = time.monotonic()
                while process.poll() is None:
                    window = sampler.take(0.2)
                    if window:
                        naming.add(window)
                    if time.monotonic() - shipped > 2:
                        shipped = time.monotonic()
                        self._ship(naming, gpu)
            time.sleep(1.5)
            for window in sampler.stop():
                naming.add(window)
            for profiles in naming.round():
                gpu.learn(profiles)
            self._add(gpu.stop(), gpu)
            naming.close()
        self.status, self.counters, self.lost = process.returncode, sampler.counters(), gpu.processes.lost
        rows, _ = truth.read(folder / "truth", process.pid)[process.pid]
        kernels = rows[rows["kind"] == truth.KERNEL]
        self.true_kernels = len(kernels)
        self.true_time = int((kernels["end_ns"] - kernels["start_ns"]).sum())

    def _ship(self, naming: Naming, gpu: GpuTime) -> None:
        for profiles in naming.round():
            gpu.learn(profiles)
        self._add(gpu.round(), gpu)

    def _add(self, found, gpu: GpuTime) -> None:
        self.readings += gpu.take()
        for profiles in found:
            for window in profiles.windows:
                total = self.values.setdefault(window.sample_type, Counter())
                for stack, value in zip(window.stack.tolist(), window.value.tolist(), strict=True):
                    total[profiles.stacks[stack]] += value


@pytest.fixture(scope="module")
def always(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("always"), ring.Mode.ALWAYS)


def share(total: Counter, chosen) -> float:
    return sum(value for stack, value in total.items() if chosen(stack)) / max(1, sum(total.values()))


@pytest.mark.bpf
@pytest.mark.slow
def test_everything_recorded_is_everything_that_ran(always):
    assert always.status == 0
    assert not {name: n for name, n in always.lost.items() if n and name != "late_device_time"}
    kernels = {stack: n for stack, n in always.values["gpu_launches"].items() if stack[0].kind != "copy"}
    # what ran before the agent had found the process is missing: it looks once a second
    assert 0.75 * always.true_kernels <= sum(kernels.values()) <= always.true_kernels
    time_ = sum(value for stack, value in always.values["gpu_time"].items() if stack[0].kind != "copy")
    assert 0.75 * always.true_time <= time_ <= always.true_time


@pytest.mark.bpf
@pytest.mark.slow
def test_kernels_stand_under_the_python_line_that_launched_them(always):
    total = always.values["gpu_time"]
    assert share(total, lambda stack: any(frame.kind == "python" for frame in stack)) > 0.9
    assert share(total, lambda stack: any(frame.name == "cudaLaunchKernel" for frame in stack[:3])) > 0.8
    names = {stack[0].name for stack in total}
    assert "gemm bf16 tn_n 128x128x64" in names and "Memcpy HtoD (pinned)" in names
    assert not any(frame.module.startswith("libgpustrobe_cupti") for stack in total for frame in stack)


@pytest.mark.bpf
@pytest.mark.slow
def test_the_idle_profile_names_the_stalling_loader(always):
    idle = always.values["gpu_idle"]
    assert sum(idle.values()) > 1e9
    loader = share(idle, lambda stack: any(frame.name in ("Loader.next_batch", "collate") for frame in stack))
    assert loader > 0.6
    five = Counter()
    for reading in always.readings:
        if reading.name.startswith("gpu.time.") and reading.unit == "ns/s":
            five[reading.time_unix, reading.attributes["gpu.uuid"]] += reading.value
    assert five and all(abs(total - 1e9) <= 5 for total in five.values())


@pytest.mark.bpf
@pytest.mark.slow
def test_windows_estimate_the_whole(tmp_path):
    run = Run(tmp_path, ring.Mode.WINDOWS)
    estimate = sum(value for stack, value in run.values["gpu_time"].items() if stack[0].kind != "copy")
    assert 0.4 * run.true_time <= estimate <= 1.6 * run.true_time  # ten windows
    assert run.counters["launches_entered"] < 0.4 * run.true_kernels  # it was no full recording
    duty = [reading.value for reading in run.readings if reading.name == "gpu.time.recorded"]
    assert duty and max(duty) < 0.5
