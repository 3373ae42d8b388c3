# SPDX-License-Identifier: Apache-2.0
"""When the start and the exit of a process are worth a mark."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
from gpustrobe.agent.marks import MOST, ProcessMarks, alive_below
from gpustrobe.agent.model import Books, Process, Thread, Window

SECOND = 1_000_000_000
BOOT = 1_700_000_000 * SECOND
PERIOD = 10_000_000


def process(pid: int, start: float, **labels: str) -> Process:
    return Process(pid, pid, int(start * SECOND), 0, f"c{pid}", labels=labels)


def window(second: float, samples: dict[int, int], processes=(), epoch: int = 0, kind: str = "cpu") -> Window:
    threads = [Thread(p.process_id, p.process_id, p.pid, "t") for p in processes]
    return Window(
        epoch, BOOT + int(second * SECOND), SECOND, PERIOD, kind,
        np.zeros(len(samples), np.uint32),
        np.array(list(samples), np.uint32),
        np.array(list(samples.values()), np.uint64),
        [], 0, [], 0, list(processes), threads, [], Books(0, 0, 0, 0, {}),
    )  # fmt: skip


def kinds(marks) -> list[tuple[str, float, str]]:
    return [(m.kind, (m.time_unix - BOOT) / SECOND, m.text) for m in marks]


def test_start_is_told_once_noticeable_and_dated_when_it_happened():
    marks = ProcessMarks(BOOT, lambda pid, start: True, since_unix=BOOT + 50 * SECOND)
    job = process(7, 99.5, script="train.py")
    assert marks.take(window(100, {7: 20}, [job])) == []
    assert kinds(marks.take(window(101, {7: 40}))) == [("process_start", 99.5, "train.py started")]
    assert marks.take(window(102, {7: 100})) == []


def test_what_ran_before_the_agent_is_no_start():
    marks = ProcessMarks(BOOT, lambda pid, start: True, since_unix=BOOT + 50 * SECOND)
    assert marks.take(window(100, {7: 100}, [process(7, 49)])) == []


def test_exit_is_the_end_of_the_last_window_with_a_sample():
    alive = {(7, 99 * SECOND)}
    looks = []

    def is_alive(pid: int, start: int) -> bool:
        looks.append(pid)
        return (pid, start) in alive

    marks = ProcessMarks(BOOT, is_alive)
    marks.take(window(100, {7: 100}, [process(7, 99)]))
    assert [marks.take(window(s, {})) for s in (101, 102)] == [[], []]
    assert looks == []
    assert marks.take(window(103, {})) == []
    assert looks == [7], "sleeping: one look, the next after as long"
    alive.clear()
    assert [marks.take(window(s, {})) for s in (104, 105)] == [[], []]
    (mark,) = marks.take(window(106, {}))
    assert kinds([mark]) == [("process_exit", 101, "c7 ended")]
    assert mark.labels == {"comm": "c7", "pid": "7"}
    assert mark.weight == 1.0
    assert marks.take(window(110, {})) == []


def test_short_lives_make_no_marks():
    marks = ProcessMarks(BOOT, lambda pid, start: False)
    found = []
    for i in range(30):
        found += marks.take(window(100 + i, {i: 20}, [process(i, 100 + i)]))
    assert found == []


def test_a_process_that_slept_before_it_was_noticeable():
    alive = True
    marks = ProcessMarks(BOOT, lambda pid, start: alive)
    marks.take(window(100, {7: 30}, [process(7, 99)]))
    for second in range(101, 110):
        assert marks.take(window(second, {})) == []
    assert kinds(marks.take(window(110, {7: 30}))) == [("process_start", 99, "c7 started")]
    alive = False
    assert [m.kind for s in range(111, 116) for m in marks.take(window(s, {}))] == ["process_exit"]


def test_a_new_epoch_and_a_new_name_go_on_with_the_same_life():
    marks = ProcessMarks(BOOT, lambda pid, start: True)
    assert marks.take(window(100, {1: 30}, [Process(1, 7, SECOND, 0, "bash")])) == []
    found = marks.take(window(101, {9: 30}, [Process(9, 7, SECOND, 0, "train")], epoch=1))
    assert kinds(found) == [("process_start", 1, "train started")]


def test_off_cpu_time_is_no_use_of_the_cpu():
    marks = ProcessMarks(BOOT, lambda pid, start: True)
    assert marks.take(window(100, {7: 10**10}, [process(7, 99)], kind="off_cpu")) == []


def test_lives_are_bounded():
    marks = ProcessMarks(BOOT, lambda pid, start: True)
    every = [process(pid, 1) for pid in range(1, MOST + 101)]
    marks.take(window(100, dict.fromkeys(range(1, MOST + 101), 1), every))
    assert len(marks._lives) == MOST
    assert marks.forgotten == 100


def test_alive_tells_lives_and_zombies_apart():
    is_alive = alive_below(Path("/proc"))
    stat = Path("/proc/self/stat").read_text()
    start = int(stat.rsplit(")", 1)[1].split()[19]) * 10_000_000
    assert is_alive(os.getpid(), start)
    assert is_alive(os.getpid(), start + 9_999_999)
    assert not is_alive(os.getpid(), start + 10_000_000)
    child = subprocess.Popen(["true"], stdout=subprocess.PIPE)
    child.stdout.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    began = int(Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()[19]) * 10_000_000
    assert not is_alive(child.pid, began), "a zombie has ended"
    child.wait()
    child.stdout.close()
    assert not is_alive(child.pid, began)
