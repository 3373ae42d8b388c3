# SPDX-License-Identifier: Apache-2.0
"""The injected library in a training loop on the simulated node (tests/sim), against what the simulated devices really did."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from gpustrobe.cupti import library, ring

from tests import cupti_agent
from tests.sim import simulated_node, truth

Record = ring.Record
TRAIN = Path(__file__).resolve().parent / "sim" / "workloads" / "train.py"
LAUNCHED = (Record.KERNEL, Record.MEMCPY, Record.MEMSET, Record.GRAPH)


class Run:
    """One training loop, recorded to its end."""

    def __init__(self, folder, release, wish, seconds=3.0, behaviour=None, arguments=()):
        simulated_node.build()
        with simulated_node.Node.create(folder) as node:
            env = node.environment(
                dict(os.environ),
                cupti=release,
                inject=str(library.path()),
                truth=folder / "truth",
                behaviour=behaviour,
            )
            major = "13" if release is None else release.split(".")[0]
            command = [sys.executable, TRAIN, "--seconds", str(seconds), "--cuda", major, *arguments]
            with subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as process:
                self.agent = cupti_agent.PlainAgent(cupti_agent.wait_for(process.pid))
                self.agent.wish(**wish)
                self.states = set()
                while process.poll() is None:
                    self.states.add((self.agent.state(), self.agent.reason()))
                    self.agent.run(0.05)
                self.agent.drain()
                self.stderr = process.stderr.read()
        self.status = process.returncode
        self.truth, self.names = truth.read(folder / "truth", process.pid)[process.pid]
        self.windows, self.launches = self.agent.records(Record.WINDOW), self.agent.records(Record.LAUNCH)
        self.kernels, self.activity = self.agent.records(Record.KERNEL), self.agent.records(*LAUNCHED)
        self.counters = self.agent.counters()

    def name(self, kernel):
        return self.agent.string(int(self.agent.shape(int(kernel["shape"]))["name"]))

    def covered(self):
        """Rows of the truth whose API entry lies in a closed window. It is read about a microsecond before ours (or a
        preemption before): 5 ms at both ends of a window do not count here."""
        closed = self.windows[self.windows["end"] > 0]
        rows = self.truth[np.isin(self.truth["kind"], (truth.KERNEL, truth.COPY, truth.SET))]
        api = rows["api_ns"][:, None]
        return rows[
            ((api >= closed["begin"] + np.uint64(5_000_000)) & (api < closed["end"] - np.uint64(5_000_000))).any(1)
        ]


def check_against_truth(run):
    """Every record is true; every operation launched well inside a window has one."""
    assert run.status == 0 and run.stderr == ""
    true = {int(row["correlation"]): row for row in run.truth if row["kind"] == truth.KERNEL}
    assert len(run.kernels) > 50
    for kernel in run.kernels:
        row = true[int(kernel["correlation"])]
        assert run.name(kernel) == run.names[int(row["name"]) - 1]
        assert int(kernel["end"] - kernel["start"]) == int(row["end_ns"] - row["start_ns"])
    recorded = set(run.activity["correlation"].tolist())
    missing = [row for row in run.covered() if int(row["correlation"]) not in recorded]
    assert missing == []
    assert set(run.launches["correlation"].tolist()) <= recorded
    launched = set(run.launches["correlation"].tolist())
    assert recorded - {0} <= launched
    assert run.counters["records"] == sum(len(rows) for rows in run.agent.taken)


WINDOWS = {
    "mode": ring.Mode.WINDOWS,
    "window_ns": 100_000_000,
    "period_ns": 400_000_000,
    "probability": 1 << 28,
    "seed": 5,
}


@pytest.mark.parametrize("release", ["12.6", "12.9", "13.0", "13.3", "13.5"])
def test_windows_hold_their_launches_whole(tmp_path, release):
    run = Run(tmp_path, release, WINDOWS)
    check_against_truth(run)
    closed = run.windows[run.windows["end"] > 0]
    assert len(closed) >= 3
    entry = {int(row["correlation"]): int(row["api_ns"]) for row in run.truth}
    late = np.array(
        [entry[int(c)] - int(t) for c, t in zip(run.launches["correlation"], run.launches["time"], strict=True)]
    )
    assert abs(np.median(late)) < 200_000


@pytest.mark.parametrize("release", ["12.0", "12.5"])
def test_on_demand_on_old_releases(tmp_path, release):
    run = Run(tmp_path, release, {"mode": ring.Mode.AUTO, "detail_until": time.monotonic_ns() + 8 * 10**9}, seconds=2)
    check_against_truth(run)
    assert run.agent.library["policy"][0] == ring.Mode.ON_DEMAND


def test_records_that_come_late(tmp_path):
    """Kernels' records come 300 ms after their end: they still belong to the window of their launch."""
    run = Run(tmp_path, "13.5", WINDOWS, seconds=4, behaviour={"late_ms": 300})
    tail = run.truth["api_ns"].max() - 700_000_000
    recorded = set(run.activity["correlation"].tolist())
    missing = [row for row in run.covered() if int(row["correlation"]) not in recorded]
    assert all(row["api_ns"] > tail for row in missing)
    of_launch = dict(zip(run.launches["correlation"].tolist(), run.launches["window"].tolist(), strict=True))
    assert all(of_launch[int(k["correlation"])] == k["window"] for k in run.kernels)


def test_graphs_whole(tmp_path):
    run = Run(tmp_path, "13.5", WINDOWS | {"graph_level": ring.GraphLevel.WHOLE}, arguments=("--graphs",))
    graphs = run.agent.records(Record.GRAPH)
    assert len(graphs) > 0
    calls = run.launches[run.launches["call"] == ring.Call.GRAPH]
    assert set(graphs["correlation"].tolist()) == set(calls["correlation"].tolist())
    by_correlation = dict(zip(calls["correlation"].tolist(), calls["graph"].tolist(), strict=True))
    assert all(by_correlation[int(g["correlation"])] == g["graph"] != 0 for g in graphs)
    assert np.all(run.kernels["graph"] == 0)


def test_graph_nodes(tmp_path):
    run = Run(tmp_path, "13.5", WINDOWS | {"graph_level": ring.GraphLevel.NODES}, arguments=("--graphs",))
    assert len(run.agent.records(Record.GRAPH)) == 0
    nodes = run.kernels[run.kernels["graph"] != 0]
    assert len(nodes) > 50 and np.all(nodes["node"] != 0)
    assert run.agent.library["graph_level"][0] == ring.GraphLevel.NODES


def test_wrong_graph_ids_of_old_releases(tmp_path):
    run = Run(tmp_path, "13.0", WINDOWS, arguments=("--graphs",))
    graphs = run.agent.records(Record.GRAPH)
    nobodys = graphs[graphs["correlation"] == 0]
    assert len(nobodys) == run.counters["drop_graph_correlation"] > 0
    assert np.all(nobodys["window"] == 0)
    launched = set(run.launches["correlation"].tolist())
    assert set(graphs["correlation"].tolist()) - {0} <= launched


@pytest.mark.parametrize(
    "behaviour,counter",
    [
        ({"drop": 0.05}, "drop_cupti"),
        ({"reversed_times": 0.02}, "drop_reversed_time"),
        ({"future_times": 0.02}, "drop_future_time"),
    ],
)
def test_losses_have_names(tmp_path, behaviour, counter):
    run = Run(tmp_path, "13.5", {"mode": ring.Mode.ALWAYS}, behaviour=behaviour)
    assert run.counters[counter] > 0
    assert np.all(run.activity["end"] >= run.activity["start"])
    if counter == "drop_cupti":
        assert run.counters["windows_lossy"] > 0
        assert np.any(run.windows["flags"] & ring.WindowFlag.LOSSY)


def test_no_windows_after_bad_timestamps(tmp_path):
    run = Run(tmp_path, "13.5", {"mode": ring.Mode.ALWAYS}, seconds=4, behaviour={"zero_times": 0.05})
    assert run.counters["drop_zero_time"] >= 10
    assert ("refused", "bad_timestamps") in run.states
    assert run.counters["windows_skipped"] > 0
    assert np.all(run.activity["start"] > 0)


@pytest.mark.parametrize(
    "result,reason", [(33, "virtual_device"), (35, "not_permitted"), (41, "virtual_device"), (43, "virtual_device")]
)
def test_refusals(tmp_path, result, reason):
    run = Run(tmp_path, "13.5", {"mode": ring.Mode.ALWAYS}, seconds=1, behaviour={"refuse": result})
    assert (run.status, run.stderr) == (0, "")
    assert ("refused", reason) in run.states
    assert len(run.activity) == 0


def test_clock_step_is_marked(tmp_path):
    behaviour = {"clock_step_ms": 200, "clock_step_after_ms": 1500}
    run = Run(tmp_path, "13.5", WINDOWS, seconds=3, behaviour=behaviour)
    assert np.any(run.windows["flags"] & ring.WindowFlag.CLOCK_STEP)
    moved = run.windows["cupti_minus_mono"] - run.windows["cupti_minus_mono"][0]
    assert abs(moved[-1] - 200_000_000) < 5_000_000


def test_warm_takes_the_first_enable(tmp_path):
    run = Run(tmp_path, "13.5", {"mode": ring.Mode.ON_DEMAND, "warm": 1}, seconds=1, behaviour={"first_enable_ms": 100})
    assert run.agent.library["first_enable_ns"][0] >= 90_000_000
    assert run.counters["windows"] == 0


PROFILED = """
import ctypes, sys, time
sys.path.insert(0, {workloads!r})
from device import Runtime
kineto = ctypes.CDLL({kineto!r})
runtime = Runtime({major})
kernel = runtime.kernel("_Z4workPf", 20)
kernel(); runtime.synchronize()
print("ready", flush=True)
for line in sys.stdin:
    what = line.split()
    if what[0] == "start":
        print(kineto.kineto_start(b"libcupti.so.13", int(what[1])), flush=True)
    elif what[0] == "launch":
        for _ in range(int(what[1])):
            kernel()
        runtime.synchronize()
        print("launched", flush=True)
    elif what[0] == "stop":
        print(kineto.kineto_stop(what[1].encode()), flush=True)
"""


class Profiled:
    """A program with a profiler of its own, told what to do; `agent` is None where we are not injected."""

    def __init__(self, folder, inject, release="13.5"):
        simulated_node.build()
        self.folder = folder
        script = folder / "profiled.py"
        kineto = simulated_node.BIN / "workloads" / "libkineto.so"
        script.write_text(PROFILED.format(workloads=str(TRAIN.parent), kineto=str(kineto), major=release.split(".")[0]))
        self.node = simulated_node.Node.create(folder)
        env = self.node.environment(dict(os.environ), cupti=release, inject=str(library.path()) if inject else None)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, script], env=env, **pipes)
        assert self.process.stdout.readline() == "ready\n"
        self.agent = cupti_agent.PlainAgent(cupti_agent.wait_for(self.process.pid)) if inject else None

    def say(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def trace(self):
        """How many records of each (kind, name) the profiler wrote."""
        path = self.folder / "trace.txt"
        assert int(self.say(f"stop {path}")) >= 0
        return Counter((line.split()[0], line.split()[5]) for line in path.read_text().splitlines())

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(10) == 0
        if self.agent:
            self.agent.drain()


@pytest.mark.parametrize("old", [0, 1])
def test_a_users_own_profiler_between_windows(tmp_path, old):
    traces = []
    for inject in (False, True):
        folder = tmp_path / str(inject)
        folder.mkdir()
        program = Profiled(folder, inject)
        if inject:  # an agent that has had windows here, and sees the profiler by its uprobe
            program.agent.wish(mode=ring.Mode.ALWAYS)
            program.agent.run(0.3)
            program.say("launch 50")
            program.agent.run(0.2)
            program.agent.wish(mode=ring.Mode.ON_DEMAND)
            program.agent.run(0.2)
            program.agent.wish(foreign=1)
        assert program.say(f"start {old}") == "0"
        program.say("launch 100")
        traces.append(program.trace())
        if inject:
            program.agent.wish(foreign=0, mode=ring.Mode.ALWAYS)
            program.agent.run(0.3)
            before = len(program.agent.records(Record.KERNEL))
            program.say("launch 70")
            program.agent.run(0.8)
            assert len(program.agent.records(Record.KERNEL)) == before + 70  # and so does ours go on
        program.end()
    assert traces[0] == traces[1]
    assert traces[0]["10", "_Z4workPf"] == 100


def test_a_users_own_profiler_before_the_agent(tmp_path):
    program = Profiled(tmp_path, True)
    assert program.say("start 1") == "0"
    program.agent.wish(mode=ring.Mode.ALWAYS)  # its uprobe saw nothing: it came late
    program.agent.run(0.4)
    assert (program.agent.state(), program.agent.reason()) == ("standing_back", "subscriber_taken")
    program.say("launch 100")
    assert program.trace()["10", "_Z4workPf"] == 100
    program.end()
    assert len(program.agent.records(Record.LAUNCH)) == 0


def test_a_users_own_profiler_inside_a_window(tmp_path):
    """It may be given buffers of ours with records from before; it loses none of its own, and frees what it is given."""
    program = Profiled(tmp_path, True)
    program.agent.wish(mode=ring.Mode.ALWAYS)
    program.agent.run(0.4)
    program.say("launch 30")
    assert program.say("start 0") == "0"
    program.agent.wish(foreign=1)
    program.agent.run(0.1)
    program.say("launch 100")
    assert program.trace()["10", "_Z4workPf"] >= 100
    assert (program.agent.state(), program.agent.reason()) == ("standing_back", "foreign_profiler")
    program.agent.wish(foreign=0)
    program.agent.run(0.3)
    before = len(program.agent.records(Record.KERNEL))
    program.say("launch 70")
    program.agent.run(0.8)
    assert len(program.agent.records(Record.KERNEL)) == before + 70
    program.end()


@pytest.mark.parametrize("release,finalizes", [("12.5", 0), ("12.6", 1), ("13.5", 1)])
def test_finalize_ends_the_residual_cost(tmp_path, release, finalizes):
    """Sessions, then cuptiFinalize from inside a launch call; the next session starts CUPTI anew. Not where it crashes."""
    program = Profiled(tmp_path, True, release)
    for session in (1, 2):
        program.agent.wish(mode=ring.Mode.ON_DEMAND, detail_until=time.monotonic_ns() + 400_000_000)
        program.agent.run(0.3)
        program.say("launch 20")
        program.agent.run(0.5)
        program.agent.wish(finalize=session)
        program.agent.run(0.1)
        program.say("launch 10")
        program.agent.run(0.1)
        counters = program.agent.counters()
        assert counters["finalizes"] == session * finalizes
        assert len(program.agent.records(Record.KERNEL)) == 20 * session
    assert counters["cupti_errors"] == 0
    program.end()
