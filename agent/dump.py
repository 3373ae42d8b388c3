# SPDX-License-Identifier: Apache-2.0
"""Stacks of a process's threads as they are now, without stopping any: what `gpustrobe dump` shows.

A BPF task iterator gives each thread's registers and kernel stack (bpf/dump.bpf.c); the user stack of a thread that is
not on a CPU stands still, so it is walked from outside, by unwind rows. ptrace would make sleeping system calls return
EINTR. The snapshot is taken before and after the walk: a thread that moved in between is walked again.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpustrobe.agent.errors import KernelProblem
from gpustrobe.agent.model import MappedFile, RawFrame, RawKind
from gpustrobe.bpf.unwind_rows import Bp, Cfa, RuleValue, build

if TYPE_CHECKING:
    from gpustrobe.bpf.unwind_rows import Rows

THREAD = struct.Struct("<IIII Q 16Q 64Q 16s")  # struct gs_dump_thread, bpf/dump.h
MOST_BYTES = 32 << 20  # 48 k threads
MAX_FRAMES = 384  # as the sampler
SP, BP = 7, 6  # DWARF numbers, x86-64 psABI
# struct rt_sigframe after its return address: rbp, rsp, rip in ucontext's mcontext (uapi/asm/sigcontext.h)
SIGNAL_BP, SIGNAL_SP, SIGNAL_PC = 120, 160, 168
MAP_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ..x. ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+)\s*(.*)")
MASK = (1 << 64) - 1

COMPLETE = ""


@dataclass(frozen=True, slots=True)
class ThreadState:
    tid: int
    comm: str
    on_cpu: bool
    pc: int
    registers: tuple[int, ...]  # by DWARF number
    kernel: tuple[int, ...]  # addresses, leaf first


@dataclass(frozen=True, slots=True)
class Area:
    start: int
    end: int
    offset: int
    path: str
    file_id: int  # 0: no file


class Memory(Protocol):
    """What a walk looks at; tests build one from plain dicts."""

    def find(self, address: int) -> Area | None: ...

    def read(self, address: int) -> int | None: ...

    def rule(self, mapping: Area, address: int) -> RuleValue | None: ...


@dataclass
class Cursor:
    pc: int
    sp: int
    bp: int | None
    is_return: bool = False


def parse_threads(data: bytes) -> dict[int, ThreadState]:
    threads = {}
    for fields in THREAD.iter_unpack(data):
        tid, on_cpu, n_kernel, _, pc = fields[:5]
        comm = fields[-1].split(b"\0")[0].decode(errors="replace")
        kernel = fields[21 : 21 + min(n_kernel, 64)]
        threads[tid] = ThreadState(tid, comm, bool(on_cpu), pc, fields[5:21], kernel)
    return threads


def snapshot(pid: int) -> dict[int, ThreadState]:
    """Every thread of the process, by TID. KernelProblem where the kernel does not let us."""
    from gpustrobe.bpf import loader

    core, error = loader.library(), ctypes.create_string_buffer(2048)
    core.gs_dump.restype = ctypes.c_int64
    threads = len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - names only
    room = min(MOST_BYTES, THREAD.size * (2 * threads + 64))
    buffer = ctypes.create_string_buffer(room)
    size = core.gs_dump(
        os.fsencode(loader.find("dump.bpf.o")), ctypes.c_uint32(pid), buffer, ctypes.c_uint64(room), error
    )
    if size < 0:
        raise KernelProblem(
            error.raw[8:].split(b"\0")[0].decode(errors="replace"), "gpustrobe doctor says what is missing."
        )
    return parse_threads(buffer.raw[:size])


def walk(state: ThreadState, memory: Memory) -> tuple[list[tuple[int, Area | None]], str]:
    """((address, mapping), leaf first) of the user stack, and why it ended: "" at the thread's first frame.

    For a return address the address is the byte before it, inside the call.
    """
    cursor = Cursor(state.pc, state.registers[SP], state.registers[BP])
    found: list[tuple[int, Area | None]] = []
    while len(found) < MAX_FRAMES:
        address = cursor.pc - 1 if cursor.is_return else cursor.pc
        mapping = memory.find(address)
        if mapping is None:
            return found, "address in no known mapping"
        found.append((address, mapping))
        rule = memory.rule(mapping, address)
        end = _step(cursor, rule, state, memory)
        if end is not None:
            return found, end
    return found, "more frames than the limit"


def _step(cursor: Cursor, rule: RuleValue | None, state: ThreadState, memory: Memory) -> str | None:
    """Moves to the caller; None, or why there is none."""
    if rule is None or rule.cfa == Cfa.NONE:
        return _frame_pointer_step(cursor, memory)
    if rule.cfa == Cfa.STOP:
        return COMPLETE
    if rule.cfa == Cfa.SIGNAL:
        return _signal_step(cursor, memory)
    cfa = _cfa(cursor, rule, state, memory)
    if cfa is None or cfa <= cursor.sp:
        return "the unwind rule gave an impossible frame"
    caller = memory.read(cfa - 8)
    if caller is None:
        return "stack memory not readable"
    cursor.bp = _caller_bp(cursor, rule, cfa, memory)
    cursor.sp, cursor.pc, cursor.is_return = cfa, caller, True
    return COMPLETE if caller == 0 else None


def _cfa(cursor: Cursor, rule: RuleValue, state: ThreadState, memory: Memory) -> int | None:
    """The canonical frame address, as bpf/rules.h describes each rule."""
    low, high = rule.cfa_offset & 0xFF, rule.cfa_offset >> 8
    base = cursor.bp if rule.cfa in (Cfa.BP, Cfa.BP_DEREF) else cursor.sp
    if base is None:
        return None
    if rule.cfa in (Cfa.SP, Cfa.BP):
        return base + rule.cfa_offset & MASK
    if rule.cfa in (Cfa.SP_DEREF, Cfa.BP_DEREF):
        value = memory.read(base + high & MASK)
        return None if value is None else value + low
    if rule.cfa == Cfa.LEAF and not cursor.is_return and low < 16:
        return state.registers[low] + high & MASK
    if rule.cfa == Cfa.PLT:
        return cursor.sp + 8 + (8 if (cursor.pc & 15) >= rule.cfa_offset else 0)
    return None


def _caller_bp(cursor: Cursor, rule: RuleValue, cfa: int, memory: Memory) -> int | None:
    if rule.bp == Bp.SAME:
        return cursor.bp
    base = {Bp.CFA: cfa, Bp.BP: cursor.bp, Bp.SP: cursor.sp}.get(rule.bp)
    return None if base is None else memory.read(base + rule.bp_offset & MASK)


def _signal_step(cursor: Cursor, memory: Memory) -> str | None:
    pc, sp = memory.read(cursor.sp + SIGNAL_PC), memory.read(cursor.sp + SIGNAL_SP)
    if pc is None or sp is None:
        return "stack memory not readable"
    cursor.bp, cursor.pc, cursor.sp, cursor.is_return = memory.read(cursor.sp + SIGNAL_BP), pc, sp, False
    return None


def _frame_pointer_step(cursor: Cursor, memory: Memory) -> str | None:
    """Without a table: [bp] is the caller's bp, [bp + 8] the return address. Its end is never certain."""
    if cursor.bp is None or cursor.bp < cursor.sp or cursor.bp & 7:
        return "walked by frame pointers, end not certain"
    saved, caller = memory.read(cursor.bp), memory.read(cursor.bp + 8)
    if saved is None or not caller:
        return "walked by frame pointers, end not certain"
    cursor.sp, cursor.bp, cursor.pc, cursor.is_return = cursor.bp + 16, saved, caller, True
    return None


@dataclass
class ProcessMemory:
    """A living process: its executable mappings, their unwind rows, its memory. To be closed."""

    pid: int
    mappings: list[Area] = field(default_factory=list)
    files: dict[int, MappedFile] = field(default_factory=dict)
    _rows: dict[int, Rows | None] = field(default_factory=dict)
    _memory: int = -1

    def __enter__(self) -> ProcessMemory:
        self._memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        seen: dict[tuple[str, str], int] = {}
        for line in Path(f"/proc/{self.pid}/maps").read_text(errors="replace").splitlines():
            match = MAP_LINE.match(line)
            if match:
                self._add(match, seen)
        return self

    def _add(self, match: re.Match[str], seen: dict[tuple[str, str], int]) -> None:
        start, end, offset, major, minor, inode, path = match.groups()
        key, file_id = (f"{major}:{minor}", inode), 0
        if path == "[vdso]" or inode != "0":
            file_id = seen.setdefault(key, len(seen) + 1)
            if file_id not in self.files:
                self.files[file_id] = self._open(file_id, match)
        self.mappings.append(Area(int(start, 16), int(end, 16), int(offset, 16), path, file_id))

    def _open(self, file_id: int, match: re.Match[str]) -> MappedFile:
        start, end, _, major, minor, inode, path = match.groups()
        deleted = path.endswith(" (deleted)")
        name = path.removesuffix(" (deleted)")
        handle = self._copy_vdso(int(start, 16), int(end, 16)) if path == "[vdso]" else -1
        for place in (
            f"/proc/{self.pid}/map_files/{start.lstrip('0')}-{end.lstrip('0')}",
            f"/proc/{self.pid}/root{name}",
        ):
            if handle < 0 and path != "[vdso]":
                try:
                    handle = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
                except OSError:
                    continue
        device = int(major, 16) << 20 | int(minor, 16)
        return MappedFile(file_id, name, device, int(inode), "", handle, self.pid, deleted)

    def _copy_vdso(self, start: int, end: int) -> int:
        """The vdso is an ELF image in memory; a copy of it has unwind rows like any file."""
        try:
            image = os.pread(self._memory, end - start, start)
            handle = os.memfd_create("vdso", os.MFD_CLOEXEC)
            os.write(handle, image)
        except OSError:
            return -1
        return handle

    def find(self, address: int) -> Area | None:
        place = bisect_right(self.mappings, address, key=lambda mapping: mapping.start) - 1
        mapping = self.mappings[place] if place >= 0 else None
        return mapping if mapping and address < mapping.end else None

    def read(self, address: int) -> int | None:
        try:
            data = os.pread(self._memory, 8, address)
        except (OSError, OverflowError):
            return None
        return int.from_bytes(data, "little") if len(data) == 8 else None

    def rule(self, mapping: Area, address: int) -> RuleValue | None:
        rows = self._rows_of(mapping.file_id)
        return rows.find(address - mapping.start + mapping.offset) if rows else None

    def _rows_of(self, file_id: int) -> Rows | None:
        if file_id not in self._rows:
            file = self.files.get(file_id)
            try:
                self._rows[file_id] = build(file.fd) if file and file.fd >= 0 else None
            except ValueError:  # no unwind information: frame pointers
                self._rows[file_id] = None
        return self._rows[file_id]

    def raw(self, address: int, mapping: Area | None) -> RawFrame:
        """As the C core would give it; the process's number is its PID here."""
        if mapping is None or mapping.file_id == 0:
            return RawFrame(RawKind.RAW, self.pid, address)
        if mapping.path == "[vdso]":
            return RawFrame(RawKind.VDSO, self.pid, address - mapping.start)
        return RawFrame(RawKind.NATIVE, mapping.file_id, address - mapping.start + mapping.offset)

    def __exit__(self, *exc: object) -> None:
        for rows in self._rows.values():
            if rows:
                rows.__exit__()
        for file in self.files.values():
            if file.fd >= 0:
                os.close(file.fd)
        os.close(self._memory)


@dataclass(frozen=True, slots=True)
class Stack:
    """A thread's stack as raw frames, leaf first, kernel before user. `end`: why it is not whole, "" if it is."""

    state: ThreadState
    frames: tuple[RawFrame, ...]
    end: str


TRIES = 5


def sleeping_stacks(memory: ProcessMemory, take: Mapping[int, ThreadState] | None = None) -> Iterator[Stack]:
    """Stacks of threads that stood still while they were walked; one that keeps moving is left to the sampler."""
    before = snapshot(memory.pid) if take is None else dict(take)
    for _ in range(TRIES):
        walked = {tid: walk(state, memory) for tid, state in before.items() if not state.on_cpu and state.pc}
        after = snapshot(memory.pid)
        for tid, (frames, end) in walked.items():
            if after.get(tid) == before[tid]:
                yield _stack(before.pop(tid), frames, end, memory)
        for tid, state in list(before.items()):
            if not state.pc and not state.on_cpu:  # a kernel thread: no user side
                yield _stack(before.pop(tid), [], COMPLETE, memory)
        before = {tid: after[tid] for tid in before if tid in after}
        if not before or all(state.on_cpu for state in before.values()):
            return


def _stack(state: ThreadState, frames: list[tuple[int, Area | None]], end: str, memory: ProcessMemory) -> Stack:
    kernel = tuple(RawFrame(RawKind.KERNEL, 0, address) for address in state.kernel)
    return Stack(state, (*kernel, *(memory.raw(address, mapping) for address, mapping in frames)), end)
