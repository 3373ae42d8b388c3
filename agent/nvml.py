# SPDX-License-Identifier: Apache-2.0
"""NVML readings. A child process (agent/nvml_child.py) asks the driver, because a driver call that hangs in the kernel
can neither be timed out nor killed. This side reads a socket, notices silence, and starts another child.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpustrobe.agent.model import Reading
from gpustrobe.agent.nvml_node import DeviceState, Node, NvmlState, cuda_text, merged
from gpustrobe.agent.nvml_process import LIBRARY, PLACES, NvmlProcess, library_exists

__all__ = ["DeviceState", "NvmlPoller", "NvmlState", "Times"]

LOG = logging.getLogger("gpustrobe.nvml")
SLOW = 3.0  # seconds in one call after which the state says so
MOST_ABANDONED = 3  # children that cannot be ended, about 15 MB each, before no other is started
MOST_KEPT = 100_000  # readings between two take(): eight minutes of eight busy GPUs
HELD = 600.0  # seconds that a call which hung is not made again; doubles each time, up to a day
NOT_INSTALLED = (
    f"{LIBRARY} is not installed",
    "Install the NVIDIA driver; in a container, use the NVIDIA container toolkit (docker run --gpus all).",
)
KERNEL_LOG = "See the kernel log for NVRM and Xid lines; the GPU may need a reset."


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds. nvmlInit takes 15 s and more on eight GPUs without persistence mode."""

    answer_within: float = 10.0
    start_within: float = 60.0
    retry_missing: float = 60.0
    backoff: float = 1.0  # before a child that died or hung is replaced; doubles up to 300
    patience: float = 1.0  # factor on how long the child lets a failed call rest


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


class NvmlPoller:
    """Readings of all GPUs. Has no thread: `poll()`, called about once a second, does all the work. `take()` polls too.
    Any thread may call anything; nothing blocks, save for half a second when the child has just died.

    `proc` is the procfs root for names of processes and for the driver's list of GPUs.
    """

    def __init__(
        self,
        interval: float = 1.0,
        *,
        proc: str = "/proc",
        environment: Mapping[str, str] | None = None,
        places: Sequence[str] = PLACES,
        times: Times | None = None,
        clock: Callable[[], float] = time.monotonic,
        kill: Callable[[int], None] = kill,
        exists: Callable[..., bool] = library_exists,
    ) -> None:
        self._interval, self._proc, self._places = interval, proc, tuple(places)
        self._environment = dict(os.environ if environment is None else environment)
        self._times = times or Times()
        self._clock, self._kill, self._exists = clock, kill, exists
        self._child: NvmlProcess | None = None
        self._abandoned: list[NvmlProcess] = []
        self._node = Node()
        self._held: dict[tuple[str, str, str], tuple[float, float]] = {}  # (call, reading, uuid) -> (until, seconds)
        self._failures: dict[str, int] = {}  # told by children that are gone
        self._down = ("not started", "")
        self._said = ""
        self._next_start = self._started = self._backoff = 0.0
        self._restarts = self._unread = 0
        self._kept: list[Reading] = []
        self._lock = threading.RLock()
        self._stopped = True

    def start(self) -> None:
        self._stopped = False
        self.poll()

    def poll(self) -> None:
        """Takes what the child has said, and looks after the child."""
        with self._lock:
            if self._stopped:
                return
            readings = self._receive()
            room = MOST_KEPT - len(self._kept)
            self._unread += max(0, len(readings) - room)
            self._kept += readings[:room]
            self._watch(self._clock())
            self._log_state()

    def take(self) -> list[Reading]:
        """Readings since the last call; [] when there is no GPU."""
        with self._lock:
            self.poll()
            readings, self._kept = self._kept, []
            return readings

    def latest(self, now_unix: int) -> list[Reading]:
        with self._lock:
            return self._node.latest(now_unix, self._interval)

    def pids(self) -> list[int]:
        """Of our children, for agent/cost.py."""
        with self._lock:
            return [child.pid for child in (self._child, *self._abandoned) if child is not None]

    def stop(self, deadline: float = 1.0) -> None:
        with self._lock:
            self._stopped = True
            child, self._child = self._child, None
            if child is not None:
                child.hang_up()
                if child.ended(deadline) is None:
                    self._give_up(child)
                else:
                    child.close()
            self._down = ("stopped", "")
            self._reap()

    @property
    def state(self) -> NvmlState:
        with self._lock:
            node, up = self._node, self._node.up or {}
            text, fix = self._text()
            return NvmlState(
                text == "ok",
                text,
                fix,
                up.get("driver", ""),
                up.get("nvml", ""),
                cuda_text(up.get("cuda", "")),
                node.device_states(),
                merged(self._failures, node.failures()),
                self._restarts,
                len(self._abandoned),
                self._unread + node.unread,
            )

    # The child's life

    def _receive(self) -> list[Reading]:
        readings: list[Reading] = []
        while self._child is not None:
            message = self._child.receive()
            if message is None:
                break
            if message:
                readings += self._node.understand(json.loads(message))
            else:
                self._ended(self._clock())
        return readings

    def _watch(self, now: float) -> None:
        self._reap()
        if self._child is None:
            if now >= self._next_start and len(self._abandoned) < MOST_ABANDONED:
                self._start(now)
            return
        since, call, reading, uuid = self._child.call()
        limit = max(self._times.answer_within, 3 * self._interval) if self._node.up else self._times.start_within
        if since and now - since > limit:
            self._hung(now, now - since, call, reading, uuid)

    def _start(self, now: float) -> None:
        self._next_start = now + self._times.retry_missing
        if not self._exists(self._environment, self._places):
            self._down = NOT_INSTALLED
            return
        options = {
            "interval": self._interval,
            "proc": self._proc,
            "libraries": self._places,
            "held": [[*key, until - now] for key, (until, _) in self._held.items() if until > now],
            "patience": self._times.patience,
        }
        try:
            self._child = NvmlProcess(options, self._environment)
        except OSError as error:
            self._down = (f"the NVML process cannot be started: {error.strerror}", "")
            return
        self._started, self._node = now, Node()

    def _ended(self, now: float) -> None:
        """The child is gone: it said why (`down`), or it died."""
        child, node, self._child = self._child, self._node, None
        code = child.ended(within=0.5)
        if node.down and code == 0:
            self._down, self._next_start = node.down, now + self._times.retry_missing
        else:
            self._restarts += 1
            end = "hangs while ending" if code is None else child.end_text(code)
            self._down = (f"the NVML process {end}", "It is started again by itself.")
            self._next_start = now + self._next_backoff(now)
        if code is None:
            self._give_up(child)
        else:
            child.close()
        self._settle()

    def _hung(self, now: float, silent: float, call: str, reading: str, uuid: str) -> None:
        child, self._child = self._child, None
        self._down = (f"the driver did not answer within {silent:.0f} s{self._where(call, uuid)}", KERNEL_LOG)
        self._restarts += 1
        name = f"{call.split()[0]}: hung"
        self._failures[name] = self._failures.get(name, 0) + 1
        if reading:
            seconds = min(2 * self._held.get((call, reading, uuid), (0.0, HELD / 2))[1], 86400.0)
            self._held[call, reading, uuid] = now + seconds, seconds
        self._next_start = now + self._next_backoff(now)
        self._give_up(child)
        self._settle()

    def _next_backoff(self, now: float) -> float:
        """A child that ran for a minute starts the row anew."""
        fresh = not self._backoff or now - self._started > 60
        self._backoff = self._times.backoff if fresh else min(2 * self._backoff, 300.0)
        return self._backoff

    def _give_up(self, child: NvmlProcess) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._kill(child.pid)
        self._abandoned.append(child)

    def _reap(self) -> None:
        for child in [child for child in self._abandoned if child.ended() is not None]:
            self._abandoned.remove(child)
            child.close()

    def _settle(self) -> None:
        self._failures = merged(self._failures, self._node.failures())
        self._unread += self._node.unread
        self._node = Node()

    # What does not work

    def _where(self, call: str, uuid: str) -> str:
        device = self._node.devices.get(uuid)
        gpu = f", GPU {device.index}" if device else f", GPU {uuid}" if uuid else ""
        return f" ({call}{gpu})"

    def _text(self) -> tuple[str, str]:
        if self._child is None:
            full = len(self._abandoned) >= MOST_ABANDONED
            return self._down[0] + ("; it cannot be ended, so no other is started" if full else ""), self._down[1]
        since, call, _, uuid = self._child.call()
        silent = self._clock() - since if since else 0.0
        if silent > SLOW:
            return f"the driver does not answer since {silent:.0f} s{self._where(call, uuid)}", KERNEL_LOG
        if self._node.up is None:
            return ("the NVML process is starting", "") if self._down[0] == "not started" else self._down
        devices = self._node.device_states()
        if devices and all(device.lost for device in devices):
            return f"no GPU can be read: {devices[0].lost}", "See the kernel log for Xid 79 and NVRM lines."
        return "ok", ""

    def _log_state(self) -> None:
        """Once for each change; a silence is one change, however long it lasts."""
        text, fix = self._text()
        key = text.partition(" since ")[0]
        if key == self._said or key == "the NVML process is starting":
            return
        self._said = key
        LOG.log(
            logging.INFO if text == "ok" else logging.WARNING, "GPU readings: %s", f"{text}. {fix}" if fix else text
        )
