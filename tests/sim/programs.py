# SPDX-License-Identifier: Apache-2.0
"""Runs short Python programs on a simulated node, for its tests: with a CUDA runtime, a CUPTI client, and what really happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy
import truth
from simulated_node import HERE, Node

OPENING = """
import ctypes, json, os, sys, time
sys.path[:0] = {paths!r}
from device import *
import cupti_client as c
said = {{}}
def say(**more): said.update(more)
rt = Runtime({major})
"""
CLOSING = """
print(json.dumps(said, default=str))
"""


@dataclass
class Outcome:
    code: int
    said: dict
    rows: numpy.ndarray
    names: list[str]
    errors: str

    def of(self, kind: int) -> numpy.ndarray:
        return self.rows[self.rows["kind"] == kind]

    def kernels(self, name: str | None = None) -> numpy.ndarray:
        rows = self.of(truth.KERNEL)
        return rows if name is None else rows[rows["name"] == self.names.index(name) + 1]


def run(
    node: Node,
    program: str,
    folder: Path,
    cupti: str | None = "13.5",
    timeout: float = 20,
    variables: dict[str, str] | None = None,
    **environment,
) -> Outcome:
    """`program` has `rt`, `c` and `say(name=value)`. A crash is the negative signal number, a program still running -9."""
    major = int((cupti or "13").partition(".")[0])
    text = OPENING.format(paths=[str(HERE / "workloads"), str(HERE)], major=major) + program + CLOSING
    log = folder / "truth"
    for old in folder.glob("truth.*"):
        old.unlink()
    child = subprocess.Popen(
        [sys.executable, "-c", text],
        env={**node.environment(dict(os.environ), cupti=cupti, truth=log, **environment), **(variables or {})},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        output, errors = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        output, errors = child.communicate()
    rows, names = truth.read(log, child.pid).get(child.pid, (numpy.zeros(0, truth.ROW), []))
    last = output.strip().splitlines()[-1:] or [""]
    said = json.loads(last[0]) if last[0].startswith("{") else {}
    return Outcome(child.returncode, said, rows, names, errors)
