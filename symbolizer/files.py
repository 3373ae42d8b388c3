# SPDX-License-Identifier: Apache-2.0
"""The mapped files the agent told us of, their descriptors, and what is known about each content (`Binary`)."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpustrobe.bpf import elf_names
from gpustrobe.symbolizer.debugfiles import find_debug_file, unpack_minidebug
from gpustrobe.symbolizer.elf import Functions, content_key
from gpustrobe.symbolizer.root import open_beneath, process_root

if TYPE_CHECKING:
    from gpustrobe.agent.model import MappedFile
    from gpustrobe.bpf.elf_names import ElfFacts

# Descriptors held open. A process may have 1,024 by default, and the agent needs others; a JAX process maps 231 files.
OPEN_FILES = 256
BINARIES = 1024


@dataclass(slots=True)
class Binary:
    """One content, shared by all files and processes that have it. `reason` is set if it cannot be read at all."""

    key: str
    build_id: str
    facts: ElfFacts | None = None
    reason: str = ""
    functions: Functions = field(default_factory=Functions)
    loaded: bool = False  # functions of past runs are in `functions`
    debug_fd: int = -1  # a separate file with symbols, with or without DWARF
    debug_bytes: int = 0  # DWARF in this file or the separate one
    searched: bool = False
    lines: str = ""  # "" = not known yet, "none", "ready", "failed"
    kills: int = 0
    passes: int = 0  # over the file's own symbol tables

    @property
    def cache_key(self) -> str:
        """Functions found with a separate symbol table are kept apart: a debug package may be installed later."""
        return f"{self.key}-{'d' if self.debug_fd >= 0 else 'n'}"

    def search_debug_files(self, fd: int, mapped: MappedFile, proc_root: str) -> None:
        if self.searched or not self.facts:
            return
        self.searched = True
        self.debug_bytes = self.facts.debug_bytes
        if self.debug_bytes and self.facts.symbols:
            return
        found = find_debug_file(mapped.path, mapped.pid, self.facts, proc_root)
        if found:
            self.debug_fd, theirs = found
            self.debug_bytes = self.debug_bytes or theirs.debug_bytes
        elif not self.facts.symbols:
            memory = unpack_minidebug(fd, self.facts)
            self.debug_fd = -1 if memory is None else memory

    def close(self) -> None:
        if self.debug_fd >= 0:
            os.close(self.debug_fd)
            self.debug_fd = -1


class FileTable:
    """Files of the current epoch by id. `learn` and `forget` may be called from another thread than the rest."""

    def __init__(self, proc_root: str = "/proc", open_files: int = OPEN_FILES) -> None:
        self._proc_root, self._limit = proc_root, open_files
        self._lock = threading.Lock()
        self._files: dict[int, MappedFile] = {}
        self._open: OrderedDict[int, int] = OrderedDict()  # file id -> fd, least recently used first
        self._keys: dict[int, str] = {}
        self._binaries: OrderedDict[str, Binary] = OrderedDict()
        self.reopened = 0

    def learn(self, mapped: MappedFile) -> None:
        """Takes ownership of the descriptor."""
        with self._lock:
            self._close(mapped.file_id)
            self._keys.pop(mapped.file_id, None)
            self._files[mapped.file_id] = replace(mapped, fd=-1)
            if mapped.fd >= 0:
                self._hold(mapped.file_id, mapped.fd)

    def forget(self) -> None:
        """Voids all ids; what is known about contents stays."""
        with self._lock:
            for file_id in list(self._open):
                self._close(file_id)
            self._files.clear()
            self._keys.clear()

    def get(self, file_id: int) -> MappedFile | None:
        with self._lock:
            return self._files.get(file_id)

    def _hold(self, file_id: int, fd: int) -> None:
        self._open[file_id] = fd
        while len(self._open) > self._limit:
            _, oldest = self._open.popitem(last=False)
            os.close(oldest)

    def _close(self, file_id: int) -> None:
        fd = self._open.pop(file_id, -1)
        if fd >= 0:
            os.close(fd)

    def open(self, file_id: int) -> int:
        """A descriptor of the caller's. OSError says why there is none."""
        with self._lock:
            mapped = self._files.get(file_id)
            if file_id in self._open:
                self._open.move_to_end(file_id)
                return os.dup(self._open[file_id])
        if mapped is None:
            raise FileNotFoundError("file not known")
        fd = self._open_again(mapped)
        with self._lock:
            if file_id in self._files and file_id not in self._open:
                self._hold(file_id, os.dup(fd))
        return fd

    def _open_again(self, mapped: MappedFile) -> int:
        """By path; only if it is still the same file."""
        if mapped.deleted:
            raise FileNotFoundError("file gone")
        with process_root(self._proc_root, mapped.pid) as root:
            fd = open_beneath(root, mapped.path)
        if os.fstat(fd).st_ino != mapped.inode:
            os.close(fd)
            raise FileNotFoundError("file gone")
        self.reopened += 1
        return fd

    def binary(self, file_id: int, mapped: MappedFile) -> Binary:
        """What is known about the content of the file; reads its headers the first time."""
        key = self._keys.get(file_id)
        binary = self._binaries.get(key) if key else None
        if binary is None:
            binary = self._read(file_id, mapped)
            if binary.key:
                self._binaries.setdefault(binary.key, binary)
                binary = self._binaries[binary.key]
                self._keys[file_id] = binary.key
            while len(self._binaries) > BINARIES:
                self._binaries.popitem(last=False)[1].close()
        if binary.key:
            self._binaries.move_to_end(binary.key)
        return binary

    def _read(self, file_id: int, mapped: MappedFile) -> Binary:
        try:
            fd = self.open(file_id)
        except OSError as error:
            return Binary("", mapped.build_id, reason=_reason(error))
        try:
            key = content_key(os.fstat(fd), mapped.build_id)
            binary = Binary(key, mapped.build_id)
            try:
                binary.facts = elf_names.inspect(fd)
            except ValueError as error:
                binary.reason = str(error)
            binary.search_debug_files(fd, mapped, self._proc_root)
            return binary
        finally:
            os.close(fd)

    def close(self) -> None:
        self.forget()
        for binary in self._binaries.values():
            binary.close()
        self._binaries.clear()


def _reason(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, (FileNotFoundError, ProcessLookupError)):
        return error.args[0] if len(error.args) == 1 else "file gone"
    return f"cannot be opened: {os.strerror(error.errno) if error.errno else error}"
