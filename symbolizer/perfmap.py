# SPDX-License-Identifier: Apache-2.0
"""Names of JIT code that its compiler writes to /tmp/perf-PID.map (Node, JVM agents, CPython 3.12, .NET).

Format: tools/perf/Documentation/jit-interface.txt in the kernel's source. The file belongs to the profiled process: its
text is hostile until shown otherwise, its place is looked up in the process's own root and PID namespace.
"""

from __future__ import annotations

import os
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpustrobe.bpf.text_names import PerfMap
from gpustrobe.symbolizer.names import NAME_LIMIT, printable
from gpustrobe.symbolizer.root import open_beneath, process_root

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpustrobe.agent.model import Process

NO_MAP = "no symbols for JIT code"
FOREIGN = "perf map belongs to another user"


@dataclass(slots=True)
class _Known:
    rows: PerfMap
    file: tuple[int, int]  # device, inode
    size: int = 0
    tried_at: float = float("-inf")
    reason: str = ""


class PerfMaps:
    """Not thread-safe. Rows of all maps together are bounded; the map used longest ago is dropped first."""

    def __init__(
        self,
        proc_root: str = "/proc",
        max_bytes: int = 64 << 20,
        max_rows: int = 400_000,
        retry_seconds: float = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc, self._clock = proc_root, clock
        self._max_bytes, self._max_rows, self._retry = max_bytes, max_rows, retry_seconds
        self._known: OrderedDict[tuple[int, int], _Known] = OrderedDict()
        self.counts: Counter[str] = Counter()

    def resolve(self, process: Process, addresses: list[int]) -> dict[int, tuple[str, str]]:
        """(name, "") or ("", reason) of each address."""
        try:
            fd, reason = self._open(process)
        except OSError as error:
            reason = "permission denied" if isinstance(error, PermissionError) else NO_MAP
            return dict.fromkeys(addresses, ("", reason))
        if reason:
            self.counts["perf_maps_refused"] += 1
            return dict.fromkeys(addresses, ("", reason))
        try:
            return self._find(process, fd, sorted(set(addresses)))
        finally:
            os.close(fd)

    def _open(self, process: Process) -> tuple[int, str]:
        """Descriptor of the process's perf map, or -1 and why it is refused."""
        uids, inner_pid = self._identity(process.pid)
        with process_root(self._proc, process.pid) as root:
            fd = open_beneath(root, f"tmp/perf-{inner_pid}.map")
        status = os.fstat(fd)
        reason = ""
        if status.st_uid != 0 and status.st_uid not in uids:
            reason = FOREIGN
        elif status.st_size > self._max_bytes:
            reason = "perf map too large"
        if reason:
            os.close(fd)
        return (-1 if reason else fd), reason

    def _identity(self, pid: int) -> tuple[set[int], int]:
        """User ids of the process, and its pid as it knows it itself."""
        uids, inner = set(), pid
        with open(Path(self._proc, str(pid), "status"), errors="replace") as lines:
            for line in lines:
                name, _, rest = line.partition(":")
                if name == "Uid":
                    uids = {int(uid) for uid in rest.split()[:2]}
                elif name == "NSpid":
                    inner = int(rest.split()[-1])
        return uids, inner

    def _find(self, process: Process, fd: int, addresses: list[int]) -> dict[int, tuple[str, str]]:
        known = self._entry(process, fd)
        rows = known.rows.find(addresses)
        if None in rows and self._grow(known, fd):
            rows = known.rows.find(addresses)
        found = {}
        for address, row in zip(addresses, rows, strict=True):
            text = os.pread(fd, min(row.name_length, 4 * NAME_LIMIT), row.name_at) if row else b""
            found[address] = (printable(text), "") if text else ("", known.reason or NO_MAP)
        return found

    def _entry(self, process: Process, fd: int) -> _Known:
        key, status = (process.pid, process.start_boottime), os.fstat(fd)
        known = self._known.get(key)
        replaced = known and (known.file != (status.st_dev, status.st_ino) or status.st_size < known.size)
        if known is None or replaced:
            if known:
                known.rows.close()
            known = self._known[key] = _Known(PerfMap(self._max_rows), (status.st_dev, status.st_ino))
        self._known.move_to_end(key)
        return known

    def _grow(self, known: _Known, fd: int) -> bool:
        """Whether there was something new to read."""
        size, now = os.fstat(fd).st_size, self._clock()
        if size == known.size or now - known.tried_at < self._retry:
            return False
        known.size, known.tried_at = size, now
        known.reason = known.rows.grow(fd)
        self.counts["perf_maps_read"] += 1
        while len(self._known) > 1 and sum(len(k.rows) for k in self._known.values()) > self._max_rows:
            self._known.popitem(last=False)[1].rows.close()
        return True

    def close(self) -> None:
        for known in self._known.values():
            known.rows.close()
        self._known.clear()
