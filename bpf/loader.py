# SPDX-License-Identifier: Apache-2.0
"""ctypes declarations of bpf/core.h, and where core.so and profile.bpf.o lie.

The shapes here must equal the C structs; `gs_options.size` and tests/test_bpf_loader.py guard them.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, Structure, c_char, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64
from pathlib import Path

import gpustrobe.bpf
from gpustrobe.bpf.drops import DROPS

CORE_VERSION = 3

# enum gs_option_flag
FILTER, CHILDREN, KERNEL_STACKS, STATS, NO_KERNEL, STALL, OFF_CPU, LAUNCHES = 1, 2, 4, 8, 16, 32, 64, 128

# enum gs_fault, in order
FAULTS = (
    "none",
    "argument",
    "memory",
    "object",
    "btf",
    "offset",
    "permission",
    "memlock",
    "load",
    "perf_paranoid",
    "perf",
    "thread",
)

# enum gs_detail, in order: the texts that follow a process's details
DETAILS = ("stat", "comm", "cmdline", "cgroup", "exe", "nspid")


# enum gs_sample_type and enum gs_wait_kind, in order
SAMPLE_TYPES = ("cpu", "off_cpu", "launch", "moment")
WAITS = ("", "sleep", "disk", "preempted", "stopped")


class Error(Structure):
    _fields_ = (("fault", c_int32), ("number", c_int32), ("text", c_char * 1024))


class Options(Structure):
    _fields_ = (
        ("size", c_uint32),
        ("flags", c_uint32),
        ("hz", c_uint32),
        ("n_pids", c_uint32),
        ("pids", POINTER(c_uint32)),
        ("object_path", c_char_p),
        ("proc_root", c_char_p),
        ("offsets", POINTER(c_uint32)),
        ("n_offsets", c_uint32),
        ("ring_bytes", c_uint32),
        ("max_frames", c_uint32),
        ("max_stacks", c_uint32),
        ("max_threads", c_uint32),
        ("max_rows", c_uint32),
        ("max_windows", c_uint32),
        ("max_processes", c_uint32),
        ("mapping_rows", c_uint32),
        ("unwind_bytes", c_uint32),
        ("unwind_share", c_uint32),
        ("wait_threshold_us", c_uint32),
        ("off_cpu_path", c_char_p),
        ("launch_path", c_char_p),
    )


class Books(Structure):
    _fields_ = (
        ("produced", c_uint64),
        ("idle", c_uint64),
        ("filtered", c_uint64),
        ("delivered", c_uint64),
        ("drops", c_uint64 * len(DROPS)),
    )


class RawFrameRecord(Structure):
    _fields_ = (("address", c_uint64), ("detail", c_uint64), ("kind", c_uint32), ("owner", c_uint32))


class ProcessRecord(Structure):
    _fields_ = (
        ("start_boottime", c_uint64),
        ("cgroup_id", c_uint64),
        ("process_id", c_uint32),
        ("tgid", c_uint32),
        ("details", c_uint32),
        ("details_length", c_uint32),
        ("comm", c_char * 16),
    )


class ThreadRecord(Structure):
    _fields_ = (
        ("thread_id", c_uint32),
        ("process_id", c_uint32),
        ("tid", c_uint32),
        ("comm", c_char * 16),
        ("wait", c_uint32),
    )


class DetailsHead(Structure):
    """struct gs_process_details up to its texts."""

    _fields_ = (
        ("tgid", c_uint32),
        ("uid", c_uint32),
        ("start_boottime", c_uint64),
        ("length", c_uint16 * len(DETAILS)),
        ("cmdline_cut", c_uint8),
        ("gone", c_uint8),
        ("pad", c_uint16),
    )


class BuildId(Structure):
    _fields_ = (("length", c_uint8), ("reason", c_uint8), ("bytes", c_uint8 * 32))


class FileRecord(Structure):
    """struct gs_file_record of bpf/files.h."""

    _fields_ = (
        ("file_id", c_uint32),
        ("fd", c_int32),
        ("open_errno", c_int32),
        ("flags", c_uint32),
        ("pid", c_uint32),
        ("device", c_uint32),
        ("inode", c_uint64),
        ("size", c_uint64),
        ("mtime_ns", c_int64),
        ("ctime_ns", c_int64),
        ("build_id", BuildId),
        ("path_length", c_uint16),
        ("path", c_char * 4096),
    )


class CodeHead(Structure):
    """struct gs_code_record and struct gs_python_code up to its text."""

    _fields_ = (
        ("process_id", c_uint32),
        ("length", c_uint32),
        ("code", c_uint64),
        ("check", c_uint32),
        ("state", c_uint32),
        ("first_line", c_uint32),
        ("version", c_uint16),
        ("name_length", c_uint16),
        ("file_length", c_uint16),
        ("pad", c_uint16),
        ("lines_length", c_uint32),
    )


class JitHead(Structure):
    """struct gs_jit_record of bpf/jit_names.h; name and module follow."""

    _fields_ = (
        ("address", c_uint64),
        ("process_id", c_uint32),
        ("object", c_uint32),
        ("name_length", c_uint16),
        ("module_length", c_uint16),
        ("pad", c_uint32),
    )


class WindowRecord(Structure):
    _fields_ = (
        ("epoch", c_uint64),
        ("start_unix", c_int64),
        ("duration", c_uint64),
        ("period", c_uint64),
        ("books", Books),
        ("n_rows", c_uint32),
        ("first_frame", c_uint32),
        ("n_frames", c_uint32),
        ("first_stack", c_uint32),
        ("n_stacks", c_uint32),
        ("n_stack_frames", c_uint32),
        ("n_processes", c_uint32),
        ("n_threads", c_uint32),
        ("n_files", c_uint32),
        ("details_length", c_uint32),
        ("codes_length", c_uint32),
        ("jits_length", c_uint32),
        ("sample_type", c_uint32),
        ("pad", c_uint32),
        ("stack", POINTER(c_uint32)),
        ("thread", POINTER(c_uint32)),
        ("value", POINTER(c_uint64)),
        ("mark", POINTER(c_uint64)),
        ("frames", POINTER(RawFrameRecord)),
        ("stack_ends", POINTER(c_uint32)),
        ("stack_frames", POINTER(c_uint32)),
        ("processes", POINTER(ProcessRecord)),
        ("threads", POINTER(ThreadRecord)),
        ("files", POINTER(FileRecord)),
        ("details", POINTER(c_char)),
        ("codes", POINTER(c_char)),
        ("jits", POINTER(c_char)),
    )


_SIGNATURES = {
    "gs_core_version": (c_uint32, ()),
    "gs_core_open": (ctypes.c_void_p, (POINTER(Options), POINTER(Error))),
    "gs_core_start": (c_int, (ctypes.c_void_p, POINTER(Error))),
    "gs_core_stop": (None, (ctypes.c_void_p,)),
    "gs_core_close": (None, (ctypes.c_void_p,)),
    "gs_core_take": (c_int, (ctypes.c_void_p, c_uint32, POINTER(WindowRecord))),
    "gs_window_free": (None, (POINTER(WindowRecord),)),
    "gs_core_probe_launches": (c_int, (ctypes.c_void_p, c_char_p, c_char_p)),
    "gs_core_watch_moments": (None, (ctypes.c_void_p, POINTER(c_uint32), c_uint32)),
    "gs_core_counters": (c_uint32, (ctypes.c_void_p, POINTER(c_uint64), c_uint32)),
    "gs_core_settled": (c_int, (ctypes.c_void_p, c_uint32)),
    "gs_core_counter_name": (c_char_p, (c_uint32,)),
    "gs_core_feed": (None, (ctypes.c_void_p, c_char_p, c_uint64)),
    "gs_core_cut": (None, (ctypes.c_void_p, c_uint64)),
}


def find(name: str) -> Path:
    """A built file of this package. An editable install keeps built files apart from sources; __path__ has both."""
    for folder in gpustrobe.bpf.__path__:
        path = Path(folder) / name
        if path.exists():
            return path
    raise FileNotFoundError(f"{name} is in none of {list(gpustrobe.bpf.__path__)}: the native part was not built")


@functools.cache
def library() -> ctypes.CDLL:
    """core.so with core.h's functions declared. A CDLL call releases the GIL while it runs."""
    core = ctypes.CDLL(str(find("core.so")))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(core, name)
        function.restype, function.argtypes = result, arguments
    if core.gs_core_version() != CORE_VERSION:
        raise RuntimeError(f"core.so has version {core.gs_core_version()}, loader.py {CORE_VERSION}: build again")
    return core
