# SPDX-License-Identifier: Apache-2.0
"""agent/nvml.py against the simulated driver: the real pynvml, in a real child process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpustrobe.agent.nvml import NvmlPoller, Times
from gpustrobe.agent.nvml_process import library_exists
from gpustrobe.agent.readings import BY_NAME, METRICS

sys.path.append(str(Path(__file__).parent / "sim"))
import simulated_node
from simulated_node import Node, constant

INTERVAL = 0.1
PATIENCE = 0.02  # rests of 5 s become 0.1 s


@pytest.fixture(scope="module", autouse=True)
def libraries():
    simulated_node.build()


@pytest.fixture
def node(tmp_path):
    with Node.create(tmp_path, gpus=2, load="0.5") as created:
        yield created


@pytest.fixture
def poll(node):
    """A started poller on the node; arguments as NvmlPoller's."""
    started = []

    def start(**options):
        options.setdefault("environment", node.environment(dict(os.environ)))
        options.setdefault("times", Times(answer_within=1.0, backoff=0.1, patience=PATIENCE))
        poller = NvmlPoller(INTERVAL, **options)
        started.append(poller)
        poller.start()
        return poller

    yield start
    for poller in started:
        pids = poller.pids()
        poller.stop()
        for pid in pids:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)


def wait(poller, wanted, seconds=8.0):
    """Takes readings until `wanted(readings, state)` holds; all readings taken."""
    readings, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        readings += poller.take()
        if wanted(readings, poller.state):
            return readings
        time.sleep(0.02)
    pytest.fail(f"not within {seconds} s: {poller.state}, {len(readings)} readings")


def names(readings, index):
    return {reading.name for reading in readings if reading.attributes["gpu.index"] == str(index)}


def values(readings, name, index=0):
    return [r.value for r in readings if r.name == name and r.attributes["gpu.index"] == str(index)]


def rounds(count, index=0, name="gpu.clock.sm"):
    return lambda readings, state: len(values(readings, name, index)) >= count


def missing(state, index):
    return next(device.missing for device in state.devices if device.index == index)


def working(state, index):
    return next(device.working for device in state.devices if device.index == index)


def test_every_metric_of_the_table_has_the_scripted_value(node, poll):
    for index, load in enumerate((0.2, 0.9)):
        node.load(index, constant(load))
        node.process(index, os.getpid(), memory=3 << 30, share=0.5)
    readings = wait(poll(), lambda readings, state: all(
        len(values(readings, metric.name, index)) > 0 for metric in METRICS for index in (0, 1)
    ))  # fmt: skip
    for index, load in enumerate((0.2, 0.9)):
        expected = {
            "gpu.utilization": 100 * load,
            "gpu.memory.utilization": 40 * load,
            "gpu.memory.used": 3 << 30,
            "gpu.memory.total": 143771 << 20,
            "gpu.clock.sm": 1980,
            "gpu.clock.memory": 3201,
            "gpu.clock.graphics": 1980,
            "gpu.clock.video": 1545,
            "gpu.power": 77.67 + load * (627.32 - 77.67),
            "gpu.power.limit": 700,
            "gpu.temperature": 28 + load * 24,
            "gpu.pcie.tx": 2.0e9 * load,
            "gpu.pcie.rx": 5.0e9 * load,
            "gpu.process.utilization": 50 * load,
            "gpu.process.memory": 3 << 30,
        }
        assert expected.keys() == BY_NAME.keys()
        for name, value in expected.items():
            got = values(readings, name, index)
            assert got == pytest.approx([value] * len(got), rel=0.01, abs=0.5), name


def test_a_reading_says_which_device_when_and_in_what_unit(node, poll):
    before = time.time_ns()
    readings = wait(poll(), rounds(3, index=1))
    for reading in readings:
        index = int(reading.attributes["gpu.index"])
        assert reading.attributes["gpu.uuid"] == node.state.devices[index].uuid.decode()
        assert reading.attributes["gpu.name"] == "NVIDIA H200"
        assert reading.unit == BY_NAME[reading.name].unit
        assert before - 2e9 < reading.time_unix <= time.time_ns()


def test_utilization_is_the_mean_of_the_drivers_samples(node, poll):
    """Against the load itself, integrated here: a sawtooth leaves no two samples alike."""
    node.load(0, simulated_node.sawtooth(3.0, 0.0, 1.0))
    readings = wait(poll(), rounds(6, name="gpu.utilization"))
    start = node.state.start_unix_ns

    def load(at_ns):
        second = (at_ns - start) / 1e9 % 3.0
        return second / 2.997 if second < 2.997 else (3.0 - second) / 0.003

    for reading in (reading for reading in readings if reading.name == "gpu.utilization"):
        if reading.attributes["gpu.index"] != "0":
            continue
        steps = [reading.time_unix - step * 1_000_000 for step in range(500)]
        means = [100 * sum(map(load, steps[:count])) / count for count in (167, 333, 500)]  # one to three samples
        assert min(abs(reading.value - mean) for mean in means) < 1.5


def test_samples_are_never_taken_twice(node, poll):
    readings = wait(poll(), rounds(8, name="gpu.utilization"))
    times = [r.time_unix for r in readings if r.name == "gpu.utilization" and r.attributes["gpu.index"] == "0"]
    assert times == sorted(set(times))


def test_a_failing_call_costs_one_reading_of_one_device(node, poll):
    for function in ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"):
        node.fail(function, device=1, code="NOT_SUPPORTED")
    poller = poll()
    readings = wait(poller, rounds(5, index=1))
    assert names(readings, 0) - names(readings, 1) == {"gpu.temperature"}
    state = poller.state
    assert state.ok
    assert "Not Supported" in missing(state, 1)["gpu.temperature"] and not missing(state, 0)
    assert state.failures["nvmlDeviceGetTemperatureV: Not Supported"] == 1
    assert state.failures["nvmlDeviceGetTemperature: Not Supported"] == 1


def test_a_call_that_is_not_supported_is_not_made_again_soon(node, poll):
    node.fail("nvmlDeviceGetPowerUsage", code="NOT_SUPPORTED")
    wait(poll(times=Times(patience=1.0)), rounds(8))
    assert node.calls("nvmlDeviceGetPowerUsage") == 2  # once a device


def test_a_call_that_fails_for_a_while_comes_back(node, poll):
    node.fail("nvmlDeviceGetPowerUsage", device=0, code="UNKNOWN", times=3)
    poller = poll()
    wait(poller, lambda readings, state: state.failures.get("nvmlDeviceGetPowerUsage: Unknown Error") == 3)
    wait(poller, rounds(2, name="gpu.power"))
    wait(poller, lambda readings, state: not missing(state, 0))


@pytest.mark.parametrize("function,fallback,reading", [
    ("nvmlDeviceGetSamples", "nvmlDeviceGetUtilizationRates", "gpu.utilization"),
    ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", "gpu.temperature"),
    ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo", "gpu.memory.used"),
])  # fmt: skip
def test_the_next_source_takes_over(node, poll, function, fallback, reading):
    node.fail(function, code="FUNCTION_NOT_FOUND")
    poller = poll()
    readings = wait(poller, rounds(3, name=reading))
    wait(poller, lambda readings, state: working(state, 0)[reading] == fallback)
    assert not missing(poller.state, 0)
    expected = {"gpu.utilization": 50, "gpu.temperature": 40, "gpu.memory.used": 600 << 20}[reading]
    assert values(readings, reading) == pytest.approx([expected] * len(values(readings, reading)))


def test_nothing_new_in_the_sample_buffer_is_no_failure(node, poll):
    node.fail("nvmlDeviceGetSamples", code="NOT_FOUND")
    poller = poll()
    wait(poller, rounds(3, name="gpu.utilization"))  # by the rate, after three times nothing
    assert not poller.state.failures


def test_an_impossible_value_is_a_failure_not_a_reading(node, poll):
    node.state.devices[0].memory_share = 3.0  # 150 % memory utilization
    poller = poll()
    readings = wait(poller, rounds(4))
    assert not values(readings, "gpu.memory.utilization", 0) and values(readings, "gpu.memory.utilization", 1)
    assert "150" in missing(poller.state, 0)["gpu.memory.utilization"]


def test_a_call_that_hangs_is_given_up_and_left_out(node, poll):
    node.fail("nvmlDeviceGetPowerUsage", device=1, delay_ms=-1)
    poller = poll()
    wait(poller, lambda readings, state: state.restarts == 1)
    assert poller.state.failures["nvmlDeviceGetPowerUsage: hung"] == 1
    assert "did not answer within 1 s (nvmlDeviceGetPowerUsage, GPU 1)" in poller.state.text
    readings = wait(poller, lambda readings, state: state.ok and rounds(3, index=1)(readings, state))
    assert names(readings, 0) - names(readings, 1) == {"gpu.power"}
    wait(poller, lambda readings, state: "hung" in missing(state, 1).get("gpu.power", ""))
    assert poller.state.restarts == 1 and poller.state.abandoned == 0


def test_silence_is_told_while_it_lasts(node, poll):
    later = [0.0]
    poller = poll(clock=lambda: time.monotonic() + later[0], times=Times(answer_within=60.0))
    wait(poller, rounds(2))
    node.fail("nvmlDeviceGetClockInfo", device=0, delay_ms=-1)
    time.sleep(3 * INTERVAL)
    later[0] = 12.0
    wait(poller, lambda readings, state: "does not answer since 12 s (nvmlDeviceGetClockInfo, GPU 0)" in state.text)
    assert not poller.state.ok and poller.state.fix


def test_a_child_that_cannot_be_ended_is_left_and_the_third_is_the_last(node, poll):
    """As in an uninterruptible sleep in the driver, where SIGKILL waits: here the signal is held back."""
    held_back = []
    node.fail("nvmlInitWithFlags", delay_ms=-1)
    poller = poll(kill=held_back.append, times=Times(start_within=0.4, backoff=0.01))
    wait(poller, lambda readings, state: state.abandoned == 3)
    time.sleep(0.2)
    poller.take()
    assert len(poller.pids()) == len(held_back) == 3
    assert "cannot be ended" in poller.state.text
    first = held_back[0]
    os.kill(first, signal.SIGKILL)
    wait(poller, lambda readings, state: first not in poller.pids() and len(poller.pids()) == 3)


def test_a_killed_child_is_replaced(node, poll):
    poller = poll()
    wait(poller, rounds(2))
    os.kill(poller.pids()[0], signal.SIGKILL)
    wait(poller, lambda readings, state: "SIGKILL" in state.text)
    assert not poller.state.devices and not poller.latest(time.time_ns())
    wait(poller, rounds(2))
    assert poller.state.ok and poller.state.restarts == 1


def test_a_crash_in_the_driver_is_told(node, poll):
    node.fail("nvmlDeviceGetPowerUsage", code=-1, times=1)
    poller = poll()
    wait(poller, lambda readings, state: "SIGABRT" in state.text)
    wait(poller, rounds(2, name="gpu.power"))


def test_no_library_is_said_once_and_starts_no_process(poll, caplog):
    poller = poll(
        environment={}, places=(), exists=lambda environment, places: library_exists(environment, places, "/none", ())
    )
    for _ in range(3):
        assert poller.take() == []
    assert poller.state.text == "libnvidia-ml.so.1 is not installed" and "toolkit" in poller.state.fix
    assert not poller.pids() and poller.state.restarts == 0
    assert [record.message for record in caplog.records if "not installed" in record.message] == [
        "GPU readings: " + poller.state.text + ". " + poller.state.fix
    ]


def test_no_library_where_only_the_loader_can_tell(poll):
    poller = poll(environment={}, places=(), exists=lambda *found: True)
    wait(poller, lambda readings, state: state.text == "libnvidia-ml.so.1 is not installed")
    wait(poller, lambda readings, state: not poller.pids())
    assert poller.state.restarts == 0


def test_a_library_that_does_not_load(tmp_path, poll):
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no ELF file")
    poller = poll(environment={"LD_LIBRARY_PATH": str(tmp_path)}, places=())
    wait(poller, lambda readings, state: "cannot be loaded" in state.text)


def test_the_library_is_found_where_the_loader_does_not_look(node, poll):
    environment = {simulated_node.VARIABLE: str(node.path)}
    wait(poll(environment=environment, places=("/none", str(simulated_node.BIN / "libnvidia-ml.so.1"))), rounds(2))


@pytest.mark.parametrize("code,text", [
    ("DRIVER_NOT_LOADED", "the NVIDIA kernel module is not loaded"),
    ("LIB_RM_VERSION_MISMATCH", "the NVIDIA kernel module 535.104.05 and libnvidia-ml are of different versions"),
    ("NO_PERMISSION", "no permission to use /dev/nvidiactl"),
    ("UNKNOWN", "NVML does not start: Unknown Error"),
])  # fmt: skip
def test_why_nvml_does_not_start(node, poll, tmp_path, code, text):
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: 12\n"
    )
    node.fail("nvmlInitWithFlags", code=code)
    poller = poll(proc=str(tmp_path))
    wait(poller, lambda readings, state: state.text == text and state.fix)
    assert poller.state.restarts == 0  # it ended by itself


def test_no_gpu(node, poll):
    node.state.n_devices = 0
    wait(poll(), lambda readings, state: state.text == "the NVIDIA driver finds no GPU")


def test_the_driver_goes_away_and_comes_back(node, poll):
    poller = poll(times=Times(retry_missing=0.2))
    wait(poller, rounds(2))
    node.fail("nvmlDeviceGetPowerUsage", code="LIB_RM_VERSION_MISMATCH", times=1)
    wait(poller, lambda readings, state: "different versions" in state.text)
    wait(poller, rounds(2, name="gpu.power"))
    assert poller.state.ok


def test_two_pollers(node, poll):
    first, second = poll(), poll()
    assert len(wait(first, rounds(3))) and len(wait(second, rounds(3)))
    assert first.pids() != second.pids()


def test_under_mig_utilization_is_absent_with_a_reason(node, poll):
    node.state.devices[1].mig = 1
    node.process(1, os.getpid(), memory=1 << 30, gpu_instance=2)
    poller = poll()
    readings = wait(poller, rounds(5, index=1))
    gone = {"gpu.utilization", "gpu.memory.utilization", "gpu.process.utilization"}
    assert not gone & names(readings, 1) and gone - {"gpu.process.utilization"} <= names(readings, 0)
    assert {"gpu.power", "gpu.memory.used", "gpu.process.memory"} <= names(readings, 1)
    for name in gone:
        assert "MIG" in missing(poller.state, 1)[name]
    assert next(r for r in readings if r.name == "gpu.process.memory").attributes["gpu.instance"] == "2"


def test_processes_are_named_and_those_gone_are_not_kept(node, poll):
    node.process(0, os.getpid(), memory=5 << 30, share=0.8)
    node.process(0, 3_999_999, memory=1 << 30, share=0.2, name="/opt/gone/server")
    poller = poll()
    readings = wait(poller, rounds(2, name="gpu.process.utilization"))
    mine = Path("/proc/self/comm").read_text().strip()
    rows = {(r.name, r.attributes["process.pid"]): r for r in readings if r.name.startswith("gpu.process.")}
    memory, busy = rows["gpu.process.memory", str(os.getpid())], rows["gpu.process.utilization", str(os.getpid())]
    assert (memory.value, busy.value) == (5 << 30, 40.0)
    assert memory.attributes["process.executable.name"] == mine
    assert rows["gpu.process.memory", "3999999"].attributes["process.executable.name"] == "server"
    node.state.devices[0].n_processes = 0
    gone = lambda readings, state: not any(r.name.startswith("gpu.process") for r in poller.latest(time.time_ns()))  # noqa: E731
    wait(poller, gone)


def test_memory_the_driver_does_not_tell_is_absent(node, poll):
    node.process(0, os.getpid(), memory=simulated_node.NOT_TOLD)
    poller = poll()
    readings = wait(poller, rounds(2, name="gpu.process.utilization"))
    assert not values(readings, "gpu.process.memory")
    assert "does not tell" in missing(poller.state, 0)["gpu.process.memory"]


def test_many_processes_and_lists_that_overlap(node, poll):
    for number in range(100):
        node.process(0, 4_000_000 + number, memory=(1 + number) << 20, share=0.0, name=f"worker{number}")
    node.process(0, 4_000_000, memory=9 << 20, kind="graphics")
    readings = wait(poll(), rounds(100, name="gpu.process.memory"))
    first = {r.attributes["process.pid"]: r.value for r in readings if r.name == "gpu.process.memory"}
    assert len(first) == 100 and first["4000000"] == 9 << 20 and first["4000099"] == 100 << 20


@pytest.mark.parametrize("device,source", [
    ({"pcie_bits": 64, "pcie_start": 1 << 33}, "nvmlDeviceGetFieldValues"),
    ({"pcie_bits": 32, "gpm": 1}, "nvmlGpmMetricsGet"),
    ({"pcie_bits": 32, "gpm": 0, "pcie_generation": 7}, "nvmlDeviceGetFieldValues over 13 ms"),
    ({"pcie_bits": 0, "gpm": 0}, "nvmlDeviceGetPcieThroughput"),
])  # fmt: skip
def test_pcie_by_the_best_source_there_is(node, poll, device, source):
    for name, value in device.items():
        setattr(node.state.devices[0], name, value)
    poller = poll()
    readings = wait(poller, rounds(3, name="gpu.pcie.rx"))
    wait(poller, lambda readings, state: working(state, 0).get("gpu.pcie.rx", "").startswith(source))
    assert values(readings, "gpu.pcie.tx") == pytest.approx([1.0e9] * len(values(readings, "gpu.pcie.tx")), rel=0.1)
    assert values(readings, "gpu.pcie.rx") == pytest.approx([2.5e9] * len(values(readings, "gpu.pcie.rx")), rel=0.1)


def test_a_32_bit_counter_that_wraps_within_the_interval_once(node, poll):
    """A slow link cannot go round unseen, so the counter holds over the whole interval, also when it wraps."""
    device = node.state.devices[0]
    device.pcie_generation, device.pcie_width = 3, 16  # 17 GB/s: round in 0.25 s, interval 0.1 s
    device.pcie_tx_full, device.pcie_rx_full, device.gpm = 16.0e9, 2.0e9, 0
    poller = poll()
    readings = wait(poller, rounds(12, name="gpu.pcie.tx"))
    wait(poller, lambda readings, state: working(state, 0).get("gpu.pcie.tx") == "nvmlDeviceGetFieldValues")
    # 8 GB/s over 1.2 s is two times round
    assert values(readings, "gpu.pcie.tx") == pytest.approx([8.0e9] * len(values(readings, "gpu.pcie.tx")), rel=0.1)


def test_a_gpu_off_the_bus_leaves_the_others_and_comes_back(node, poll):
    poller = poll()
    wait(poller, rounds(2, index=1))
    node.state.devices[1].lost = 1
    wait(poller, lambda readings, state: [bool(device.lost) for device in state.devices] == [False, True])
    assert poller.state.ok
    assert {r.attributes["gpu.index"] for r in poller.latest(time.time_ns())} == {"0"}
    poller.take()
    assert not names(wait(poller, rounds(3, index=0)), 1)
    node.state.devices[1].lost = 0
    wait(poller, rounds(2, index=1))
    assert not any(device.lost for device in poller.state.devices)


def test_all_gpus_lost(node, poll):
    poller = poll()
    wait(poller, rounds(1, index=1))
    node.state.devices[0].lost = node.state.devices[1].lost = 1
    wait(poller, lambda readings, state: state.text == "no GPU can be read: GPU is lost")


def test_a_gpu_that_may_not_be_opened(node, poll):
    node.fail("nvmlDeviceGetUUID", device=0, code="NO_PERMISSION")
    poller = poll()
    readings = wait(poller, rounds(2, index=1))
    assert not names(readings, 0)
    first = poller.state.devices[0]
    assert (first.uuid, first.index, first.lost) == ("", 0, "Insufficient Permissions")


def test_gpus_come_and_go(node, poll, tmp_path):
    gpus = tmp_path / "driver/nvidia/gpus"
    (gpus / "0000:18:00.0").mkdir(parents=True)
    node.state.n_devices = 1
    poller = poll(proc=str(tmp_path))
    wait(poller, rounds(2))
    node.state.n_devices = 2
    (gpus / "0000:20:00.0").mkdir()
    wait(poller, rounds(2, index=1))
    assert len(poller.state.devices) == 2 and poller.state.restarts == 0
    node.state.n_devices = 1
    (gpus / "0000:20:00.0").rmdir()
    wait(poller, lambda readings, state: len(state.devices) == 1)


def test_rare_values_are_read_rarely_told_each_round_and_latest_keeps_them(node, poll):
    """A limit is a line on the page, not a dot every ten seconds."""
    poller = poll()
    readings = wait(poller, rounds(8))
    assert len(values(readings, "gpu.memory.used")) >= len(values(readings, "gpu.memory.total")) >= 7
    assert len(set(values(readings, "gpu.power.limit"))) == 1
    latest = poller.latest(time.time_ns() + 20 * 10**9)
    assert {reading.name for reading in latest} == {"gpu.power.limit", "gpu.memory.total"}


def test_what_is_not_taken_is_bounded_and_counted(node, poll, monkeypatch):
    monkeypatch.setattr("gpustrobe.agent.nvml.MOST_KEPT", 10)
    poller = poll()
    until = time.monotonic() + 5
    while poller.state.unread == 0 and time.monotonic() < until:
        poller.poll()
        time.sleep(0.05)
    assert poller.state.unread > 0 and len(poller.take()) <= 10


def test_stop_leaves_nothing(node, poll):
    poller = poll()
    wait(poller, rounds(1))
    pid = poller.pids()[0]
    poller.stop()
    assert not Path(f"/proc/{pid}").exists() and poller.take() == [] and poller.pids() == []


@pytest.mark.parametrize("hangs", [False, True])
def test_the_child_dies_with_its_parent(node, hangs):
    if hangs:
        node.fail("nvmlDeviceGetPowerUsage", delay_ms=-1)
    program = (
        "import os, time\nfrom gpustrobe.agent.nvml import NvmlPoller\npoller = NvmlPoller(0.1)\npoller.start()\n"
        "while not poller.take(): time.sleep(0.02)\nprint(poller.pids()[0], flush=True)\ntime.sleep(60)\n"
    )
    if hangs:  # no reading comes before the call that hangs
        program = program.replace("while not poller.take()", "while 'PowerUsage' not in poller._child.call()[1]")
    parent = subprocess.Popen(
        [sys.executable, "-c", program], env=node.environment(dict(os.environ)), stdout=subprocess.PIPE, text=True
    )
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


def test_library_exists_looks_where_the_loader_looks(tmp_path):
    nowhere = {"cache": str(tmp_path / "none"), "folders": (), "places": ()}
    assert not library_exists({"LD_LIBRARY_PATH": str(tmp_path)}, **nowhere)
    (tmp_path / "cache").write_bytes(b"\0libm.so.6\0libnvidia-ml.so.1\0/usr/lib/libnvidia-ml.so.1\0")
    assert library_exists({}, places=(), cache=str(tmp_path / "cache"), folders=())
    (tmp_path / "libnvidia-ml.so.1").touch()
    assert library_exists({"LD_LIBRARY_PATH": f":{tmp_path}"}, **nowhere)
