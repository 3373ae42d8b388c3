# SPDX-License-Identifier: Apache-2.0
"""The NVML child's rounds: every interval all devices, one call after the other, each announced before it is made."""

from __future__ import annotations

import contextlib
import os
import time

import nvml_calls
import pynvml
from nvml_child import ROWS, Down, Page, Parent, module_version
from nvml_pcie import Impossible, Later

CHECK_EVERY = 10.0
ENDS = (  # NVML as a whole is gone, such as after an update of the driver: a new child loads the new library
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)
LOSSES = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)


class Rounds:
    def __init__(self, options: dict, page: Page, parent: Parent) -> None:
        self.interval, self.proc, self.patience = options["interval"], options["proc"], options["patience"]
        self.page, self.parent = page, parent
        nvml_calls.patience = self.patience
        self.held = [(call, key, uuid, time.monotonic() + seconds) for call, key, uuid, seconds in options["held"]]
        self.names = nvml_calls.Names(self.proc)
        self.devices: list[nvml_calls.Device] = []
        self.processes: dict[str, dict[str, nvml_calls.Group]] = {}
        self.no_rows: set[str] = set()
        self.later: list[tuple] = []
        self.present: tuple = ()
        self.unreadable = False
        self.next_check = self.retry_unreadable = 0.0

    def down(self, error: Exception) -> Down:
        """Why NVML as a whole does not work, as a sentence."""
        code = error.value
        if code == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
            return Down(
                "the NVIDIA kernel module is not loaded",
                "Load it (modprobe nvidia), or pass its devices into the container.",
            )
        if code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            module = module_version(self.proc)
            return Down(
                f"the NVIDIA kernel module{module and ' ' + module} and libnvidia-ml are of different versions",
                "Reboot, or unload and load the module: the driver was updated while it was in use.",
            )
        if code == pynvml.NVML_ERROR_NO_PERMISSION:
            return Down(
                "no permission to use /dev/nvidiactl",
                "Run as a user who may open /dev/nvidia*, or pass the devices into the container.",
            )
        return Down(
            f"NVML does not start: {error}", "nvidia-smi should say the same; see the kernel log for NVRM lines."
        )

    def system(self, call: str) -> str:
        try:
            return str(getattr(pynvml, call)())
        except pynvml.NVMLError:
            return ""

    def enumerate(self) -> None:
        try:
            self.page.announce("nvmlInit")
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise self.down(error) from error
        self.present = self.look()
        self.next_check = time.monotonic() + self.patience * CHECK_EVERY
        self.devices, self.processes, self.no_rows, self.later, unreadable = [], {}, set(), [], []
        for index in range(count):
            self.page.announce("nvmlDeviceGetHandleByIndex", uuid=str(index))
            try:
                device = nvml_calls.Device(index, self.interval)
            except pynvml.NVMLError as error:
                unreadable.append((index, str(error)))
                continue
            self.processes[device.uuid] = nvml_calls.process_groups(device)
            self.hold(device)
            self.devices.append(device)
        self.page.idle()
        if not count:
            raise Down(
                "the NVIDIA driver finds no GPU",
                "Pass the devices into the container, or see the kernel log for NVRM lines.",
            )
        self.parent.tell(
            "node",
            {
                "driver": self.system("nvmlSystemGetDriverVersion"),
                "nvml": self.system("nvmlSystemGetNVMLVersion"),
                "cuda": self.system("nvmlSystemGetCudaDriverVersion_v2"),
                "devices": count,
            },
        )
        for index, reason in unreadable:
            self.parent.tell(
                "device",
                {
                    "uuid": "",
                    "index": index,
                    "name": "",
                    "mig": False,
                    "lost": reason,
                    "working": {},
                    "missing": {},
                    "failures": {},
                },
            )
        for device in self.devices:
            self.report(device)  # its name and index, before its first values
            device.changed = True
        self.unreadable = bool(unreadable)
        self.retry_unreadable = time.monotonic() + self.patience * 60

    def groups_of(self, device) -> tuple:
        return (*device.groups, *self.processes[device.uuid].values())

    def hold(self, device) -> None:
        """Calls that hung in a child before this one rest."""
        for call, key, uuid, until in self.held:
            for group in self.groups_of(device) if uuid == device.uuid else ():
                for source in group.sources if group.key == key else ():
                    if source.call == call and until > time.monotonic():
                        source.reason, source.due = "the driver hung in this call", until

    def look(self) -> tuple:
        """What tells that GPUs came or went: NVML itself lists them once."""
        try:
            listed = sorted(os.listdir(f"{self.proc}/driver/nvidia/gpus"))  # noqa: PTH208 - without pathlib
        except OSError:
            listed = []
        try:
            return pynvml.nvmlDeviceGetCount(), *listed
        except pynvml.NVMLError as error:
            return error.value, *listed

    def check(self, now: float) -> None:
        if now < self.next_check:
            return
        self.next_check = now + self.patience * CHECK_EVERY
        self.names.forget()
        self.page.announce("nvmlDeviceGetCount")
        present = self.look()
        self.page.idle()
        if present != self.present or (self.unreadable and now >= self.retry_unreadable):
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
            self.enumerate()

    # One device

    def failed(self, device, source, error: Exception, now: float) -> None:
        code = getattr(error, "value", -1)
        if code in ENDS:
            raise self.down(error) from error
        text = str(error)
        if code == pynvml.NVML_ERROR_NOT_SUPPORTED and device.mig:
            text += " (MIG is enabled)"
        source.failed(now, code, text)
        name = f"{source.call.split()[0]}: {error}"
        device.failures[name] = device.failures.get(name, 0) + 1
        device.changed = True
        if code in LOSSES:
            device.lost_rest = min(max(30.0, device.lost_rest * 2), 300.0)
            device.lost, device.lost_until = str(error), now + self.patience * device.lost_rest

    def attempt(self, device, group, source, read, now: float):
        """The source's answer; None: ask the next one."""
        self.page.announce(source.call, group.key, device.uuid)
        try:
            answer = read()
        except (pynvml.NVMLError, Impossible) as error:
            self.failed(device, source, error, now)
            return None
        except (ValueError, UnicodeDecodeError) as error:  # bytes of the driver that pynvml cannot read
            self.failed(device, source, Impossible(str(error)), now)
            return None
        if answer is not None and (source.worked() or group.active is not source):
            group.active, device.changed = source, True
        return answer

    def read(self, device, group, now: float):
        """{name: value} of one group, {} if nothing is new or nothing works."""
        if now < group.next:
            return {}
        group.next = now + group.every - self.interval / 2 if group.every else 0.0
        for source in group.sources:
            if device.lost:
                return {}
            answer = self.attempt(device, group, source, source.read, now) if now >= source.due else None
            if answer is not None:
                return answer
        if group.active is not None:
            group.active, device.changed = None, True
        return {}

    def values(self, device, now: float) -> None:
        at, rows = time.time_ns(), []
        for group in device.groups:
            answer = self.read(device, group, now)
            if isinstance(answer, Later):
                self.later.append((time.monotonic() + answer.after, device, group, group.active, answer.finish))
            else:
                rows += [
                    [name, *value] if isinstance(value, tuple) else [name, value, at] for name, value in answer.items()
                ]
        if rows:
            self.parent.tell("values", device.uuid, rows)

    def finish_later(self) -> None:
        for due, device, group, source, finish in sorted(self.later, key=lambda entry: entry[0]):
            self.parent.wait_until(due)
            answer = None if device.lost else self.attempt(device, group, source, finish, time.monotonic())
            self.page.idle()
            if answer:
                at = time.time_ns()
                self.parent.tell("values", device.uuid, [[name, value, at] for name, value in answer.items()])
        self.later = []

    def process_rows(self, device, now: float) -> None:
        groups, at = self.processes[device.uuid], time.time_ns()
        memory: dict[int, list] = {}
        for kind in ("compute", "graphics", "mps"):  # a process with two kinds of context is in two lists, same figure
            for pid, (size, instance) in self.read(device, groups[kind], now).items():
                before = memory.get(pid, (None, None))[0]
                memory[pid] = [size if before is None else max(before, size or 0), instance]
        busy = self.read(device, groups["utilization"], now)
        self.untold(device, memory)
        rows = [
            [pid, self.names.of(pid), memory.get(pid, (None,))[0], busy.get(pid), memory.get(pid, (None, None))[1]]
            for pid in {**memory, **busy}
        ]
        if not rows and device.uuid in self.no_rows:
            return
        (self.no_rows.discard if rows else self.no_rows.add)(device.uuid)
        for start in range(0, max(1, len(rows)), ROWS):
            self.parent.tell("processes", device.uuid, at, start == 0, rows[start : start + ROWS])

    def untold(self, device, memory: dict) -> None:
        untold = any(size is None for size, _ in memory.values())
        note = {"gpu.process.memory": "the driver does not tell it here"} if untold else {}
        if note != device.notes:
            device.notes, device.changed = note, True

    def found_again(self, device, now: float) -> None:
        if now < device.lost_until:
            return
        try:
            self.page.announce("nvmlDeviceGetHandleByUUID", uuid=device.uuid)
            device.handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid.encode())
            pynvml.nvmlDeviceGetPowerUsage(device.handle)
        except pynvml.NVMLError as error:
            if error.value in (*LOSSES, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_UNKNOWN):
                device.lost_rest = min(device.lost_rest * 2, 300.0)
                device.lost_until = now + self.patience * device.lost_rest
                return
        device.lost, device.changed = "", True
        for group in self.groups_of(device):
            for source in group.sources:
                source.due = 0.0

    def report(self, device) -> None:
        if not device.changed:
            return
        device.changed = False
        working, missing = {}, {}
        for group in self.groups_of(device):
            reasons = "; ".join(
                f"{source.call.split()[0]}: {source.reason}" for source in group.sources if source.reason
            )
            for name in group.names:
                if group.active:
                    working[name] = group.active.call
                elif reasons:
                    missing[name] = reasons
        self.parent.tell(
            "device",
            {
                "uuid": device.uuid,
                "index": device.index,
                "name": device.name,
                "mig": device.mig,
                "lost": device.lost,
                "working": working,
                "missing": {**missing, **device.notes},
                "failures": device.failures,
                "unread": self.parent.unread,
            },
        )

    def tick(self) -> None:
        now = time.monotonic()
        for device in self.devices:
            if device.lost:
                self.found_again(device, now)
            if not device.lost:
                self.values(device, now)
            if not device.lost:
                self.process_rows(device, now)
            self.page.idle()
        self.finish_later()
        for device in self.devices:
            self.report(device)
        self.check(now)

    def run(self) -> None:
        self.enumerate()
        due = time.monotonic()
        while True:
            self.tick()
            due = max(due + self.interval, time.monotonic())  # a tick that took longer is not made up for
            self.parent.wait_until(due)
