# SPDX-License-Identifier: Apache-2.0
"""The running agent's ear: a Unix socket on which a command of the same user, or root, asks for full detail.

One line of JSON each way. The name is abstract, so no file stays behind and none must be writable; the kernel tells who
asks.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any

from gpustrobe.agent.errors import EnvironmentProblem

NAME = "\0gpustrobe-agent"
LONGEST = 600.0  # seconds of full detail
ANSWER_WITHIN = 5.0
MOST = 4096  # bytes of a request


class Control:
    """Answers on a thread of its own; `detail(seconds)` gives what is said back."""

    def __init__(self, detail: Callable[[float], Mapping[str, Any]], name: str = NAME) -> None:
        self._detail = detail
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.trouble = ""
        try:
            self._socket.bind(name)
            self._socket.listen(4)
        except OSError as error:  # another agent has it
            self.trouble = f"gpustrobe detail cannot reach this agent: {error.strerror}"
            self._socket.close()
        self._thread = threading.Thread(target=self._loop, name="control", daemon=True)

    def start(self) -> None:
        if not self.trouble:
            self._thread.start()

    def stop(self) -> None:
        if not self.trouble:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _loop(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(ANSWER_WITHIN)
                connection.sendall(json.dumps(self._answer(connection)).encode() + b"\n")

    def _answer(self, connection: socket.socket) -> Mapping[str, Any]:
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in (0, os.geteuid()):
            return {"error": "only root and the agent's own user may ask"}
        try:
            request = json.loads(connection.recv(MOST))
            seconds = float(request["detail"])
        except (ValueError, KeyError, TypeError):
            return {"error": "the request is not understood"}
        if not 0 < seconds <= LONGEST:
            return {"error": f"between 0 and {LONGEST:g} seconds are possible"}
        return self._detail(seconds)


def ask(seconds: float, name: str = NAME) -> Mapping[str, Any]:
    """EnvironmentProblem where no agent answers or it refuses."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_WITHIN)
            connection.connect(name)
            connection.sendall(json.dumps({"detail": seconds}).encode())
            answer = json.loads(connection.makefile("rb").readline() or b"{}")
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(
            "No agent answers on this machine.", "Start one as the same user or root: gpustrobe up."
        ) from error
    if "error" in answer:
        raise EnvironmentProblem(f"The agent refused: {answer['error']}.")
    return answer
