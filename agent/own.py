# SPDX-License-Identifier: Apache-2.0
"""What the agent says about itself each batch: the books of its samples, its cost and its state, as readings."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gpustrobe.agent.model import Books, Reading
from gpustrobe.bpf.drops import DROPS

if TYPE_CHECKING:
    from gpustrobe.agent.cost import Cost, OwnCost
    from gpustrobe.agent.model import Profiles

# sample type -> its books' names: CPU samples, and waits of threads (--off-cpu)
BOOKS = {"cpu": "samples", "off_cpu": "waits"}
UNITS = {"samples": "{sample}", "waits": "{wait}"}
ACCOUNTS = ("produced", "idle", "filtered", "delivered")


class OwnReadings:
    """`observe` takes the windows of a batch; `take` gives what they and the cost add up to. One thread does both."""

    def __init__(
        self,
        cost: OwnCost,
        gpu_state: Callable[[], str],
        late: Callable[[], Mapping[str, int]],
        cpus: int | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._cost, self._gpu_state, self._late, self._clock = cost, gpu_state, late, clock
        self._cpus = cpus or os.cpu_count() or 1
        self._lock = threading.Lock()
        self._pending: list[Reading] = []
        self._late_before: dict[str, int] = {}
        self._late_since = clock()
        self._accounts: dict[str, Counter[str]] = {of: Counter() for of in BOOKS.values()}
        self._drops: dict[str, Counter[str]] = {of: Counter() for of in BOOKS.values()}
        self._latest = cost.take()

    def observe(self, profiles: Profiles) -> None:
        for window in profiles.windows:
            if window.books is not None:
                self._add(
                    BOOKS[window.sample_type], window.books, window.start_unix, window.start_unix + window.duration
                )

    def _add(self, of: str, books: Books, start: int, end: int) -> None:
        """One point per window and account; reasons that lost nothing are left out after their first zero."""
        for name in ACCOUNTS:
            self._pending.append(_sum(of, name, getattr(books, name), start, end, {}))
        for reason, count in books.drops.items():
            if count or reason not in self._drops[of]:
                self._pending.append(_sum(of, "dropped", count, start, end, {"reason": reason}))
        with self._lock:
            self._accounts[of].update({name: getattr(books, name) for name in ACCOUNTS})
            for reason, count in books.drops.items():
                self._drops[of][reason] += count

    def take(self) -> list[Reading]:
        self.count_late()
        now = self._clock()
        cost = self._latest = self._cost.take()
        readings, self._pending = self._pending, []
        return [
            *readings,
            Reading("gpustrobe.agent.cpu", "{cpu}", now, cost.cpu_cores, {}),
            Reading("gpustrobe.agent.bpf", "{cpu}", now, cost.bpf_cores, {}),
            Reading("gpustrobe.agent.memory", "By", now, cost.memory, {}),
            Reading("gpustrobe.agent.state", "1", now, 1, {"gpu": self._gpu_state()}),
            Reading("system.cpu.logical.count", "{cpu}", now, self._cpus, {}),
        ]

    def count_late(self) -> None:
        """Samples lost after their window was closed move from delivered to a drop: the sum stays what it was."""
        now, counts = self._clock(), self._late()
        for reason in DROPS.keys() & counts.keys():
            count = counts[reason] - self._late_before.get(reason, 0)
            if count > 0:
                self._late_before[reason] = counts[reason]
                self._pending.append(_sum("samples", "dropped", count, self._late_since, now, {"reason": reason}))
                with self._lock:
                    self._drops["samples"][reason] += count
                    self._accounts["samples"]["delivered"] -= count
        self._late_since = now

    def cost(self) -> Cost:
        """As of the last batch."""
        return self._latest

    def books(self, of: str = "samples") -> Books:
        """Totals since the start, for the Prometheus endpoint; any thread may ask. `of`: "samples" or "waits"."""
        with self._lock:
            return Books(*(self._accounts[of][name] for name in ACCOUNTS), dict(self._drops[of]))


def _sum(of: str, account: str, value: int, start: int, end: int, attributes: Mapping[str, str]) -> Reading:
    return Reading(f"gpustrobe.{of}.{account}", UNITS[of], end, value, attributes, start_unix=start, delta=True)
