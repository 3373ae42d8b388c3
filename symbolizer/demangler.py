# SPDX-License-Identifier: Apache-2.0
"""Demangling, each distinct name once. In the child: 200 bytes can unfold to gigabytes, or to a deep recursion."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from gpustrobe.symbolizer.child import ChildDied, Reader
from gpustrobe.symbolizer.names import mangled, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

_BATCH = 256
_KILLS = 2


class Demangler:
    """Not thread-safe. Keeps the names used last."""

    def __init__(self, reader: Reader, limit: int = 20_000) -> None:
        self._reader, self._limit = reader, limit
        self._known: OrderedDict[str, str] = OrderedDict()
        self._kills: dict[str, int] = {}
        self.refused = 0

    def demangle(self, names: Iterable[str]) -> dict[str, str]:
        """Names as shown, by linkage name. What has a name that kills its reader twice keeps its linkage name."""
        shown: dict[str, str] = {}
        pending = []
        for name in names:
            if mangled(name) is None:
                shown[name] = printable(name)
            elif name in self._known:
                self._known.move_to_end(name)
                shown[name] = self._known[name]
            elif name not in shown:
                shown[name] = ""
                pending.append(name)
        while pending:
            shown.update(self._ask(pending[:_BATCH]))
            pending = [name for name in pending if not shown[name]]
        return shown

    def _ask(self, names: list[str]) -> dict[str, str]:
        """Answers for as many of `names` as the child lived for; at least one, in the end."""
        found: dict[str, str] = {}
        try:
            answers = self._reader.ask({"op": "demangle", "names": names})
            for answer, name in zip(answers, names, strict=False):  # answers first: it must be read to its end
                found[name] = str(answer) or printable(name)
            found = found or {name: printable(name) for name in names}
        except ChildDied as died:
            if died.answered < len(names):
                found.update(self._blame(names[died.answered]))
        for name, text in found.items():
            self._known[name] = text
        while len(self._known) > self._limit:
            self._known.popitem(last=False)
        return found

    def _blame(self, name: str) -> dict[str, str]:
        self._kills[name] = self._kills.get(name, 0) + 1
        if self._kills[name] < _KILLS:
            return {}
        del self._kills[name]
        self.refused += 1
        return {name: printable(name)}
