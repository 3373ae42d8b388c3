# SPDX-License-Identifier: Apache-2.0
"""The parent's side of symbolizer/dwarf.py: children limited in memory and time, and blamed by name when they die.

Two kinds. A converter lives for one debug file (symbolic peaks at 357 MB on libjax) and leaves a symcache. The reader
answers from symcaches and demangles: 15 MB, started when first needed, gone after a minute without work.
"""

from __future__ import annotations

import array
import json
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

READER_MEMORY = 256 << 20
_MAX_ANSWER = 8 << 20  # one line from the child; a hostile file must not fill our memory through it


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """Limits of the children. Seconds are wall-clock; a converter has as much CPU time as wall time."""

    command: tuple[str, ...] = ()  # what starts symbolizer/dwarf.py; empty: this interpreter
    convert_memory: int = 192 << 20  # libc's debug file takes 42 MB, node's 39
    convert_seconds: float = 30
    symcache_bytes: int = 256 << 20
    answer_seconds: float = 5
    idle_seconds: int = 60


class ChildDied(Exception):
    """The child ended, or was killed for being late, after `answered` answers to this request."""

    def __init__(self, reason: str, answered: int) -> None:
        super().__init__(reason)
        self.answered = answered


# Isolated (-I): a folder named `symbolic` in the agent's working directory must not become our code.
_BOOT = (
    "import sys; sys.path += [p for p in sys.argv.pop(1).split(':') if p not in sys.path]; "
    "from gpustrobe.symbolizer.dwarf import main; sys.exit(main(sys.argv[1:]))"
)


def _start(limits: ChildLimits, mode: str, *numbers: float, **streams: Any) -> subprocess.Popen[bytes]:
    ours = (sys.executable, "-I", "-c", _BOOT, ":".join(p for p in sys.path if p.startswith("/")))
    command = [*(limits.command or ours), mode, *(str(int(n)) for n in numbers)]
    # A session of its own: Ctrl-C in the agent's terminal must not look like a file that kills its reader.
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True, **streams)


class Converter:
    """A running conversion of one debug file into a symcache; poll it with `finished`."""

    def __init__(
        self, limits: ChildLimits, source: int, target: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._end = clock, clock() + limits.convert_seconds
        numbers = limits.convert_memory, limits.symcache_bytes, limits.convert_seconds, source, target
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "pass_fds": (source, target)}
        self._process = _start(limits, "convert", *numbers, **streams)

    def finished(self, wait: float = 0) -> str | None:
        """None while it runs; then "" for success, or the reason. Waits up to `wait` seconds, kills it when late."""
        try:
            out, _ = self._process.communicate(timeout=max(min(wait, self._end - self._clock()), 0))
        except subprocess.TimeoutExpired:
            if self._clock() < self._end:
                return None
            self.kill()
            return "reading its debug information took too long"
        code = self._process.returncode
        if code < 0:
            return f"reading its debug information died of signal {-code}"
        text = out.decode("utf-8", "replace").strip()
        return text or ("" if code == 0 else "reading its debug information failed")

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class Reader:
    """The long-lived child. Not thread-safe: one request at a time."""

    def __init__(self, limits: ChildLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self.starts = self.deaths = 0

    @property
    def pid(self) -> int:
        """0 while there is none."""
        return self._process.pid if self._process and self._process.poll() is None else 0

    def ask(self, request: dict[str, Any], fds: Sequence[int] = ()) -> Iterator[Any]:
        """Yields the answers one by one. Raises ChildDied; the next request starts another child."""
        line = json.dumps(request).encode() + b"\n"
        answered = 0
        try:
            for answer in self._exchange(line, fds):
                answered += 1
                yield answer
        except (OSError, ValueError) as error:
            self.deaths += 1
            self.close()
            raise ChildDied(str(error), answered) from error

    def _exchange(self, line: bytes, fds: Sequence[int]) -> Iterator[Any]:
        connection = self._connect()
        end = self._clock() + self._limits.answer_seconds
        self._send(connection, line, fds, end)
        buffer = bytearray()
        while True:
            at = buffer.find(b"\n")
            if at >= 0:
                answer = json.loads(buffer[:at])
                del buffer[: at + 1]
                if answer is None:
                    return
                yield answer
                end = self._clock() + self._limits.answer_seconds
                continue
            if len(buffer) > _MAX_ANSWER:
                raise OSError("answer too long")
            if not select.select([connection], [], [], max(end - self._clock(), 0))[0]:
                raise OSError("over time")
            piece = connection.recv(1 << 16)
            if not piece:
                raise OSError("ended")
            buffer += piece

    def _send(self, connection: socket.socket, line: bytes, fds: Sequence[int], end: float) -> None:
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []
        sent = connection.sendmsg([line], beside)
        connection.settimeout(max(end - self._clock(), 0.1))
        connection.sendall(line[sent:])

    def _connect(self) -> socket.socket:
        if self._socket and self._process and self._process.poll() is None and not self._hung_up():
            return self._socket
        self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            numbers = READER_MEMORY, self._limits.symcache_bytes, self._limits.idle_seconds
            self._process = _start(self._limits, "serve", *numbers, stdin=theirs, stdout=subprocess.DEVNULL)
        self._socket = ours
        self.starts += 1
        return ours

    def _hung_up(self) -> bool:
        """Whether the child has closed its end, idle: readable before we asked anything."""
        return bool(self._socket and select.select([self._socket], [], [], 0)[0])

    def close(self) -> None:
        """Ends the child. A child that is still working is killed."""
        if self._socket:
            self._socket.close()
        if self._process:
            self._process.kill()
            self._process.wait()
        self._socket = self._process = None


