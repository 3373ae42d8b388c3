# SPDX-License-Identifier: Apache-2.0
"""The values that travel through the agent; frozen, without behaviour. docs/architecture.md follows one sample through them.

Times are integer nanoseconds. `mono` marks CLOCK_MONOTONIC, `unix` marks CLOCK_REALTIME. Stacks are leaf first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

# Kinds a frame can have on the wire, in the store and on the page (location attribute `gpustrobe.frame.kind`).
FRAME_KINDS = ("python", "native", "kernel", "cuda_api", "cuda", "collective", "copy", "reason", "guessed")


class RawKind(IntEnum):
    """Kind of a frame as the C core interns it; the first six equal `enum gs_word_kind` in bpf/sample.h."""

    RAW = 0  # owner: process id; address: user address in no file (JIT, unknown); detail: JIT object, 0 = not known
    NATIVE = 1  # owner: file id; address: file offset
    PYTHON = 2  # owner: process id; address: code object; detail: line << 32 | check
    END = 3  # address: enum gs_end
    GUESSED = 4  # as NATIVE, found by scanning
    RAW_GUESSED = 5  # as RAW, found by scanning
    VDSO = 6  # owner: process id; address: offset in the vdso
    KERNEL = 15  # address: kernel address


@dataclass(frozen=True, slots=True)
class RawFrame:
    """A frame nobody has named yet. For a return address `address` is already the call's own byte (return address - 1)."""

    kind: RawKind
    owner: int
    address: int
    detail: int = 0


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame with its name, or with the reason why it has none (then `name` is module+offset and `reason` is set)."""

    name: str
    kind: str  # one of FRAME_KINDS
    module: str = ""  # base name of file or kernel module: libc.so.6, vmlinux, nvidia.ko
    file: str = ""  # source file
    line: int = 0  # 0 = unknown
    build_id: str = ""  # hex
    address: int = 0  # virtual address inside the module (ELF vaddr), stable between hosts; 0 where it means nothing
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file seen mapped as executable. `fd` is owned by whoever received it first (-1: could not be opened)."""

    file_id: int
    path: str  # as the process sees it, without " (deleted)"
    device: int
    inode: int
    build_id: str  # hex of the GNU build id; "" if none
    fd: int
    pid: int  # a process that maps it, for /proc/PID/root
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Process:
    """One life of a PID. `process_id` is the core's number for it, unique while its epoch lasts."""

    process_id: int
    pid: int
    start_boottime: int
    cgroup_id: int
    comm: str  # of the leader where it could be read, else of the first thread seen
    ppid: int = 0
    exe: str = ""
    cmdline: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)  # container, pod, namespace, service: what is known


@dataclass(frozen=True, slots=True)
class Thread:
    thread_id: int
    process_id: int
    tid: int
    comm: str
    wait: str = ""  # its rows are waits of this kind (bpf/wait.h); "" in CPU windows


@dataclass(frozen=True, slots=True)
class PythonCode:
    """A CPython code object as read from its process (bpf/python_code.h); a frame is one by process id, address and check."""

    process_id: int
    address: int
    check: int
    state: str  # "read", or why not: "unreadable", "replaced"
    version: tuple[int, int]
    first_line: int
    name: str  # qualified from 3.11 on
    file: str


@dataclass(frozen=True, slots=True)
class JitName:
    """The function of a RAW frame in JIT code, as its compiler registered it; a frame is one by process id, object and address."""

    process_id: int
    object: int  # RawFrame.detail
    address: int
    name: str
    module: str  # "[jit xla]"


@dataclass(frozen=True, slots=True)
class Books:
    """Sample accounts of one window. produced == idle + filtered + delivered + sum(drops.values()), always."""

    produced: int
    idle: int
    filtered: int
    delivered: int
    drops: Mapping[str, int]  # by the names of bpf/drops.h


@dataclass(frozen=True, slots=True)
class Window:
    """What the C core hands over for one second: columns, and everything seen for the first time in this epoch.

    A new `epoch` voids all ids given before it. Columns have one row per distinct (stack, thread), shape (n,).
    """

    epoch: int
    start_unix: int
    duration: int
    period: int  # ns per sample
    sample_type: str  # "cpu", "off_cpu"; "launch" and "moment" (bpf/core.h, gs_window.mark) never leave the agent
    stack: NDArray[np.uint32]
    thread: NDArray[np.uint32]  # ids into threads, which know their process
    value: NDArray[np.uint64]  # sum of gs_sample.value: samples, or ns
    frames: list[RawFrame]  # new; frame ids count up from first_frame
    first_frame: int
    stacks: list[tuple[int, ...]]  # new; frame ids, leaf first; stack ids count up from first_stack
    first_stack: int
    processes: list[Process]
    threads: list[Thread]
    files: list[MappedFile]
    books: Books
    codes: list[PythonCode] = field(default_factory=list)
    jits: list[JitName] = field(default_factory=list)
    mark: NDArray[np.uint64] | None = None  # then rows are not summed


@dataclass(frozen=True, slots=True)
class ProfileWindow:
    """Folded and named: one sample type, one second. Rows have shape (n,); ids index the `Profiles` it stands in."""

    sample_type: str  # cpu, off_cpu, gpu_time, gpu_launches, gpu_idle, gpu_copy
    start_unix: int
    duration: int
    period: int
    labels: NDArray[np.uint32]
    stack: NDArray[np.uint32]
    value: NDArray[np.uint64]
    books: Books | None = None
    mark: NDArray[np.uint64] | None = None


@dataclass(frozen=True, slots=True)
class Profiles:
    """A batch ready to encode: several windows over shared tables. label_sets[i] maps label name to text."""

    windows: tuple[ProfileWindow, ...]
    stacks: tuple[tuple[Frame, ...], ...]  # leaf first, inlined frames expanded
    label_sets: tuple[Mapping[str, str], ...]  # pid, comm, tid, thread, container, pod, gpu ... (docs/architecture.md)


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment worth a line on the time axis (docs/api.md, marks)."""

    kind: str  # process_start, process_exit
    time_unix: int
    text: str
    labels: Mapping[str, str]
    weight: float  # CPU seconds of the process so far; the page shows the heaviest


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of one device metric. `name` and `unit` come from the table in agent/readings.py."""

    name: str
    unit: str
    time_unix: int
    value: float
    attributes: Mapping[str, str]  # gpu.uuid, gpu.index, gpu.name, process.pid ...
    monotonic: bool = False  # a counter since start_unix, not a gauge
    start_unix: int = 0
    delta: bool = False  # a sum over start_unix..time_unix alone (gpustrobe.samples.*), not a gauge
