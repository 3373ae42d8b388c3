# SPDX-License-Identifier: Apache-2.0
"""Names and lines of CPython frames, from code objects that the C core read when it saw them first (bpf/python_code.h)."""

from __future__ import annotations

import posixpath
import threading
from typing import TYPE_CHECKING

from gpustrobe.agent.model import Frame
from gpustrobe.symbolizer.names import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpustrobe.agent.model import PythonCode, RawFrame

REASONS = {"unreadable": "process gone before its Python code was read", "replaced": "Python code object was freed"}
NOT_READ = "Python code object was not read"


class PythonNames:
    """Code objects of the present epoch, by (process id, address, check). Thread-safe."""

    def __init__(self) -> None:
        self._codes: dict[tuple[int, int, int], PythonCode] = {}
        self._lock = threading.Lock()

    def learn(self, codes: Iterable[PythonCode]) -> None:
        with self._lock:
            self._codes.update(((code.process_id, code.address, code.check), code) for code in codes)

    def forget(self) -> None:
        with self._lock:
            self._codes.clear()

    def resolve(self, frame: RawFrame) -> tuple[Frame, ...]:
        key = (frame.owner, frame.address, frame.detail & 0xFFFFFFFF)
        with self._lock:
            code = self._codes.get(key)
        if code is None or code.state != "read":
            reason = REASONS[code.state] if code else NOT_READ
            return (Frame("[Python code]", "python", reason=reason),)
        line = frame.detail >> 32
        file = printable(code.file)
        return (Frame(printable(code.name), "python", posixpath.basename(file), file, line or code.first_line),)
