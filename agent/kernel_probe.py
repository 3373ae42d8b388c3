# SPDX-License-Identifier: Apache-2.0
"""Asks the kernel itself, by trying: a feature is there when the call for it works. Nothing stays open or loaded.

Numbers and layouts: perf_event_open(2), bpf(2), adjtimex(2), and the kernel's uapi headers for x86-64 and arm64.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

BPF_CALL = {"x86_64": 321, "aarch64": 280}
PERF_CALL = {"x86_64": 298, "aarch64": 241}
BPF_MAP_CREATE = 0
BPF_MAP_TYPE_RINGBUF = 27  # Linux 5.8
PERF_TYPE_SOFTWARE = 1
PERF_COUNT_SW_CPU_CLOCK = 0
PERF_FLAG_FD_CLOEXEC = 8
PERF_ATTR_SIZE = 64  # PERF_ATTR_SIZE_VER0, which every kernel takes
TIMEX_SIZE = 208  # struct timex on 64 bits
STA_UNSYNC = 0x40
TIME_ERROR = 5

_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int | None, *arguments: object) -> int:
    """0 if the call gave a descriptor (closed again at once), else errno."""
    if number is None:
        return errno.ENOSYS
    result = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        return ctypes.get_errno()
    os.close(result)
    return 0


def perf_event(machine: str | None = None, cpu: int = 0) -> int:
    """Try to open the sampler's own event, a cpu-clock over all processes of one CPU; 0 or errno."""
    frequency = 1 << 10  # bit `freq` of the flags after read_format
    attributes = struct.pack(
        "<IIQQQQQ", PERF_TYPE_SOFTWARE, PERF_ATTR_SIZE, PERF_COUNT_SW_CPU_CLOCK, 100, 0, 0, frequency | 1
    ).ljust(PERF_ATTR_SIZE, b"\0")
    buffer = ctypes.create_string_buffer(attributes, PERF_ATTR_SIZE)
    number = PERF_CALL.get(machine or platform.machine())
    arguments = (ctypes.c_int(-1), ctypes.c_int(cpu), ctypes.c_int(-1), ctypes.c_ulong(PERF_FLAG_FD_CLOEXEC))
    return _call(number, buffer, *arguments)


def ring_buffer(size: int, machine: str | None = None) -> int:
    """Try to create a BPF ring buffer of `size` bytes (a power of two, a multiple of the page size); 0 or errno."""
    attributes = struct.pack("<IIIII", BPF_MAP_TYPE_RINGBUF, 0, 0, size, 0).ljust(72, b"\0")
    buffer = ctypes.create_string_buffer(attributes, 72)
    return _call(BPF_CALL.get(machine or platform.machine()), ctypes.c_int(BPF_MAP_CREATE), buffer, ctypes.c_uint(72))


def clock_synchronized() -> tuple[bool, int]:
    """(does the kernel say a time service disciplines the clock, its bound on the error in microseconds)."""
    buffer = ctypes.create_string_buffer(TIMEX_SIZE)  # modes = 0: only read
    state = _libc.adjtimex(buffer)
    maximum_error, status = struct.unpack_from("<q", buffer, 24)[0], struct.unpack_from("<i", buffer, 40)[0]
    return state >= 0 and state != TIME_ERROR and not status & STA_UNSYNC, maximum_error
