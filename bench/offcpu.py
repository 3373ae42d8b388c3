# SPDX-License-Identifier: Apache-2.0
"""What timing waits costs and how true it is.

Cost: two processes pass a byte back and forth on one CPU, with and without, in turns; CPU time per switch is compared,
which other load on the machine disturbs less than rounds per second. Accuracy: threads that wait in known places for
known times (tests/targets/waits.c).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpustrobe.agent.sampler import Sampler, SamplerOptions, close_files

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
ROUND = 0.3  # seconds


def build(source: Path, folder: Path) -> Path:
    program = folder / source.stem
    subprocess.run(["gcc", "-O2", "-fomit-frame-pointer", "-pthread", "-o", program, source], check=True)
    return program


@contextmanager
def sampling(**options: object) -> Iterator[Sampler]:
    sampler = Sampler(SamplerOptions(**options))
    sampler.start()
    try:
        yield sampler
    finally:
        for window in sampler.stop():
            close_files(window)


def switch_ns(program: Path) -> float:
    """CPU time of one switch, system calls included."""
    cpu = str(max(os.sched_getaffinity(0)))
    rounds, seconds = subprocess.run(
        [program, str(ROUND), cpu], capture_output=True, text=True, check=True
    ).stdout.split()
    return float(seconds) / int(rounds) / 2 * 1e9


def cost(program: Path, turns: int) -> dict[str, float]:
    """bpf_stats off: the kernel's own clock costs more than the program."""
    plain, sampled, timed = [], [], []
    for _ in range(turns):
        plain.append(switch_ns(program))
        with sampling(bpf_stats=False):
            sampled.append(switch_ns(program))
        with sampling(bpf_stats=False, off_cpu=True):
            timed.append(switch_ns(program))
    added = statistics.median(with_waits - without for with_waits, without in zip(timed, sampled, strict=True))
    return {
        "switch_ns": statistics.median(plain),
        "switch_ns_sampled": statistics.median(sampled),
        "switch_ns_timed": statistics.median(timed),
        "added_ns": added,
        "slowdown": added / statistics.median(sampled),
        "of_a_core_at_100k_switches": added * 1e5 / 1e9,
    }


def bpf_share(seconds: float, program: Path) -> dict[str, float]:
    """As the kernel measures it, the ping-pong beside whatever else runs."""
    with sampling(off_cpu=True) as sampler:
        child = subprocess.Popen([program, str(seconds)], stdout=subprocess.DEVNULL)
        time.sleep(seconds)
        counters = sampler.counters()
        child.wait()
    return {
        "switches_per_second": counters["off_cpu_runs"] / seconds,
        "bpf_ns_per_switch": counters["off_cpu_time_ns"] / max(1, counters["off_cpu_runs"]),
        "bpf_share_of_a_core": counters["off_cpu_time_ns"] / 1e9 / seconds,
        "walks_per_second": counters["waits_walked"] / seconds,
    }


def accuracy(program: Path, seconds: float) -> dict[str, float]:
    """Of the time that the program's threads lived (they do nothing but wait): what was accounted for, thread by
    thread; and of all waits on the machine, how many were shown with another's stack or none."""
    threads, pids, whole, covered = {}, {}, Counter(), 0
    with sampling(off_cpu=True) as sampler, subprocess.Popen([program, "60"]) as child:
        start = time.monotonic() + 1  # its unwind tables are there
        while (left := start + seconds - time.monotonic()) > 0:
            window = sampler.take(left)
            if window is None:
                continue
            close_files(window)
            threads |= {thread.thread_id: thread for thread in window.threads}
            pids |= {process.process_id: process.pid for process in window.processes}
            if window.sample_type != "off_cpu" or time.monotonic() < start + 1:
                continue
            covered += window.duration
            for number, value in zip(window.thread.tolist(), window.value.tolist(), strict=True):
                if pids[threads[number].process_id] == child.pid:
                    whole[threads[number].tid] += value
        counters = sampler.counters()
        child.kill()
    shown = max(1, counters["waits_shown"])
    return {
        "seconds": covered / 1e9,
        "threads": len(whole),
        "least_accounted": min(whole.values()) / covered,
        "most_accounted": max(whole.values()) / covered,
        "without_stack": counters["waits_without_stack"] / shown,
        "by_site": counters["waits_by_site"] / shown,
    }


def measure(quick: bool = False) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        pingpong = build(ROOT / "bench" / "loads" / "pingpong.c", Path(folder))
        waits = build(ROOT / "tests" / "targets" / "waits.c", Path(folder))
        return {
            "cost": cost(pingpong, 5 if quick else 21),
            "bpf": bpf_share(2 if quick else 5, pingpong),
            "accuracy": accuracy(waits, 3 if quick else 10),
        }


if __name__ == "__main__":
    for name, row in measure().items():
        print(f"{name:9}", "  ".join(f"{key} {value:,.4g}" for key, value in row.items()))
