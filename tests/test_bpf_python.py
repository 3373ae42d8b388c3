# SPDX-License-Identifier: Apache-2.0
"""CPython frames walked in the kernel, on every interpreter of this machine, against programs of known shape."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from gpustrobe.agent.model import Frame, Window
from gpustrobe.agent.sampler import Sampler, SamplerOptions
from gpustrobe.symbolizer.symbolizer import Symbolizer

from tests.interpreters import found

pytestmark = [pytest.mark.bpf, pytest.mark.slow]
TARGET = Path(__file__).parent / "targets" / "python_shapes.py"
INTERPRETERS = found()
# shape -> names of the Python frames from the module down to leaf; qualified names exist from 3.11 on
SHAPES = {
    "nested": ["<module>", "nested", "nested.<locals>.inner", "leaf"],
    "generator": ["<module>", "generator", "generator.<locals>.numbers", "leaf"],
    "from_c": ["<module>", "from_c", "from_c.<locals>.compare", "leaf"],
    "sorted_key": ["<module>", "sorted_key", "sorted_key.<locals>.<lambda>", "leaf"],
    "recursion": ["<module>", *["recursion"] * 61, "leaf"],
    "method": ["<module>", "method", "Reader.cached", "Reader.read", "leaf"],
}
TAILS = {
    "coroutine": ["coroutine.<locals>.parent", "coroutine.<locals>.child", "leaf"],
    "threads": ["Thread.run", "nested", "nested.<locals>.inner", "leaf"],
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """Lines of eight libpythons are looked up once."""
    return tmp_path_factory.mktemp("names")


Stacks = Counter[tuple[Frame, ...]]


def profile(arguments: list[str], cache: Path) -> dict[str, Stacks]:
    """All interpreters at once: samples by whole stack, root first, once all tables are there."""
    processes = {
        label: subprocess.Popen([command, *arguments], stdout=subprocess.PIPE)
        for label, command in INTERPRETERS.items()
    }
    labels = {process.pid: label for label, process in processes.items()}
    windows = []
    try:
        for process in processes.values():
            assert process.stdout.readline() == b"busy\n"
        with Sampler(SamplerOptions(hz=397, pids=tuple(labels))) as sampler:
            settled, counted = 0, 0
            while len(windows) < 30 and counted < 2:
                window = sampler.take(5)
                if window is not None:
                    windows.append(window)
                    counted += bool(settled and window.start_unix >= settled)
                if not settled and is_settled(sampler, len(processes)):
                    settled = time.time_ns()
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()
    return named(windows, labels, cache, settled)


def is_settled(sampler: Sampler, processes: int) -> bool:
    found = sampler.counters()["python_found"] >= processes
    return found and bool(sampler.settled(0))


def named(windows: list[Window], labels: dict[int, str], cache: Path, settled: int) -> dict[str, Stacks]:
    stacks: dict[str, Stacks] = {label: Counter() for label in labels.values()}
    frames, raw, pids, threads = [], [], {}, {}
    with closing(Symbolizer(cache)) as symbolizer:
        for window in windows:
            symbolizer.learn(window.files, window.processes, window.codes)
            frames += symbolizer.resolve(window.frames)
            raw += window.stacks
            pids.update((process.process_id, process.pid) for process in window.processes)
            threads.update((thread.thread_id, thread.process_id) for thread in window.threads)
            rows = zip(window.stack.tolist(), window.thread.tolist(), window.value.tolist(), strict=True)
            for stack, thread, value in rows if window.start_unix >= settled else ():
                whole = tuple(f for frame in reversed(raw[stack]) for f in reversed(frames[frame]))
                stacks[labels[pids[threads[thread]]]][whole] += value
    return stacks


def python_names(stack: tuple[Frame, ...]) -> list[str]:
    return [frame.name for frame in stack if frame.kind == "python"]


def unqualified(names: list[str], interpreter: str) -> list[str]:
    old = tuple(map(int, interpreter.rpartition("-")[2].split("."))) < (3, 11)
    return [name.rpartition(".")[2] for name in names] if old else names


def right(stack: tuple[Frame, ...], shape: str, interpreter: str) -> bool:
    expected = unqualified(SHAPES.get(shape) or TAILS[shape], interpreter)
    names = python_names(stack)
    complete = not any(frame.kind == "reason" for frame in stack)
    return complete and (names if shape in SHAPES else names[-len(expected) :]) == expected


@pytest.mark.parametrize("shape", [*SHAPES, *TAILS])
def test_shape(shape, cache):
    for interpreter, stacks in profile([str(TARGET), shape, "30"], cache).items():
        total = sum(stacks.values())
        assert total, interpreter
        good = sum(value for stack, value in stacks.items() if right(stack, shape, interpreter))
        bad = [python_names(stack)[-8:] for stack in stacks if not right(stack, shape, interpreter)]
        assert total - good <= max(2, total / 100), (interpreter, good, total, bad[:3])


def test_lines_are_those_that_run(cache):
    text = TARGET.read_text().splitlines()
    in_leaf = {n for n, line in enumerate(text, 1) if line.strip() in ("for i in range(1000):", "total += i * i % 7")}
    call = next(n for n, line in enumerate(text, 1) if line.strip() == "return inner()")
    for interpreter, stacks in profile([str(TARGET), "nested", "30"], cache).items():
        lines: Counter[tuple[int, int]] = Counter()
        for stack, value in stacks.items():
            if right(stack, "nested", interpreter):
                python = [frame for frame in stack if frame.kind == "python"]
                assert Path(python[-1].file).name == TARGET.name
                lines[python[1].line, python[-1].line] += value
        assert sum(lines[call, n] for n in in_leaf) / max(sum(lines.values()), 1) > 0.95, (interpreter, lines)


def test_interpreters():
    assert "3.11" in {label.rpartition("-")[2] for label in INTERPRETERS}
