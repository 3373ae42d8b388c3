# SPDX-License-Identifier: Apache-2.0
"""The injected library in simulated time: a minute of training against windows takes a second or two, and comes out the same again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "sim"))
import programs
import simulated_node
from simulated_node import Node

cupti = pytest.importorskip("gpustrobe.cupti.library")

# The agent is the program itself: it beats and drains in the same simulated time.
MINUTE = """
sys.path.insert(0, {root!r})
from tests import cupti_agent
from gpustrobe.cupti import ring
rt.set_device(0)
agent = cupti_agent.PlainAgent(cupti_agent.find(os.getpid()))
agent.wish(mode=ring.Mode.WINDOWS, window_ns=100_000_000, period_ns=1_000_000_000, seed={seed}, probability=1 << 28)
gemm, small = rt.kernel("gemm", 30_000, sigma=0.2), rt.kernel("small", 40, sigma=0.2)
for second in range(60):
    agent.beat()
    agent.drain()
    for step in range(10):
        for _ in range(20): small()
        gemm()
        rt.synchronize()
        rt.advance(50_000_000)
rt.advance(2_000_000_000)
agent.drain()
kernels, windows = agent.records(ring.Record.KERNEL), agent.records(ring.Record.WINDOW)
say(kernels=sorted((int(k["correlation"]), int(k["end"] - k["start"])) for k in kernels),
    windows=[(int(w["begin"]), int(w["end"])) for w in windows if w["end"]], seconds=(rt.now() - 10**9) / 1e9)
"""


def record(tmp_path, seed):
    simulated_node.build()
    with Node.create(tmp_path, gpus=1) as node:
        outcome = programs.run(
            node,
            MINUTE.format(root=str(Path(__file__).parents[1]), seed=seed),
            tmp_path,
            timeout=60,
            simulated_clock=True,
            inject=str(cupti.path()),
        )
    assert outcome.code == 0, outcome.errors
    return outcome


def test_a_minute_of_windows_in_simulated_time(tmp_path):
    outcome = record(tmp_path, 7)
    true = {int(row["correlation"]): row for row in outcome.kernels()}
    assert 45 < outcome.said["seconds"] < 65 and len(true) == 60 * 10 * 21
    assert 40 <= len(outcome.said["windows"]) <= 65
    recorded = dict(outcome.said["kernels"])
    assert recorded.items() <= {(number, int(row["end_ns"] - row["start_ns"])) for number, row in true.items()}
    inside = {
        number
        for number, row in true.items()
        if any(begin + 1_000_000 <= row["api_ns"] < end for begin, end in outcome.said["windows"])
    }
    assert inside <= recorded.keys() and len(inside) > 500
    total, estimate = sum(int(row["end_ns"] - row["start_ns"]) for row in true.values()), 10 * sum(recorded.values())
    assert estimate == pytest.approx(total, rel=0.5)


def test_the_same_seed_gives_the_same_minute(tmp_path):
    first, second, other = (record(tmp_path, seed).said for seed in (7, 7, 8))
    assert first == second
    assert first["windows"] != other["windows"]
