# SPDX-License-Identifier: Apache-2.0
"""Opening files inside another process's root without leaving it.

Below /proc/PID/root an absolute symbolic link leads into *our* root: a container whose /tmp points to /etc would make
us read there. openat2(2) with RESOLVE_IN_ROOT (Linux 5.6) resolves links as the process would see them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SYS_OPENAT2 = 437  # the same on every architecture
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10  # linux/openat2.h
# A FIFO or a terminal under the name must neither block us nor become ours.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


@contextlib.contextmanager
def process_root(proc_root: str, pid: int | str) -> Iterator[int]:
    """Descriptor of the process's root directory. OSError if the process is gone or may not be looked into."""
    fd = os.open(Path(proc_root, str(pid), "root"), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def open_beneath(root: int, path: str) -> int:
    """Descriptor of the regular file at `path`, links resolved inside `root`. OSError if there is none."""
    relative = path.lstrip("/")
    fd = _openat2(root, relative)
    if fd < 0:
        fd = _open_without_links(root, relative)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


def _openat2(root: int, path: str) -> int:
    """The descriptor, or -1 where the call itself does not exist (ENOSYS, or EPERM by a seccomp filter)."""
    how = _OpenHow(_FLAGS, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    fd = _syscall(ctypes.c_long(_SYS_OPENAT2), ctypes.c_int(root), os.fsencode(path), ctypes.byref(how), size)
    if fd >= 0:
        return fd
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EPERM):
        return -1
    raise OSError(code, os.strerror(code), path)


def _open_without_links(root: int, path: str) -> int:
    """The same without openat2: no link in `path` is followed, which refuses some files and leaves no way out."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise OSError(errno.ENOENT, "no such file", path)
    directory = os.dup(root)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            os.close(directory)
            directory = below
        return os.open(parts[-1], _FLAGS | os.O_NOFOLLOW, dir_fd=directory)
    finally:
        os.close(directory)
