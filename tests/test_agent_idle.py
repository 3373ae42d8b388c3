# SPDX-License-Identifier: Apache-2.0
"""Gaps given to what the launching thread did: in simulated time, against the truth."""

from __future__ import annotations

from collections import Counter

import numpy as np
from gpustrobe.agent.idle import NO_THREAD, UNSEEN, Gap, idle_profile, moments_of
from gpustrobe.agent.model import Frame, Profiles, ProfileWindow

MS, SECOND = 1_000_000, 1_000_000_000
COLLATE, WAIT, LAUNCH = (tuple([Frame(name, "python")]) for name in ("collate", "read", "launch"))
LABELS = ({"tid": "7", "pid": "7"}, {"tid": "7", "pid": "7", "wait": "sleep"}, {"tid": "9", "pid": "7"})


def moments(*rows: tuple[int, int, int, int]):
    """(labels, stack, mark, lasted) each."""
    labels, stack, mark, value = (np.array(column) for column in zip(*rows, strict=True))
    columns = (labels.astype(np.uint32), stack.astype(np.uint32), value.astype(np.uint64))
    window = ProfileWindow("moment", 0, SECOND, 1, *columns, mark=mark.astype(np.uint64))
    return moments_of(Profiles((window,), (COLLATE, WAIT, LAUNCH), LABELS))


def shares(profiles: Profiles) -> Counter:
    total: Counter = Counter()
    for window in profiles.windows:
        for stack, value in zip(window.stack, window.value, strict=True):
            total[profiles.stacks[stack][0].name] += int(value)
    return total


def test_time_goes_to_what_the_thread_that_ended_the_gap_did():
    found = idle_profile(
        [Gap("GPU-a", 100 * MS, 200 * MS, 7, 0)],
        [
            moments(
                (0, 0, 105 * MS, 10 * MS),
                (0, 0, 115 * MS, 10 * MS),
                (1, 1, 120 * MS, 80 * MS),
                (2, 2, 150 * MS, 10 * MS),
            )
        ],
        {"GPU-a": "3"},
        {},
    )
    assert shares(found) == {"collate": 20 * MS, "read": 80 * MS}
    assert found.label_sets[0] == {"tid": "7", "pid": "7", "gpu": "GPU-a", "gpu_index": "3", "category": "idle"}
    assert {window.sample_type for window in found.windows} == {"gpu_idle"}


def test_short_gaps_share_what_was_met_in_all_of_them():
    gaps = [Gap("g", at * MS, at * MS + MS, 7, 0) for at in range(0, 900, 3)]
    rows = [(0, 0 if at % 4 else 2, at * 9_973_000, 9_973_000) for at in range(90)]
    total = shares(idle_profile(gaps, [moments(*rows)], {}, {}))
    assert sum(total.values()) == 300 * MS
    assert abs(total["collate"] / sum(total.values()) - 0.75) < 0.03


def test_nothing_met_is_said_not_guessed():
    found = idle_profile(
        [Gap("g", 0, 5 * MS, 7, 0), Gap("g", 10 * MS, 12 * MS, 0, 0)],
        [moments((2, 2, MS, MS))],
        {},
        {7: {"comm": "python3", "pid": "7"}},
    )
    assert shares(found) == {UNSEEN.name: 5 * MS, NO_THREAD.name: 2 * MS}
    assert any(labels.get("comm") == "python3" for labels in found.label_sets)


def test_a_gap_over_a_second_is_cut():
    found = idle_profile([Gap("g", 900 * MS, 2100 * MS, 7, 0)], [], {}, {})
    assert [(window.start_unix, int(window.value.sum())) for window in found.windows] == [
        (0, 100 * MS), (SECOND, SECOND), (2 * SECOND, 100 * MS),
    ]  # fmt: skip


def test_the_stalling_line_gets_nearly_all():
    """A loop: 120 ms of launching, 380 ms in collate, the GPU busy 150 ms of each step. Sampled at 100 Hz."""
    random = np.random.default_rng(1)
    gaps, rows = [], []
    for step in range(60):
        begin = step * 500 * MS
        gaps.append(Gap("g", begin + 160 * MS, begin + 505 * MS, 7, 0))
    for at in np.arange(0, 30 * SECOND, 9_973_000) + random.integers(0, 10 * MS):
        rows.append((0, 2 if at % (500 * MS) < 120 * MS else 0, at, 9_973_000))
    total = shares(idle_profile(gaps, [moments(*rows)], {}, {}))
    assert total["collate"] / sum(total.values()) > 0.95
    assert sum(total.values()) == 60 * 345 * MS
