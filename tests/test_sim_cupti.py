# SPDX-License-Identifier: Apache-2.0
"""The simulated libcupti: NVIDIA's names and layouts, records that match what ran, and each behaviour a profiler must survive."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "sim"))
sys.path.append(str(Path(__file__).parent / "sim/workloads"))
import cupti_client as c
import programs
import simulated_node
import truth
from simulated_node import BIN, RELEASES, Node

SEGV, STILL_RUNNING = -11, -9
MS = 1_000_000
# sizes of the records each release emits, read from the wheels with DWARF, rounded up to 8
KERNEL_SIZE = {
    "12.0": 208,
    "12.4": 208,
    "12.9": 208,
    "13.0": 216,
    "13.1": 224,
    "13.2": 224,
    "13.3": 232,
    "13.4": 248,
    "13.5": 248,
}
COPY_SIZE = {"12.0": 88, "12.6": 88, "12.8": 96, "13.3": 96, "13.4": 112}
SET_SIZE = {"12.0": 88, "13.3": 88, "13.4": 104}
GRAPH_SIZE = {"12.2": 48, "12.3": 56, "13.5": 56}
SYNCHRONIZATION_SIZE = {"12.6": 40, "12.8": 56, "13.5": 56}
OVERHEAD_SIZE = {"12.2": 40, "12.3": 48, "12.4": 56, "13.5": 56}
DEVICE_SIZE = {"12.1": 176, "12.2": 184, "13.1": 184, "13.2": 192}


@pytest.fixture(scope="module", autouse=True)
def libraries():
    return simulated_node.build()


@pytest.fixture
def node(tmp_path):
    with Node.create(tmp_path, gpus=2, load="0") as created:
        yield created


@pytest.fixture
def run(node, tmp_path):
    def runner(program, simulated_clock=True, code=0, **more):
        outcome = programs.run(node, program, tmp_path, simulated_clock=simulated_clock, **more)
        assert outcome.code == code, outcome.errors
        return outcome

    return runner


RECORDED = """
rt.set_device(0)
cl = c.Client({major})
assert cl.register() == 0
"""


def start(release="13.5"):
    return RECORDED.format(major=release.partition(".")[0])


def exports(path):
    listed = subprocess.run(["nm", "-D", "--defined-only", path], text=True, capture_output=True, check=True).stdout
    return set(re.findall(r" T (\w+)", listed))


def test_every_export_is_in_nvidias_headers():
    for release in RELEASES:
        major = int(release.partition(".")[0])
        headers = "".join(
            file.read_text("utf-8", "replace") for file in (BIN / f"headers/cuda{major}").glob("cupti*.h")
        )
        found = exports(BIN / f"cupti/{release}/libcupti.so.{major}")
        assert len(found) >= 35
        for name in found:
            assert re.search(rf"\b{name}\s*\(", headers), name


def test_a_release_has_only_what_existed_then():
    def has(release, name):
        return name in exports(BIN / f"cupti/{release}/libcupti.so.{release.partition('.')[0]}")

    assert not has("12.4", "cuptiActivityEnableRuntimeApi") and has("12.5", "cuptiActivityEnableRuntimeApi")
    assert not has("12.9", "cuptiSubscribe_v2") and has("13.0", "cuptiSubscribe_v2")
    assert not has("12.1", "cuptiGetErrorMessage") and has("12.2", "cuptiGetErrorMessage")


@pytest.mark.parametrize("release", RELEASES)
def test_version_and_sizes_are_those_of_the_release(run, release):
    outcome = run(
        start(release)
        + """
assert cl.enable(c.KERNEL, c.COPY, c.SET, c.DEVICE, c.SYNCHRONIZATION, c.OVERHEAD) == 0
k = rt.kernel("k", 10)
device = rt.allocate(4096)
host = rt.pinned(4096)
stream = rt.stream()
graph = rt.capture(stream, lambda: k(stream))
for _ in range(2):
    k(); rt.copy(device, host, 4096, HOST_TO_DEVICE); rt.fill(device, 0, 4096); rt.synchronize()
    cl.flush()
cl.enable(c.GRAPH)
for _ in range(2):
    rt.launch_graph(graph, stream)
rt.synchronize(stream)
cl.flush(); cl.flush()
steps = {}
for (kind, size), times in cl.steps.items():
    steps.setdefault(kind, set()).add(size)
say(version=cl.version(), steps={kind: sorted(sizes) for kind, sizes in steps.items()},
    kinds=sorted({r["kind"] for r in cl.records}), uuid=cl.of(c.DEVICE)[1]["uuid"].hex())
""",
        cupti=release,
        variables={} if release != "13.2" else {"SIM_CUPTI_BEHAVIOUR": "before_init_crash=0"},
    )
    assert outcome.said["version"] == RELEASES[release]
    assert outcome.said["uuid"] == "00000000000040008000000000000001"
    assert outcome.said["kinds"] == [c.COPY, c.SET, c.DEVICE, c.KERNEL, c.OVERHEAD, c.SYNCHRONIZATION, c.GRAPH]
    tables = {
        c.KERNEL: KERNEL_SIZE,
        c.COPY: COPY_SIZE,
        c.SET: SET_SIZE,
        c.GRAPH: GRAPH_SIZE,
        c.SYNCHRONIZATION: SYNCHRONIZATION_SIZE,
        c.DEVICE: DEVICE_SIZE,
    }
    compared = 0
    for kind, sizes in outcome.said["steps"].items():
        table = tables.get(int(kind), {})
        if release in table:
            assert sizes == [table[release]]
            compared += 1
    assert compared or not any(release in table for table in tables.values())


EVERYTHING = """
assert cl.enable(c.KERNEL, c.COPY, c.SET, c.PEER, c.RUNTIME, c.DRIVER, c.SYNCHRONIZATION) == 0
k, l = rt.kernel("k", 100, grid=(5, 4, 3), block=(32, 2, 1)), rt.kernel("l", 300)
streams = [rt.stream(), rt.stream(True)]
device, host = rt.allocate(1 << 20), rt.pinned(1 << 20)
for i in range(200):
    (k, l)[i % 2](streams[i % 3 % 2])
    if i % 10 == 0:
        rt.copy(device, host, 1000 * i + 1, HOST_TO_DEVICE, streams[0])
        rt.copy(host, device, 1000 * i + 2, DEVICE_TO_HOST, streams[1])
        rt.fill(device, 7, 1000 * i + 3, streams[1])
rt.set_device(1)
other = rt.allocate(1 << 20)
k()
pointer, number = ctypes.c_void_p, ctypes.c_int
rt.cudart.cudaMemcpyPeerAsync.argtypes = (pointer, number, pointer, number, ctypes.c_size_t, pointer)
check(rt.cudart.cudaMemcpyPeerAsync(other, 1, device, 0, 5555, None))
rt.synchronize_device(); rt.set_device(0); rt.synchronize_device()
cl.flush()
say(records=cl.records, dropped=cl.dropped())
"""


@pytest.mark.parametrize("release", ["12.0", "12.9", "13.5"])
def test_records_match_what_ran(run, release):
    outcome = run(start(release) + EVERYTHING, cupti=release)
    records = outcome.said["records"]
    kernels = {r["correlation"]: r for r in records if r["kind"] == c.KERNEL}
    ran = outcome.kernels()
    assert len(kernels) == len(ran) == 201 and outcome.said["dropped"] == 0
    for row in ran:
        record = kernels[row["correlation"]]
        assert record["start"] == row["start_ns"] + row["realtime_offset"]
        assert record["end"] == row["end_ns"] + row["realtime_offset"]
        assert (record["device"], record["stream"], record["context"]) == (row["device"], row["stream"], row["context"])
        assert record["name"] == outcome.names[row["name"] - 1]
        assert tuple(record["grid"]) == tuple(row["grid"]) and tuple(record["block"]) == tuple(row["block"])
        assert record["graph"] == record["node"] == record["queued"] == 0
    for kind, of in ((c.COPY, truth.COPY), (c.SET, truth.SET)):
        rows = outcome.of(of)
        rows = rows[rows["type"] != 10]
        assert len(rows) == (40 if kind == c.COPY else 20)
        assert sorted(
            (r["correlation"], r["bytes"], r["end"] - r["start"], r["stream"]) for r in records if r["kind"] == kind
        ) == sorted((row["correlation"], row["bytes"], row["end_ns"] - row["start_ns"], row["stream"]) for row in rows)
    (peer,) = (r for r in records if r["kind"] == c.PEER)
    assert (peer["bytes"], peer["source_device"], peer["target_device"], peer["device"]) == (5555, 0, 1, 1)
    calls = {r["correlation"]: r for r in records if r["kind"] == c.RUNTIME}
    assert set(kernels) < set(calls)
    assert all(calls[number]["start"] <= kernels[number]["start"] for number in kernels)
    driver = {r["correlation"] for r in records if r["kind"] == c.DRIVER and r["cbid"] == 307}
    assert driver == set(kernels)  # one id for a runtime call and the driver's inside it
    waits = [r for r in records if r["kind"] == c.SYNCHRONIZATION]
    assert [w["type"] for w in waits] == [4, 4]


def test_a_window_records_the_launches_made_in_it_whole(run):
    outcome = run(
        start()
        + """
k = rt.kernel("k", 10_000, sigma=0)
for _ in range(5): k()
cl.enable(c.KERNEL)
for _ in range(7): k()
cl.disable(c.KERNEL)
for _ in range(5): k()
cl.flush(); early = len(cl.records)
rt.synchronize()
cl.flush()
say(early=early, correlations=sorted(r["correlation"] for r in cl.of(c.KERNEL)), times=[r["end"] - r["start"] for r in cl.of(c.KERNEL)])
"""
    )
    asked = outcome.kernels()
    assert outcome.said["early"] == 0
    assert outcome.said["correlations"] == sorted(int(row["correlation"]) for row in asked[asked["record"] != 0])
    assert outcome.said["times"] == [10 * MS] * 7 and [int(r) for r in asked["record"]] == [0] * 5 + [1] * 7 + [0] * 5


def test_a_forced_flush_consumes_what_runs_with_end_0(run):
    outcome = run(
        start()
        + """
cl.enable(c.KERNEL)
k = rt.kernel("k", 10_000, sigma=0)
for _ in range(3): k()
rt.advance(15_000_000)
cl.flush(); plain = len(cl.records)
cl.flush(c.FORCED); forced = [bool(r["end"]) for r in cl.records]
rt.synchronize()
cl.flush(); say(plain=plain, forced=forced, all=[bool(r["end"]) for r in cl.records])
"""
    )
    assert outcome.said == {"plain": 1, "forced": [True, False], "all": [True, False, True]}


GRAPHS = """
stream = rt.stream()
k = rt.kernel("k", 100, sigma=0)
graph = rt.capture(stream, lambda: [k(stream) for _ in range(4)])
def session(*kinds):
    cl.enable(*kinds)
    rt.launch_graph(graph, stream); k(stream); rt.launch_graph(graph, stream)
    rt.synchronize(stream)
    cl.disable(*kinds)
    cl.flush()
    found = [(r["kind"], r["correlation"]) for r in cl.records]
    cl.records.clear()
    return found
"""


@pytest.mark.parametrize("latch", [1, 0])
def test_graph_trace_latches(run, latch):
    said = run(
        start()
        + GRAPHS
        + """
say(first=session(c.KERNEL), second=session(c.KERNEL, c.GRAPH), third=session(c.KERNEL))
""",
        behaviour={"graph_latch": latch},
    ).said
    kinds = {name: sorted(kind for kind, _ in said[name]) for name in said}
    assert kinds["first"] == [c.KERNEL] * 9
    assert kinds["second"] == [c.KERNEL, c.GRAPH, c.GRAPH]
    assert kinds["third"] == ([c.KERNEL] if latch else [c.KERNEL] * 9)


@pytest.mark.parametrize("release", ["12.9", "13.0", "13.1"])
def test_graph_records_of_a_second_session_carry_wrong_ids_before_13_1(run, release):
    outcome = run(start(release) + GRAPHS + "\nsay(sessions=[session(c.GRAPH) for _ in range(3)])", cupti=release)
    launched = [int(row["correlation"]) for row in outcome.of(truth.GRAPH)]
    recorded = [[number for _, number in session] for session in outcome.said["sessions"]]
    assert recorded[0] == launched[:2]
    right = [launched[2:4], launched[4:6]]
    assert (recorded[1:] == right) == (release == "13.1")
    if release != "13.1":
        assert not set(recorded[1]) & set(launched[2:4])


def test_graph_kernels_carry_their_graph(run):
    outcome = run(
        start()
        + GRAPHS
        + "\ncl.enable(c.KERNEL); rt.launch_graph(graph, stream); rt.synchronize(stream); cl.flush(); say(r=cl.records)"
    )
    records, rows = outcome.said["r"], outcome.kernels()
    assert [r["node"] for r in records] == list(rows["node_id"]) and len({r["node"] for r in records}) == 4
    assert {r["graph"] for r in records} == set(rows["graph"]) and {r["correlation"] for r in records} == set(
        rows["correlation"]
    )


MANY = """
cl.enable(c.KERNEL)
k = rt.kernel("k", 10, sigma=0)
for _ in range(1000): k()
rt.synchronize()
"""


@pytest.mark.parametrize(("release", "code"), [("12.8", SEGV), ("12.9", 0), ("13.5", 0)])
def test_a_null_buffer_crashes_before_12_9(run, release, code):
    program = (
        start(release)
        .replace("Client(12", "Client(12, buffers=1, size=4096")
        .replace("Client(13", "Client(13, buffers=1, size=4096")
    )
    outcome = run(
        program + MANY + "\ncl.flush(); say(n=len(cl.records), dropped=cl.dropped(), again=cl.dropped())",
        code=code,
        cupti=release,
    )
    if code == 0:
        held = 4096 // KERNEL_SIZE[release]
        assert outcome.said == {"n": held, "dropped": 1000 - held, "again": 0}


def test_an_exhausted_pool_gives_no_times_and_grows_the_device(run, node):
    outcome = run(
        start()
        + """
import pynvml as n
n.nvmlInit(); gpu = n.nvmlDeviceGetHandleByIndex(0)
assert cl.attribute(0, 3200) == 0 and cl.attribute(2, 4) == 0 and cl.attribute(6, 1) == 0  # 4 buffers of 100 records
before = n.nvmlDeviceGetMemoryInfo(gpu).used
"""
        + MANY
        + """
say(grown=n.nvmlDeviceGetMemoryInfo(gpu).used - before)
cl.flush()
cl.records.sort(key=lambda r: r["correlation"])
say(times=[r["start"] for r in cl.records], ends=[r["end"] for r in cl.records])
"""
    )
    assert [bool(start) for start in outcome.said["times"]] == [True] * 400 + [False] * 600
    assert [bool(end) for end in outcome.said["ends"]] == [True] * 400 + [False] * 600
    assert outcome.said["grown"] == 4 * 3200


def test_one_subscriber(run):
    said = run(
        start()
        + """
other = c.Client(13)
say(first=cl.subscribe(), second=other.subscribe(), unknown=other.enable_callback(c.DOMAIN_RUNTIME, 211))
say(unsubscribed=cl.unsubscribe(), twice=cl.unsubscribe(), then=other.subscribe())
"""
    ).said
    assert said == {"first": 0, "second": 39, "unknown": 1, "unsubscribed": 0, "twice": 1, "then": 0}


@pytest.mark.parametrize(("release", "second"), [("13.1", 39), ("13.3", 0)])
def test_several_subscribers_if_all_agree(run, release, second):
    said = run(
        start()
        + """
class Parameters(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("old", ctypes.c_char_p),
                ("old_size", ctypes.c_size_t), ("several", ctypes.c_uint8))
def subscribe(several, name):
    old = ctypes.create_string_buffer(64)
    parameters = Parameters(ctypes.sizeof(Parameters), name, ctypes.addressof(old), 64, several)
    handle = ctypes.c_void_p()
    return cl.cupti.cuptiSubscribe_v2(ctypes.byref(handle), cl._keep[2], None, ctypes.byref(parameters)), old.value.decode()
say(first=subscribe(1, b"one"), second=subscribe(1, b"two"), third=subscribe(0, b"three"), plain=cl.subscribe())
""",
        cupti=release,
    ).said
    assert said["first"] == [0, ""] and said["second"] == [second, "CUPTI for one"]
    assert said["third"] == [39, "CUPTI for one"] and said["plain"] == 39


def test_callbacks_come_around_the_call_with_its_correlation_id(run):
    outcome = run(
        start()
        + """
name = ctypes.c_char_p()
def named(domain, cbid):
    assert cl.cupti.cuptiGetCallbackName(domain, cbid, ctypes.byref(name)) == 0
    return name.value.decode()
cl.subscribe()
cl.enable_callback(c.DOMAIN_RUNTIME, 211); cl.enable_callback(c.DOMAIN_DRIVER, 307)
cl.enable(c.KERNEL)
k = rt.kernel("k", 100)
k(); k()
cl.enable_callback(c.DOMAIN_RUNTIME, 211, 0)
k()
cl.unsubscribe()
k()
rt.synchronize(); cl.flush()
say(calls=cl.calls, names=[named(2, 211), named(1, 307), named(1, 652), named(2, 430)], kernels=[r["correlation"] for r in cl.of(c.KERNEL)],
    bad=cl.cupti.cuptiGetCallbackName(1, 100000, ctypes.byref(name)))
"""
    )
    assert outcome.said["names"] == [
        "cudaLaunchKernel_v7000",
        "cuLaunchKernel",
        "cuLaunchKernelEx",
        "cudaLaunchKernelExC_v11060",
    ]
    one, two, three, _ = outcome.said["kernels"]
    expected = [
        [d, i, site, number, "k"]
        for number in (one, two)
        for d, i, site in ((2, 211, 0), (1, 307, 0), (1, 307, 1), (2, 211, 1))
    ]
    assert outcome.said["calls"] == [*expected, [1, 307, 0, three, "k"], [1, 307, 1, three, "k"]]
    assert outcome.said["bad"]


@pytest.mark.parametrize(
    ("release", "crash", "code"), [("13.2", None, SEGV), ("13.2", 0, 0), ("13.5", None, 0), ("12.4", 1, SEGV)]
)
def test_calls_before_cuinit_kill(run, release, crash, code):
    run(
        f"cl = c.Client({release.partition('.')[0]}); cl.register()",
        cupti=release,
        code=code,
        behaviour={} if crash is None else {"before_init_crash": crash},
    )


WITHOUT_DRIVER = """
import ctypes, sys
cupti = ctypes.CDLL("libcupti.so.{major}")
n, handle = ctypes.c_uint64(), ctypes.c_void_p()
call = {{"version": lambda: cupti.cuptiGetVersion(ctypes.byref(n)),
        "subscribe": lambda: cupti.cuptiSubscribe(ctypes.byref(handle), handle, None),
        "enable": lambda: cupti.cuptiActivityEnable(10), "flush": lambda: cupti.cuptiActivityFlushAll(0),
        "timestamp": lambda: cupti.cuptiGetTimestamp(ctypes.byref(n)), "finalize": lambda: cupti.cuptiFinalize()}}["{call}"]
print(call())
"""
DRIVERLESS = {
    "12.0": {"version": 0, "subscribe": 15, "enable": 15, "flush": 15, "timestamp": 0, "finalize": 0},
    "12.4": {"version": 0, "subscribe": 15, "enable": 15, "flush": 15, "timestamp": 0, "finalize": SEGV},
    "13.0": {"version": 0, "subscribe": 999, "enable": 999, "flush": 999, "timestamp": 0, "finalize": 0},
    "13.2": {"version": SEGV, "subscribe": SEGV, "enable": SEGV, "finalize": SEGV},
    "13.5": {"version": 999, "subscribe": 999, "enable": 999, "flush": 999, "timestamp": 999, "finalize": 999},
}


@pytest.mark.parametrize(
    ("release", "call"), [(release, call) for release, calls in DRIVERLESS.items() for call in calls]
)
def test_without_a_driver_as_the_real_libraries(node, release, call):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DRIVER.format(major=release.partition(".")[0], call=call)],
        env=node.environment(dict(os.environ), cupti=release, driver=False),
        text=True,
        capture_output=True,
        check=False,
    )
    expected = DRIVERLESS[release][call]
    assert done.returncode == (expected if expected == SEGV else 0), done.stderr
    if expected != SEGV:
        assert int(done.stdout) == expected


def test_cupti_may_be_missing(run):
    said = run(
        """
try: c.Client(13)
except OSError as error: say(error=str(error))
""",
        cupti=None,
    ).said
    assert "libcupti.so.13" in said["error"]


@pytest.mark.parametrize(("release", "code"), [("12.5", SEGV), ("12.6", 0)])
def test_finalize_after_graphs_crashes_before_12_6(run, release, code):
    outcome = run(
        start(release) + GRAPHS + "\nsession(c.KERNEL); cl.cupti.cuptiFinalize(); say(after=session(c.KERNEL))",
        cupti=release,
        code=code,
    )
    if code == 0:  # callbacks are gone too: nothing is delivered until they are registered again
        assert outcome.said["after"] == []


@pytest.mark.parametrize(("hang", "code"), [(1, STILL_RUNNING), (0, 0)])
def test_a_call_inside_a_buffer_callback_never_returns(run, hang, code):
    outcome = run(
        start() + MANY + "\ncl.inside = lambda: say(inside=cl.flush())\ncl.flush(); say(after=1)",
        behaviour={"reentry_hang": hang},
        code=code,
        timeout=20 if code == 0 else 2,
    )
    assert outcome.said == ({"inside": 999, "after": 1} if code == 0 else {})
    assert "cuptiActivityFlushAll called inside a buffer callback" in outcome.errors


def test_a_call_in_a_forks_child_kills_it(run):
    said = run(
        start()
        + """
cl.enable(c.KERNEL)
pid = os.fork()
if pid == 0:
    cl.flush(); os._exit(0)
say(child=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), parent=cl.flush())
""",
        simulated_clock=False,
    ).said
    assert said == {"child": SEGV, "parent": 0}


@pytest.mark.parametrize(
    ("behaviour", "bad"),
    [
        ({"zero_times": 0.1}, lambda r: r["start"] == 0),
        ({"reversed_times": 0.1}, lambda r: r["start"] > r["end"]),
        ({"future_times": 0.1}, lambda r: r["end"] > r["start"] + 3000 * 10**9),
    ],
)
def test_bad_timestamps_on_demand(run, behaviour, bad):
    outcome = run(
        start() + MANY + "\ncl.flush(); say(r=[{'start': r['start'], 'end': r['end']} for r in cl.records])",
        behaviour=behaviour,
    )
    assert len(outcome.said["r"]) == 1000 and 60 < sum(map(bad, outcome.said["r"])) < 150
    clean = run(start() + MANY + "\ncl.flush(); say(r=[{'start': r['start'], 'end': r['end']} for r in cl.records])")
    assert not any(map(bad, clean.said["r"]))


def test_a_second_timestamp_callback_corrupts(run):
    said = run(
        start()
        + """
cl.enable(c.KERNEL)
clock = ctypes.CFUNCTYPE(ctypes.c_uint64)(time.time_ns)
k = rt.kernel("k", 100, sigma=0)
def one():
    k(); rt.synchronize(); cl.flush(); return cl.records[-1]["end"] - cl.records[-1]["start"]
cl.cupti.cuptiActivityRegisterTimestampCallback(clock); first = one()
cl.cupti.cuptiActivityRegisterTimestampCallback(clock); say(first=first, second=one())
"""
    ).said
    assert said["first"] == 100_000 != said["second"]


def test_dropped_records_are_counted(run):
    said = run(
        start() + MANY + "\ncl.flush(); say(n=len(cl.records), dropped=cl.dropped())", behaviour={"drop": 0.2}
    ).said
    assert said["n"] + said["dropped"] == 1000 and 140 < said["dropped"] < 260


def test_the_clock_is_realtime_and_may_step(run):
    program = start() + "\nrt.synchronize(); wall = time.time_ns(); say(off=cl.timestamp() - wall)"
    assert abs(run(program, simulated_clock=False).said["off"]) < 50 * MS
    stepped = run(program, simulated_clock=False, behaviour={"clock_step_ms": 500}).said["off"]
    assert (
        abs(
            run(
                program.replace("say(", "cl.timestamp(); say("), simulated_clock=False, behaviour={"clock_step_ms": 500}
            ).said["off"]
            - 500 * MS
        )
        < 50 * MS
    )
    assert stepped < 550 * MS


def test_buffers_come_back_late_and_out_of_order(run):
    outcome = run(
        start().replace("Client(13", "Client(13, size=8192")
        + """
cl.enable(c.KERNEL)
k = rt.kernel("k", 50, sigma=0)
streams = [rt.stream(), rt.stream()]
for i in range(2000):
    k(streams[i % 2])
    if i % 100 == 0: time.sleep(0.02)
rt.synchronize_device()
before = len(cl.records); threads = len(cl.threads - {os.getpid()})
cl.flush()
say(before=before, threads=threads, completed=cl.completed, starts=[r["start"] for r in cl.records])
""",
        simulated_clock=False,
    )
    said = outcome.said
    assert 0 < said["before"] < 2000 and said["threads"] == 1  # CUPTI's own thread returned full buffers
    assert sorted(said["completed"]) == list(range(len(said["completed"]))) != said["completed"]
    assert len(said["starts"]) == 2000 and sorted(said["starts"]) != said["starts"]


def test_a_late_record_is_not_in_the_first_flush(run):
    said = run(
        start()
        + MANY
        + """
cl.flush(); first = len(cl.records)
rt.advance(100_000_000)
cl.flush(); say(first=first, second=len(cl.records))
""",
        behaviour={"late_ms": 80},
    ).said
    assert said["first"] < 900 and said["second"] == 1000


def test_flush_period_returns_buffers_without_being_asked(run):
    said = run(
        start()
        + """
cl.cupti.cuptiActivityFlushPeriod(50)
cl.enable(c.KERNEL)
rt.kernel("k", 10)(); rt.synchronize()
end = time.monotonic() + 5
while not cl.records and time.monotonic() < end: time.sleep(0.01)
say(n=len(cl.records))
""",
        simulated_clock=False,
    ).said
    assert said == {"n": 1}


def test_what_enabling_costs_and_leaves_behind(run):
    said = run(
        start()
        + """
k = rt.kernel("k", 1)
def cost():
    begin = rt.now()
    for _ in range(100): k()
    spent = (rt.now() - begin) / 100
    rt.synchronize()
    return spent
never = cost()
begin = rt.now(); cl.enable(c.KERNEL); first = rt.now() - begin
begin = rt.now(); cl.enable(c.COPY); second = rt.now() - begin
on = cost()
cl.disable(c.KERNEL, c.COPY); off = cost()
cl.cupti.cuptiFinalize(); final = cost()
say(first=first, second=second, on=on - never, off=off - never, final=final - never)
""",
        behaviour={"first_enable_ms": 5000, "enabled_ns": 900, "residual_ns": 300},
    ).said
    assert said == {"first": 5000 * MS, "second": 0, "on": 900, "off": 300, "final": 0}


@pytest.mark.parametrize("code", [33, 35, 41, 43])
def test_a_refusal_is_told_by_its_code(run, code):
    assert run(start() + "\nsay(code=cl.enable(c.KERNEL))", behaviour={"refuse": code}).said == {"code": code}


def test_disable_may_deadlock(run):
    run(
        start() + "\ncl.enable(c.KERNEL); cl.disable(c.KERNEL)",
        behaviour={"disable_deadlock": 1},
        code=STILL_RUNNING,
        timeout=2,
    )


def test_an_unknown_behaviour_is_an_error(run):
    outcome = run(start(), behaviour={"frobnicate": 1}, code=125)
    assert "no behaviour is called frobnicate" in outcome.errors


def test_external_ids_and_latency_timestamps(run):
    outcome = run(
        start()
        + """
cl.enable(c.KERNEL, c.EXTERNAL)
cl.cupti.cuptiActivityEnableLatencyTimestamps(1)
k = rt.kernel("k", 100)
cl.cupti.cuptiActivityPushExternalCorrelationId(3, ctypes.c_uint64(42))
k()
last = ctypes.c_uint64()
say(popped=cl.cupti.cuptiActivityPopExternalCorrelationId(3, ctypes.byref(last)), last=last.value,
    empty=cl.cupti.cuptiActivityPopExternalCorrelationId(3, None))
k()
rt.synchronize(); cl.flush()
say(kernels=cl.of(c.KERNEL), external=cl.of(c.EXTERNAL))
"""
    )
    first, second = sorted(outcome.said["kernels"], key=lambda r: r["start"])
    (external,) = outcome.said["external"]
    assert (external["id"], external["external_kind"], external["correlation"]) == (42, 3, first["correlation"])
    assert (outcome.said["popped"], outcome.said["last"], outcome.said["empty"] != 0) == (0, 42, True)
    assert second["queued"] == outcome.kernels()[1]["api_ns"] + outcome.kernels()[1]["realtime_offset"]


KINETO = """
kineto = ctypes.CDLL({library!r})
rt.set_device(0)
k = rt.kernel("k", 100)
device, host = rt.allocate(4096), rt.pinned(4096)
def step():
    for _ in range(50):
        k(); rt.copy(device, host, 4096, HOST_TO_DEVICE)
    rt.synchronize()
"""


@pytest.mark.parametrize("old", [0, 1])
def test_a_users_own_profiler_sees_all(run, tmp_path, old):
    trace = tmp_path / "trace"
    outcome = run(
        KINETO.format(library=str(BIN / "workloads/libkineto.so"))
        + f"""
step()
started = kineto.kineto_start(b"libcupti.so.13", {old})
step()
say(started=started, n=kineto.kineto_stop({str(trace).encode()!r}))
step()
"""
    )
    lines = [line.split() for line in trace.read_text("utf-8").splitlines()]
    rows = outcome.rows[outcome.rows["record"] != 0]
    assert outcome.said["started"] == 0 and outcome.said["n"] == len(lines)
    assert {int(line[1]) for line in lines if line[0] == "10"} == {
        int(row["correlation"]) for row in rows if row["kind"] == truth.KERNEL
    }
    assert sum(line[0] == "10" for line in lines) == sum(line[0] == "1" for line in lines) == 50
    assert sum(line[0] == "5" for line in lines) == 101  # the runtime calls


def test_an_old_kineto_gives_up_where_another_subscribes_and_a_new_one_does_not(run, tmp_path):
    said = run(
        KINETO.format(library=str(BIN / "workloads/libkineto.so"))
        + """
cl = c.Client(13)
cl.subscribe()
old, again = kineto.kineto_start(b"libcupti.so.13", 1), kineto.kineto_start(b"libcupti.so.13", 1)
cl.unsubscribe()
say(old=old, again=again, afterwards=kineto.kineto_start(b"libcupti.so.13", 1))
"""
    ).said
    assert said == {"old": 39, "again": -1, "afterwards": -1}
    said = run(
        KINETO.format(library=str(BIN / "workloads/libkineto.so"))
        + f"""
cl = c.Client(13)
cl.subscribe()
started = kineto.kineto_start(b"libcupti.so.13", 0)
step()
say(started=started, n=kineto.kineto_stop({str(tmp_path / "t").encode()!r}))
"""
    ).said
    assert said == {"started": 0, "n": 201}


def test_two_clients_get_one_stream_of_records(run):
    """Whoever registered last has them all: what the other enabled too."""
    said = run(
        start()
        + """
other = c.Client(13)
cl.enable(c.KERNEL)
k = rt.kernel("k", 10)
k(); rt.synchronize()
other.register(); other.enable(c.COPY)
k(); rt.synchronize()
cl.flush()
say(first=len(cl.records), second=len(other.records))
"""
    ).said
    assert said == {"first": 0, "second": 2}


@pytest.mark.parametrize(("release", "result"), [("13.0", 27), ("13.1", 0), ("13.5", 0)])
def test_host_function_kinds_came_with_13_1(run, release, result):
    assert run(start(release) + "\nsay(codes=[cl.enable(56), cl.enable(58)])", cupti=release).said["codes"] == [
        result,
        result,
    ]


WITH_NVIDIAS_BINDING = """
from cupti import cupti
rt.set_device(0)
found, calls = [], []
cupti.activity_register_callbacks(
    lambda: (1 << 20, 0), lambda records: found.extend((r.kind, r.name, r.correlation_id, r.end - r.start) for r in records)
)
subscriber = cupti.subscribe(lambda data, domain, cbid, more: calls.append((int(domain), cbid, more.correlation_id)), None)
cupti.enable_callback(1, subscriber, cupti.CallbackDomain.RUNTIME_API, 211)
cupti.activity_enable(cupti.ActivityKind.CONCURRENT_KERNEL)
k = rt.kernel("hello", 500, sigma=0)
for _ in range(3): k()
rt.synchronize()
cupti.activity_flush_all(0)
say(found=found, calls=calls)
"""


def test_nvidias_own_python_binding_works_on_it(run, tmp_path, monkeypatch):
    """Where `pip install cupti-python` was done; from another folder, as ours has one named cupti."""
    monkeypatch.chdir(tmp_path)
    if subprocess.run([sys.executable, "-c", "from cupti import cupti"], capture_output=True, check=False).returncode:
        pytest.skip("cupti-python is not installed")
    outcome = run(
        WITH_NVIDIAS_BINDING,
        cupti="13.4",
        simulated_clock=False,
        variables={"LD_PRELOAD": str(BIN / "cupti/13.4/libcupti.so.13")},
    )
    correlations = [int(row["correlation"]) for row in outcome.kernels("hello")]
    assert outcome.said["found"] == [[10, "hello", number, 500_000] for number in correlations]
    assert outcome.said["calls"] == [[2, 211, number] for number in correlations for _ in range(2)]
