# SPDX-License-Identifier: Apache-2.0
"""The CPU sampler: ctypes over core.so, one `Window` a second, and with `off_cpu` a second one of the waits.

Python touches each distinct frame, stack, thread, process and file once per epoch, never a sample.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpustrobe.agent.errors import KernelProblem, UsageError
from gpustrobe.agent.handover import close_files, window_from
from gpustrobe.bpf import loader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpustrobe.agent.model import Window

MAX_HZ = 20_000

# enum gs_fault -> what is missing, and what to do about it
PROBLEMS = {
    "object": ("The BPF program of this installation cannot be read.", "Install gpustrobe again."),
    "btf": (
        "This kernel has no BTF (/sys/kernel/btf/vmlinux), and its types could not be learnt from kernel headers.",
        "Boot a kernel with CONFIG_DEBUG_INFO_BTF=y (all distributions since 2021), or install python3-bpfcc and the "
        "headers of this kernel.",
    ),
    "offset": ("This kernel's types differ from all kernels known to gpustrobe.", "Please report it with `uname -a`."),
    "permission": (
        "Not permitted to load BPF programs.",
        "Run as root, or with CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH (a container: privileged).",
    ),
    "memlock": (
        "The limit on locked memory is too low for this kernel's BPF maps.",
        "Raise it: ulimit -l unlimited (systemd: LimitMEMLOCK=infinity).",
    ),
    "load": ("The kernel refused the BPF program.", "Please report it with `uname -a` and the text above."),
    "perf_paranoid": (
        "Not permitted to open system-wide perf events.",
        "Run as root or with CAP_PERFMON, or: sysctl kernel.perf_event_paranoid=-1.",
    ),
    "perf": (
        "Perf events are not available.",
        "The kernel needs CONFIG_PERF_EVENTS; a sandbox (gVisor, seccomp) may forbid perf_event_open.",
    ),
}


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """`pids`: host PIDs, empty = all processes. Sizes of 0 stand for the core's own defaults (bpf/core.h)."""

    hz: int = 100
    pids: tuple[int, ...] = ()
    include_children: bool = True
    kernel_stacks: bool = True
    off_cpu: bool = False  # time waits too: each second then has a second window, of type off_cpu
    off_cpu_threshold: float = 0.001  # seconds; shorter waits are only counted
    launches: bool = False  # stacks of kernel launches: windows of types launch and moment too (bpf/core.h)
    bpf_stats: bool = True  # let the kernel time the BPF programs while the sampler runs
    proc_root: str = "/proc"
    offsets: tuple[int, ...] = ()  # struct gs_offsets of a kernel without BTF; empty = BTF, else BCC
    ring_bytes: int = 0
    max_frames: int = 0
    max_stacks: int = 0
    max_threads: int = 0
    max_rows: int = 0
    max_windows: int = 0
    max_processes: int = 0
    mapping_rows: int = 0
    flags: int = 0  # further bits of enum gs_option_flag, for tests


def option_flags(options: SamplerOptions) -> int:
    return (
        options.flags
        | (loader.FILTER if options.pids else 0)
        | (loader.CHILDREN if options.pids and options.include_children else 0)
        | (loader.KERNEL_STACKS if options.kernel_stacks else 0)
        | (loader.STATS if options.bpf_stats else 0)
        | (loader.OFF_CPU if options.off_cpu else 0)
        | (loader.LAUNCHES if options.launches else 0)
    )


def problem(error: loader.Error) -> Exception:
    """Our error for a C one: the sentence, then what the kernel said, then the fix."""
    fault = loader.FAULTS[error.fault]
    detail = error.text.decode(errors="replace").strip()
    if fault == "argument":
        return UsageError(detail)
    if fault == "memory":
        return KernelProblem(f"Not enough memory for the sampler: {detail}")
    sentence, fix = PROBLEMS.get(fault, (f"The sampler could not start ({fault}).", ""))
    return KernelProblem(f"{sentence} ({detail})" if detail else sentence, fix)


def c_options(options: SamplerOptions, keep: list[Any]) -> loader.Options:
    """`keep` holds what the struct points to: it must live as long as the call."""
    pids = (ctypes.c_uint32 * max(1, len(options.pids)))(*options.pids)
    offsets = (ctypes.c_uint32 * max(1, len(options.offsets)))(*options.offsets)
    keep += [pids, offsets]
    sizes = ("ring_bytes", "max_frames", "max_stacks", "max_threads", "max_rows", "max_windows", "max_processes")
    return loader.Options(
        size=ctypes.sizeof(loader.Options),
        flags=option_flags(options),
        hz=options.hz,
        n_pids=len(options.pids),
        pids=pids,
        object_path=os.fsencode(loader.find("profile.bpf.o")),
        proc_root=os.fsencode(options.proc_root),
        offsets=offsets if options.offsets else None,
        n_offsets=len(options.offsets),
        mapping_rows=options.mapping_rows,
        wait_threshold_us=round(options.off_cpu_threshold * 1e6),
        off_cpu_path=os.fsencode(loader.find("offcpu.bpf.o")),
        launch_path=os.fsencode(loader.find("launch.bpf.o")),
        **{name: getattr(options, name) for name in sizes},
    )


class Sampler:
    """Samples from start() to stop(). take(), counters() and stop() may be called from different threads."""

    def __init__(self, options: SamplerOptions = SamplerOptions()) -> None:
        if not 1 <= options.hz <= MAX_HZ:
            raise UsageError(f"Sampling at {options.hz} Hz is not possible: between 1 and {MAX_HZ}.")
        self.options = options
        self._core = loader.library()
        self._handle: int | None = None
        self._last: dict[str, int] = {}
        self._taking = threading.Lock()  # held while C code that waits uses the handle
        self._counting = threading.Lock()

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for window in self.stop():
            close_files(window)

    def open(self) -> None:
        """Loads the BPF programs and lets the kernel verify them; nothing is sampled yet. KernelProblem, UsageError."""
        keep: list[Any] = []
        error = loader.Error()
        handle = self._core.gs_core_open(c_options(self.options, keep), error)
        if not handle and loader.FAULTS[error.fault] == "btf":
            options = with_offsets(self.options)
            handle = self._core.gs_core_open(c_options(options, keep), error) if options else None
        if not handle:
            raise problem(error)
        self._handle = handle

    def start(self) -> None:
        """KernelProblem or UsageError if it cannot be."""
        if self._handle is None:
            self.open()
        error = loader.Error()
        if self._core.gs_core_start(self._handle, error):
            self.close()
            raise problem(error)

    def take(self, timeout: float) -> Window | None:
        """The oldest window that has ended; None if none ends within `timeout` seconds. Waits without the GIL."""
        with self._taking:
            return self._take(timeout)

    def _take(self, timeout: float) -> Window | None:
        record = loader.WindowRecord()
        if self._handle is None or self._core.gs_core_take(self._handle, max(0, int(timeout * 1000)), record) != 1:
            return None
        try:
            return window_from(record)
        finally:
            self._core.gs_window_free(record)

    def stop(self) -> list[Window]:
        """Ends sampling; the windows not taken yet, the last one shorter than a second. Everything is unloaded then."""
        if self._handle is None:
            return []
        self._core.gs_core_stop(self._handle)  # a take() that waits returns now
        windows = []
        with self._taking:
            while (window := self._take(0)) is not None:
                windows.append(window)
            self._last = self.counters()
            self._close()
        return windows

    def close(self) -> None:
        """Unloads everything; windows not taken are lost."""
        if self._handle is not None:
            self._core.gs_core_stop(self._handle)
        with self._taking:
            self._close()

    def _close(self) -> None:
        with self._counting:
            if self._handle is not None:
                self._core.gs_core_close(self._handle)
                self._handle = None

    def counters(self) -> dict[str, int]:
        """Totals since start by the names of bpf/core.h GS_COUNTERS and bpf/mappings.h GS_MAPPING_COUNTERS."""
        names = counter_names()
        values = (ctypes.c_uint64 * len(names))()
        with self._counting:
            if self._handle is None:
                return dict(self._last)
            self._core.gs_core_counters(self._handle, values, len(names))
        return dict(zip(names, values, strict=True))

    def probe_launches(self, path: str, function: str) -> None:
        """Takes the stacks of calls to this function, in all processes that map the file. OSError if it cannot."""
        if self._handle is not None:
            error = self._core.gs_core_probe_launches(self._handle, os.fsencode(path), function.encode())
            if error:
                raise OSError(error, os.strerror(error), path)

    def watch_moments(self, tids: Sequence[int]) -> None:
        """From now on samples and waits of these threads come as moments too."""
        with self._counting:
            if self._handle is not None:
                self._core.gs_core_watch_moments(self._handle, (ctypes.c_uint32 * max(1, len(tids)))(*tids), len(tids))

    def settled(self, timeout: float) -> bool:
        """Whether the unwind tables of all files seen so far are built, waiting up to `timeout` seconds for it."""
        return self._handle is not None and self._core.gs_core_settled(self._handle, int(timeout * 1000)) == 1

    def feed(self, record: bytes) -> None:
        """Tests, with loader.NO_KERNEL: one ring record."""
        self._core.gs_core_feed(self._handle, record, len(record))

    def cut(self, now_ns: int | None = None) -> None:
        """Tests, with loader.NO_KERNEL: ends the running window."""
        self._core.gs_core_cut(self._handle, time.monotonic_ns() if now_ns is None else now_ns)


def with_offsets(options: SamplerOptions) -> SamplerOptions | None:
    """For a kernel without BTF: offsets by BCC; None where they cannot be had."""
    from gpustrobe.bpf import bcc_offsets

    offsets = bcc_offsets.read()
    return replace(options, offsets=offsets) if offsets else None


@functools.cache
def counter_names() -> tuple[str, ...]:
    core = loader.library()
    names: list[str] = []
    while (name := core.gs_core_counter_name(len(names))) is not None:
        names.append(name.decode())
    return tuple(names)
