# SPDX-License-Identifier: Apache-2.0
"""What is asked of NVML for one device, and by which call; runs in the child process of agent/nvml.py only.

A reading has several sources, best first. One that fails rests, alone, for longer each time, and the next is asked.
It answers {name: value or (value, unix ns)}; {} means nothing new, None that the next is to be asked, without blame.
"""

from __future__ import annotations

import time

import nvml_pcie
import pynvml
from nvml_pcie import LANE, Impossible

NOT_TOLD = 0xFFFFFFFF  # NVML_VALUE_NOT_AVAILABLE, 32 bits
RESTS = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: 300.0,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: 3600.0,
    pynvml.NVML_ERROR_NO_PERMISSION: 300.0,
}
FIRST_REST, LONGEST_REST = 5.0, 300.0
patience = 1.0  # factor on every rest; tests shorten them


class Source:
    """One way to get a reading, with its record of failures on one device."""

    def __init__(self, call, read) -> None:
        self.call, self.read = call, read
        self.due = self.rest = 0.0
        self.reason = ""

    def failed(self, now: float, code: int, reason: str) -> None:
        self.reason = reason
        self.rest = min(max(FIRST_REST, self.rest * 2), LONGEST_REST)
        self.due = now + patience * max(self.rest, RESTS.get(code, 0.0))

    def worked(self) -> bool:
        """True if that is news."""
        news = bool(self.reason)
        self.reason, self.rest = "", 0.0
        return news


class Group:
    """Readings that one call gives together; `key` names them where a call hangs."""

    def __init__(self, key: str, names: tuple[str, ...], *sources: Source, every: float = 0.0) -> None:
        self.key, self.names, self.sources, self.every = key, names, sources, every
        self.active: Source | None = None
        self.next = 0.0


class Device:
    """One GPU as NVML shows it, and what was read of it before."""

    def __init__(self, index: int, interval: float) -> None:
        self.index, self.interval = index, interval
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid = pynvml.nvmlDeviceGetUUID(self.handle)
        self.name = pynvml.nvmlDeviceGetName(self.handle)
        self.lost = ""
        self.lost_until = self.lost_rest = 0.0
        self.failures: dict[str, int] = {}
        self.notes: dict[str, str] = {}
        self.changed = True
        self.seen: dict[object, int] = {}  # newest driver timestamp, us
        self.silent: dict[object, int] = {}  # readings in a row without a new one
        self.counters: tuple[int, int, int] | None = None
        self.wide = False
        self.gpm: list[object] | None = None
        self.total = (0, 0.0)
        self.mig = self._mig()
        self.link = self._link()
        self.groups = groups(self)

    def _mig(self) -> bool:
        try:
            return pynvml.nvmlDeviceGetMigMode(self.handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        except pynvml.NVMLError:
            return False  # a device that does not know MIG

    def _link(self) -> float:
        """Most bytes/s that the link can carry one way; a fast one where the driver does not say."""
        try:
            lane = LANE[pynvml.nvmlDeviceGetMaxPcieLinkGeneration(self.handle)]
            return 1.1 * lane * pynvml.nvmlDeviceGetMaxPcieLinkWidth(self.handle)
        except (pynvml.NVMLError, KeyError):
            return 1.1 * 16 * LANE[7]

    @property
    def window(self) -> float:
        """Seconds in which a 32-bit byte counter cannot go round, by a margin of a fifth."""
        return 0.8 * 2**32 / self.link


def told(value: int) -> int:
    if value == NOT_TOLD:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return value


def percent(value: float) -> float:
    if not 0 <= value <= 100:  # seen with some drivers, such as 4294967295 or 101
        raise Impossible(f"{value} %")
    return value


def since(device: Device, key: object) -> int:
    """Timestamp (us) after which driver samples are new. Unchecked, a clock that is set back silences a reading."""
    now = time.time_ns() // 1000
    last = device.seen.get(key, 0)
    return last if now - 60_000_000 < last < now + 5_000_000 else now - int(device.interval * 1e6)


def samples(device: Device, kind: int, name: str):
    """Mean of what the driver's buffer gained. NOT_FOUND is nothing new; after three in a row the rate is asked."""
    last = since(device, kind)
    try:
        rows = pynvml.nvmlDeviceGetSamples(device.handle, kind, last)[1]
    except pynvml.NVMLError_NotFound:
        rows = []
    rows = [row for row in rows if row.timeStamp > last]
    if not rows:
        device.silent[kind] = device.silent.get(kind, 0) + 1
        return None if device.silent[kind] >= 3 else {}
    device.silent[kind] = 0
    newest = device.seen[kind] = max(row.timeStamp for row in rows)
    return {name: (sum(percent(row.sampleValue.uiVal) for row in rows) / len(rows), newest * 1000)}


def rate(device: Device, field: str, name: str):
    return {name: percent(getattr(pynvml.nvmlDeviceGetUtilizationRates(device.handle), field))}


def memory(device: Device, version=None):
    """Version 2 leaves out what the driver reserves, as nvidia-smi does. The total is told on change and every 10 s."""
    info = pynvml.nvmlDeviceGetMemoryInfo(device.handle, version)
    values, now = {"gpu.memory.used": info.used}, time.monotonic()
    if info.total != device.total[0] or now >= device.total[1]:
        values["gpu.memory.total"] = info.total
        device.total = info.total, now + 9.5  # a tick early rather than late
    return values


def clock(device: Device, kind: int, name: str):
    return {name: told(pynvml.nvmlDeviceGetClockInfo(device.handle, kind))}


def celsius(device: Device):
    value = told(pynvml.nvmlDeviceGetTemperatureV(device.handle, pynvml.NVML_TEMPERATURE_GPU))
    return {"gpu.temperature": value}


def celsius_old(device: Device):
    return {"gpu.temperature": told(pynvml.nvmlDeviceGetTemperature(device.handle, pynvml.NVML_TEMPERATURE_GPU))}


def running(device: Device, call):
    """pid -> (bytes or None, GPU instance or None)."""
    return {
        process.pid: (process.usedGpuMemory, None if process.gpuInstanceId == NOT_TOLD else process.gpuInstanceId)
        for process in call(device.handle)
        if process.pid
    }


def process_rows(device: Device, last: int):
    for attempt in (1, 2):
        try:
            return pynvml.nvmlDeviceGetProcessUtilization(device.handle, last)
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND):
                return []
            if (
                error.value != pynvml.NVML_ERROR_INSUFFICIENT_SIZE or attempt == 2
            ):  # a process came between the two calls
                raise
    return []


def process_utilization(device: Device):
    """pid -> percent. Rows of zeros, and of processes seen before, come with some drivers."""
    last = since(device, "process")
    rows = [row for row in process_rows(device, last) if row.pid and row.timeStamp > last]
    if rows:
        device.seen["process"] = max(row.timeStamp for row in rows)
    shares: dict[int, list[float]] = {}
    for row in rows:
        shares.setdefault(row.pid, []).append(percent(row.smUtil))
    return {pid: sum(values) / len(values) for pid, values in shares.items()}


def groups(device: Device) -> tuple[Group, ...]:
    sampled = "nvmlDeviceGetSamples"
    rates = "nvmlDeviceGetUtilizationRates"

    def clocks(name: str, kind: int) -> Group:
        return Group(name, (name,), Source("nvmlDeviceGetClockInfo", lambda: clock(device, kind, name)))

    return (
        Group(
            "gpu.utilization",
            ("gpu.utilization",),
            Source(sampled, lambda: samples(device, pynvml.NVML_GPU_UTILIZATION_SAMPLES, "gpu.utilization")),
            Source(rates, lambda: rate(device, "gpu", "gpu.utilization")),
        ),
        Group(
            "gpu.memory.utilization",
            ("gpu.memory.utilization",),
            Source(sampled, lambda: samples(device, pynvml.NVML_MEMORY_UTILIZATION_SAMPLES, "gpu.memory.utilization")),
            Source(rates, lambda: rate(device, "memory", "gpu.memory.utilization")),
        ),
        Group(
            "gpu.memory",
            ("gpu.memory.used", "gpu.memory.total"),
            Source("nvmlDeviceGetMemoryInfo_v2", lambda: memory(device, pynvml.nvmlMemory_v2)),
            Source("nvmlDeviceGetMemoryInfo", lambda: memory(device)),
        ),
        clocks("gpu.clock.graphics", pynvml.NVML_CLOCK_GRAPHICS),
        clocks("gpu.clock.sm", pynvml.NVML_CLOCK_SM),
        clocks("gpu.clock.memory", pynvml.NVML_CLOCK_MEM),
        clocks("gpu.clock.video", pynvml.NVML_CLOCK_VIDEO),
        Group(
            "gpu.power",
            ("gpu.power",),
            Source(
                "nvmlDeviceGetPowerUsage",
                lambda: {"gpu.power": told(pynvml.nvmlDeviceGetPowerUsage(device.handle)) / 1000},
            ),
        ),
        Group(
            "gpu.power.limit",
            ("gpu.power.limit",),
            Source(
                "nvmlDeviceGetEnforcedPowerLimit",
                lambda: {"gpu.power.limit": told(pynvml.nvmlDeviceGetEnforcedPowerLimit(device.handle)) / 1000},
            ),
            every=10.0,
        ),
        Group(
            "gpu.temperature",
            ("gpu.temperature",),
            Source("nvmlDeviceGetTemperatureV", lambda: celsius(device)),
            Source("nvmlDeviceGetTemperature", lambda: celsius_old(device)),
        ),
        Group(
            "gpu.pcie",
            ("gpu.pcie.tx", "gpu.pcie.rx"),
            Source("nvmlDeviceGetFieldValues", lambda: nvml_pcie.counters(device)),
            Source("nvmlGpmMetricsGet", lambda: nvml_pcie.gpm(device)),
            Source(
                f"nvmlDeviceGetFieldValues over {device.window * 1000:.0f} ms of each interval",
                lambda: nvml_pcie.window(device),
            ),
            Source("nvmlDeviceGetPcieThroughput over 20 ms of each interval", lambda: nvml_pcie.throughput(device)),
        ),
    )


def process_groups(device: Device) -> dict[str, Group]:
    def listed(key: str, call: str) -> Group:
        function = getattr(pynvml, call)
        return Group(key, (key,), Source(call, lambda: running(device, function)))

    return {
        "compute": listed("gpu.process.memory", "nvmlDeviceGetComputeRunningProcesses_v3"),
        "graphics": listed("gpu.process.memory of graphics", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
        "mps": listed("gpu.process.memory of MPS clients", "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
        "utilization": Group(
            "gpu.process.utilization",
            ("gpu.process.utilization",),
            Source("nvmlDeviceGetProcessUtilization", lambda: process_utilization(device)),
        ),
    }


class Names:
    """Names of processes from /proc, read again every 10 s because of exec; forgotten when no longer asked for."""

    def __init__(self, proc: str) -> None:
        self.proc = proc
        self.known: dict[int, tuple[str, float]] = {}

    def of(self, pid: int) -> str:
        now = time.monotonic()
        name, until = self.known.get(pid, ("", 0.0))
        if now >= until:
            name = self._read(pid)
            self.known[pid] = name, now + 10
        return name

    def _read(self, pid: int) -> str:
        try:
            with open(f"{self.proc}/{pid}/comm", "rb") as file:
                return file.read().rstrip(b"\n").decode("utf-8", "replace")
        except OSError:
            pass  # gone, or another PID namespace: ask the driver
        try:
            return pynvml.nvmlSystemGetProcessName(pid).rpartition("/")[2]
        except (pynvml.NVMLError, UnicodeDecodeError):
            return ""

    def forget(self) -> None:
        now = time.monotonic()
        self.known = {pid: entry for pid, entry in self.known.items() if entry[1] > now - 60}
