# SPDX-License-Identifier: Apache-2.0
"""What the NVML child has said: messages in (agent/nvml_child.py lists them), readings and states out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpustrobe.agent.model import Reading
from gpustrobe.agent.readings import BY_NAME

RARE = ("gpu.memory.total", "gpu.power.limit")  # read every 10 s
RARE_AGE = 30_000_000_000  # ns after which the last value is no longer vouched for


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One GPU: which readings work and by which call, which do not and why, and failures by "function: error"."""

    uuid: str  # "" if the driver does not even tell that
    index: int
    name: str
    mig: bool
    lost: str  # "" or why nothing can be read from it
    working: Mapping[str, str]
    missing: Mapping[str, str]
    failures: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NvmlState:
    """`text` is "ok" or a sentence why there are no readings; `fix` what to do about it."""

    ok: bool
    text: str
    fix: str = ""
    driver_version: str = ""
    nvml_version: str = ""
    cuda_version: str = ""
    devices: tuple[DeviceState, ...] = ()
    failures: Mapping[str, int] = field(default_factory=dict)  # by "function: error": all devices, all children
    restarts: int = 0  # children that died or were given up
    abandoned: int = 0  # children that cannot be ended
    unread: int = 0  # messages and readings lost because they were not taken in time


def cuda_text(number: str) -> str:
    """`13010` -> `13.1`."""
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}" if number.isdigit() else ""


def merged(first: Mapping[str, int], *others: Mapping[str, int]) -> dict[str, int]:
    result = dict(first)
    for other in others:
        for name, count in other.items():
            result[name] = result.get(name, 0) + count
    return result


def _carried(known: Mapping[str, Reading], readings: list[Reading]) -> list[Reading]:
    """What is read rarely, told again with each round: a limit is a line on the page, not a dot every 10 s."""
    now = max((reading.time_unix for reading in readings), default=0)
    told = {reading.name for reading in readings}
    limits = (known[name] for name in RARE if name in known and name not in told)
    return [replace(limit, time_unix=now) for limit in limits if now - limit.time_unix < RARE_AGE]


class Node:
    """As one child tells it; a new child gets a new Node."""

    def __init__(self) -> None:
        self.up: Mapping[str, Any] | None = None
        self.down: tuple[str, str] | None = None
        self.unread = 0
        self.devices: dict[str, DeviceState] = {}
        self.past_failures: dict[str, int] = {}
        self._attributes: dict[str, dict[str, str]] = {}
        self._values: dict[str, dict[str, Reading]] = {}
        self._processes: dict[str, list[Reading]] = {}

    def understand(self, message: list) -> list[Reading]:
        kind, *rest = message
        if kind == "values":
            return self._take_values(*rest)
        if kind == "processes":
            return self._take_processes(*rest)
        if kind == "device":
            self._take_device(*rest)
        elif kind == "node":
            self._start_anew(*rest)
        elif kind == "down":
            self.down = (rest[0], rest[1])
        return []

    def _start_anew(self, up: Mapping[str, Any]) -> None:
        self.past_failures = self.failures()
        for table in (self.devices, self._attributes, self._values, self._processes):
            table.clear()
        self.up, self.down = up, None

    def _take_device(self, device: Mapping[str, Any]) -> None:
        names = ("uuid", "index", "name", "mig", "lost", "working", "missing", "failures")
        state = DeviceState(*(device[name] for name in names))
        key = state.uuid or f"index {state.index}"
        self.devices[key] = state
        self._attributes[key] = {"gpu.uuid": state.uuid, "gpu.index": str(state.index), "gpu.name": state.name}
        self.unread = device.get("unread", self.unread)
        if state.lost:
            self._values.pop(key, None)
            self._processes.pop(key, None)

    def _take_values(self, uuid: str, rows: list) -> list[Reading]:
        shared = self._attributes[uuid]
        readings = [Reading(name, BY_NAME[name].unit, at, float(value), shared) for name, value, at in rows]
        known = self._values.setdefault(uuid, {})
        known.update((reading.name, reading) for reading in readings)
        return [*readings, *_carried(known, readings)]

    def _take_processes(self, uuid: str, at: int, first: bool, rows: list) -> list[Reading]:
        readings = []
        for pid, name, memory, busy, instance in rows:
            attributes = {**self._attributes[uuid], "process.pid": str(pid), "process.executable.name": name}
            if instance is not None:
                attributes["gpu.instance"] = str(instance)
            for metric, value in (("gpu.process.memory", memory), ("gpu.process.utilization", busy)):
                if value is not None:
                    readings.append(Reading(metric, BY_NAME[metric].unit, at, float(value), attributes))
        self._processes[uuid] = readings if first else [*self._processes.get(uuid, ()), *readings]
        return readings

    def latest(self, now_unix: int, interval: float) -> list[Reading]:
        """The newest value of each reading; older than three intervals (30 s for what is read every 10 s) is none."""
        often, rarely = (now_unix - int(max(3 * interval, least) * 1e9) for least in (3.0, 30.0))
        readings = [reading for values in self._values.values() for reading in values.values()]
        readings += [reading for rows in self._processes.values() for reading in rows]
        return [reading for reading in readings if reading.time_unix >= (rarely if reading.name in RARE else often)]

    def failures(self) -> dict[str, int]:
        return merged(self.past_failures, *(device.failures for device in self.devices.values()))

    def device_states(self) -> tuple[DeviceState, ...]:
        return tuple(sorted(self.devices.values(), key=lambda device: device.index))
