# SPDX-License-Identifier: Apache-2.0
"""Starts the command that `record -- CMD` profiles. It waits at a gate until sampling runs: nothing of it is missed."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from gpustrobe.agent.errors import GpustrobeError

# As env(1) and `docker run` use them; all three mean that CMD has not started.
OWN_FAILURE, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127


class NotStarted(GpustrobeError):
    """CMD could not be started."""

    def __init__(self, exit_code: int, message: str, fix: str = "") -> None:
        super().__init__(message, fix)
        self.exit_code = exit_code


@dataclass
class Command:
    """A child that has not run `execve` yet (until `go`)."""

    pid: int
    words: tuple[str, ...]
    _gate: int
    _failure: int
    status: int | None = None  # exit code as a shell shows it, once known

    def go(self) -> None:
        """Lets the child run CMD. NotStarted if the kernel refuses it."""
        os.write(self._gate, b"g")
        os.close(self._gate)
        failure = os.read(self._failure, 16)
        os.close(self._failure)
        if failure:
            self.wait()
            raise refusal(self.words[0], int(failure))

    def give_up(self) -> None:
        """Ends the child before CMD: profiling could not start."""
        os.close(self._gate)
        os.close(self._failure)
        self.wait()

    def poll(self) -> int | None:
        """The exit code if CMD has ended; 128 + N for signal N."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = _shell_code(status)
        return self.status

    def wait(self) -> int:
        if self.status is None:
            self.status = _shell_code(os.waitpid(self.pid, 0)[1])
        return self.status

    def send(self, number: int) -> None:
        if self.status is None:
            os.kill(self.pid, number)


def _shell_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def refusal(name: str, number: int) -> NotStarted:
    if number in (errno.ENOENT, errno.ENOTDIR):
        return NotStarted(NOT_FOUND, f"{name}: command not found.")
    return NotStarted(
        NOT_EXECUTABLE, f"{name}: {os.strerror(number)}.", "Make it executable, or name its interpreter first."
    )


def check(name: str) -> None:
    """NotStarted if `name` is clearly no program; asked before sampling starts."""
    if shutil.which(name):
        return
    found = "/" in name and Path(name).exists()
    raise refusal(name, errno.EISDIR if found and Path(name).is_dir() else errno.EACCES if found else errno.ENOENT)


def prepare(words: Sequence[str], more: Mapping[str, str] = MappingProxyType({})) -> Command:
    """Forks the child that will become CMD. To be called before this process has threads of its own.

    `more`: variables added to CMD's environment."""
    check(words[0])
    gate_read, gate_write = os.pipe()
    failure_read, failure_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.environ.update(more)
        _become(words, gate_read, gate_write, failure_read, failure_write)
    os.close(gate_read)
    os.close(failure_write)
    return Command(pid, tuple(words), gate_write, failure_read)


def _become(words: Sequence[str], gate_read: int, gate_write: int, failure_read: int, failure_write: int) -> None:
    """Never returns. Pipes close on exec (PEP 446), which tells the parent that CMD runs."""
    code = OWN_FAILURE
    try:
        os.close(gate_write)
        os.close(failure_read)
        if os.read(gate_read, 1):
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these two; exec would pass that on
                signal.signal(number, signal.SIG_DFL)
            os.execvp(words[0], list(words))
    except OSError as error:
        os.write(failure_write, str(error.errno).encode())
        code = NOT_EXECUTABLE
    finally:
        os._exit(code)
