# SPDX-License-Identifier: Apache-2.0
"""The front: raw frames in, named frames out. Every frame gets a name or a reason; bad input raises nothing."""

from __future__ import annotations

import posixpath
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from gpustrobe.agent.model import Frame, RawKind
from gpustrobe.bpf.drops import ENDS
from gpustrobe.symbolizer.cache import FunctionCache, SymcacheStore
from gpustrobe.symbolizer.child import ChildLimits, Reader
from gpustrobe.symbolizer.demangler import Demangler
from gpustrobe.symbolizer.files import FileTable
from gpustrobe.symbolizer.kernel import KernelNames
from gpustrobe.symbolizer.lines import LineReader
from gpustrobe.symbolizer.names import printable
from gpustrobe.symbolizer.native import NativeNames
from gpustrobe.symbolizer.perfmap import PerfMaps
from gpustrobe.symbolizer.python import PythonNames
from gpustrobe.symbolizer.vdso import VdsoNames

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpustrobe.agent.model import JitName, MappedFile, Process, PythonCode, RawFrame
    from gpustrobe.symbolizer.native import Named

Frames = tuple[Frame, ...]

# These ends add no frame. A stack that plain frame pointers ended may or may not be whole; a frame that says so would
# be the root of nearly every stack and split the tree in two, so it is counted (`stacks_by_frame_pointer`).
_SILENT_ENDS = ("complete", "frame_pointer")
_GUESSED = (RawKind.GUESSED, RawKind.RAW_GUESSED)


class Symbolizer:
    """Thread-safe. `learn` and `forget` never wait for `resolve`, which blocks at most `wait_seconds` for a child.

    Lines that came too late are found by the next call that asks; until then a frame has its function's name only.
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] | None,
        proc_root: str = "/proc",
        *,
        wait_seconds: float = 10,
        max_debug_bytes: int = 256 << 20,
        cache_bytes: int = 256 << 20,
        limits: ChildLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        directory, self.cache_error = _usable(cache_dir)
        limits = limits or ChildLimits()
        self._wait, self._clock = wait_seconds, clock
        self._work = threading.Lock()
        self._tables = threading.Lock()
        self._processes: dict[int, Process] = {}
        self._jits: dict[tuple[int, int, int], tuple[str, str]] = {}  # (process id, object, address) -> name, module
        self._epoch: int | None = None
        self._reader = Reader(limits, clock)
        self._cache = FunctionCache(directory, cache_bytes // 4)
        self._symcaches = SymcacheStore(directory, cache_bytes * 3 // 4)
        self._lines = LineReader(self._reader, self._cache, self._symcaches, limits, max_debug_bytes, clock)
        self._demangler = Demangler(self._reader)
        self._files = FileTable(proc_root)
        self._native = NativeNames(self._files, self._cache, self._lines, self._demangler)
        self._kernel = KernelNames(proc_root, clock=clock)
        self._perf_maps = PerfMaps(proc_root, clock=clock)
        self._vdso = VdsoNames(proc_root)
        self._python = PythonNames()
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def learn(
        self,
        files: Iterable[MappedFile],
        processes: Iterable[Process],
        codes: Iterable[PythonCode] = (),
        jits: Iterable[JitName] = (),
    ) -> None:
        """Takes what ids mean, and ownership of the descriptors. Must come before the frames that use them."""
        for mapped in files:
            self._files.learn(mapped)
        self._python.learn(codes)
        with self._tables:
            self._jits.update(((jit.process_id, jit.object, jit.address), (jit.name, jit.module)) for jit in jits)
            self._processes.update((process.process_id, process) for process in processes)

    def forget(self, epoch: int) -> None:
        """A new epoch began: all ids are void. Names of contents stay."""
        with self._tables:
            if epoch == self._epoch:
                return
            self._epoch = epoch
            self._processes.clear()
            self._jits.clear()
        self._files.forget()
        self._python.forget()

    def resolve(self, frames: Sequence[RawFrame]) -> list[Frames]:
        """For each raw frame its frames, innermost inlined first; () for an end that needs no frame."""
        with self._work:
            deadline = self._clock() + self._wait
            sorted_out: defaultdict[RawKind, list[RawFrame]] = defaultdict(list)
            for frame in frames:
                sorted_out[frame.kind].append(frame)
            answers: dict[RawFrame, Frames] = {}
            for kind, some in sorted_out.items():
                answers.update(self._resolver(kind)(some, deadline))
            results = [answers[frame] for frame in frames]
            self._count(results)
            return results

    def demangle(self, names: Iterable[str]) -> dict[str, str]:
        """Names of functions as shown, by linkage name."""
        with self._work:
            return self._demangler.demangle(names)

    def _resolver(self, kind: RawKind) -> Callable[[list[RawFrame], float], dict[RawFrame, Frames]]:
        return {
            RawKind.NATIVE: self._resolve_native,
            RawKind.GUESSED: self._resolve_native,
            RawKind.RAW: self._resolve_raw,
            RawKind.RAW_GUESSED: self._resolve_raw,
            RawKind.VDSO: self._resolve_vdso,
            RawKind.KERNEL: self._resolve_kernel,
            RawKind.PYTHON: self._resolve_python,
            RawKind.END: self._resolve_ends,
        }[kind]

    def _process(self, process_id: int) -> Process | None:
        with self._tables:
            return self._processes.get(process_id)

    def _resolve_native(self, frames: list[RawFrame], deadline: float) -> dict[RawFrame, Frames]:
        wanted: defaultdict[int, list[int]] = defaultdict(list)
        for frame in frames:
            wanted[frame.owner].append(frame.address)
        named = self._native.resolve(wanted, deadline)
        modules = {file_id: module_name(self._files.get(file_id)) for file_id in wanted}
        return {f: native_frames(f, named[f.owner, f.address], modules[f.owner]) for f in frames}

    def _resolve_kernel(self, frames: list[RawFrame], deadline: float) -> dict[RawFrame, Frames]:
        found = self._kernel.resolve({frame.address for frame in frames})
        return {frame: (found[frame.address],) for frame in frames}

    def _resolve_raw(self, frames: list[RawFrame], deadline: float) -> dict[RawFrame, Frames]:
        """What its compiler registered, else what a perf map says. All nameless code is one frame: a JIT makes new
        addresses for ever, none of which mean anything."""
        answers = self._resolve_registered(frames)
        for owner, some in _by_owner(frame for frame in frames if frame not in answers).items():
            process = self._process(owner)
            if process:
                found = self._perf_maps.resolve(process, [frame.address for frame in some])
            else:
                found = {frame.address: ("", "process not known") for frame in some}
            for frame in some:
                name, reason = found[frame.address]
                answers[frame] = (Frame(name or "[unknown code]", _kind(frame), "[jit]", reason=reason),)
        return answers

    def _resolve_registered(self, frames: list[RawFrame]) -> dict[RawFrame, Frames]:
        with self._tables:
            found = {f: named for f in frames if (named := self._jits.get((f.owner, f.detail, f.address)))}
        shown = self._demangler.demangle({name for name, _ in found.values()})
        self._counts["jit_frames"] += len(found)
        return {f: (Frame(shown[name], _kind(f), printable(module)),) for f, (name, module) in found.items()}

    def _resolve_vdso(self, frames: list[RawFrame], deadline: float) -> dict[RawFrame, Frames]:
        answers: dict[RawFrame, Frames] = {}
        for owner, some in _by_owner(frames).items():
            process = self._process(owner)
            found = self._vdso.resolve(process.pid if process else 0, [frame.address for frame in some])
            for frame in some:
                name = found[frame.address]
                shown, reason = (name, "") if name else (f"[vdso]+{frame.address:#x}", "no symbols")
                answers[frame] = (Frame(shown, "native", "[vdso]", address=frame.address, reason=reason),)
        return answers

    def _resolve_python(self, frames: list[RawFrame], deadline: float) -> dict[RawFrame, Frames]:
        return {frame: self._python.resolve(frame) for frame in frames}

    def _resolve_ends(self, frames: list[RawFrame], deadline: float) -> dict[RawFrame, Frames]:
        return {frame: self._end(frame.address) for frame in frames}

    def _end(self, number: int) -> Frames:
        name, text = ENDS[number] if 0 <= number < len(ENDS) else ("unknown", f"unknown end of stack {number}")
        if name in _SILENT_ENDS:
            self._counts["stacks_by_frame_pointer"] += name == "frame_pointer"
            return ()
        return (Frame(text, "reason", reason=text),)

    def _count(self, results: Sequence[Frames]) -> None:
        self._counts["frames"] += len(results)
        self._counts["inlined"] += sum(len(frames) - 1 for frames in results if len(frames) > 1)
        self._reasons.update(frames[0].reason for frames in results if frames and frames[0].reason)

    def counters(self) -> Mapping[str, int]:
        """Since the start, by name. `reason:TEXT` counts raw frames that got a reason in place of a name."""
        everything: Counter[str] = Counter(self._counts)
        everything.update(self._native.counts)
        everything.update(self._kernel.counts)
        everything.update(self._perf_maps.counts)
        everything.update({f"reason:{reason}": count for reason, count in dict(self._reasons).items()})
        everything.update({f"debug:{reason}": count for reason, count in dict(self._lines.failures).items()})
        everything.update(
            child_starts=self._reader.starts,
            child_deaths=self._reader.deaths,
            names_refused=self._demangler.refused,
            cache_errors=self._cache.errors,
            files_reopened=self._files.reopened,
        )
        return dict(everything)

    @property
    def child_pid(self) -> int:
        """The reader's pid, for the agent's own accounts; 0 while there is none."""
        return self._reader.pid

    def close(self) -> None:
        with self._work:
            self._lines.close()
            self._reader.close()
            self._native.close()
            self._files.close()
            self._kernel.close()
            self._perf_maps.close()
            self._vdso.close()
            self._symcaches.close()
            self._cache.close()


def _kind(frame: RawFrame) -> str:
    return "guessed" if frame.kind in _GUESSED else "native"


def _usable(cache_dir: str | os.PathLike[str] | None) -> tuple[Path | None, str]:
    """The directory, made if need be, or None and why it cannot be used: then results live in memory only."""
    if cache_dir is None:
        return None, ""
    directory = Path(cache_dir)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        return None, f"symbol cache {directory}: {error.strerror}"
    return directory, ""


def _by_owner(frames: Iterable[RawFrame]) -> dict[int, list[RawFrame]]:
    owners: defaultdict[int, list[RawFrame]] = defaultdict(list)
    for frame in frames:
        owners[frame.owner].append(frame)
    return owners


def module_name(mapped: MappedFile | None) -> str:
    """Base name as shown: libc.so.6, memfd:NAME, or [unknown file]."""
    return printable(posixpath.basename(mapped.path) or mapped.path, 128) if mapped else "[unknown file]"


def native_frames(raw: RawFrame, named: Named, module: str) -> Frames:
    kind = "guessed" if raw.kind in _GUESSED else "native"
    known = named.vaddr >= 0
    address = named.vaddr if known else 0
    if not named.lines:
        name = f"{module}+{address if known else raw.address:#x}"
        return (Frame(name, kind, module, build_id=named.build_id, address=address, reason=named.reason),)
    return tuple(Frame(line.name, kind, module, line.file, line.line, named.build_id, address) for line in named.lines)
