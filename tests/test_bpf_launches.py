# SPDX-License-Identifier: Apache-2.0
"""Stacks of launches at the injected library's probe, and moments of the threads that launch, on a program of known shape."""

from __future__ import annotations

import struct
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from gpustrobe.agent.fold import Folder
from gpustrobe.agent.naming import Naming
from gpustrobe.agent.sampler import Sampler, SamplerOptions
from gpustrobe.symbolizer.symbolizer import Symbolizer

SOURCE = Path(__file__).parent / "targets/launcher.c"
PROBE = "gpustrobe_launch_probe"
LAUNCHES = 1200


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    program = tmp_path_factory.mktemp("launcher") / "launcher"
    subprocess.run(["cc", "-O2", "-g", "-rdynamic", "-o", program, SOURCE], check=True)
    return program


def recorded(launcher: Path, tmp_path: Path, **options):
    """(windows of type launch, of type moment, profiles' stacks, counters, pid)."""
    with subprocess.Popen([launcher, str(LAUNCHES)], stdin=subprocess.PIPE) as child:
        sampler = Sampler(SamplerOptions(launches=True, **options))
        naming = Naming(Symbolizer(tmp_path), Folder())
        try:
            sampler.start()
            sampler.probe_launches(str(launcher), PROBE)
            sampler.watch_moments([child.pid])
            child.stdin.write(b"\n")
            child.stdin.close()
            windows = []
            deadline = time.monotonic() + 20
            while child.poll() is None and time.monotonic() < deadline:
                windows += [window for window in [sampler.take(0.2)] if window]
            counters = sampler.counters()
            for window in [*windows, *sampler.stop()]:
                naming.add(window)
            found = list(naming.round())
        finally:
            sampler.close()
            naming.close()
    return found, counters, child.pid


@pytest.mark.bpf
def test_each_picked_launch_has_its_stack_and_number(launcher, tmp_path):
    found, counters, pid = recorded(launcher, tmp_path)
    seen: dict[int, tuple[str, int]] = {}
    for profiles in found:
        for window in profiles.windows:
            if window.sample_type != "launch":
                continue
            for stack, value, mark, labels in zip(window.stack, window.value, window.mark, window.labels, strict=True):
                assert profiles.label_sets[labels]["pid"] == profiles.label_sets[labels]["tid"] == str(pid)
                names = [frame.name for frame in profiles.stacks[stack]]
                seen[int(mark)] = (names, int(value))
    assert counters["launches_entered"] == counters["launches_walked"] == LAUNCHES
    assert sorted(seen) == list(range(1, LAUNCHES + 1)) and counters["launches_lost"] == 0
    whole = 0
    for number, (names, value) in seen.items():
        assert value == (1 if number % 4 else 3) << 16
        whole += names[:3] == [PROBE, "launch_a" if number % 4 else "launch_b", "step"] and "main" in names
    assert whole >= 0.9 * LAUNCHES  # the first ones come before the process's table
    profiled = {kind for profiles in found for kind in (window.sample_type for window in profiles.windows)}
    assert profiled == {"cpu", "launch", "moment"}


@pytest.mark.bpf
def test_moments_say_when_a_watched_thread_was_where(launcher, tmp_path):
    """It sleeps nearly all the time: with waits timed from 0.5 ms on, its moments cover its life."""
    before = time.monotonic_ns()
    found, _, pid = recorded(launcher, tmp_path, off_cpu=True, off_cpu_threshold=0.0005)
    after = time.monotonic_ns()
    begun, lasted = [], []
    for profiles in found:
        for window in profiles.windows:
            if window.sample_type == "moment":
                assert all(profiles.label_sets[i]["tid"] == str(pid) for i in window.labels)
                begun.append(window.mark)
                lasted.append(window.value)
    begun, lasted = np.concatenate(begun).astype(np.int64), np.concatenate(lasted).astype(np.int64)
    order = np.argsort(begun)
    begun, lasted = begun[order], lasted[order]
    waits = lasted < 9_000_000
    assert waits.sum() >= 0.8 * LAUNCHES
    assert before <= begun.min() and (begun + lasted).max() <= after
    assert (begun[waits][1:] >= (begun + lasted)[waits][:-1] - 1000).all()  # a thread waits once at a time
    assert lasted[waits].sum() >= 0.7 * (begun[waits][-1] - begun[waits][0])


def record(
    words: list[int], tail: bytes = struct.pack("<II", 7, 1 << 16), n_user: int | None = None, n_kernel: int = 0
):
    """A ring record of a launch (bpf/sample.h, bpf/launch.h)."""
    head = struct.pack(
        "<QQQQII16sHHHH", 5, 1, 1, 1, 42, 42, b"t", 0, n_kernel, len(words) if n_user is None else n_user, 256
    )
    return head + struct.pack(f"<{len(words)}Q", *words) + tail


def test_records_of_any_content_are_counted_not_believed():
    """The ring is the kernel's, but its reader believes nothing all the same."""
    sampler = Sampler(SamplerOptions(launches=True, flags=16))  # loader.NO_KERNEL
    sampler.open()
    sampler.feed(record([0x1000]))
    for bad in (
        record([0x1000], tail=b""),
        record([0x1000], n_user=5),
        record([0x1000], n_kernel=1),
        record([0x1000])[:60],
        record([9 << 60]),
        record([0x1000], n_user=60000),
    ):
        sampler.feed(bad)
    random = np.random.default_rng(3)
    for length in range(0, 300, 7):
        sampler.feed(record([])[:62] + struct.pack("<H", 256) + random.bytes(length))
    sampler.cut()
    windows = {window.sample_type: window for window in (sampler.take(0), sampler.take(0), sampler.take(0))}
    sampler.close()
    launch = windows["launch"]
    assert launch.mark[0] == 7 and launch.value[0] == 1 << 16
    assert windows["cpu"].stacks[launch.stack[0]]  # what is new comes with the first window of the second
    assert launch.stack.size == launch.thread.size == launch.mark.size


def test_a_file_without_the_function_is_refused(tmp_path):
    sampler = Sampler(SamplerOptions(launches=True, flags=16))
    sampler.open()
    with pytest.raises(OSError):
        sampler.probe_launches("/bin/true", PROBE)
    sampler.close()
