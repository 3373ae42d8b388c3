# SPDX-License-Identifier: Apache-2.0
"""Finding, steering, draining and letting go of processes, with a stand-in for /proc; two agents; the tail."""

from __future__ import annotations

import os

import numpy as np
import pytest
from gpustrobe.agent.governor import Limits
from gpustrobe.agent.gpu_processes import GpuOptions, GpuProcesses
from gpustrobe.cupti import ring

from tests.ring_writer import RingWriter

SECOND, PID = 1_000_000_000, 500


class Node:
    """A /proc with one process that has a ring, and a clock."""

    def __init__(self, root):
        self.root, self.now = root, 100 * SECOND
        self.writer = RingWriter(pid=PID)
        self.start(PID)

    def start(self, pid: int, start_time: int = 7) -> None:
        fd = self.root / str(pid) / "fd"
        fd.mkdir(parents=True, exist_ok=True)
        (self.root / str(pid) / "stat").write_text(f"{pid} (a b) S " + " ".join(["0"] * 18) + f" {start_time} 0\n")
        (self.root / str(pid) / "status").write_text(f"Name:\ta\nNSpid:\t{pid}\n")

    def end(self) -> None:
        (self.root / str(PID) / "stat").unlink()


@pytest.fixture
def node(tmp_path, monkeypatch):
    made = Node(tmp_path)
    link = f"/proc/self/fd/{made.writer.fd}"
    monkeypatch.setattr("gpustrobe.agent.kernels.find", lambda pid, root: [link] if pid == PID else [])
    yield made
    made.writer.close()


def agent(node: Node, **options) -> GpuProcesses:
    return GpuProcesses(GpuOptions(**options), proc_root=node.root, clock=lambda: node.now)


def test_a_process_is_found_woken_and_drained(node):
    found = agent(node)
    found.step()
    assert list(found.processes) == [PID]
    assert node.writer.agent["mode"][0] == ring.Mode.AUTO and node.writer.agent["heartbeat"][0] == node.now
    assert node.writer.agent["window_ns"][0] == 0  # not before the policy of its CUPTI is known
    node.writer.library["policy"] = ring.Mode.WINDOWS
    node.now += 2 * SECOND
    found.step()
    assert node.writer.agent["window_ns"][0] == 100_000_000 and node.writer.agent["period_ns"][0] == SECOND
    node.writer.put(ring.Record.DEVICE, ordinal=0, uuid=np.arange(16))
    found.step()
    assert int(node.writer.tail[0]) == 1
    found.take(found.processes[PID], node.now)
    assert found.processes[PID].records.devices == {0: bytes(range(16))}
    found.close()
    assert node.writer.agent["mode"][0] == ring.Mode.OFF


def test_sessions_keep_their_own_width(node):
    found = agent(node)
    node.writer.library["policy"] = ring.Mode.SESSIONS
    found.step()
    node.now += 2 * SECOND
    found.step()
    assert node.writer.agent["window_ns"][0] == 0
    found.close()


def test_full_detail_is_asked_of_all_and_ends_by_itself(node):
    found = agent(node)
    found.step()
    assert found.detail(10) == node.now + 10 * SECOND
    assert node.writer.agent["detail_until"][0] == node.now + 10 * SECOND
    found.close()


def test_the_tail_of_a_process_that_ended_is_kept(node):
    found = agent(node)
    found.step()
    node.writer.put(ring.Record.DEVICE, ordinal=3, uuid=np.arange(16))
    node.writer.put(ring.Record.EXIT)
    node.end()
    for _ in range(3):
        node.now += 2 * SECOND
        found.step()
    process = found.processes[PID]
    assert process.empty
    _, last = found.take(process, node.now)
    assert last and process.records.exited and 3 in process.records.devices
    found.let_go(process)
    assert not found.processes


def test_a_second_agent_stands_back_and_takes_over(node):
    first, second = agent(node), agent(node)
    first.step()
    second.step()
    assert not second.processes and "another agent" in second.refused[PID]
    first.close()
    node.now += 11 * SECOND
    second.step()
    assert PID in second.processes and not second.refused
    second.close()


def test_a_ring_that_lies_is_given_up_and_the_others_go_on(node):
    found = agent(node)
    found.step()
    node.writer.head[0] = 1 << 40
    found.step()
    assert found.processes[PID].failed and found.lost["ring_damaged"] == 1
    _, last = found.take(found.processes[PID], node.now)
    assert last
    found.let_go(found.processes[PID])


def test_costly_recording_narrows_the_windows(node):
    found = agent(node, limits=Limits(budget=0.01))
    node.writer.library["policy"] = ring.Mode.WINDOWS
    names = list(ring.COUNTERS)
    for _ in range(5):
        found.step()
        node.now += 2 * SECOND
        node.writer.counters[names.index("thread_ns")] += 100_000_000  # 5 %
    found.step()
    assert node.writer.agent["window_ns"][0] < 50_000_000
    assert found.setting_of_all().duty < 0.05
    found.close()


def test_it_does_not_look_at_itself(node):
    node.start(os.getpid())
    found = agent(node)
    found.step()
    assert os.getpid() not in found.processes
    found.close()
