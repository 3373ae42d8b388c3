# SPDX-License-Identifier: Apache-2.0
"""Duty and stacks follow what recording costs."""

from __future__ import annotations

import pytest
from gpustrobe.agent import governor
from gpustrobe.agent.governor import FULL, MS, SECOND, Limits


def settled(per_launch_ns: float, launches: float, limits: Limits, seconds: int = 60) -> tuple[governor.Setting, float]:
    """A process whose launches take so much longer in windows; the cost of its last second."""
    setting, share = governor.first(limits), 0.0
    for _ in range(seconds):
        share = setting.duty * launches * per_launch_ns / SECOND
        setting = governor.steer(setting, limits, share, setting.duty * launches)
    return setting, share


@pytest.mark.parametrize(("per_launch", "launches"), [(2000, 100_000), (20_000, 20_000), (50_000, 100_000)])
def test_cost_stays_within_the_budget(per_launch, launches):
    setting, share = settled(per_launch, launches, Limits())
    floor = governor.SHORTEST / SECOND * launches * per_launch / SECOND  # the shortest window costs what it costs
    assert share <= max(0.0111, floor * 1.01)
    assert setting.window_ns >= governor.SHORTEST


def test_cheap_recording_has_the_whole_duty():
    setting, _ = settled(500, 1000, Limits())
    assert setting.duty == pytest.approx(0.1) and setting.probability == FULL - 1


def test_stacks_are_bounded_whatever_the_launches():
    setting, _ = settled(100, 200_000, Limits())
    assert setting.probability / FULL * setting.duty * 200_000 <= governor.STACKS * 1.2


def test_a_burst_shrinks_at_once_and_calm_grows_slowly():
    limits = Limits()
    shrunk = governor.steer(governor.first(limits), limits, 0.05, 0)
    assert shrunk.window_ns == 30 * MS
    grown = governor.steer(shrunk, limits, 0.0, 0)
    assert grown.window_ns == 33 * MS


def test_cost_is_what_launches_take_longer_and_what_the_thread_uses():
    before = {"latency_in_ns": 0, "latency_in": 0, "latency_out_ns": 5000, "latency_out": 1, "thread_ns": 0}
    now = {"latency_in_ns": 7_000_000, "latency_in": 1000, "latency_out_ns": 5000, "latency_out": 1, "thread_ns": MS}
    assert governor.cost(now, before, SECOND) == pytest.approx((2000 * 1000 + 1_000_000) / SECOND)
    assert governor.cost({"callback_ns": 5 * MS}, {}, SECOND) == pytest.approx(0.005)
    assert governor.cost({}, {"callback_ns": 7}, 0) == 0
