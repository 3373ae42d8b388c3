# SPDX-License-Identifier: Apache-2.0
"""Makes the parts that a recording and the agent share. Importing them costs 0.2 s, so only those who need it do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpustrobe.agent.errors import GpustrobeError
from gpustrobe.agent.naming import Naming
from gpustrobe.agent.sampler import Sampler, SamplerOptions, close_files

if TYPE_CHECKING:
    from gpustrobe.symbolizer.symbolizer import Symbolizer

TRIAL = 0.25  # seconds
# Distinct frames and stacks of an epoch: each costs about 0.3 and 0.6 kB in Python until the next one. The mixed load
# fills these in three minutes; names come from the cache by build id then.
MOST_FRAMES, MOST_STACKS = 32_768, 16_384


def open_sampler(rate: int, pids: Sequence[int] = (), off_cpu: float | None = None, launches: bool = False) -> Sampler:
    """A sampler the kernel has accepted, not running yet. KernelProblem if it has not.

    `off_cpu`: time waits of at least this many seconds too.
    """
    waits = {} if off_cpu is None else {"off_cpu": True, "off_cpu_threshold": off_cpu}
    options = SamplerOptions(
        hz=rate, pids=tuple(pids), max_frames=MOST_FRAMES, max_stacks=MOST_STACKS, launches=launches, **waits
    )
    sampler = Sampler(options)
    sampler.open()
    return sampler


def open_symbolizer(cache: Path) -> Symbolizer:
    from gpustrobe.symbolizer.symbolizer import Symbolizer

    return Symbolizer(cache)


def open_naming(cache: Path) -> Naming:
    from gpustrobe.agent.fold import Folder

    return Naming(open_symbolizer(cache), Folder())


def trial(rate: int = 100, seconds: float = TRIAL) -> str:
    """Samples for a moment. "" if that works, else why not and, on a second line, the fix."""
    import time

    try:
        sampler = open_sampler(rate)
        sampler.start()
    except GpustrobeError as error:
        return f"{error.message}\n{error.fix}"
    time.sleep(seconds)
    windows = sampler.stop()
    for window in windows:
        close_files(window)
    produced = sum(window.books.produced for window in windows)
    return "" if produced else "it loads, but no timer of it fires\nPlease report this with `uname -a`."
