# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpustrobe.agent.cost import BpfCost, OwnCost, process_cpu, proportional, resident

BURN = "import time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: pass\n{then}"


def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def child(seconds, then="import sys; print('done', flush=True); sys.stdin.read()"):
    started = subprocess.Popen(
        [sys.executable, "-c", BURN.format(seconds=seconds, then=then)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout.readline() == "done\n"
    return started


def end(process):
    process.stdin.close()
    process.wait()
    process.stdout.close()


def test_cores_are_cpu_over_time():
    now = [100.0]
    cost = OwnCost(clock=lambda: now[0])
    burn(0.05)
    now[0] += 2.0
    taken = cost.take()
    assert 0.05 / 2 <= taken.cpu_cores < 0.1 / 2
    assert taken.cpu_seconds == pytest.approx(sum(os.times()[:2]) + sum(os.times()[2:4]), abs=0.05)


def test_an_idle_interval_costs_next_to_nothing():
    now = [0.0]
    cost = OwnCost(clock=lambda: now[0])
    cost.take()
    now[0] += 1.0
    assert cost.take().cpu_cores < 0.002


def test_named_children_count_alive_and_after_their_end():
    pids, now = [], [0.0]
    cost = OwnCost(children=lambda: pids, clock=lambda: now[0])
    before = cost.take()
    process = child(0.1)
    pids.append(process.pid)
    now[0] += 1.0
    alive = cost.take()
    assert 0.1 <= alive.cpu_cores < 0.3 and alive.processes == 2
    assert alive.resident > before.resident + 4_000_000
    end(process)
    pids.clear()
    now[0] += 1.0
    after = cost.take()
    assert after.cpu_cores < 0.02  # moved to RUSAGE_CHILDREN, not counted again
    assert after.cpu_seconds >= alive.cpu_seconds


def test_children_that_are_not_ours_are_left_out():
    now, others = [0.0], [0.0]
    cost = OwnCost(exempt=lambda: others[0], clock=lambda: now[0])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = child(0.1)
    end(process)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    others[0] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    now[0] += 1.0
    assert others[0] >= 0.1 and cost.take().cpu_cores < 0.05


def test_a_child_between_its_end_and_the_wait_does_not_turn_the_total_back():
    pids, now = [], [0.0]
    cost = OwnCost(children=lambda: pids, clock=lambda: now[0])
    process = child(0.05)
    pids.append(process.pid)
    now[0] += 1.0
    first = cost.take()
    pids.clear()  # dropped from the list before it was waited for
    now[0] += 1.0
    assert cost.take().cpu_seconds >= first.cpu_seconds
    end(process)


def test_bpf_is_told_beside():
    now, bpf = [0.0], [BpfCost(1.0, 10, 4096)]
    cost = OwnCost(bpf=lambda: bpf[0], clock=lambda: now[0])
    now[0], bpf[0] = 4.0, BpfCost(1.02, 500, 8192)
    taken = cost.take()
    assert taken.bpf_cores == pytest.approx(0.005) and taken.bpf == BpfCost(1.02, 500, 8192)


def test_two_samples_at_one_time():
    cost = OwnCost(clock=lambda: 5.0)
    assert cost.take().cpu_cores == cost.take().bpf_cores == 0.0


def test_the_cpu_clock_of_a_process_agrees_with_proc():
    process = child(0.2)
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    assert process_cpu(process.pid) == pytest.approx(ticks, abs=0.03)
    end(process)
    assert process_cpu(process.pid) is None


def test_memory():
    own = resident(os.getpid())
    status = Path("/proc/self/status").read_text()
    assert own == pytest.approx(int(status.partition("VmRSS:")[2].split()[0]) * 1024, rel=0.05)
    assert 0 < proportional(os.getpid()) <= own * 1.05
    assert OwnCost().proportional() == pytest.approx(proportional(os.getpid()), rel=0.05)
    assert resident(4_194_304 * 4) == 0 and proportional(4_194_304 * 4) is None


def test_other_roots_of_proc(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7/statm").write_text("1000 250 90 1 0 200 0\n")
    assert resident(7, str(tmp_path)) == 250 * resource.getpagesize()
    (tmp_path / "7/statm").write_text("")
    assert resident(7, str(tmp_path)) == 0
