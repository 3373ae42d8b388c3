# SPDX-License-Identifier: Apache-2.0
"""The process that talks to NVML for agent/nvml.py: a driver call that hangs, hangs here. It imports pynvml and little
else; what it imports of ours (nvml_rounds, nvml_calls, nvml_pcie) are plain modules in the folder of this file.

Standard input is a SOCK_SEQPACKET socket; each message is a JSON array:
    ["node", {"driver", "nvml", "cuda", "devices"}]     NVML is up; what was said of devices before is void
    ["device", {"uuid", "index", "name", "mig", "lost", "working": {name: call}, "missing": {name: reason},
                "failures": {"function: error": n}}]
    ["values", uuid, [[name, value, unix ns], ...]]
    ["processes", uuid, unix ns, first, [[pid, name, bytes or null, percent or null, GPU instance or null], ...]]
    ["down", reason, fix]                                last message
End of file from the parent ends this process. `page` is shared memory: since when (CLOCK_MONOTONIC ns, 0: idle) and
which call is being made.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading
import time

PAGE = 4096
IN_CALL = struct.Struct("<Q128s64s64s")  # since, call, reading, uuid
ROWS = 500  # process rows a message: well below what a socket buffer takes
PR_SET_NAME = 15


class Page:
    """Memory shared with the parent, which reads there how long and where we are in the driver."""

    def __init__(self, fd: int) -> None:
        self.memory = mmap.mmap(fd, PAGE)

    def announce(self, call: str, key: str = "", uuid: str = "") -> None:
        IN_CALL.pack_into(self.memory, 0, time.monotonic_ns(), call.encode(), key.encode(), uuid.encode())

    def idle(self) -> None:
        self.memory[:8] = bytes(8)


class Down(Exception):
    """NVML cannot be used at all: (reason, fix)."""


def load_library(places: list[str]) -> None:
    """The driver's library, from where the loader looks, else from where container runtimes put it. pynvml then finds
    it by its soname."""
    problems = []
    for path in ("libnvidia-ml.so.1", *places):
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            return
        except OSError as error:
            if "No such file" not in str(error):
                problems.append(str(error))
    if problems:
        raise Down(
            f"libnvidia-ml.so.1 cannot be loaded: {problems[0]}",
            "Install the driver's libraries for this architecture.",
        )
    raise Down(
        "libnvidia-ml.so.1 is not installed",
        "Install the NVIDIA driver; in a container, use the NVIDIA container toolkit (docker run --gpus all).",
    )


def first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def module_version(proc: str) -> str:
    """Of the kernel module, from a line such as `NVRM version: NVIDIA UNIX x86_64 Kernel Module  590.48.01  ...`."""
    words = first_line(f"{proc}/driver/nvidia/version").split()
    return next((word for word in words if word[:1].isdigit() and "." in word), "")


class Parent:
    """The messages to the parent. One that does not fit is dropped and counted: this process never waits for it."""

    def __init__(self) -> None:
        self.socket = socket.socket(fileno=0)
        self.socket.setblocking(False)
        self.poll = select.poll()
        self.poll.register(0, select.POLLIN)
        self.unread = 0

    def tell(self, *message: object) -> None:
        try:
            self.socket.send(json.dumps(message, separators=(",", ":")).encode())
        except BlockingIOError:
            self.unread += 1
        except (BrokenPipeError, ConnectionResetError):
            sys.exit(0)

    def wait_until(self, at: float) -> None:
        """Returns at that time (monotonic s); the parent's end of file ends the process."""
        if self.poll.poll(max(0.0, at - time.monotonic()) * 1000):
            sys.exit(0)


def die_with_parent() -> None:
    """A thread that ends this process when the parent is gone, also while a call into the driver goes on in user space.
    (PR_SET_PDEATHSIG would kill it when the parent's *thread* that started it ends.) Ctrl-C is for the parent."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"gpustrobe-nvml", 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hang_up = select.poll()
    hang_up.register(0, 0)  # hang-up is always told

    def watch() -> None:
        hang_up.poll()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    options = json.loads(sys.argv[1])
    die_with_parent()
    sys.path[:] = [*sys.path, *options["path"]]
    page, parent = Page(options["page"]), Parent()
    try:
        page.announce("dlopen libnvidia-ml.so.1")
        load_library(options["libraries"])
        from nvml_rounds import Rounds  # and with it pynvml, which costs 6 MB

        Rounds(options, page, parent).run()
    except Down as down:
        page.idle()
        parent.tell("down", *down.args)
