# SPDX-License-Identifier: Apache-2.0
"""`gpustrobe dump`: each thread's stack of a process, once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from gpustrobe.agent import options
from gpustrobe.agent.config import Settings
from gpustrobe.agent.errors import UsageError

if TYPE_CHECKING:
    from gpustrobe.agent.model import Frame

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting, uninterruptible",
    "T": "stopped",
    "t": "traced",
    "Z": "ended, not waited for",
    "I": "idle",
}


@click.command(
    epilog="""\b
Examples:
  sudo gpustrobe dump -p 4012
  sudo gpustrobe dump -p 4012 --json | jq '.threads[].frames[0].name'

No thread is stopped or interrupted: a sleeping thread's stack is read where it stands, a running one is sampled.
"""
)
@options.settings("dump")
@click.option("-p", "--pid", type=click.IntRange(1), required=True, metavar="PID", help="The process.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(settings: Settings, pid: int, as_json: bool) -> None:
    """Print each thread's stack of a process, innermost frame first."""
    from gpustrobe.agent import rights

    if not Path(f"/proc/{pid}").exists():
        raise UsageError(f"There is no process {pid}.", "See: ps -e")
    rights.demand("gpustrobe dump")
    from gpustrobe.agent import stacks, tree_text

    try:
        threads = stacks.of_process(pid, settings.symbol_cache)
    except (FileNotFoundError, ProcessLookupError):
        raise UsageError(f"Process {pid} has ended.") from None
    if as_json:
        json.dump({"pid": pid, "threads": [_row(thread) for thread in threads]}, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    look = tree_text.look_of(sys.stdout, os.environ)
    for thread in threads:
        for line in _lines(thread, look):
            click.echo(line, color=True)


def _row(thread: Any) -> dict[str, Any]:
    frames = [
        {name: getattr(frame, name) for name in ("name", "kind", "module", "file", "line", "reason")}
        for frame in thread.frames
    ]
    return {
        "tid": thread.tid,
        "comm": thread.comm,
        "state": STATES.get(thread.state, thread.state),
        "complete": not thread.end,
        "end": thread.end,
        "frames": frames,
    }


def _lines(thread: Any, look: Any) -> Iterator[str]:
    from gpustrobe.agent.tree_text import cut

    state = STATES.get(thread.state, thread.state)
    yield f"{thread.comm} ({thread.tid}), {state}"
    for frame in thread.frames:
        name = cut(frame.name, max(20, look.width - 34), look)
        yield f"    {name}  {look.dim(_where(frame))}".rstrip()
    if thread.end:
        yield f"    {look.dim(f'({thread.end})')}"
    yield ""


def _where(frame: Frame) -> str:
    if frame.reason:
        return frame.reason
    if frame.file:
        return f"{frame.file.rsplit('/', 1)[-1]}:{frame.line}" if frame.line else frame.file.rsplit("/", 1)[-1]
    return frame.module
