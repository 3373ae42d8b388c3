# SPDX-License-Identifier: Apache-2.0
"""The common form of all file formats, collapsed stacks, speedscope, and the merged tree."""

from __future__ import annotations

import json

import numpy as np
from gpustrobe.agent.formats import answer, collapsed, speedscope, tree
from gpustrobe.agent.formats.stacks import Row, Stacks, from_answer, from_profiles
from gpustrobe.agent.model import Books, Frame, Profiles, ProfileWindow

START = 1_760_000_000_000_000_000
MAIN = Frame("main", "native", "app", "main.c", 3)
WORK = Frame("work<int>(char; long)", "native", "app")
LOOP = Frame("<module>", "python", "", "/srv/loop.py", 7)
LABELS = (
    {"comm": "app", "pid": "10", "thread": "app", "tid": "10"},
    {"comm": "python3", "script": "loop.py", "pid": "20", "thread": "wor;ker", "tid": "21"},
)


def window(labels, stack, value, start=START, kind="cpu", books=None) -> ProfileWindow:
    columns = (np.array(labels, np.uint32), np.array(stack, np.uint32), np.array(value, np.uint64))
    return ProfileWindow(kind, start, 10**9, 10_000_000, *columns, books=books)


def profiles() -> Profiles:
    books = Books(60, 20, 0, 30, {"ring_full": 10, "window_full": 0})
    return Profiles(
        (
            window([0, 0, 1], [0, 1, 2], [4, 1, 2], books=books),
            window([0, 1], [0, 2], [3, 5], START + 10**9, books=books),
            window([0], [1], [777], kind="gpu_time"),
        ),
        ((WORK, MAIN), (MAIN,), (WORK, LOOP)),
        LABELS,
    )


def test_profiles_of_one_type_are_summed_root_first():
    stacks = from_profiles(profiles(), node="n")
    rows = [(row.process, [stacks.frames[i].name for i in row.frames], row.value) for row in stacks.rows]
    assert rows == [("app", ["main", WORK.name], 7), ("app", ["main"], 1), ("python3", ["<module>", WORK.name], 7)]
    assert (stacks.total, stacks.unit, stacks.period) == (15, "samples", 10_000_000)
    assert (stacks.start_unix, stacks.duration) == (START, 2 * 10**9)
    assert stacks.loss == "lost 20 of 80 samples: ring_full 20"
    gpu = from_profiles(profiles(), "gpu_time")
    assert (gpu.total, gpu.unit, gpu.period, gpu.loss) == (777, "nanoseconds", 0, "")
    nothing = from_profiles(Profiles((), (), ()))
    assert (nothing.total, nothing.rows, nothing.duration) == (0, (), 0)


ANSWER = {
    "type": "cpu",
    "unit": "samples",
    "period_ns": 10_000_000,
    "from_ms": 1_760_000_000_000,
    "to_ms": 1_760_000_002_000,
    "rows": [
        {"frames": [0, 1], "value": 7, "process": "app", "labels": {"comm": "app", "thread": "app"}},
        {"frames": [2, 1], "value": 3, "process": "python3", "labels": {"script": "loop.py"}},
    ],
    "frames": {
        "name": ["main", "work", "<module>"],
        "kind": ["native", "native", "python"],
        "module": ["app", "app", ""],
        "file": ["main.c", "", "/srv/loop.py"],
        "line": [3, 0, 7],
        "reason": ["", "no symbols", ""],
    },
    "left_out": 2,
}


def test_an_answer_of_the_store():
    stacks = from_answer(ANSWER)
    assert stacks.frames[2] == LOOP and stacks.frames[1].reason == "no symbols"
    assert stacks.rows[1] == Row({"comm": "python3", "script": "loop.py"}, (2, 1), 3)
    assert (stacks.start_unix, stacks.duration, stacks.loss) == (START, 2 * 10**9, "2 more stacks were left out")
    assert answer.collapsed(ANSWER) == b"app;main;work 7\npython3;<module>;work 3\n"
    assert answer.pprof(ANSWER, "cpu")[:2] == b"\x1f\x8b"


def test_levels_above_the_frames_are_left_away():
    frames = {
        name: ["all" if name == "name" else "root" if name == "kind" else "", *column]
        for name, column in ANSWER["frames"].items()
    }
    frames["line"][0] = 0
    rows = [{**row, "frames": [0, *(place + 1 for place in row["frames"])]} for row in ANSWER["rows"]]
    assert answer.collapsed({**ANSWER, "frames": frames, "rows": rows}) == answer.collapsed(ANSWER)


def test_collapsed_begins_with_the_process_and_escapes_what_would_break_a_line():
    assert collapsed.render(from_profiles(profiles())).decode() == (
        r"app;main 1"
        "\n"
        r"app;main;work<int>(char\x3b long) 7"
        "\n"
        r"python3;<module>;work<int>(char\x3b long) 7"
        "\n"
    )
    assert collapsed.escape("a\nb\r\u2028") == r"a\x0ab\x0d\x2028" and collapsed.escape("") == "?"
    lone = Stacks("cpu", "samples", 1, 0, 0, (Frame("caf\udce9", "native"),), (Row({"comm": "x"}, (0,), 1),))
    assert collapsed.render(lone) == b"x;caf? 1\n"


def test_speedscope_has_one_profile_per_thread_in_nanoseconds():
    document = json.loads(speedscope.render(from_profiles(profiles(), node="n"), exporter="gpustrobe 0.1.0"))
    assert document["$schema"] == speedscope.SCHEMA and document["exporter"] == "gpustrobe 0.1.0"
    frames = document["shared"]["frames"]
    assert frames[0] == {"name": "main", "file": "main.c", "line": 3} and {"name": WORK.name, "file": "app"} in frames
    assert [p["name"] for p in document["profiles"]] == ["app [10]", "python3 [20] wor;ker [21]"]
    for profile, total in zip(document["profiles"], (80_000_000, 70_000_000), strict=True):
        assert (profile["type"], profile["unit"], profile["startValue"]) == ("sampled", "nanoseconds", 0)
        assert profile["endValue"] == sum(profile["weights"]) == total
        assert len(profile["samples"]) == len(profile["weights"])
    names = [[frames[i]["name"] for i in sample] for sample in document["profiles"][1]["samples"]]
    assert names == [["<module>", WORK.name]], "root first"
    assert "lost 20 of 80" in document["name"]


def test_the_tree_is_breadth_first_with_children_by_falling_total():
    columns = tree.columns(from_profiles(profiles(), node="n"))
    frames, nodes = columns["frames"], columns["nodes"]
    lines = []
    for i, parent in enumerate(nodes["parent"]):
        f = nodes["frame"][i]
        lines.append((parent, frames["name"][f], frames["kind"][f], nodes["self"][i], nodes["total"][i]))
    assert lines == [
        (-1, "all", "root", 0, 15),
        (0, "app", "process", 0, 8),
        (0, "python3", "process", 0, 7),
        (1, "app", "thread", 0, 8),
        (2, "wor;ker", "thread", 0, 7),
        (3, "main", "native", 1, 8),
        (4, "<module>", "python", 0, 7),
        (5, WORK.name, "native", 7, 7),
        (6, WORK.name, "native", 7, 7),
    ]
    process = nodes["frame"][2]
    assert (frames["module"][process], frames["file"][process]) == ("loop.py", "pid 20")
    assert len({len(column) for column in frames.values()}) == 1


def test_processes_of_one_name_are_merged_and_counted():
    rows = tuple(Row({"comm": "cc1", "pid": str(pid), "thread": "cc1"}, (0,), 1) for pid in range(30))
    columns = tree.columns(Stacks("cpu", "samples", 1, 0, 1, (MAIN,), rows))
    assert columns["nodes"]["total"] == [30, 30, 30, 30]
    assert columns["frames"]["file"][1] == "30 processes"
