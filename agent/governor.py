# SPDX-License-Identifier: Apache-2.0
"""How much of the time is recorded, and how many launches give their stack, so that a process loses no more than its
budget. Pure: what the library measured of itself goes in, the next wish comes out.

Cost of a second: the library's own time in callbacks, the CPU time of its thread, and what launches take longer in
windows than out of them, each as a share of the second (a second in which two threads lost 5 ms each lost 1 %).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

MS, SECOND = 1_000_000, 1_000_000_000
SHORTEST = 10 * MS  # a window; shorter ones are mostly opening and closing
STACK_NS = 25_000  # of the launching thread: probe and walk, measured on a 30-frame Python stack
STACKS = 400  # a second and process, at most: 1 % of a core
CALM = 0.5  # of the budget: below it the duty grows again
FULL = 1 << 32


@dataclass(frozen=True, slots=True)
class Limits:
    budget: float = 0.01  # share of a process's time
    duty: float = 0.1  # of the time in windows, at most
    period_ns: int = SECOND


@dataclass(frozen=True, slots=True)
class Setting:
    window_ns: int
    period_ns: int
    probability: int  # 2^-32

    @property
    def duty(self) -> float:
        return self.window_ns / self.period_ns


def first(limits: Limits) -> Setting:
    return Setting(round(limits.duty * limits.period_ns), limits.period_ns, FULL - 1)


def cost(now: Mapping[str, int], before: Mapping[str, int], elapsed_ns: int) -> float:
    """Share of the time that the recording took from the process, by the library's counters (cupti/ring.h)."""
    grown = {name: max(0, now.get(name, 0) - before.get(name, 0)) for name in now}
    slower = 0.0
    if grown.get("latency_in") and now.get("latency_out"):
        inside = grown["latency_in_ns"] / grown["latency_in"]
        outside = now["latency_out_ns"] / now["latency_out"]
        slower = max(0.0, inside - outside) * grown["latency_in"]
    else:
        slower = grown.get("callback_ns", 0)
    return (slower + grown.get("thread_ns", 0)) / max(1, elapsed_ns)


def steer(setting: Setting, limits: Limits, share: float, launches: float) -> Setting:
    """`share`: cost of the last while; `launches`: seen in windows, per second of wall time. Shrinks at once, grows
    slowly: a burst must not make the budget swing."""
    most = round(limits.duty * limits.period_ns)
    window = setting.window_ns
    if share > limits.budget:
        window = round(window * max(0.3, limits.budget / share))
    elif share < limits.budget * CALM:
        window = round(window * 1.1)
    window = max(min(SHORTEST, most), min(window, most))
    chance = min(1.0, STACKS / launches) if launches > 0 else 1.0
    return replace(setting, window_ns=window, probability=min(FULL - 1, round(chance * FULL)))
