# SPDX-License-Identifier: Apache-2.0
"""The CPU sampler: ctypes over core.so, one `Window` a second.

Python touches each distinct frame, stack, thread, process and file once per epoch, never a sample.
"""

from __future__ import annotations

import ctypes
import functools
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustrobe.agent.errors import KernelProblem, UsageError
from gpustrobe.agent.model import Books, MappedFile, Process, RawFrame, RawKind, Thread, Window
from gpustrobe.bpf import loader
from gpustrobe.bpf.drops import DROPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MAX_HZ = 20_000
FILE_DELETED = 1  # enum gs_file_flag

# enum gs_fault -> what is missing, and what to do about it
PROBLEMS = {
    "object": ("The BPF program of this installation cannot be read.", "Install gpustrobe again."),
    "btf": (
        "This kernel has no BTF (/sys/kernel/btf/vmlinux), and its types could not be learnt from kernel headers.",
        "Boot a kernel with CONFIG_DEBUG_INFO_BTF=y (all distribution kernels since 2021), or install python3-bpfcc and "
        "the headers of this kernel.",
    ),
    "offset": ("This kernel's types differ from all kernels known to gpustrobe.", "Please report it with `uname -a`."),
    "permission": (
        "Not permitted to load BPF programs.",
        "Run as root, or with CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH; in a container: privileged.",
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
        **{name: getattr(options, name) for name in sizes},
    )


class Sampler:
    """Samples from start() to stop(). One thread may take() while another asks for counters()."""

    def __init__(self, options: SamplerOptions = SamplerOptions()) -> None:
        if not 1 <= options.hz <= MAX_HZ:
            raise UsageError(f"Sampling at {options.hz} Hz is not possible: between 1 and {MAX_HZ}.")
        self.options = options
        self._core = loader.library()
        self._handle: int | None = None
        self._last: dict[str, int] = {}

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
        """The oldest window that has ended, waiting up to `timeout` seconds for one without the GIL; None if there is none."""
        if self._handle is None:
            return None
        record = loader.WindowRecord()
        if self._core.gs_core_take(self._handle, max(0, int(timeout * 1000)), record) != 1:
            return None
        try:
            return window_from(record)
        finally:
            self._core.gs_window_free(record)

    def stop(self) -> list[Window]:
        """Ends sampling; the windows not taken yet, the last one shorter than a second. Everything is unloaded then."""
        if self._handle is None:
            return []
        self._core.gs_core_stop(self._handle)
        windows = []
        while (window := self.take(0)) is not None:
            windows.append(window)
        self._last = self.counters()
        self.close()
        return windows

    def close(self) -> None:
        """Unloads everything; windows not taken are lost."""
        if self._handle is not None:
            self._core.gs_core_close(self._handle)
            self._handle = None

    def counters(self) -> dict[str, int]:
        """Totals since start by the names of bpf/core.h GS_COUNTERS and bpf/mappings.h GS_MAPPING_COUNTERS."""
        if self._handle is None:
            return dict(self._last)
        names = counter_names()
        values = (ctypes.c_uint64 * len(names))()
        self._core.gs_core_counters(self._handle, values, len(names))
        return dict(zip(names, values, strict=True))

    def feed(self, record: bytes) -> None:
        """Tests, with loader.NO_KERNEL: one ring record."""
        self._core.gs_core_feed(self._handle, record, len(record))

    def cut(self, now_ns: int | None = None) -> None:
        """Tests, with loader.NO_KERNEL: ends the running window."""
        self._core.gs_core_cut(self._handle, time.monotonic_ns() if now_ns is None else now_ns)


def with_offsets(options: SamplerOptions) -> SamplerOptions | None:
    """For a kernel without BTF: offsets by BCC; None where they cannot be had."""
    from dataclasses import replace

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


def column(pointer: Any, n: int, dtype: str) -> NDArray[Any]:
    """A copy of n numbers of C memory."""
    if n == 0:
        return np.empty(0, dtype)
    size = n * np.dtype(dtype).itemsize
    return np.frombuffer(ctypes.string_at(pointer, size), dtype)


FRAME_FIELDS = np.dtype([("address", "<u8"), ("detail", "<u8"), ("kind", "<u4"), ("owner", "<u4")])
KINDS = {int(kind): kind for kind in RawKind}


def frames_from(record: loader.WindowRecord) -> list[RawFrame]:
    rows = column(record.frames, record.n_frames, FRAME_FIELDS).tolist()
    return [RawFrame(KINDS[kind], owner, address, detail) for address, detail, kind, owner in rows]


def stacks_from(record: loader.WindowRecord) -> list[tuple[int, ...]]:
    frames = column(record.stack_frames, record.n_stack_frames, "<u4").tolist()
    ends = column(record.stack_ends, record.n_stacks, "<u4").tolist()
    return [tuple(frames[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def file_from(record: loader.FileRecord) -> MappedFile:
    return MappedFile(
        file_id=record.file_id,
        path=os.fsdecode(record.path),
        device=record.device,
        inode=record.inode,
        build_id=bytes(record.build_id.bytes[: record.build_id.length]).hex(),
        fd=record.fd,
        pid=record.pid,
        deleted=bool(record.flags & FILE_DELETED),
    )


def details_from(record: loader.WindowRecord, process: loader.ProcessRecord) -> dict[str, bytes]:
    """The texts of /proc/PID by name (loader.DETAILS) as they were when the process was first sampled; empty where unknown."""
    if not process.details_length:
        return {}
    data = ctypes.string_at(ctypes.addressof(record.details.contents) + process.details, process.details_length)
    head = loader.DetailsHead.from_buffer_copy(data)
    texts: dict[str, bytes] = {}
    at = ctypes.sizeof(head)
    for name, length in zip(loader.DETAILS, head.length, strict=True):
        texts[name] = data[at : at + length]
        at += length
    return texts


def parent(stat: bytes) -> int:
    """Field 4 of /proc/PID/stat; the name before it may hold spaces and parentheses."""
    fields = stat[stat.rfind(b")") + 1 :].split()
    return int(fields[1]) if len(fields) > 1 else 0


def process_from(record: loader.WindowRecord, process: loader.ProcessRecord) -> Process:
    texts = details_from(record, process)
    arguments = texts.get("cmdline", b"").split(b"\0")
    return Process(
        process_id=process.process_id,
        pid=process.tgid,
        start_boottime=process.start_boottime,
        cgroup_id=process.cgroup_id,
        comm=text(process.comm),
        ppid=parent(texts.get("stat", b"")),
        exe=text(texts.get("exe", b"")),
        cmdline=tuple(text(argument) for argument in arguments[:-1]) if len(arguments) > 1 else (),
    )


def books_from(books: loader.Books) -> Books:
    drops = dict(zip(DROPS, books.drops, strict=True))
    return Books(books.produced, books.idle, books.filtered, books.delivered, drops)


def window_from(record: loader.WindowRecord) -> Window:
    return Window(
        epoch=record.epoch,
        start_unix=record.start_unix,
        duration=record.duration,
        period=record.period,
        sample_type="cpu",
        stack=column(record.stack, record.n_rows, "<u4"),
        thread=column(record.thread, record.n_rows, "<u4"),
        value=column(record.value, record.n_rows, "<u8"),
        frames=frames_from(record),
        first_frame=record.first_frame,
        stacks=stacks_from(record),
        first_stack=record.first_stack,
        processes=[process_from(record, record.processes[i]) for i in range(record.n_processes)],
        threads=[thread_from(record.threads[i]) for i in range(record.n_threads)],
        files=[file_from(record.files[i]) for i in range(record.n_files)],
        books=books_from(record.books),
    )


def thread_from(record: loader.ThreadRecord) -> Thread:
    return Thread(record.thread_id, record.process_id, record.tid, text(record.comm))


def close_files(window: Window) -> None:
    """For windows that nobody will look at: their descriptors are the owner's to close."""
    for file in window.files:
        if file.fd >= 0:
            os.close(file.fd)


def descriptors(windows: Sequence[Window]) -> int:
    return sum(file.fd >= 0 for window in windows for file in window.files)
