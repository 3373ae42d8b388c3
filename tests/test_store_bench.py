# SPDX-License-Identifier: Apache-2.0
"""bench/store.py runs and measures what it says; its figures are `make bench`'s business."""

from __future__ import annotations

from bench import store


def test_quick_run_gives_every_figure():
    figures = store.measure(quick=True)
    assert {
        f"{load}_{what}" for load in ("steady", "half_new") for what in ("samples_per_cpu_second", "bytes_per_sample")
    } <= set(figures)
    assert {"day_flamegraph_seconds", "day_top_seconds", "day_series_seconds", "day_live_seconds"} <= set(figures)
    assert all(value > 0 for value in figures.values())


def test_loads_are_what_they_say():
    scale = store.Scale(rows_per_second=500, seconds=10, stacks=100)
    steady = store.Load(scale).profiles(1_700_000_000, 0.0)
    fresh = store.Load(scale).profiles(1_700_000_000, 0.5)
    assert sum(int(window.value.sum()) for window in steady.windows) == 500 * store.WINDOWS
    assert len(steady.stacks) == 100
    new = len(fresh.stacks) - 100
    assert 0.45 < new / (500 * store.WINDOWS) < 0.55
    assert len(set(fresh.stacks)) == len(fresh.stacks)
