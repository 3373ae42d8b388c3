# SPDX-License-Identifier: Apache-2.0
"""A simulated GPU node: builds its libraries, writes the state they read (node.h), gives the environment to run on it.

with Node.create(folder, gpus=2) as node:
    node.fail("nvmlDeviceGetTemperature", device=1, code="NOT_SUPPORTED")
    subprocess.run(command, env=node.environment(os.environ))
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import json
import mmap
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = HERE / "bin"
VARIABLE = "SIM_NODE_STATE"
FOREVER = 0xFFFFFFFF
NOT_TOLD = 0xFFFFFFFFFFFFFFFF
MAGIC, VERSION = 0x4D495347, 2
# releases of CUPTI, and what each one's cuptiGetVersion says
RELEASES = {
    "12.0": 18,
    "12.1": 18,
    "12.2": 20,
    "12.3": 21,
    "12.4": 22,
    "12.5": 23,
    "12.6": 24,
    "12.8": 26,
    "12.9": 28,
    "13.0": 130001,
    "13.1": 130101,
    "13.2": 130202,
    "13.3": 130301,
    "13.4": 130401,
    "13.5": 130500,
}
# wheels that carry the headers of a major release; crt/ is in none of those small enough for CUDA 12
CRT = "nvidia-cuda-crt==13.5.37"
WHEELS = {
    12: ("nvidia-cuda-cupti-cu12==12.9.79", "nvidia-cuda-runtime-cu12==12.9.79", CRT),
    13: ("nvidia-cuda-cupti==13.5.25", "nvidia-cuda-runtime==13.5.37", CRT),
}
KINDS = {"compute": 0, "graphics": 1, "mps": 2}
# nvmlReturn_t by the names of nvml.h, without NVML_ERROR_
CODES = {
    "UNINITIALIZED": 1,
    "INVALID_ARGUMENT": 2,
    "NOT_SUPPORTED": 3,
    "NO_PERMISSION": 4,
    "NOT_FOUND": 6,
    "INSUFFICIENT_SIZE": 7,
    "DRIVER_NOT_LOADED": 9,
    "TIMEOUT": 10,
    "IRQ_ISSUE": 11,
    "FUNCTION_NOT_FOUND": 13,
    "GPU_IS_LOST": 15,
    "RESET_REQUIRED": 16,
    "OPERATING_SYSTEM": 17,
    "LIB_RM_VERSION_MISMATCH": 18,
    "IN_USE": 19,
    "MEMORY": 20,
    "NO_DATA": 21,
    "NOT_READY": 27,
    "UNKNOWN": 999,
}


class Point(ctypes.Structure):
    _fields_ = (("at_ns", ctypes.c_uint64), ("load", ctypes.c_double))


class Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("memory", ctypes.c_uint64),
        ("share", ctypes.c_double),
        ("gpu_instance", ctypes.c_uint32),
        ("compute_instance", ctypes.c_uint32),
        ("name", ctypes.c_char * 64),
        ("launcher", ctypes.c_uint64),
        ("busy_ns", ctypes.c_uint64),
    )


class Bucket(ctypes.Structure):
    _fields_ = (("index", ctypes.c_uint64), ("busy_ns", ctypes.c_uint64))


class Meeting(ctypes.Structure):
    _fields_ = (
        ("sequence", ctypes.c_uint64),
        ("communicator", ctypes.c_uint32),
        ("ranks", ctypes.c_uint32),
        ("came", ctypes.c_uint32),
        ("left", ctypes.c_uint32),
        ("latest_ns", ctypes.c_uint64),
        ("pids", ctypes.c_uint32 * 16),
    )


class Device(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_char * 80),
        ("name", ctypes.c_char * 96),
        ("bus_id", ctypes.c_char * 32),
        ("memory_total", ctypes.c_uint64),
        ("memory_reserved", ctypes.c_uint64),
        ("memory_share", ctypes.c_double),
        ("power_idle", ctypes.c_double),
        ("power_full", ctypes.c_double),
        ("power_limit", ctypes.c_double),
        ("celsius_idle", ctypes.c_double),
        ("celsius_full", ctypes.c_double),
        ("clock_idle", ctypes.c_uint32 * 4),
        ("clock_full", ctypes.c_uint32 * 4),
        ("pcie_tx_full", ctypes.c_double),
        ("pcie_rx_full", ctypes.c_double),
        ("pcie_start", ctypes.c_uint64),
        ("pcie_bits", ctypes.c_uint32),
        ("pcie_generation", ctypes.c_uint32),
        ("pcie_width", ctypes.c_uint32),
        ("gpm", ctypes.c_uint32),
        ("lost", ctypes.c_uint32),
        ("mig", ctypes.c_uint32),
        ("n_points", ctypes.c_uint32),
        ("n_processes", ctypes.c_uint32),
        ("period_ns", ctypes.c_uint64),
        ("points", Point * 64),
        ("processes", Process * 128),
        ("launches", ctypes.c_uint64),
        ("busy_ns", ctypes.c_uint64),
        ("buckets", Bucket * 4096),
    )


class Fault(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_char * 64),
        ("device", ctypes.c_int32),
        ("code", ctypes.c_int32),
        ("delay_ms", ctypes.c_int64),
        ("remaining", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    )


class Calls(ctypes.Structure):
    _fields_ = (("function", ctypes.c_char * 64), ("count", ctypes.c_uint64))


class State(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("n_devices", ctypes.c_uint32),
        ("start_unix_ns", ctypes.c_uint64),
        ("driver_version", ctypes.c_char * 32),
        ("nvml_version", ctypes.c_char * 32),
        ("cuda_version", ctypes.c_uint32),
        ("n_faults", ctypes.c_uint32),
        ("faults", Fault * 64),
        ("calls", Calls * 192),
        ("devices", Device * 16),
        ("meeting_lock", ctypes.c_uint32),
        ("process_lock", ctypes.c_uint32),
        ("meetings", Meeting * 64),
    )


def constant(load: float) -> list[tuple[float, float]]:
    return [(0.0, load), (1.0, load)]


def sawtooth(period: float, low: float, high: float) -> list[tuple[float, float]]:
    return [(0.0, low), (period * 0.999, high), (period, low)]


def dips(period: float, length: float, low: float, high: float) -> list[tuple[float, float]]:
    """Full load with a dip at the end of each period, as a training loop that waits for its next batch."""
    edge = min(0.001, length / 10)
    return [(0.0, high), (period - length - edge, high), (period - length, low), (period - edge, low), (period, high)]


def steps(seed: int) -> list[tuple[float, float]]:
    """A minute of uneven steps, the same for the same seed."""
    chance, points, at = random.Random(seed), [], 0.0
    while at < 55 and len(points) < 60:
        load, length = chance.choice((0.0, 0.35, 0.8, 0.97, 1.0)), chance.uniform(1, 6)
        points += [(at, load), (at + length - 0.001, load)]
        at += length
    return [*points, (60.0, points[0][1])]


def parse_load(text: str, seed: int = 0) -> list[tuple[float, float]]:
    """A load as people type it: `0.7`, `sawtooth:20:0.1:1`, `dips:5:1.5:0.1:0.95`, `steps`, or a JSON file
    [[second, load], ...]."""
    kind, *numbers = text.split(":")
    makers = {"sawtooth": sawtooth, "dips": dips}
    try:
        if kind in makers:
            return makers[kind](*map(float, numbers))
        if kind == "steps":
            return steps(seed)
        if Path(text).is_file():
            return [(float(at), float(load)) for at, load in json.loads(Path(text).read_text("utf-8"))]
        return constant(float(text))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{text!r} is no load ({error}): a number from 0 to 1, sawtooth:PERIOD:LOW:HIGH, "
            "dips:PERIOD:LENGTH:LOW:HIGH, steps, or a JSON file [[second, load], ...]"
        ) from error


def parse_fault(text: str) -> tuple[str, int, int, int, int]:
    """`FUNCTION[:DEVICE]=WHAT[*TIMES]`; WHAT is an nvml.h error name, `hang`, `delay:MS` or `crash`.
    -> function, device, code, delay, times"""
    left, equals, what = text.partition("=")
    function, _, device = left.partition(":")
    what, _, times = what.partition("*")
    kind, _, milliseconds = what.partition(":")
    if not equals or not (kind in CODES or kind in ("hang", "delay", "crash")):
        raise ValueError(
            f"{text!r} is no fault: FUNCTION[:DEVICE]=ERROR[*TIMES], "
            f"where ERROR is hang, delay:MS, crash or one of {', '.join(CODES)}"
        )
    code = -1 if kind == "crash" else CODES.get(kind, 0)
    delay = -1 if kind == "hang" else int(milliseconds or 0)
    return function, int(device or -1), code, delay, int(times or FOREVER)


class Node:
    """The state file, mapped. Everything may be changed while programs run on the node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), ctypes.sizeof(State))
        self.state = State.from_buffer(self._map)

    @classmethod
    def create(
        cls,
        folder: Path,
        gpus: int = 2,
        load: str = "dips:10:3:0.1:0.95",
        seed: int = 0,
        start_unix_ns: int | None = None,
    ) -> Node:
        """A node of `gpus` H200s as a public nvidia-smi dump of one shows them (idle 77 W, 28 C; full 627 W, 52 C)."""
        path = folder / "node.state"
        path.write_bytes(bytes(ctypes.sizeof(State)))
        node = cls(path)
        state = node.state
        state.magic, state.version, state.size, state.n_devices = MAGIC, VERSION, ctypes.sizeof(State), gpus
        state.start_unix_ns = time.time_ns() - 3600 * 10**9 if start_unix_ns is None else start_unix_ns
        state.driver_version, state.nvml_version, state.cuda_version = b"590.48.01", b"13.590.48.01", 13010
        for index in range(gpus):
            node._device(index, seed)
            node.load(index, parse_load(load, seed + index))
        return node

    def _device(self, index: int, seed: int) -> None:
        device = self.state.devices[index]
        device.uuid = f"GPU-{seed:08x}-0000-4000-8000-{index:012x}".encode()
        device.name, device.bus_id = b"NVIDIA H200", f"00000000:{0x18 + 8 * index:02X}:00.0".encode()
        device.memory_total, device.memory_reserved, device.memory_share = 143771 << 20, 600 << 20, 0.4
        device.power_idle, device.power_full, device.power_limit = 77.67, 627.32, 700.0
        device.celsius_idle, device.celsius_full = 28, 52
        device.clock_idle[:], device.clock_full[:] = (345, 345, 3201, 765), (1980, 1980, 3201, 1545)
        device.pcie_tx_full, device.pcie_rx_full, device.pcie_bits = 2.0e9, 5.0e9, 32
        device.pcie_generation, device.pcie_width, device.gpm = 5, 16, 1

    def load(self, index: int, points: list[tuple[float, float]]) -> None:
        """Points (second, load), the last one ending the period."""
        if not 2 <= len(points) <= 64 or any(b[0] < a[0] for a, b in itertools.pairwise(points)) or points[0][0] != 0:
            raise ValueError("a load needs 2 to 64 points in rising order, the first at second 0")
        if any(not 0 <= load <= 1 for _, load in points):
            raise ValueError("loads are from 0 to 1")
        device = self.state.devices[index]
        for point, (at, load) in zip(device.points, points, strict=False):
            point.at_ns, point.load = round(at * 1e9), load
        device.n_points, device.period_ns = len(points), round(points[-1][0] * 1e9)

    def process(
        self,
        index: int,
        pid: int,
        memory: int = 2 << 30,
        share: float = 1.0,
        kind: str = "compute",
        name: str = "",
        gpu_instance: int = 0xFFFFFFFF,
    ) -> None:
        device = self.state.devices[index]
        device.processes[device.n_processes] = Process(
            pid, KINDS[kind], memory, share, gpu_instance, 0xFFFFFFFF, name.encode()
        )
        device.n_processes += 1

    def fail(
        self, function: str, device: int = -1, code: str | int = 0, delay_ms: int = 0, times: int = FOREVER
    ) -> None:
        number = CODES[code] if isinstance(code, str) else code
        self.state.faults[self.state.n_faults] = Fault(function.encode(), device, number, delay_ms, times, 0)
        self.state.n_faults += 1

    def heal(self) -> None:
        """No more faults; calls that hang go on hanging."""
        self.state.n_faults = 0

    def calls(self, function: str) -> int:
        return sum(entry.count for entry in self.state.calls if entry.function.decode() == function)

    def environment(
        self,
        base: dict[str, str],
        cupti: str | None = "13.5",
        driver: bool = True,
        inject: str | None = None,
        behaviour: dict[str, float] | None = None,
        truth: Path | None = None,
        simulated_clock: bool = False,
    ) -> dict[str, str]:
        """`cupti`: a release of RELEASES, None for no libcupti; libcudart of both majors is there. `behaviour`: names and
        values of cupti/state.h. `truth`: each process writes truth.PID there, which truth.py reads. `simulated_clock`: from
        cuInit on, time is what is slept and launched, for libraries too (cuda/clock.c); a process of its own for each."""
        if cupti is not None and cupti not in RELEASES:
            raise ValueError(f"CUPTI {cupti} is not simulated: {', '.join(RELEASES)}")
        folders = [
            BIN,
            BIN / "runtime",
            *([BIN / "driver"] if driver else []),
            *([BIN / "cupti" / cupti] if cupti else []),
        ]
        path = os.pathsep.join(filter(None, (*map(str, folders), base.get("LD_LIBRARY_PATH"))))
        more = {VARIABLE: str(self.path), "LD_LIBRARY_PATH": path}
        if inject:
            more["CUDA_INJECTION64_PATH"] = str(inject)
        if behaviour:
            more["SIM_CUPTI_BEHAVIOUR"] = ",".join(f"{name}={value}" for name, value in behaviour.items())
        if truth:
            more["SIM_TRUTH"] = str(truth)
        if simulated_clock:
            more["SIM_CLOCK"] = "simulated"
            more["LD_PRELOAD"] = os.pathsep.join(filter(None, (str(BIN / "libsimclock.so"), base.get("LD_PRELOAD"))))
        return {**base, **more}

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *exception: object) -> None:
        self.path.unlink(missing_ok=True)


def nvml_headers() -> Path:
    """Folder of NVIDIA's nvml.h: of this environment, else of the wheel nvidia-nvml-dev, unpacked beside our build."""
    fetched = BIN / "headers"
    for folder in (*map(Path, sys.path), *HERE.parents[1].glob(".venv/lib/python3*/site-packages"), fetched):
        for header in sorted(folder.glob("nvidia/*/include/nvml.h")) if folder.is_dir() else ():
            return header.parent
    unpack(("nvidia-nvml-dev>=13",), fetched)
    return next(fetched.glob("nvidia/*/include/nvml.h")).parent


def unpack(wheels: tuple[str, ...], folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *wheels]
    subprocess.run(command, check=True)


def cuda_headers() -> Path:
    """Folder with cuda12/ and cuda13/, NVIDIA's headers of both, from wheels; their libraries are thrown away."""
    folder = BIN / "headers"
    for major, wheels in WHEELS.items():
        include = folder / f"cuda{major}"
        if (include / "cuda.h").is_file():
            continue
        with tempfile.TemporaryDirectory(dir=BIN) as unpacked:
            unpack(wheels, Path(unpacked))
            for headers in sorted(Path(unpacked).glob("nvidia/*/include")):
                shutil.copytree(headers, Path(unpacked) / "all", dirs_exist_ok=True)
            shutil.copytree(Path(unpacked) / "all", include)
    return folder


def build() -> Path:
    """Build what is out of date (once, however many ask at a time); the folder to put into LD_LIBRARY_PATH."""
    BIN.mkdir(exist_ok=True)
    with (BIN / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run(
            ["make", "-s", "-j2", "-C", str(HERE), f"NVML_INCLUDE={nvml_headers()}", f"HEADERS={cuda_headers()}"],
            capture_output=True,
            text=True,
            check=False,
        )
    if made.returncode:
        raise RuntimeError(f"the simulated libraries do not build:\n{made.stderr}")
    return BIN
