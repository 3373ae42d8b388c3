# SPDX-License-Identifier: Apache-2.0
"""What the agent costs, measured from outside.

CPU clocks of its processes, the kernel's own account of its BPF programs, resident memory, speed of the profiled programs
with and without it, and how complete its stacks are.

The agent runs as `gpustrobe agent` beside a real store, whose cost is not counted: on a fleet it is another machine's.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from gpustrobe.agent.cost import process_cpu, proportional
from prometheus_client.parser import text_string_to_metric_families

from bench import load as loads

GPUSTROBE = str(Path(sys.executable).with_name("gpustrobe"))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@dataclass(frozen=True, slots=True)
class Node:
    agent: subprocess.Popen
    http: str
    metrics: str

    def scrape(self) -> dict[str, float]:
        """Unlabelled samples of the agent's Prometheus endpoint, and `name{label}` for those with one label."""
        text = urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10).read().decode()
        values = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                label = "{" + ",".join(sample.labels.values()) + "}" if sample.labels else ""
                values[sample.name + label] = sample.value
        return values

    def ask(self, path: str) -> dict:
        return json.load(urllib.request.urlopen(f"http://{self.http}{path}", timeout=30))


@contextmanager
def node() -> Iterator[Node]:
    """Agent and store on free ports, data in a folder that goes with them."""
    with tempfile.TemporaryDirectory() as folder:
        grpc, http, metrics = (f"127.0.0.1:{free_port()}" for _ in range(3))
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        store = subprocess.Popen([GPUSTROBE, "store", "--data", folder, "--grpc", grpc, "--http", http], **quiet)
        agent = subprocess.Popen(
            [GPUSTROBE, "agent", "--store", grpc, "--metrics", metrics, "--data", f"{folder}/agent"], **quiet
        )
        running = Node(agent, http, metrics)
        try:
            wait_until_up(running)
            yield running
        finally:
            for process in (agent, store):
                process.terminate()
            for process in (agent, store):
                process.wait(timeout=30)


def wait_until_up(running: Node) -> None:
    for _ in range(200):
        try:
            running.scrape()
            running.ask("/api/v1/status")
            return
        except OSError:
            if running.agent.poll() is not None:
                raise RuntimeError("the agent ended; run `gpustrobe agent` by hand to see why") from None
            time.sleep(0.1)
    raise RuntimeError("agent or store did not come up within 20 s")


def family(pid: int) -> list[int]:
    """pid and its living descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += family(int(child))
    return found


@dataclass(frozen=True, slots=True)
class Cost:
    """Over `seconds`: shares are of the whole host (all CPUs)."""

    seconds: float
    cpu_share: float
    bpf_share: float
    bpf_ns_per_sample: float
    samples: int
    memory: int  # bytes, proportional set size of all processes + BPF maps
    memory_peak: int  # bytes, the largest of the samples taken each second
    complete: float  # share of samples whose user stack reached the first frame, or that have none
    lost: float  # share of samples
    reasons: dict[str, float]  # share of samples by why the stack ended early


def memory_of(pids: list[int], maps: float) -> int:
    """Proportional set sizes and BPF maps; what of the maps a process has mapped (unwind rows) counts once."""
    return sum((proportional(pid) or 0) - mapped_maps(pid) for pid in pids) + int(maps)


def mapped_maps(pid: int) -> int:
    ours, total = False, 0
    try:
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            if "-" in line.split(" ", 1)[0]:
                ours = line.endswith("anon_inode:bpf-map")
            elif ours and line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    except OSError:
        return 0
    return total


def cost_over(running: Node, seconds: float) -> Cost:
    before, pids, start = running.scrape(), family(running.agent.pid), time.monotonic()
    cpu_before = sum(process_cpu(pid) or 0 for pid in pids)
    memory = []
    while time.monotonic() - start < seconds:
        time.sleep(1)
        memory.append(memory_of(pids, before.get("gpustrobe_bpf_map_bytes", 0)))
    span = time.monotonic() - start
    cpu = sum(process_cpu(pid) or 0 for pid in pids) - cpu_before
    after = running.scrape()

    def grown(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    delivered = grown("gpustrobe_samples_delivered_total")
    lost = sum(grown(name) for name in after if name.startswith("gpustrobe_samples_dropped"))
    bpf = grown("gpustrobe_bpf_seconds_total")
    host = (os.cpu_count() or 1) * span
    reasons = ends(running, span)
    return Cost(
        seconds=span,
        cpu_share=cpu / host,
        bpf_share=bpf / host,
        bpf_ns_per_sample=1e9 * bpf / max(delivered, 1),
        samples=int(delivered),
        memory=int(statistics.median(memory)),
        memory_peak=max(memory),
        complete=1 - sum(reasons.values()),
        lost=lost / max(delivered + lost, 1),
        reasons=reasons,
    )


def ends(running: Node, seconds: float) -> dict[str, float]:
    """Share of the last `seconds`' samples whose stack ended early, by reason: frames of kind "reason" in the store."""
    time.sleep(7)  # the last batch
    answer = running.ask(f"/api/v1/stacks?type=cpu&from=-{int(seconds)}s&to=now&limit=100000")
    frames, total, found = answer["frames"], 0, {}
    for row in answer["rows"]:
        total += row["value"]
        names = [frames["name"][f] for f in row["frames"] if frames["kind"][f] == "reason"]
        if names:
            found[names[0]] = found.get(names[0], 0) + row["value"]
    return {name: value / max(total, 1) for name, value in found.items()}


def slow_down(commands: list[list[str]], pairs: int, seconds: float) -> float:
    """Speed with the agent over speed without it: the median of paired runs, each program weighing the same."""
    ratios = []
    for _ in range(pairs):
        rates = []
        for profiled in (False, True):
            context = node() if profiled else nullcontext()
            with context, loads.running(commands) as load:
                time.sleep(seconds)
                rates.append(load.stop())
        ratios.append(statistics.mean(b / a for a, b in zip(*rates, strict=True) if a))
    return statistics.median(ratios)


def measure(name: str, seconds: float = 30, warm_up: float = 15, pairs: int = 5) -> tuple[Cost, float]:
    """Cost on a load of bench.load.LOADS once it has settled, and the speed that is left to the load."""
    commands = loads.LOADS[name]()
    with node() as running, loads.running(commands):
        time.sleep(warm_up)
        cost = cost_over(running, seconds)
    return cost, slow_down(commands, pairs, 6) if pairs else float("nan")
