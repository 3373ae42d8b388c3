# SPDX-License-Identifier: Apache-2.0
"""The simulated libnvidia-ml.so.1: its layout, its agreement with NVIDIA's header, and with dumps of real devices."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "sim"))
import simulated_node
from simulated_node import Node, constant

SIM = Path(__file__).parent / "sim"

DATA = Path(__file__).parents[2] / "shared/data"
STRUCTURES = {
    "gs_sim_point": simulated_node.Point,
    "gs_sim_process": simulated_node.Process,
    "gs_sim_device": simulated_node.Device,
    "gs_sim_fault": simulated_node.Fault,
    "gs_sim_calls": simulated_node.Calls,
    "gs_sim_node": simulated_node.State,
    "gs_sim_bucket": simulated_node.Bucket,
    "gs_sim_meeting": simulated_node.Meeting,
}


@pytest.fixture(scope="module", autouse=True)
def libraries():
    return simulated_node.build()


def ask(node, program, **more):
    """Standard output of a Python program that has pynvml as `n` and device handles as `gpus`."""
    opening = (
        "import pynvml as n\nn.nvmlInit()\n"
        "gpus = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]\n"
    )
    return subprocess.run(
        [sys.executable, "-c", opening + program],
        env={**node.environment(dict(os.environ)), **more},
        text=True,
        capture_output=True,
        check=True,
    ).stdout.split()


@pytest.fixture
def node(tmp_path):
    with Node.create(tmp_path, gpus=2, load="0") as created:
        yield created


def test_python_and_c_agree_on_the_state_file():
    lines = subprocess.run([SIM / "bin/layout"], text=True, capture_output=True, check=True).stdout.splitlines()
    for line in lines:
        structure, field, offset = line.split()
        mirror = STRUCTURES[structure]
        assert int(offset) == (ctypes.sizeof(mirror) if field == "." else getattr(mirror, field).offset), line
    assert len(lines) > 20


def test_every_export_is_in_nvidias_header():
    header = (simulated_node.nvml_headers() / "nvml.h").read_text("utf-8", "replace")
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", SIM / "bin/libnvidia-ml.so.1"], text=True, capture_output=True, check=True
    ).stdout
    exported = re.findall(r" T (\w+)", symbols)
    assert len(exported) >= 30
    for name in exported:
        assert name.startswith("nvml") and re.search(rf"\b{name}\(", header), name


def test_what_is_not_simulated_is_function_not_found(node):
    assert ask(node, "try: n.nvmlDeviceGetFanSpeed(gpus[0])\nexcept n.NVMLError as e: print(type(e).__name__)") == [
        "NVMLError_FunctionNotFound"
    ]


def test_calls_before_init_and_bad_handles(node):
    program = (
        "n.nvmlShutdown()\n"
        "try: n.nvmlDeviceGetCount()\nexcept n.NVMLError as e: print(e.value)\n"
        "n.nvmlInit()\n"
        "try: n.nvmlDeviceGetHandleByIndex(2)\nexcept n.NVMLError as e: print(e.value)\n"
        "try: n.nvmlDeviceGetName(n.c_nvmlDevice_t())\nexcept n.NVMLError as e: print(e.value)\n"
    )
    assert ask(node, program) == ["1", "2", "2"]


def test_errors_have_their_strings(node):
    node.fail("nvmlDeviceGetName", device=1, code="NO_PERMISSION")
    program = (
        "print(n.nvmlErrorString(3))\n"
        "try: n.nvmlDeviceGetName(gpus[1])\nexcept n.NVMLError as e: print(e)\n"
        "print(n.nvmlDeviceGetName(gpus[0]))"
    )
    assert " ".join(ask(node, program)) == "Not Supported Insufficient Permissions NVIDIA H200"


def test_without_a_state_file_there_is_no_driver(node):
    program = "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as e: print(e.value)"
    environment = {**node.environment(dict(os.environ)), simulated_node.VARIABLE: "/nowhere"}
    assert (
        subprocess.run([sys.executable, "-c", program], env=environment, text=True, capture_output=True).stdout == "9\n"
    )


def test_devices_are_listed_at_init(node):
    program = (
        f"import sys; sys.path.append({str(SIM)!r}); import simulated_node, pathlib, os\n"
        "state = simulated_node.Node(pathlib.Path(os.environ[simulated_node.VARIABLE])).state\n"
        "state.n_devices = 3\nprint(n.nvmlDeviceGetCount())\n"
        "n.nvmlShutdown(); n.nvmlInit(); print(n.nvmlDeviceGetCount())"
    )
    assert ask(node, program) == ["2", "3"]


def test_a_fault_for_some_calls(node):
    node.fail("nvmlDeviceGetPowerUsage", device=0, code="TIMEOUT", times=2)
    program = (
        "for i in range(3):\n try: print(n.nvmlDeviceGetPowerUsage(gpus[0]))\n except n.NVMLError as e: print(e.value)"
    )
    assert ask(node, program) == ["10", "10", "77670"]
    assert node.calls("nvmlDeviceGetPowerUsage") == 3


@pytest.mark.parametrize("text,mean", [
    ("0.25", 0.25), ("sawtooth:10:0.2:0.8", 0.5), ("dips:10:3:0.1:0.95", 0.7 * 0.95 + 0.3 * 0.1),
])  # fmt: skip
def test_byte_counters_are_the_integral_of_the_load(node, text, mean):
    """Over whole periods the counter must have gained rate x mean load, however the load is shaped."""
    node.load(0, simulated_node.parse_load(text))
    node.state.devices[0].pcie_bits = 64
    node.state.start_unix_ns -= 10**13  # a thousand periods
    program = "import time; t = time.time_ns(); print(t, n.nvmlDeviceGetFieldValues(gpus[0], [197])[0].value.ullVal)"
    at, counter = map(int, ask(node, program))
    seconds = (at - node.state.start_unix_ns) / 1e9
    assert counter == pytest.approx(2.0e9 * mean * seconds, rel=0.002)


def test_steps_depend_on_the_seed_only():
    assert simulated_node.steps(3) == simulated_node.steps(3) != simulated_node.steps(4)
    assert simulated_node.steps(3)[-1][0] == 60.0


def dump(name, section):
    """One section of a recorded dump as text."""
    text = (DATA / name).read_text("utf-8", "replace")
    return text.split(f"# {section}", 1)[1].split("\n######", 2)[1]


@pytest.mark.skipif(not DATA.is_dir(), reason="no recorded dumps beside this checkout")
@pytest.mark.parametrize("load,section", [(0.0, "idle :: query (-q)"), (1.0, "load :: query (-q)")])
def test_the_device_is_the_recorded_h200(node, load, section):
    text = dump("nvidia-smi-h200.txt", section)
    node.load(0, constant(load))

    def recorded(pattern):
        return float(re.search(pattern, text)[1])

    program = (
        "print(n.nvmlDeviceGetPowerUsage(gpus[0]) / 1000, n.nvmlDeviceGetTemperature(gpus[0], 0),"
        " n.nvmlDeviceGetEnforcedPowerLimit(gpus[0]) / 1000,"
        " n.nvmlDeviceGetMemoryInfo(gpus[0]).total >> 20, n.nvmlDeviceGetUtilizationRates(gpus[0]).gpu)"
    )
    power, celsius, limit, total, busy = map(float, ask(node, program))
    assert power == pytest.approx(recorded(r"Average Power Draw\s+: ([\d.]+) W"), rel=0.01)
    assert celsius == recorded(r"GPU Current Temp\s+: (\d+) C")
    assert limit == recorded(r"Current Power Limit\s+: ([\d.]+) W")
    assert total == recorded(r"FB Memory Usage\s+Total\s+: (\d+) MiB")
    assert busy == recorded(r"Utilization\s+GPU\s+: (\d+) %")


@pytest.mark.skipif(not DATA.is_dir(), reason="no recorded dumps beside this checkout")
def test_mig_hides_utilization_as_on_the_recorded_h100(node):
    text = dump("nvidia-smi-h100-mig.txt", "idle :: query (-q)")
    assert re.search(r"Utilization\s+GPU\s+: N/A", text) and re.search(r"Average Power Draw\s+: [\d.]+ W", text)
    node.state.devices[0].mig = 1
    program = (
        "g = gpus[0]\n"
        "for call in (lambda: n.nvmlDeviceGetUtilizationRates(g), lambda: n.nvmlDeviceGetSamples(g, 1, 0),\n"
        "             lambda: n.nvmlDeviceGetProcessUtilization(g, 0), lambda: n.nvmlDeviceGetPowerUsage(g)):\n"
        " try: call(); print('ok')\n except n.NVMLError as e: print(e.value)"
    )
    assert ask(node, program) == ["3", "3", "3", "ok"]


def run_node(*arguments):
    return subprocess.run([SIM / "node", *arguments], text=True, capture_output=True, timeout=60)


def test_node_runs_a_command_on_the_node_and_keeps_its_status():
    program = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"
    done = run_node("--gpus", "5", "--", sys.executable, "-c", program)
    assert (done.stdout, done.returncode) == ("5\n", 0)
    assert run_node("--", "sh", "-c", "exit 7").returncode == 7
    assert run_node("--", "sh", "-c", "kill -9 $$").returncode == 137


def test_node_options():
    program = (
        "import os, pynvml as n; n.nvmlInit(); g = [n.nvmlDeviceGetHandleByIndex(i) for i in (0, 1)]\n"
        "print(n.nvmlDeviceGetUtilizationRates(g[0]).gpu, n.nvmlDeviceGetMigMode(g[1])[0])\n"
        "print([(p.pid == os.getpid(), p.usedGpuMemory >> 30) for p in n.nvmlDeviceGetComputeRunningProcesses(g[0])])\n"
        "try: n.nvmlDeviceGetTemperature(g[1], 0)\nexcept n.NVMLError as e: print(e.value)"
    )
    options = (
        "--load",
        "0=0.7",
        "--mig",
        "1",
        "--process",
        "0:self:3GiB:0.5",
        "--fail",
        "nvmlDeviceGetTemperature:1=NOT_SUPPORTED",
    )
    done = run_node(*options, "--", sys.executable, "-c", program)
    assert done.stdout.splitlines() == ["70 1", "[(True, 3)]", "3"], done.stderr


@pytest.mark.parametrize("arguments", [
    ("--load", "sawtooth:3", "--", "true"), ("--load", "2", "--", "true"), ("--fail", "nvmlInit", "--", "true"),
    ("--fail", "nvmlInit=WRONG", "--", "true"), ("--gpus", "17", "--", "true"), ("--load", "9=0.5x", "--", "true"), (),
])  # fmt: skip
def test_node_refuses_what_makes_no_sense(arguments):
    done = run_node(*arguments)
    assert done.returncode == 2 and "tests/sim/node" in done.stderr and "Traceback" not in done.stderr


def test_node_without_such_a_command():
    done = run_node("--", "/no/such/command")
    assert done.returncode == 127 and "No such file" in done.stderr
