# SPDX-License-Identifier: Apache-2.0
"""Named stacks of all threads of a process, now: sleeping ones as they stand, running ones by sampling a moment."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpustrobe.agent import dump, sampling
from gpustrobe.agent.errors import KernelProblem
from gpustrobe.agent.model import MappedFile, Process, RawKind
from gpustrobe.bpf.drops import ENDS

if TYPE_CHECKING:
    from gpustrobe.agent.model import Frame, RawFrame, Thread, Window

SAMPLE_HZ = 200
SAMPLE_SECONDS = (
    0.5  # a thread that has a core to itself is met a hundred times, one that shares it with nine, ten times
)


@dataclass(frozen=True, slots=True)
class NamedStack:
    tid: int
    comm: str
    state: str  # letter of /proc/PID/stat
    frames: tuple[Frame, ...]  # leaf first
    end: str  # why it is not whole; "" if it is


def of_process(pid: int, cache: Path) -> list[NamedStack]:
    """By TID. KernelProblem, or FileNotFoundError and ProcessLookupError when the process ends meanwhile."""
    try:
        found = {stack.tid: stack for stack in _sleeping(pid, cache)}
    except PermissionError as error:
        raise KernelProblem(
            f"The memory of process {pid} cannot be read: {error.strerror}.", "Run as root, or with CAP_SYS_PTRACE."
        ) from error
    listed = {int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()}
    if listed - found.keys():
        for stack in _sampled(pid, cache):
            found.setdefault(stack.tid, stack)
    for tid in listed - found.keys():
        found[tid] = NamedStack(tid, _comm(pid, tid), _state(pid, tid), (), "it ran, but no sample met it")
    return [found[tid] for tid in sorted(found)]


def _sleeping(pid: int, cache: Path) -> Iterator[NamedStack]:
    with dump.ProcessMemory(pid) as memory:
        stacks = list(dump.sleeping_stacks(memory))
        symbolizer = sampling.open_symbolizer(cache)
        try:
            symbolizer.learn(_borrowed(memory.files.values()), [Process(pid, pid, 0, 0, _comm(pid, pid))])
            for stack in stacks:
                frames = tuple(frame for named in symbolizer.resolve(stack.frames) for frame in named)
                tid = stack.state.tid
                yield NamedStack(tid, stack.state.comm, _state(pid, tid), frames, stack.end)
        finally:
            symbolizer.close()


def _borrowed(files: Iterable[MappedFile]) -> Iterator[MappedFile]:
    """Copies of the descriptors: the symbolizer owns what it learns."""
    for file in files:
        yield replace(file, fd=os.dup(file.fd)) if file.fd >= 0 else file


def _sampled(pid: int, cache: Path) -> Iterator[NamedStack]:
    """For each thread that ran, the stack it was met with most often."""
    sampler = sampling.Sampler(sampling.SamplerOptions(hz=SAMPLE_HZ, pids=(pid,), include_children=False))
    sampler.start()
    time.sleep(SAMPLE_SECONDS)
    windows = sampler.stop()
    symbolizer = sampling.open_symbolizer(cache)
    try:
        for window in windows:
            symbolizer.learn(window.files, window.processes, window.codes, window.jits)
        for thread, raw in heaviest(windows):
            frames = tuple(frame for named in symbolizer.resolve(raw) for frame in named)
            yield NamedStack(thread.tid, thread.comm, "R", frames, end_of(raw))
    finally:
        symbolizer.close()


def heaviest(windows: Sequence[Window]) -> Iterator[tuple[Thread, tuple[RawFrame, ...]]]:
    """Each thread of one epoch's windows with its most frequent stack."""
    threads = {thread.thread_id: thread for window in windows for thread in window.threads}
    frames = [frame for window in windows for frame in window.frames]
    stacks = [stack for window in windows for stack in window.stacks]
    values: Counter[tuple[int, int]] = Counter()
    for window in windows:
        for thread, stack, value in zip(
            window.thread.tolist(), window.stack.tolist(), window.value.tolist(), strict=True
        ):
            values[thread, stack] += value
    best: dict[int, int] = {}
    for (thread, stack), _ in sorted(values.items(), key=lambda item: item[1]):
        best[thread] = stack
    for thread, stack in best.items():
        yield threads[thread], tuple(frames[frame] for frame in stacks[stack])


def end_of(raw: Sequence[RawFrame]) -> str:
    """Why a sampled stack is not whole, by enum gs_end; "" if it is."""
    last = raw[-1] if raw else None
    if last is None or last.kind != RawKind.END or last.address >= len(ENDS):
        return ""
    name, text = ENDS[last.address]
    return "" if name == "complete" else text


def _comm(pid: int, tid: int) -> str:
    try:
        return Path(f"/proc/{pid}/task/{tid}/comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return ""


def _state(pid: int, tid: int) -> str:
    """Third field of /proc/PID/task/TID/stat; the name before it may hold anything."""
    try:
        text = Path(f"/proc/{pid}/task/{tid}/stat").read_text(errors="replace")
    except OSError:
        return "?"
    return text[text.rfind(")") + 2 : text.rfind(")") + 3]
