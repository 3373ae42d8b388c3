# SPDX-License-Identifier: Apache-2.0
"""The simulated libcuda and libcudart: order and times of what they run, against what was asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

sys.path.append(str(Path(__file__).parent / "sim"))
sys.path.append(str(Path(__file__).parent / "sim/workloads"))
import programs
import recording
import simulated_node
import truth
from simulated_node import Node

SIM = Path(__file__).parent / "sim"
DATA = Path(__file__).parents[2] / "shared/data"
MS = 1_000_000
ALL = (truth.KERNEL, truth.COPY, truth.SET)


@pytest.fixture(scope="module", autouse=True)
def libraries():
    return simulated_node.build()


@pytest.fixture
def node(tmp_path):
    with Node.create(tmp_path, gpus=2, load="0") as created:
        yield created


@pytest.fixture
def run(node, tmp_path):
    """On the simulated clock unless told otherwise: exact, and at once."""

    def runner(program, simulated_clock=True, **more):
        outcome = programs.run(node, program, tmp_path, simulated_clock=simulated_clock, **more)
        if more.get("timeout") is None:
            assert outcome.code == 0, outcome.errors
        return outcome

    return runner


def duration(rows):
    return rows["end_ns"] - rows["start_ns"]


def overlap(rows):
    """Of rows in order of start: those that begin before the one before has ended."""
    rows = rows[numpy.argsort(rows["start_ns"])]
    return int((rows["start_ns"][1:] < rows["end_ns"][:-1]).sum())


@pytest.mark.parametrize("variable", ["", "1", "GPU-00000000-0000-4000-8000-000000000001", "1,0", "1,7,0"])
def test_devices_are_those_of_nvml_and_visible_devices_is_obeyed(run, variable):
    program = """
import pynvml as n
n.nvmlInit()
count = ctypes.c_int()
rt.cudart.cudaGetDeviceCount(ctypes.byref(count))
found = []
for ordinal in range(count.value):
    uuid = (ctypes.c_ubyte * 16)()
    check(rt.cuda.cuDeviceGetUuid_v2(uuid, ordinal))
    text = bytes(uuid).hex()
    found.append("GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])))
say(cuda=found, nvml=[n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())])
"""
    said = run(program, variables={"CUDA_VISIBLE_DEVICES": variable} if variable else None).said
    assert len(said["nvml"]) == 2
    expected = {"": [0, 1], "1": [1], "1,0": [1, 0], "1,7,0": [1]}.get(variable, [1])
    assert said["cuda"] == [said["nvml"][index] for index in expected]


def test_one_stream_is_in_order_and_two_run_at_once(run):
    outcome = run("""
k = rt.kernel("k", 1000, sigma=0)
a, b = rt.stream(), rt.stream()
for _ in range(10):
    k(a); k(b)
rt.synchronize_device()
""")
    kernels = outcome.kernels("k")
    assert len(kernels) == 20 and set(duration(kernels)) == {MS}
    for stream in set(kernels["stream"]):
        assert overlap(kernels[kernels["stream"] == stream]) == 0
    assert overlap(kernels) == 19
    assert (kernels["start_ns"] >= kernels["api_ns"] + 2000).all()


def test_real_time_passes_as_told_and_the_queue_is_deep(run):
    outcome = run(
        """
k = rt.kernel("k", 10_000, sigma=0)
begin = time.monotonic()
for _ in range(40):
    k()
launched = time.monotonic()
rt.synchronize()
say(launched=launched - begin, waited=time.monotonic() - begin)
""",
        simulated_clock=False,
    )
    kernels = outcome.kernels("k")
    delays = kernels["start_ns"] - kernels["api_ns"]
    assert outcome.said["launched"] < 0.3 < 0.4 <= outcome.said["waited"] < 1.5
    assert delays.max() > 300 * MS and overlap(kernels) == 0
    assert kernels["end_ns"].max() - kernels["start_ns"].min() == pytest.approx(40 * 10 * MS, rel=0.01)


def test_the_1025th_launch_waits_for_room(run):
    outcome = run("""
k = rt.kernel("k", 10_000, sigma=0)
for _ in range(1024):
    k()
full = rt.now()
k()
say(waited=rt.now() - full, queued=full)
rt.synchronize()
""")
    first = outcome.kernels("k")[0]
    assert outcome.said["queued"] < first["end_ns"]  # 10 s of work was launched in no time
    assert outcome.said["waited"] == pytest.approx(first["end_ns"] - outcome.said["queued"], abs=10_000)


def test_the_default_stream_waits_for_blocking_streams_only(run):
    outcome = run("""
slow, k, free = (rt.kernel(n, 1000, sigma=0) for n in ("slow", "k", "free"))
slow(rt.stream())
free(rt.stream(non_blocking=True))
k()
rt.synchronize()
""")
    slow, k, free = (outcome.kernels(name)[0] for name in ("slow", "k", "free"))
    assert k["start_ns"] >= slow["end_ns"]
    assert free["start_ns"] < slow["end_ns"]


def test_events_order_streams_and_measure(run):
    outcome = run("""
k = rt.kernel("k", 3000, sigma=0)
later = rt.kernel("later", 1000, sigma=0)
a, b = rt.stream(True), rt.stream(True)
events = [ctypes.c_void_p() for _ in range(2)]
for event in events:
    check(rt.cudart.cudaEventCreate(ctypes.byref(event)))
check(rt.cudart.cudaEventRecord(events[0], ctypes.c_void_p(a)))
k(a)
check(rt.cudart.cudaEventRecord(events[1], ctypes.c_void_p(a)))
say(early=rt.cudart.cudaEventQuery(events[1]))
check(rt.cudart.cudaStreamWaitEvent(ctypes.c_void_p(b), events[1], 0))
later(b)
check(rt.cudart.cudaEventSynchronize(events[1]))
ms = ctypes.c_float()
check(rt.cudart.cudaEventElapsedTime(ctypes.byref(ms), *events))
rt.synchronize_device()
say(ms=ms.value)
""")
    assert outcome.said["early"] == 600  # cudaErrorNotReady
    assert outcome.said["ms"] == pytest.approx(3, rel=0.01)
    assert outcome.kernels("later")[0]["start_ns"] >= outcome.kernels("k")[0]["end_ns"]


def test_copies_take_their_bytes_time_and_share_an_engine(run):
    outcome = run("""
size = 100 << 20
pinned, device = rt.pinned(size), rt.allocate(size)
pageable = ctypes.create_string_buffer(16)
streams = [rt.stream(True) for _ in range(3)]
rt.copy(device, pinned, size, HOST_TO_DEVICE, streams[0])
rt.copy(device, pinned, size, HOST_TO_DEVICE, streams[1])
rt.copy(pinned, device, size, DEVICE_TO_HOST, streams[2])
rt.synchronize_device()
before = rt.now()
check(rt.cudart.cudaMemcpy(ctypes.c_void_p(device), pageable, ctypes.c_size_t(size), HOST_TO_DEVICE))
say(blocked=rt.now() - before)
rt.fill(device, 1, size)
rt.copy(device, device, size, DEVICE_TO_DEVICE)
rt.synchronize()
""")
    copies = outcome.of(truth.COPY)
    to_device = copies[copies["type"] == 1]
    assert list(copies["bytes"]) == [100 << 20] * 5 and list(outcome.of(truth.SET)["bytes"]) == [100 << 20]
    assert sorted(copies["type"]) == [1, 1, 1, 2, 8]
    assert overlap(to_device) == 0 and copies[copies["type"] == 2][0]["start_ns"] < to_device[0]["end_ns"]
    assert duration(to_device[:1])[0] == pytest.approx((100 << 20) / 50, rel=0.01)  # 50 GB/s pinned
    assert outcome.said["blocked"] == pytest.approx((100 << 20) / 12, rel=0.01)  # pageable, and the call waits


def test_every_way_to_launch_is_a_launch(run):
    outcome = run("""
class Config(ctypes.Structure):
    _fields_ = (("grid", Dim3), ("block", Dim3), ("shared", ctypes.c_size_t),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("n", ctypes.c_uint))
names = ["plain", "own", "together", "extended", "handle", "driver"]
k = {name: rt.kernel(name, 100, sigma=0, grid=(3, 2, 1), block=(64, 2, 1), shared=512) for name in names}
rt.set_device(0)
for name, call in (("plain", "cudaLaunchKernel"), ("own", "cudaLaunchKernel_ptsz"), ("together", "cudaLaunchCooperativeKernel")):
    function = getattr(rt.cudart, call)
    function.argtypes = rt.cudart.cudaLaunchKernel.argtypes
    check(function(*k[name]._arguments, None))
host = k["extended"]._arguments[0]
config = Config(Dim3(3, 2, 1), Dim3(64, 2, 1), 512, None, None, 0)
check(rt.cudart.cudaLaunchKernelExC(ctypes.byref(config), ctypes.c_void_p(host), None))
handle = ctypes.c_void_p()
check(rt.cudart.__getattr__("__cudaGetKernel")(ctypes.byref(handle), ctypes.c_void_p(k["handle"]._arguments[0])))
launch = rt.cudart.__getattr__("__cudaLaunchKernel")
launch.argtypes = rt.cudart.cudaLaunchKernel.argtypes
check(launch(handle, Dim3(3, 2, 1), Dim3(64, 2, 1), None, 512, None))
function = ctypes.c_void_p()
check(rt.cuda.cuModuleGetFunction(ctypes.byref(function), None, b"driver"))
check(rt.cuda.cuLaunchKernel(function, 3, 2, 1, 64, 2, 1, 512, None, None, None))
say(bad=rt.cudart.cudaLaunchKernel(12345, Dim3(1, 1, 1), Dim3(1, 1, 1), None, 0, None))
rt.synchronize_device()
""")
    kernels = outcome.kernels()
    assert sorted(outcome.names) == ["driver", "extended", "handle", "own", "plain", "together"] and len(kernels) == 6
    assert (kernels["grid"] == (3, 2, 1)).all() and (kernels["block"] == (64, 2, 1)).all()
    assert {row["stream"] == 7 for row in kernels if outcome.names[row["name"] - 1] == "own"} == {False}
    assert (kernels["stream"] == 7).sum() == 5
    assert len(set(kernels["correlation"])) == 6 and outcome.said["bad"]


def test_a_graph_runs_what_was_captured(run):
    outcome = run("""
stream = rt.stream()
k, l = rt.kernel("k", 100, sigma=0), rt.kernel("l", 200, sigma=0)
graph = rt.capture(stream, lambda: (k(stream), l(stream), k(stream)))
say(captured=rt.now())
rt.launch_graph(graph, stream)
rt.launch_graph(graph, stream)
rt.synchronize(stream)
""")
    kernels, graphs = outcome.kernels(), outcome.of(truth.GRAPH)
    assert [outcome.names[row["name"] - 1] for row in kernels] == ["k", "l", "k"] * 2
    assert len(graphs) == 2 and set(kernels["graph"]) == set(graphs["graph"]) and len(set(kernels["node_id"])) == 3
    assert list(graphs["start_ns"]) == list(kernels["start_ns"][::3]) and list(graphs["end_ns"]) == list(
        kernels["end_ns"][2::3]
    )
    assert set(kernels["correlation"][:3]) == {graphs["correlation"][0]}
    assert (kernels["api_ns"] >= outcome.said["captured"]).all()  # capturing ran nothing


def test_simulated_time_is_fast_and_the_same_each_time(run):
    program = """
k = rt.kernel("k", 30_000, sigma=0.4)
for _ in range(500):
    k()
    rt.advance(200_000_000)
rt.synchronize()
say(seconds=(rt.now() - 1_000_000_000) / 1e9)
"""
    first, second = run(program), run(program)
    assert first.said["seconds"] == pytest.approx(100, rel=0.01)
    for column in ("api_ns", "start_ns", "end_ns", "correlation"):
        assert (first.kernels()[column] == second.kernels()[column]).all()
    spread = numpy.log(duration(first.kernels())).std()
    assert spread == pytest.approx(0.4, rel=0.15)


def test_next_duration_is_for_one_operation(run):
    outcome = run("""
k = rt.kernel("k", 100, sigma=0)
rt.next_duration(7_000_000)
k(); k()
rt.synchronize()
""")
    assert list(duration(outcome.kernels("k"))) == [7 * MS, 100_000]


INJECTED = """
#include <stdio.h>
#include <stdlib.h>
int cuDriverGetVersion(int *);
int cuDeviceGetCount(int *);
int InitializeInjection(void)
{
	int version = 0, count = 0;
	cuDriverGetVersion(&version);
	FILE *file = fopen(getenv("INJECTION_SAYS"), "a");
	fprintf(file, "%d %d\\n", version, cuDeviceGetCount(&count));
	fclose(file);
	return 1;
}
"""


def test_cuinit_loads_the_injection_once_before_it_returns(run, tmp_path):
    source, library, says = tmp_path / "injected.c", tmp_path / "injected.so", tmp_path / "said"
    source.write_text(INJECTED, "utf-8")
    libcuda = simulated_node.BIN / "driver/libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, libcuda], check=True)
    outcome = run(
        """
say(before=os.path.exists(os.environ["INJECTION_SAYS"]))
rt.set_device(0); rt.set_device(1); check(rt.cuda.cuInit(0))
""",
        inject=library,
        variables={"INJECTION_SAYS": str(says)},
    )
    assert outcome.said["before"] is False
    assert says.read_text("utf-8") == "13010 3\n"  # CUDA_ERROR_NOT_INITIALIZED: cuInit has not returned


def test_an_injection_that_is_not_there_changes_nothing(run):
    assert run("rt.set_device(0); say(ok=1)", inject="/nowhere/lib.so").said == {"ok": 1}


def test_cuda_is_not_there_in_a_forks_child(run):
    outcome = run(
        """
rt.set_device(0)
pid = os.fork()
if pid == 0:
    os._exit(rt.cuda.cuInit(0))
say(child=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), parent=rt.cuda.cuInit(0))
""",
        simulated_clock=False,
    )
    assert outcome.said == {"child": 3, "parent": 0}


def test_a_fork_before_cuinit_is_free_to_use_cuda(run):
    outcome = run(
        """
pid = os.fork()
if pid == 0:
    k = rt.kernel("k", 10); k(); rt.synchronize()
    os._exit(7)
say(child=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
        simulated_clock=False,
    )
    assert outcome.said == {"child": 7}


def test_without_a_driver_the_runtime_says_so(node, tmp_path):
    program = """
import ctypes
cudart = ctypes.CDLL("libcudart.so.12")
count = ctypes.c_int(9)
print(cudart.cudaGetDeviceCount(ctypes.byref(count)), count.value, cudart.cudaDeviceSynchronize())
"""
    said = subprocess.run(
        [sys.executable, "-c", program],
        env=node.environment(dict(os.environ), driver=False),
        text=True,
        capture_output=True,
        check=True,
    ).stdout
    assert said.split() == ["35", "0", "35"]  # cudaErrorInsufficientDriver


def test_nvml_follows_the_load(run):
    outcome = run(
        """
import pynvml as n
n.nvmlInit()
gpu = [n.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
k = rt.kernel("k", 30_000, sigma=0)
rt.set_device(0)
rt.allocate(3 << 30)
begin = time.time_ns()
while time.time_ns() < begin + 1_000_000_000:
    k(); rt.synchronize(); time.sleep(0.02)
end = time.time_ns()
samples = n.nvmlDeviceGetSamples(gpu[0], n.NVML_GPU_UTILIZATION_SAMPLES, begin // 1000 + 170_000)[1]
say(busy=[s.sampleValue.uiVal for s in samples if s.timeStamp < end // 1000], other=n.nvmlDeviceGetUtilizationRates(gpu[1]).gpu,
    pids=[p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(gpu[0])], pid=os.getpid(),
    used=n.nvmlDeviceGetMemoryInfo(gpu[0]).used, begin=begin, end=end)
""",
        simulated_clock=False,
    )
    kernels = outcome.kernels("k")
    real = kernels["start_ns"] + kernels["realtime_offset"], kernels["end_ns"] + kernels["realtime_offset"]
    inside = (real[0] > outcome.said["begin"]) & (real[1] < outcome.said["end"])
    share = duration(kernels[inside]).sum() / (outcome.said["end"] - outcome.said["begin"])
    assert numpy.mean(outcome.said["busy"]) == pytest.approx(100 * share, abs=12)
    assert 20 < numpy.mean(outcome.said["busy"]) < 95 and outcome.said["other"] == 0
    assert outcome.said["pids"] == [outcome.said["pid"]]
    assert outcome.said["used"] > 3 << 30


def test_a_process_that_has_died_is_no_longer_on_the_device(run, node):
    run("rt.set_device(0); rt.allocate(1 << 30); os.kill(os.getpid(), 9)", timeout=20)
    program = (
        "import pynvml as n; n.nvmlInit(); g = n.nvmlDeviceGetHandleByIndex(0); "
        "print(len(n.nvmlDeviceGetComputeRunningProcesses(g)), n.nvmlDeviceGetMemoryInfo(g).used >> 20)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        env=node.environment(dict(os.environ)),
        text=True,
        capture_output=True,
        check=True,
    ).stdout
    assert said.split() == ["0", "600"]  # what the driver reserves


def test_what_a_killed_process_ran_is_in_the_truth(run):
    outcome = run(
        """
k = rt.kernel("k", 100, sigma=0)
for _ in range(50): k()
rt.synchronize()
os.kill(os.getpid(), 9)
""",
        simulated_clock=False,
        timeout=20,
    )
    assert outcome.code == -9 and len(outcome.kernels("k")) == 50


def test_ranks_meet_in_a_collective(node, tmp_path):
    log = tmp_path / "ranks"
    done = subprocess.run(
        [sys.executable, SIM / "workloads/train.py", "--ranks", "2", "--steps", "4", "--stall", "40", "--layers", "2"],
        env=node.environment(dict(os.environ), truth=log),
        timeout=30,
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    reduced = {}
    for rows, names in truth.read(log).values():
        collective = [index + 1 for index, name in enumerate(names) if "ncclDevKernel_AllReduce" in name]
        kernels = rows[rows["kind"] == truth.KERNEL]
        reduced[int(kernels["device"][0])] = kernels[kernels["name"] == collective[0]]
    assert sorted(reduced) == [0, 1]
    assert list(reduced[0]["end_ns"]) == list(reduced[1]["end_ns"]) and len(reduced[0]) == 4
    later = numpy.maximum(reduced[0]["start_ns"], reduced[1]["start_ns"])
    assert (reduced[0]["end_ns"] - later == 900_000).all()
    assert (
        numpy.median(duration(reduced[1])) > 10 * MS > numpy.median(duration(reduced[0]))
    )  # rank 1 waits for the slow loader


@pytest.mark.skipif(not (DATA / "h100_2gpu_1s.sqlite").exists(), reason="no recording here")
def test_a_recording_is_played_as_it_was(node, tmp_path):
    schedule, log = tmp_path / "schedule", tmp_path / "played"
    rows = recording.operations(DATA / "h100_2gpu_1s.sqlite")
    recording.write_schedule(DATA / "h100_2gpu_1s.sqlite", schedule)
    subprocess.run(
        [simulated_node.BIN / "workloads/replay", schedule, "1"],
        env=node.environment(dict(os.environ), truth=log),
        timeout=30,
        check=True,
    )
    ((played, names),) = truth.read(log).values()
    assert sum(row[4] == "kernel" for row in rows) == 3442 and sum(row[4] == "copy" for row in rows) == 904
    for device in (0, 1):
        for kind, code in (("kernel", truth.KERNEL), ("copy", truth.COPY), ("set", truth.SET)):
            asked = sorted(row[5] for row in rows if row[1] == device and row[4] == kind)
            assert sorted(duration(played[(played["device"] == device) & (played["kind"] == code)])) == asked
    kernels = played[played["kind"] == truth.KERNEL]
    delay = numpy.median(kernels["start_ns"] - kernels["api_ns"]) / MS
    assert 150 < delay < 600  # the recording's own: 421 ms
    assert {row[-1] for row in rows if row[4] == "kernel"} == {names[row["name"] - 1] for row in kernels}
    assert len(set(kernels["tid"])) == 2


def test_threads_and_sleeps_live_in_simulated_time(run):
    """Two host threads and one that only sleeps: each step at its own time, none before its turn."""
    outcome = run("""
import threading
rt.set_device(0)
marks, stream = [], rt.stream(True)
k = rt.kernel("k", 50_000, sigma=0)
def beat():
    for _ in range(10):
        time.sleep(1)
        marks.append(("beat", time.monotonic_ns()))
def work():
    rt.set_device(0)
    for _ in range(5):
        rt.advance(2_100_000_000)
        k(stream); rt.synchronize(stream)
        marks.append(("work", time.monotonic_ns()))
threads = [threading.Thread(target=f) for f in (beat, work)]
begin = time.monotonic_ns()
for thread in threads: thread.start()
rt.away()
for thread in threads: thread.join()
say(marks=[(who, at - begin) for who, at in marks], wall=time.time())
""")
    beats = [at for who, at in outcome.said["marks"] if who == "beat"]
    works = [at for who, at in outcome.said["marks"] if who == "work"]
    assert beats == pytest.approx([second * 1e9 for second in range(1, 11)], rel=1e-4)
    assert works == pytest.approx([turn * 2.15e9 for turn in range(1, 6)], rel=1e-3)
    assert [at for _, at in outcome.said["marks"]] == sorted(beats + works)
    assert outcome.said["wall"] == pytest.approx(1_700_000_000 + 12, abs=2)
