# SPDX-License-Identifier: Apache-2.0
"""The injected library in a process that launches through a small fake of libcuda and libcupti (tests/cupti_fake.c)."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from gpustrobe.cupti import library, ring

from tests import cupti_agent

Record = ring.Record
TESTS = Path(__file__).resolve().parent
P_QUARTER = 1 << 30  # probability 1/4


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fake")
    for name, define in (("libcuda.so.1", "FAKE_CUDA"), ("libcupti.so.13", "FAKE_CUPTI")):
        command = ["gcc", "-O1", "-shared", "-fPIC", f"-D{define}", f"-Wl,-soname,{name}", "-o", folder / name]
        subprocess.run([*command, TESTS / "cupti_fake.c"], check=True)
    target = folder / "launches"
    libraries = [folder / "libcuda.so.1", folder / "libcupti.so.13", f"-Wl,-rpath,{folder}", "-lpthread"]
    subprocess.run(["gcc", "-O1", "-o", target, TESTS / "targets" / "cupti_launches.c", *libraries], check=True)
    return target


@pytest.fixture
def start(program):
    started = []

    def start(seconds=2.0, pause_us=200, threads=1, how="return", **environment):
        env = os.environ | {"CUDA_INJECTION64_PATH": str(library.path())} | environment
        command = [program, str(seconds), str(pause_us), str(threads), how]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process, cupti_agent.PlainAgent(cupti_agent.wait_for(process.pid))

    yield start
    for process in started:
        process.kill()
        process.wait()


def finish(process, agent) -> int:
    """Drains until the program ends by itself, with its own status and nothing on stderr; launches it says it made."""
    while process.poll() is None:
        agent.run(0.05)
    agent.drain()
    assert process.returncode == 3
    assert process.stderr.read() == ""
    return int(process.stdout.read())


def names(agent, shapes) -> set[str]:
    return {agent.string(int(agent.shape(int(shape))["name"])) for shape in set(shapes)}


def test_layout_of_a_fresh_ring(start):
    process, agent = start(0.2)
    assert agent.layout["magic"][0] == ring.MAGIC
    assert agent.layout["version"][0] == ring.VERSION
    assert agent.layout["pid"][0] == process.pid
    assert agent.layout["total_size"][0] == agent.size
    assert agent.seals() & 6 == 6  # shrink, grow
    finish(process, agent)


def cpu_ticks(pid: int, comm: str) -> tuple[int, int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == comm:
            status = dict(line.split(":\t") for line in (task / "status").read_text().splitlines() if ":\t" in line)
            return int(status["voluntary_ctxt_switches"]), int(status["nonvoluntary_ctxt_switches"])
    raise AssertionError(f"no thread {comm}")


def test_dormant_without_an_agent(start):
    process, agent = start(1.0)
    time.sleep(0.1)
    before = cpu_ticks(process.pid, "gpustrobe")
    time.sleep(0.5)
    assert cpu_ticks(process.pid, "gpustrobe") == before
    finish(process, agent)
    counters = agent.counters()
    assert counters.pop("thread_ns") < 2_000_000  # start and exit
    assert {name: n for name, n in counters.items() if n} == {"records": 1}  # EXIT
    assert agent.library["cupti_version"][0] == 0  # not even looked for


def test_windows_hold_their_launches_whole(start):
    process, agent = start(3.0, threads=2)
    agent.wish(mode=ring.Mode.WINDOWS, window_ns=50_000_000, period_ns=250_000_000, probability=P_QUARTER, seed=7)
    launched = finish(process, agent)
    windows = agent.records(Record.WINDOW)
    closed = windows[windows["end"] > 0]
    launches, kernels = agent.records(Record.LAUNCH), agent.records(Record.KERNEL)
    assert 5 <= len(closed) <= 14
    assert set(closed["id"]) == set(windows["id"])
    assert 0.05 * launched < len(launches) < 0.45 * launched
    assert sorted(launches["correlation"]) == sorted(kernels["correlation"])
    # a launch is in exactly the windows around its time
    inside = (launches["time"][:, None] >= closed["begin"]) & (launches["time"][:, None] < closed["end"])
    assert np.array_equal(inside.sum(1), launches["multiplicity"])
    assert np.array_equal(inside.sum(0), closed["launches"])
    by_id = dict(zip(launches["correlation"], launches["window"], strict=True))
    assert all(by_id[k["correlation"]] == k["window"] for k in kernels)
    multiplicity = dict(zip(launches["correlation"], launches["multiplicity"], strict=True))
    assert all(multiplicity[k["correlation"]] == k["flags"] >> ring.MULTIPLICITY_SHIFT for k in kernels)
    whole = closed[closed["reason"] == 0]
    assert np.all(whole["end"] - whole["begin"] == 50_000_000)


def test_what_a_kernel_record_says(start):
    process, agent = start(1.2)
    agent.wish(mode=ring.Mode.ALWAYS, probability=0)
    finish(process, agent)
    kernels = agent.records(Record.KERNEL)
    assert names(agent, kernels["shape"]) == {"_Z4gemmPfS_S_i", "_Z4reluPfi", "_Z7softmaxPfi"} or "_Z4rarePf" in names(
        agent, kernels["shape"]
    )
    durations = {}
    for kernel in kernels:
        shape = agent.shape(int(kernel["shape"]))
        assert list(shape["block"]) == [256, 1, 1]
        assert shape["registers"] == 32
        assert 1 <= shape["grid"][0] <= 3
        name = agent.string(int(shape["name"]))
        durations.setdefault(name, set()).add(int(kernel["end"] - kernel["start"]))
    assert durations["_Z4reluPfi"] == {11000}
    assert durations["_Z4gemmPfS_S_i"] == {10000, 12000}
    assert set(kernels["device"]) == {1}
    devices = agent.records(Record.DEVICE)
    assert {int(d["ordinal"]): bytes(d["uuid"]).hex() for d in devices} == {
        0: "101112131415161718191a1b1c1d1e1f",
        1: "202122232425262728292a2b2c2d2e2f",
    }
    assert agent.string(int(devices[1]["name"])) == "Fake GPU 1"
    contexts = agent.records(Record.CONTEXT)
    assert [(int(c["context"]), int(c["device"])) for c in contexts] == [(1, 1)]
    # launch to start, on one clock
    window = agent.records(Record.WINDOW)[-1]
    start_mono = kernels["start"].astype(np.int64) - window["cupti_minus_mono"]
    launch = dict(zip(agent.records(Record.LAUNCH)["correlation"], agent.records(Record.LAUNCH)["time"], strict=True))
    delay = np.array([int(s) - int(launch[c]) for s, c in zip(start_mono, kernels["correlation"], strict=True)])
    assert np.all(np.abs(np.median(delay)) < 1_000_000)


def test_always_has_no_gap(start):
    process, agent = start(3.2)
    agent.wish(mode=ring.Mode.ALWAYS)
    finish(process, agent)
    closed = agent.records(Record.WINDOW)
    closed = closed[closed["end"] > 0]
    assert np.array_equal(closed["begin"][1:], closed["end"][:-1])
    assert np.all(closed["width_us"][:-1] == closed["period_us"][:-1])
    launches = agent.records(Record.LAUNCH)
    correlation = np.sort(launches["correlation"])
    assert np.all(np.diff(correlation.astype(np.int64)) == 1)
    assert np.all(launches["multiplicity"] == 1)
    assert agent.counters()["enables"] == 1


def test_stacks_are_stratified(start):
    process, agent = start(2.0, pause_us=100, threads=2)
    agent.wish(mode=ring.Mode.ALWAYS, probability=P_QUARTER, seed=3)
    finish(process, agent)
    launches = agent.records(Record.LAUNCH)
    first = launches[launches["flags"] & 2 > 0]
    assert np.all(first["weight"] == 1 << 16)
    strata = {(x["window"], x["tid"], x["function"]) for x in launches}
    assert {(x["window"], x["tid"], x["function"]) for x in first} == strata
    assert len(first) == len(strata)
    later = launches[launches["flags"] & 2 == 0]
    sampled = later[later["weight"] > 0]
    assert np.all(sampled["weight"] == 4 << 16)
    deviation = (len(later) * 0.25 * 0.75) ** 0.5
    assert abs(len(sampled) - len(later) / 4) < 5 * deviation
    assert np.all((launches["weight"] > 0) == (launches["flags"] & 1 > 0))


def test_counts_are_exact(start):
    process, agent = start(1.5, pause_us=50, threads=3)
    agent.wish(mode=ring.Mode.WINDOWS, counting=1)
    launched = finish(process, agent)
    counts = agent.records(Record.COUNT)
    last = {int(c["function"]): int(c["count"]) for c in counts}
    assert all(c["since"] == counts[0]["since"] for c in counts)
    total = agent.counters()["launches_counted"]
    assert sum(last.values()) == total
    assert 0.7 * launched < total <= launched + 3  # counting started after the program did
    # threads that all meet a new name at once may not get its id; those launches stand together under 0
    assert last.pop(0, 0) <= agent.counters()["names_busy"]
    assert {agent.string(f) for f in last} >= {"_Z4gemmPfS_S_i", "_Z4reluPfi", "_Z7softmaxPfi"}
    gemm = next(n for f, n in last.items() if agent.string(f) == "_Z4gemmPfS_S_i")
    assert gemm == pytest.approx(total / 2, rel=0.01)


def test_on_demand_records_until_then(start):
    process, agent = start(2.0)
    agent.wish(mode=ring.Mode.ON_DEMAND)
    agent.run(0.3)
    assert agent.state() == "between"
    assert agent.counters()["windows"] == 0
    until = time.monotonic_ns() + 500_000_000
    agent.wish(detail_until=until)
    finish(process, agent)
    launches = agent.records(Record.LAUNCH)
    assert len(launches) > 100
    assert launches["time"].max() < until
    windows = agent.records(Record.WINDOW)
    assert np.all(windows["flags"] & ring.WindowFlag.DETAIL)


def test_agent_gone_is_noticed(start):
    process, agent = start(4.5)
    agent.wish(mode=ring.Mode.ALWAYS)
    agent.run(0.5)
    assert agent.state() == "recording"
    end = time.monotonic() + 3
    while agent.state() != "dormant" and time.monotonic() < end:
        time.sleep(0.02)  # no heartbeat
    assert agent.state() == "dormant"
    launches = agent.counters()["launches"]
    time.sleep(0.3)
    assert agent.counters()["launches"] == launches
    agent.drain()
    closed = agent.records(Record.WINDOW)
    assert closed[-1]["reason"] == list(ring.CLOSES).index("agent_gone")
    agent.wish(mode=ring.Mode.ALWAYS)  # the next agent
    agent.run(0.5)
    assert agent.state() == "recording"
    assert agent.counters()["launches"] > launches
    assert len(agent.records(Record.DEVICE)) == 4  # told again
    finish(process, agent)


@pytest.mark.parametrize("how", ["return", "fork", "_exit"])
def test_exit_keeps_status_and_tail(start, how):
    process, agent = start(0.8, how=how)
    agent.wish(mode=ring.Mode.ALWAYS)
    finish(process, agent)
    exits = agent.records(Record.EXIT)
    if how == "_exit":  # nobody is asked
        assert len(exits) == 0
        return
    assert len(exits) == 1
    assert exits[0]["flags"] == 1
    assert agent.state() == "exited"
    assert sorted(agent.records(Record.LAUNCH)["correlation"]) == sorted(agent.records(Record.KERNEL)["correlation"])
    counters = agent.counters()
    assert counters["records"] == sum(len(rows) for rows in agent.taken)
    if how == "fork":
        assert counters["callbacks_in_child"] > 0


def test_no_buffer_left_closes_the_window(start):
    process, agent = start(2.5, pause_us=0)
    agent.wish(mode=ring.Mode.ALWAYS, buffers_mib=1, probability=0)
    finish(process, agent)
    counters = agent.counters()
    assert counters["drop_pool"] > 0
    windows = agent.records(Record.WINDOW)
    closed = windows[windows["end"] > 0]
    assert list(ring.CLOSES).index("buffers_empty") in closed["reason"]
    assert np.any(closed["flags"] & ring.WindowFlag.LOSSY)
    assert agent.library["buffers"][0] <= 1


def test_killed_in_a_window(start):
    """What was written stays readable through the agent's own mapping."""
    process, agent = start(5.0)
    agent.wish(mode=ring.Mode.ALWAYS)
    agent.run(0.5)
    process.kill()
    process.wait()
    before = sum(len(rows) for rows in agent.taken)
    agent.drain()
    assert agent.counters()["records"] == sum(len(rows) for rows in agent.taken) >= before > 100
    assert len(agent.records(Record.EXIT)) == 0
    assert agent.state() == "recording"


def test_a_full_ring_is_counted(start):
    process, agent = start(1.5, pause_us=0, threads=2)
    agent.wish(mode=ring.Mode.ALWAYS, probability=0)
    while process.poll() is None:
        agent.beat()  # and never drains
        time.sleep(0.02)
    counters = agent.counters()
    assert counters["records"] == ring.RING_SLOTS
    assert counters["drop_ring_full"] > 0
    assert counters["windows_lossy"] >= 1
    assert process.returncode == 3


@pytest.mark.parametrize("tail", [5, 1 << 40, 1 << 63])
def test_a_tail_that_lies_does_no_harm(start, tail):
    process, agent = start(0.6)
    agent.word(ring.TAIL_OFFSET)[0] = tail
    agent.wish(mode=ring.Mode.ALWAYS)
    while process.poll() is None:
        agent.beat()
        time.sleep(0.02)
    assert process.returncode == 3
    assert agent.counters()["records"] == 0
    assert agent.counters()["drop_ring_full"] > 0


@pytest.mark.parametrize(
    "environment,state,reason",
    [
        ({"FAKE_CUPTI_VERSION": "17"}, "refused", "cupti_too_old"),
        ({"FAKE_CUPTI_SUBSCRIBE": "39"}, "standing_back", "subscriber_taken"),
        ({"FAKE_CUPTI_ENABLE": "35"}, "refused", "not_permitted"),
        ({"FAKE_CUPTI_ENABLE": "41"}, "refused", "virtual_device"),
    ],
)
def test_refusals_have_a_reason(start, environment, state, reason):
    process, agent = start(0.8, **environment)
    agent.wish(mode=ring.Mode.ALWAYS)
    agent.run(0.4)
    assert (agent.state(), agent.reason()) == (state, reason)
    assert agent.library["reason_text"][0] != b""
    finish(process, agent)
    assert len(agent.records(Record.LAUNCH)) == 0


@pytest.mark.parametrize(
    "version,mode",
    [("18", "ON_DEMAND"), ("23", "ON_DEMAND"), ("24", "SESSIONS"), ("130000", "SESSIONS"), ("130001", "WINDOWS")],
)
def test_policy_follows_the_version(start, version, mode):
    process, agent = start(0.4, FAKE_CUPTI_VERSION=version)
    agent.wish(mode=ring.Mode.AUTO)
    agent.run(0.2)
    assert agent.library["policy"][0] == ring.Mode[mode]
    finish(process, agent)


def test_stands_back_for_a_foreign_profiler(start):
    process, agent = start(1.6)
    agent.wish(mode=ring.Mode.ALWAYS)
    agent.run(0.4)
    agent.wish(foreign=1)
    agent.run(0.1)
    assert (agent.state(), agent.reason()) == ("standing_back", "foreign_profiler")
    seen = agent.counters()["launches"]
    agent.run(0.3)
    assert agent.counters()["launches"] == seen
    agent.wish(foreign=0)
    agent.run(0.4)
    assert agent.state() == "recording"
    assert agent.counters()["launches"] > seen
    finish(process, agent)
    reasons = agent.records(Record.WINDOW)["reason"]
    assert list(ring.CLOSES).index("foreign_profiler") in reasons


def test_without_cupti(start, program, tmp_path):
    """libcuda alone in the process, no libcupti to be found: a reason, and the program runs on."""
    source = tmp_path / "alone.c"
    source.write_text("#include <unistd.h>\n#include <stdio.h>\nint cuInit(unsigned);\n"
                      'int main(void) { cuInit(0); puts("ready"); fflush(stdout); sleep(1); return 3; }\n')  # fmt: skip
    target = tmp_path / "alone"
    subprocess.run(
        ["gcc", "-o", target, source, program.parent / "libcuda.so.1", f"-Wl,-rpath,{program.parent}"], check=True
    )
    env = os.environ | {"CUDA_INJECTION64_PATH": str(library.path())}
    with subprocess.Popen([target], env=env, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        agent = cupti_agent.PlainAgent(cupti_agent.wait_for(process.pid))
        agent.wish(mode=ring.Mode.AUTO)
        agent.run(0.3)
        assert (agent.state(), agent.reason()) == ("refused", "no_cupti")
    assert process.returncode == 3
