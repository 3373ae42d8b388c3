# SPDX-License-Identifier: Apache-2.0
"""Starting the child process that talks to NVML, and what can be seen of it from outside."""

from __future__ import annotations

import importlib.util
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpustrobe.agent import nvml_child

LIBRARY = "libnvidia-ml.so.1"
MACHINE = os.uname().machine
# Where the library is when the loader does not know: device plugins, the GPU operator's driver container, NixOS, WSL.
PLACES = tuple(
    f"{folder}/{LIBRARY}"
    for folder in (
        "/usr/local/nvidia/lib64",
        "/usr/local/nvidia/lib",
        "/home/kubernetes/bin/nvidia/lib64",
        f"/run/nvidia/driver/usr/lib/{MACHINE}-linux-gnu",
        "/run/nvidia/driver/usr/lib64",
        "/run/nvidia/driver/usr/lib",
        "/run/opengl-driver/lib",
        "/usr/lib/wsl/lib",
    )
)
LOADER_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib", f"/usr/lib/{MACHINE}-linux-gnu")
SO_SNDBUFFORCE = 32  # asm-generic/socket.h
SEND_BUFFER = 4 << 20
# Not `-m`: our package would come with it, and with it numpy and half of the agent's memory.
START = "import sys,json;sys.path.append(json.loads(sys.argv[1])['path'][0]);import nvml_child;nvml_child.main()"


def library_exists(
    environment: Mapping[str, str],
    places: Sequence[str] = PLACES,
    cache: str = "/etc/ld.so.cache",
    folders: Sequence[str] = LOADER_FOLDERS,
) -> bool:
    """Whether a child could load the library; costs a few stats and no process."""
    searched = [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder]
    paths = (*places, *(f"{folder}/{LIBRARY}" for folder in (*searched, *folders)))
    if any(Path(path).exists() for path in paths):
        return True
    try:
        return LIBRARY.encode() in Path(cache).read_bytes()
    except OSError:
        return False


def import_path() -> list[str]:
    """Folders of our child's modules and of pynvml, found without importing it."""
    found = importlib.util.find_spec("pynvml")
    folders = [Path(nvml_child.__file__).parent, *([Path(found.origin).parent] if found and found.origin else [])]
    return [str(folder) for folder in folders]


def enlarge(sender: socket.socket) -> None:
    """Room for some seconds of messages of many GPUs; beyond the system's limit where we may."""
    try:
        sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SEND_BUFFER)
    except OSError:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)


class NvmlProcess:
    """A child, its socket, the page that says which call it is in, and what it wrote before dying."""

    def __init__(self, options: Mapping[str, object], environment: Mapping[str, str]) -> None:
        """OSError: no memory, or too many processes or files."""
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        enlarge(theirs)
        page = os.memfd_create("gpustrobe-nvml")
        os.ftruncate(page, nvml_child.PAGE)
        self.page = mmap.mmap(page, nvml_child.PAGE)
        self._errors, errors = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)  # never blocks whoever writes
        given = json.dumps({**options, "page": page, "path": import_path()})
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", START, given],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(page,),
                env=dict(environment),
            )
        finally:
            theirs.close()
            os.close(errors)
            os.close(page)
        self.pid = self._process.pid

    def receive(self) -> bytes | None:
        """One message, None if there is none yet, b"" after the last."""
        try:
            return self.socket.recv(1 << 20)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            return b""

    def call(self) -> tuple[float, str, str, str]:
        """(monotonic seconds since when, call, reading, uuid) of the call it is in; since is 0 between calls."""
        since, *words = nvml_child.IN_CALL.unpack_from(self.page)
        call, reading, uuid = (word.rstrip(b"\0").decode("utf-8", "replace") for word in words)
        return since / 1e9, call, reading, uuid

    def hang_up(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)

    def ended(self, within: float = 0.0) -> int | None:
        """Exit code (negative: signal), None while it lives."""
        if within:
            try:
                return self._process.wait(within)
            except subprocess.TimeoutExpired:
                return None
        return self._process.poll()

    def end_text(self, code: int) -> str:
        text = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        try:
            words = os.read(self._errors, 65536).decode("utf-8", "replace").strip()
        except BlockingIOError:
            words = ""
        return f"{text}: {words.splitlines()[-1]}" if words else text

    def close(self) -> None:
        self.socket.close()
        self.page.close()
        os.close(self._errors)
