# SPDX-License-Identifier: Apache-2.0
"""A window as the C core hands it over (bpf/core.h gs_window) becomes a `Window`: numpy columns copied whole, and one
object for each frame, stack, process, thread and file that is new."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from gpustrobe.agent.model import Books, JitName, MappedFile, Process, PythonCode, RawFrame, RawKind, Thread, Window
from gpustrobe.agent.processes import cmdline_of, labels_of
from gpustrobe.bpf import loader
from gpustrobe.bpf.drops import DROPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILE_DELETED = 1  # enum gs_file_flag


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


NUMBERS: list[int] = []  # frame ids as objects, made once: an int of its own for each of 40 frames is 1 KB a stack
GROWING = threading.Lock()


def stacks_from(record: loader.WindowRecord) -> list[tuple[int, ...]]:
    ids = column(record.stack_frames, record.n_stack_frames, "<u4").tolist()
    with GROWING:
        NUMBERS.extend(range(len(NUMBERS), max(ids, default=0) + 1))
    frames = [NUMBERS[i] for i in ids]
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


CODE_STATES = ("read", "unreadable", "replaced")  # enum gs_python_code_state


def codes_from(record: loader.WindowRecord) -> list[PythonCode]:
    """Records of bpf/codes.h: a head, then name, file and line table."""
    if not record.codes_length:
        return []
    data = ctypes.string_at(record.codes, record.codes_length)
    head_size, before_code = ctypes.sizeof(loader.CodeHead), loader.CodeHead.code.offset
    codes, at = [], 0
    while at < len(data):
        head = loader.CodeHead.from_buffer_copy(data, at)
        codes.append(code_from(head, data[at + head_size : at + before_code + head.length]))
        at += (before_code + head.length + 7) & ~7
    return codes


def code_from(head: loader.CodeHead, texts: bytes) -> PythonCode:
    file, lines = head.name_length, head.name_length + head.file_length
    return PythonCode(
        process_id=head.process_id,
        address=head.code & 0xFFFFFFFFFFFF,
        check=head.check,
        state=CODE_STATES[head.state],
        version=(head.version >> 8, head.version & 255),
        first_line=head.first_line,
        name=text(texts[:file]),
        file=text(texts[file:lines]),
    )


def jits_from(record: loader.WindowRecord) -> list[JitName]:
    """Records of bpf/jit_names.h: a head, then name and module."""
    if not record.jits_length:
        return []
    data = ctypes.string_at(record.jits, record.jits_length)
    names, at = [], 0
    while at < len(data):
        head = loader.JitHead.from_buffer_copy(data, at)
        start = at + ctypes.sizeof(head)
        end = start + head.name_length + head.module_length
        name, module = data[start : start + head.name_length], data[start + head.name_length : end]
        names.append(JitName(head.process_id, head.object, head.address, text(name), text(module)))
        at = (end + 7) & ~7
    return names


def details_from(record: loader.WindowRecord, process: loader.ProcessRecord) -> dict[str, bytes]:
    """Texts of /proc/PID by name (loader.DETAILS) as they were when the process was first sampled; {} if unknown."""
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
    cmdline, exe = cmdline_of(texts.get("cmdline", b"")), text(texts.get("exe", b""))
    return Process(
        process_id=process.process_id,
        pid=process.tgid,
        start_boottime=process.start_boottime,
        cgroup_id=process.cgroup_id,
        comm=text(process.comm),
        ppid=parent(texts.get("stat", b"")),
        exe=exe,
        cmdline=cmdline,
        labels=labels_of(cmdline, exe, texts.get("cgroup", b"")),
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
        sample_type=loader.SAMPLE_TYPES[record.sample_type],
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
        codes=codes_from(record),
        jits=jits_from(record),
        mark=column(record.mark, record.n_rows, "<u8") if record.mark else None,
    )


def thread_from(record: loader.ThreadRecord) -> Thread:
    return Thread(record.thread_id, record.process_id, record.tid, text(record.comm), loader.WAITS[record.wait])


def close_files(window: Window) -> None:
    """For windows that nobody will look at: their descriptors are the owner's to close."""
    for file in window.files:
        if file.fd >= 0:
            os.close(file.fd)
