# SPDX-License-Identifier: Apache-2.0
"""The child's side: DWARF by `symbolic` (Rust), demangling by LLVM, in processes that may die of what they read.

`convert MEMORY FILE_BYTES SECONDS SOURCE TARGET` reads the debug file on descriptor SOURCE, writes a symcache to
TARGET.
`serve MEMORY FILE_BYTES SECONDS` answers requests on the socket that is its standard input.

One request is one line of JSON, its descriptors sent beside it: {"op": "demangle", "names": [...]} or
{"op": "lines", "key": "...", "addresses": [...]} with the symcache's descriptor. The answer is one line for each name,
written at once, so that the parent knows at which one we died, or one for all addresses (empty if the symcache is
broken), then "null".
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_SET_NO_NEW_PRIVS = 38  # linux/prctl.h
_OPEN_SYMCACHES = 16
_DEMANGLE_SECONDS = 0.25  # libjax's longest name takes 0.001
_ADDRESS_SPACE = 8 << 30  # files are mapped; what counts is RLIMIT_DATA
_NO_INLINE_START = 0xFFFFFFFF  # symbolic's sym_addr of an inlined frame


def limit_process(memory_bytes: int, file_bytes: int, cpu_seconds: int) -> None:
    """RLIMIT_DATA counts private memory since Linux 4.7; mapped files do not count."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if cpu_seconds:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.nice(5)  # names are not urgent, the profiled work is


def convert(source: int, target: int) -> str:
    """Writes the symcache of `source` to `target`; "" or the reason why not."""
    from symbolic.debuginfo import Archive
    from symbolic.exceptions import SymbolicError

    try:
        found = next(Archive.open(f"/proc/self/fd/{source}").iter_objects(), None)
        if found is None or "debug" not in found.features:
            return "no usable debug information"
        with open(target, "wb", closefd=False) as file:
            found.make_symcache().dump_into(file)
    except (SymbolicError, OSError, MemoryError) as error:
        return f"debug information: {type(error).__name__}: {error}"[:200]
    return ""


class Symcaches:
    """The symcaches opened last, mapped by the Rust library."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Any] = OrderedDict()

    def get(self, key: str, fd: int) -> Any:
        from symbolic.symcache import SymCache

        if key not in self._open:
            self._open[key] = SymCache.open(f"/proc/self/fd/{fd}")
            if len(self._open) > _OPEN_SYMCACHES:
                self._open.popitem(last=False)
        self._open.move_to_end(key)
        return self._open[key]


def lines_of(symcache: Any, address: int) -> list[tuple[str, str, int, int]]:
    """(linkage name, source file, line, start of the function or -1) for each frame at the address, innermost first."""
    return [
        (
            found.symbol if found.symbol != "?" else "",
            found.full_path or "",
            found.line or 0,
            -1 if found.sym_addr == _NO_INLINE_START else found.sym_addr,
        )
        for found in symcache.lookup(address)
    ]


def demangle(name: str) -> str:
    """The name as people write it; itself if it is not mangled."""
    import pydemumble
    from gpustrobe.symbolizer.names import function_name, is_rust, mangled, printable

    parts = mangled(name)
    text = pydemumble.demangle(parts[0]) if parts else ""
    if not parts or not text:
        return printable(name)
    return printable((text if is_rust(name) else function_name(text)) + parts[1])


def answers(request: dict[str, Any], fds: list[int], symcaches: Symcaches) -> Iterator[Any]:
    if request["op"] == "demangle":
        for name in request["names"]:
            # SIGVTALRM ends us: CPU time, so that a busy machine gives no name a bad reputation.
            signal.setitimer(signal.ITIMER_VIRTUAL, _DEMANGLE_SECONDS)
            yield demangle(name)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    elif request["op"] == "lines":
        from symbolic.exceptions import SymbolicError

        try:
            symcache = symcaches.get(request["key"], fds[0])
            yield [lines_of(symcache, address) for address in request["addresses"]]
        except (SymbolicError, OSError):
            yield []


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """One line and the descriptors sent with it; b"" when the parent has closed."""
    line, fds = bytearray(), array.array("i")
    while not line.endswith(b"\n"):
        piece, beside, _, _ = connection.recvmsg(1 << 16, socket.CMSG_SPACE(4 * 4))
        for level, kind, data in beside:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        if not piece:
            return b"", list(fds)
        line += piece
    return bytes(line), list(fds)


def serve(connection: socket.socket, idle_seconds: float) -> None:
    """Answers until the parent closes or nothing was asked for `idle_seconds`."""
    symcaches = Symcaches()
    while select.select([connection], [], [], idle_seconds)[0]:
        line, fds = _receive(connection)
        try:
            if not line:
                return
            for answer in answers(json.loads(line), fds, symcaches):
                connection.sendall(json.dumps(answer).encode() + b"\n")
            connection.sendall(b"null\n")
        finally:
            for fd in fds:
                os.close(fd)


def main(arguments: list[str]) -> int:
    mode, memory_bytes, file_bytes, seconds = arguments[0], *map(int, arguments[1:4])
    if mode == "convert":
        limit_process(memory_bytes, file_bytes, seconds)
        reason = convert(int(arguments[4]), int(arguments[5]))
        print(reason, flush=True)
        return 1 if reason else 0
    limit_process(memory_bytes, file_bytes, 0)
    serve(socket.socket(fileno=0), seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
