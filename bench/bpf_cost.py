# SPDX-License-Identifier: Apache-2.0
"""BPF time per sample on two busy loops, ours beside a plain bpf_get_stack sampler in the same run.

Runs on idle CPUs are counted too (a fraction of a microsecond each); with both cores busy there are hardly any.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpustrobe.agent.sampler import Sampler, SamplerOptions, close_files, problem
from gpustrobe.bpf import loader

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGETS = Path(__file__).resolve().parent.parent / "tests" / "targets"
BAR_NS = 12_000  # docs: budget for two busy loops


class PlainResult(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("samples", "user_frames", "time_ns", "runs"))


@contextmanager
def two_busy_loops(folder: Path) -> Iterator[list[int]]:
    """C 27 deep and Python 22 deep, one on each of two CPUs of this process's set."""
    program = folder / "deep_loop"
    subprocess.run(["gcc", "-O0", "-o", program, TARGETS / "deep_loop.c"], check=True)
    commands = [[str(program)], [sys.executable, str(TARGETS / "deep_loop.py")]]
    cpus = sorted(os.sched_getaffinity(0))
    children = [subprocess.Popen(command) for command in commands]
    try:
        for i, child in enumerate(children):
            os.sched_setaffinity(child.pid, {cpus[i % len(cpus)]})
        yield [child.pid for child in children]
    finally:
        for child in children:
            child.send_signal(signal.SIGKILL)
            child.wait()


def ours(seconds: float, hz: int) -> dict[str, float]:
    sampler = Sampler(SamplerOptions(hz=hz))
    sampler.start()
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        window = sampler.take(left)
        if window is not None:
            close_files(window)
    for window in sampler.stop():
        close_files(window)
    counters = sampler.counters()
    samples = max(1, counters["delivered"])
    return {
        "samples": counters["delivered"],
        "ns_per_sample": counters["bpf_time_ns"] / samples,
        "user_frames_per_sample": counters["user_frames"] / samples,
        "runs": counters["bpf_runs"],
    }


def plain(seconds: float, hz: int) -> dict[str, float]:
    measure_plain = loader.library().gs_plain_measure
    result, error = PlainResult(), loader.Error()
    path = os.fsencode(loader.find("plain.bpf.o"))
    if measure_plain(path, hz, int(seconds * 1000), ctypes.byref(result), ctypes.byref(error)):
        raise problem(error)
    samples = max(1, result.samples)
    return {
        "samples": result.samples,
        "ns_per_sample": result.time_ns / samples,
        "user_frames_per_sample": result.user_frames / samples,
        "runs": result.runs,
    }


def measure(seconds: float, hz: int = 100) -> dict[str, dict[str, float]]:
    """{"ours": ..., "plain": ...}: samples, ns_per_sample, user_frames_per_sample, runs. Takes twice `seconds`."""
    with tempfile.TemporaryDirectory() as folder, two_busy_loops(Path(folder)):
        time.sleep(0.5)
        return {"ours": ours(seconds, hz), "plain": plain(seconds, hz), "bar": {"ns_per_sample": BAR_NS}}


if __name__ == "__main__":
    for name, row in measure(float(sys.argv[1]) if len(sys.argv) > 1 else 10).items():
        print(f"{name:6}", "  ".join(f"{key} {value:,.1f}" for key, value in row.items()))
