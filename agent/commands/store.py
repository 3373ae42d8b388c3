# SPDX-License-Identifier: Apache-2.0
"""`gpustrobe store`, and the store as a child process of `up`: it never shares a process with the agent."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
from gpustrobe.agent import options
from gpustrobe.agent.config import Settings
from gpustrobe.agent.cost import process_cpu
from gpustrobe.agent.errors import StoreProblem

START_LIMIT = 60.0  # seconds; opening a 10 GB database after a crash replays its log
STOP_LIMIT = 30.0
HEALTHY = 60.0  # seconds of life after which an earlier crash no longer counts


def arguments(settings: Settings) -> list[str]:
    """The command line of the store's own process."""
    return [
        sys.executable, "-m", "gpustrobe.store",
        "--http", str(settings.http),
        "--grpc", str(settings.grpc),
        "--data", str(settings.data),
        "--retention-age", str(int(settings.retention)),
        "--retention-size", str(settings.max_size),
    ]  # fmt: skip


@click.command(
    epilog="""\b
Examples:
  gpustrobe store
  gpustrobe store --http 0.0.0.0:7070 --grpc 0.0.0.0:4317 --data /srv/gpustrobe --retention 30d --max-size 100GB
"""
)
@options.settings("store")
def command(settings: Settings) -> None:
    """Receive profiles and metrics from agents, keep them, and serve the page and its API.

    Needs no root. SIGTERM commits what was received and exits 0.
    """
    words = arguments(settings)
    sys.stdout.flush()
    os.execv(words[0], words)


class StoreProcess:
    """A store as a child in a session of its own: Ctrl-C reaches `up` first, which stops it last.

    Its log and its reasons not to start go to our standard error; standard output brings one line, `ready {json}`. It
    asks the kernel to end it when we die, kill -9 included: nothing is left behind that holds the ports.
    """

    def __init__(
        self, words: Sequence[str], logger: logging.Logger, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._words = list(words)
        self._logger = logger
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._next_start = 0.0
        self._started = 0.0
        self._cpu = 0.0  # of the process that runs, when last seen
        self.reaped_cpu = 0.0  # seconds of stores that ended: in RUSAGE_CHILDREN, but no part of the agent's cost

    def start(self) -> dict[str, Any]:
        """What the store says once it accepts data: its addresses. StoreProblem if it cannot."""
        self._spawn()
        ready = self._ready(START_LIMIT)
        if ready is None:
            code = self.stop()
            raise StoreProblem(f"The store did not start (exit status {code}).", "Its reason stands above.")
        self._words = with_addresses(self._words, ready)
        return ready

    def _spawn(self) -> None:
        self._started = self._clock()
        self._process = subprocess.Popen(
            [*self._words, "--die-with-parent"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def _ready(self, limit: float) -> dict[str, Any] | None:
        """The ready line's content; None when the store ended or took longer than `limit` seconds."""
        assert self._process is not None and self._process.stdout is not None
        deadline, pipe, text = self._clock() + limit, self._process.stdout.fileno(), b""
        while (left := deadline - self._clock()) > 0 and select.select([pipe], [], [], left)[0]:
            piece = os.read(pipe, 65536)
            text += piece
            for line in text.split(b"\n")[:-1]:
                if line.startswith(b"ready "):
                    return json.loads(line[6:])
            if not piece:
                break
        return None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def watch(self) -> None:
        """Called about once a second: starts the store again if it has died, waiting longer each time; never blocks."""
        now = self._clock()
        if self._process is not None:
            self._cpu = process_cpu(self._process.pid) or self._cpu
            code = self._process.poll()
            if code is None:
                return
            self.reaped_cpu, self._cpu = self.reaped_cpu + self._cpu, 0.0
            if now - self._started > HEALTHY:
                self._failures = 0
            pause = min(30.0, 2.0**self._failures - 1)
            self._failures, self._next_start = self._failures + 1, now + pause
            self._drop_pipe()
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
            when = f"in {pause:g} s" if pause else "now"
            self._logger.error("the store died (%s); starting it again %s, data waits here meanwhile", how, when)
        if now >= self._next_start:
            self._spawn()

    def stop(self) -> int | None:
        """SIGTERM, so that it commits; its exit status, None if it never ran."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self._logger.error("the store did not stop within %g s and is killed", STOP_LIMIT)
            self._process.kill()
            return self._process.wait()
        finally:
            self._drop_pipe()

    def _drop_pipe(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None


def with_addresses(words: Sequence[str], ready: dict[str, Any]) -> list[str]:
    """The command line with the ports the store really got, so that it comes back at the same ones."""
    words = list(words)
    for name in ("http", "grpc"):
        if ready.get(name):
            words[words.index(f"--{name}") + 1] = str(ready[name])
    return words
