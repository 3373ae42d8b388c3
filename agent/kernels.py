# SPDX-License-Identifier: Apache-2.0
"""The ring that the injected library fills in a CUDA process (cupti/ring.h is the format): found, opened, drained.

Nothing in it is believed. The process can write any byte at any time, so every number that leads somewhere is checked
against the file's size when it is used, what is used twice is copied first, and a ring whose counters cannot be is given
up (`Refused`). Mapping it is safe while it can neither shrink nor grow, which the kernel guarantees by its seals.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gpustrobe.cupti import ring
from numpy.typing import NDArray

F_GET_SEALS, SEALS = 1034, 0x2 | 0x4  # linux/fcntl.h: F_SEAL_SHRINK, F_SEAL_GROW
LARGEST = 1 << 30  # bytes of a ring that we map
STUCK_NS = 10_000_000_000  # an uncommitted number in front of others is skipped then: its writer has died
WORD = 1 << 64
FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0)
KEPT_TEXT = 16 << 20  # bytes of names remembered: entries of a hostile arena may overlap
GIVE_BACK = 8192  # records after which the pages just read leave our resident memory; they stay in the file


class Refused(Exception):
    """Not a ring, or not one that can be read; says why."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a kernel was launched with. `name` is mangled, as CUPTI gives it."""

    name: str
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    shared: int = 0
    registers: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """What the agent asks of the library; fields of struct gs_agent in cupti/ring.h."""

    mode: int = ring.Mode.AUTO
    window_ns: int = 0
    period_ns: int = 0
    probability: int = 0  # 2^-32
    counting: int = 0
    seed: int = 0
    detail_until: int = 0
    foreign: int = 0
    graph_level: int = 0
    node_share: int = 0
    warm: int = 0
    buffers_mib: int = 0


@dataclass(frozen=True, slots=True)
class Library:
    """What the library says of itself, as text where it is for people."""

    state: str
    reason: str
    cupti_version: int
    driver_version: int
    policy: int
    window_ns: int
    period_ns: int
    first_enable_ns: int
    counters: dict[str, int] = field(default_factory=dict)


class Ring:
    """One open ring. `drain`, `beat` and `wish` belong to one thread; `text`, `shape` and `library` may be called from
    another."""

    def __init__(self, fd: int) -> None:
        """Takes over `fd`; closes it if it raises Refused."""
        self._fd = fd
        try:
            self._open()
        except (Refused, OSError, ValueError) as error:
            os.close(fd)
            raise error if isinstance(error, Refused) else Refused(str(error)) from error
        self._texts: dict[int, str] = {}
        self._shapes: dict[int, Shape] = {}
        self._remembered = 0
        self._barrier = threading.Lock()
        self._stuck: tuple[int, int] = (-1, 0)  # number in front, since when
        self.skipped = 0

    def _open(self) -> None:
        if fcntl.fcntl(self._fd, F_GET_SEALS) & SEALS != SEALS:
            raise Refused("its size is not sealed")
        size = os.fstat(self._fd).st_size
        if not ring.CONTROL_SIZE <= size <= LARGEST:
            raise Refused(f"it has an impossible size: {size}")
        head = os.pread(self._fd, ring.LAYOUT.itemsize, 0)
        self.layout = np.frombuffer(head, ring.LAYOUT)[0]  # a copy: what is checked is what is used
        self._check(self.layout, size)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused("another agent on this machine reads them") from None
        self._map = mmap.mmap(self._fd, size)
        data = self._data = np.frombuffer(self._map, np.uint8)
        word = {
            name: data[at : at + 8].view("<u8")
            for name, at in (("head", ring.HEAD_OFFSET), ("tail", ring.TAIL_OFFSET), ("arena", ring.ARENA_HEAD_OFFSET))
        }
        self._head, self._tail, self._arena_head = word["head"], word["tail"], word["arena"]
        self._agent = data[ring.AGENT_OFFSET : ring.AGENT_OFFSET + ring.AGENT.itemsize].view(ring.AGENT)
        self._library = data[ring.LIBRARY_OFFSET : ring.LIBRARY_OFFSET + ring.LIBRARY.itemsize].view(ring.LIBRARY)
        start = int(self.layout["counters_offset"])
        number = min(int(self.layout["n_counters"]), len(ring.COUNTERS))
        self._counters = data[start : start + 8 * number].view("<u8")
        start = self._start = int(self.layout["ring_offset"])
        self.slots = int(self.layout["ring_slots"])
        self._slots = data[start : start + self.slots * ring.RECORD_SIZE].reshape(self.slots, ring.RECORD_SIZE)
        self._commits = self._slots.view("<u4")[:, 0]
        start = int(self.layout["arena_offset"])
        self._arena = data[start : start + int(self.layout["arena_size"])]
        self._at = int(self._tail[0])
        if (int(self._head[0]) - self._at) % WORD > self.slots:
            self.close()
            raise Refused("its counters cannot be")

    @staticmethod
    def _check(layout: np.void, size: int) -> None:
        slots, at = int(layout["ring_slots"]), int(layout["ring_offset"])
        arena, arena_size = int(layout["arena_offset"]), int(layout["arena_size"])
        counters = int(layout["counters_offset"])
        if layout["magic"] != ring.MAGIC:
            raise Refused("it does not begin as a ring does")
        if layout["version"] != ring.VERSION:
            raise Refused(f"it has version {layout['version']}, this agent reads {ring.VERSION}")
        if not (
            layout["total_size"] == size
            and layout["control_size"] == ring.CONTROL_SIZE
            and layout["record_size"] == ring.RECORD_SIZE
            and slots
            and slots & (slots - 1) == 0
            and at % ring.RECORD_SIZE == arena % 8 == counters % 8 == 0
            and ring.CONTROL_SIZE <= at <= size - slots * ring.RECORD_SIZE
            and ring.CONTROL_SIZE <= arena <= size - arena_size
            and ring.LIBRARY_OFFSET + ring.LIBRARY.itemsize <= counters
            and counters + 8 * min(int(layout["n_counters"]), len(ring.COUNTERS)) <= ring.CONTROL_SIZE
        ):
            raise Refused("its parts do not fit into it")

    def close(self) -> None:
        """Gives the lock back; records not drained stay for the next agent."""
        names = ("_data", "_head", "_tail", "_arena_head", "_agent", "_library", "_counters", "_slots", "_commits")
        for name in (*names, "_arena"):
            self.__dict__.pop(name, None)
        mapped = self.__dict__.pop("_map", None)
        if mapped is not None:
            mapped.close()
            os.close(self._fd)

    # records

    def drain(self, now: int, gone: bool = False) -> NDArray[np.uint8]:
        """The committed records in front, shape (n, 64), a copy; they are the writer's to overwrite then. `gone`: the
        process has ended, so that what is not committed now never will be. Refused where the counters cannot be."""
        waiting = (int(self._head[0]) - self._at) % WORD
        if waiting > self.slots:
            raise Refused("its counters cannot be")
        parts = [self._run(waiting)]
        if parts[0].shape[0] == min(waiting, self.slots - self._at % self.slots):
            self._advance(parts[0].shape[0])
            parts.append(self._run(waiting - parts[0].shape[0]))
        self._advance(parts[-1].shape[0])
        records = np.concatenate(parts)
        if waiting > records.shape[0]:
            self._skip_stuck(now, gone)
        if records.shape[0] >= GIVE_BACK:
            page = self._start // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, page, self.slots * ring.RECORD_SIZE)
        return records

    def _run(self, waiting: int) -> NDArray[np.uint8]:
        """Committed records from `_at` on, up to the end of the ring."""
        place = self._at % self.slots
        stop = min(place + waiting, self.slots)
        wanted = ((self._at + 1 + np.arange(stop - place, dtype=np.uint64)) & 0xFFFFFFFF).astype(np.uint32)
        same = self._commits[place:stop] == wanted
        run = same.size if same.all() else int(same.argmin())
        with self._barrier:  # its atomics keep the copy behind the look at the commits, where loads may be reordered
            pass
        return self._slots[place : place + run].copy()

    def _advance(self, number: int) -> None:
        if number:
            self._at = (self._at + number) % WORD
            self._tail[0] = self._at

    def _skip_stuck(self, now: int, gone: bool) -> None:
        if self._stuck[0] != self._at:
            self._stuck = (self._at, now)
        if gone or now - self._stuck[1] >= STUCK_NS:
            self._advance(1)
            self.skipped += 1

    @property
    def waiting(self) -> int:
        return (int(self._head[0]) - self._at) % WORD

    # arena

    def text(self, place: int) -> str:
        """The string with this id; "" where there is none."""
        known = self._texts.get(place)
        if known is None:
            entry = self._entry(place, ring.STRING)
            if entry is None or entry["type"] != ring.Entry.STRING:
                return ""
            length = min(int(entry["length"]), int(entry["size"]) - ring.TEXT_OFFSET, ring.STRING_LIMIT)
            start = place + ring.TEXT_OFFSET
            known = bytes(self._arena[start : start + max(0, length)]).decode("utf-8", "replace")
            self._remembered += length + 100
            if self._remembered > KEPT_TEXT:
                self._texts, self._shapes, self._remembered = {}, {}, 0
            self._texts[place] = known
        return known

    def shape(self, place: int) -> Shape | None:
        known = self._shapes.get(place)
        if known is None:
            entry = self._entry(place, ring.SHAPE)
            if entry is None or entry["type"] != ring.Entry.SHAPE:
                return None
            coarse = bool(entry["flags"] & 1)
            name = self.text(int(entry["name"]))
            self._remembered += 300
            known = self._shapes[place] = Shape(
                name=name,
                grid=() if coarse else tuple(map(int, entry["grid"])),
                block=() if coarse else tuple(map(int, entry["block"])),
                shared=int(entry["static_shared"]) + int(entry["dynamic_shared"]),
                registers=int(entry["registers"]),
            )
        return known

    def _entry(self, place: int, kind: np.dtype) -> np.void | None:
        """A copy of the entry's fixed part, if all of the entry lies in the arena."""
        if place % 8 or not 8 <= place <= self._arena.size - kind.itemsize:
            return None
        entry = np.frombuffer(bytes(self._arena[place : place + kind.itemsize]), kind)[0]
        size = int(entry["size"])
        return entry if size % 8 == 0 and kind.itemsize <= size <= self._arena.size - place else None

    # control page

    def beat(self, now: int) -> None:
        self._agent["heartbeat"][0] = now

    def wish(self, wish: Wish) -> None:
        """Stores all of it, and wakes the library if it sleeps."""
        agent = self._agent
        sequence = (int(agent["config_sequence"][0]) | 1) & 0xFFFFFFFF
        agent["config_sequence"][0] = sequence
        for name in Wish.__slots__:
            agent[name][0] = getattr(wish, name)
        agent["agent_pid"][0] = os.getpid()
        agent["config_sequence"][0] = (sequence + 1) & 0xFFFFFFFF
        agent["wake"][0] = (int(agent["wake"][0]) + 1) & 0xFFFFFFFF
        if FUTEX:
            address = self._data.ctypes.data + ring.AGENT_OFFSET
            ctypes.CDLL(None).syscall(FUTEX, ctypes.c_void_p(address), 1, 0x7FFFFFFF, None, None, 0)  # FUTEX_WAKE

    def flush(self) -> None:
        """Asks for what is in CUPTI's buffers now."""
        self._agent["flush"][0] = (int(self._agent["flush"][0]) + 1) & 0xFFFFFFFF

    def library(self) -> Library:
        said = self._library.copy()[0]
        state, reason = int(said["state"]), int(said["reason"])
        names, reasons = list(ring.STATES), list(ring.REASONS)
        text = said["reason_text"].split(b"\0")[0].decode("utf-8", "replace")
        known = ring.REASONS[reasons[reason]] if reason < len(reasons) else f"reason {reason}"
        return Library(
            state=names[state] if state < len(names) else f"state {state}",
            reason="".join(c if c.isprintable() else "?" for c in text) or known,
            cupti_version=int(said["cupti_version"]),
            driver_version=int(said["driver_version"]),
            policy=int(said["policy"]),
            window_ns=int(said["latch_window_ns"]),
            period_ns=int(said["latch_period_ns"]),
            first_enable_ns=int(said["first_enable_ns"]),
            counters=dict(zip(ring.COUNTERS, map(int, self._counters), strict=False)),
        )


def find(pid: int, proc_root: Path = Path("/proc")) -> Iterator[Path]:
    """Descriptors of the process that are rings: its own or, in a fork's child, inherited ones."""
    folder = f"{proc_root}/{pid}/fd"
    try:
        numbers = os.listdir(folder)  # noqa: PTH208 - all processes are looked at: a Path costs more than the call
    except OSError:
        return
    for number in numbers:
        try:
            if os.readlink(f"{folder}/{number}") == ring.LINK:  # noqa: PTH115
                yield Path(folder, number)
        except OSError:
            continue


def inner_pid(pid: int, proc_root: Path = Path("/proc")) -> int:
    """The process's number in its own PID namespace; 0 if it has ended."""
    try:
        for line in (proc_root / str(pid) / "status").read_text("utf-8", "replace").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    except (OSError, ValueError):
        return 0
    return pid


def open_ring(pid: int, path: Path, proc_root: Path = Path("/proc")) -> Ring:
    """Refused, with the reason: no ring, another agent reads it, or it is inherited from the process's parent."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(f"it cannot be opened: {error.strerror}") from error
    found = Ring(fd)
    if int(found.layout["pid"]) != inner_pid(pid, proc_root):
        found.close()
        raise Refused("it is another process's")
    return found
