# SPDX-License-Identifier: Apache-2.0
"""The loads that the agent is measured on: two busy loops, and the mixed load of programs as people run them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent / "loads"
BUILD = Path(__file__).resolve().parent.parent / "build" / "bench"
MIXED_PACKAGES = ("jax", "scikit-learn", "pandas", "duckdb")


def deep_binary() -> Path:
    """The 27 deep C loop, built as distributions build: without frame pointers."""
    BUILD.mkdir(parents=True, exist_ok=True)
    binary = BUILD / "deep"
    if not binary.exists() or binary.stat().st_mtime < (HERE / "deep.c").stat().st_mtime:
        subprocess.run(["gcc", "-O2", "-fomit-frame-pointer", "-o", binary, HERE / "deep.c"], check=True)
    return binary


def mixed_python() -> Path:
    """An interpreter that has the packages of the mixed load, in an environment of its own."""
    python = BUILD / "venv" / "bin" / "python"
    if not (BUILD / "venv" / ".complete").exists():
        subprocess.run([sys.executable, "-m", "venv", BUILD / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *MIXED_PACKAGES], check=True)
        (BUILD / "venv" / ".complete").touch()
    return python


def loops() -> list[list[str]]:
    return [[str(deep_binary())], [sys.executable, str(HERE / "deep.py")]]


def mixed() -> list[list[str]]:
    python = str(mixed_python())
    scripts = ("jax_steps.py", "duckdb_groups.py", "sklearn_fits.py", "pandas_json.py", "compile.py")
    commands = [[python, str(HERE / script)] for script in scripts]
    node = shutil.which("node")
    return [*commands, [node, str(HERE / "node_loop.js")]] if node else commands


LOADS = {"loops": loops, "mixed": mixed}


class Running:
    """Programs of a load at work. `stop` ends them and returns what each did: rounds per second of its own CPU time,
    which other programs on the machine do not change and interruptions by the sampler do."""

    def __init__(self, commands: list[list[str]]) -> None:
        self.processes = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for command in commands
        ]

    def stop(self) -> list[float]:
        for process in self.processes:
            process.terminate()
        rates = []
        for process in self.processes:
            out = process.communicate(timeout=60)[0].split()
            rates.append(float(out[-1]) if out else 0.0)
        return rates


@contextmanager
def running(commands: list[list[str]]) -> Iterator[Running]:
    load = Running(commands)
    try:
        yield load
    finally:
        for process in load.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
