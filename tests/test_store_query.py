# SPDX-License-Identifier: Apache-2.0
"""Answers over real DuckDB against brute force over what was sent (store_truth.py)."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from gpustrobe.store.answers import Answers
from gpustrobe.store.database import Limits
from gpustrobe.store.engine import Engine
from gpustrobe.store.errors import QueryError, TimeLimit, TooLarge
from starlette.datastructures import QueryParams

from tests import store_truth as truth
from tests.otlp_batches import PERIOD, F, MetricsBuilder, ProfilesBuilder

NOW = int(time.time())
FIRST = NOW - 120
SECONDS = 30


def send(engine: Engine, samples: list[truth.Sent], windows: int = 5) -> None:
    """One request per node and `windows` seconds."""
    for node in sorted({sent.labels["node"] for sent in samples}):
        for first in range(FIRST, FIRST + SECONDS, windows):
            builder = ProfilesBuilder({"host.name": node})
            for second in range(first, first + windows):
                rows = [s for s in samples if s.second == second and s.labels["node"] == node]
                builder.window(second, [(truth.attributes(s.labels), s.stack, s.value) for s in rows])
            engine.submit("profiles", builder.bytes()).result()


@pytest.fixture(scope="module")
def sent() -> list[truth.Sent]:
    return truth.invented(1, FIRST, SECONDS, 40, "node-a") + truth.invented(2, FIRST, SECONDS, 25, "node-b")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory, sent: list[truth.Sent]):
    engine = Engine(tmp_path_factory.mktemp("store"), reserve=0)
    half = FIRST + SECONDS // 2
    send(engine, [s for s in sent if s.second < half])
    engine.call(engine.writer.restart).result()  # a second generation: the same content under new ids
    send(engine, [s for s in sent if s.second >= half])
    yield Answers(engine, "test")
    engine.close()


def ask(
    answers: Answers,
    query: str,
    /,
    *pairs: tuple[str, str],
    first: int = FIRST,
    last: int = FIRST + SECONDS,
    **params: str,
) -> dict:
    every = [("from", str(first * 1000)), ("to", str(last * 1000)), *params.items(), *pairs]
    return answers.answer(query, QueryParams(every))


@pytest.mark.parametrize("lines", [False, True])
def test_flamegraph_of_everything_equals_brute_force(answers, sent, lines):
    answer = ask(answers, "flamegraph", lines="1" if lines else "0")
    assert truth.answered_tree(answer) == truth.tree(sent, lines)
    assert answer["total"] == answer["all_total"] == sum(s.value for s in sent)
    assert answer["period_ns"] == PERIOD
    assert answer["unit"] == "samples"
    assert answer["seconds"] == SECONDS
    assert answer["merged"] == {"nodes": 0, "below": 0.0}


def test_flamegraph_of_some_seconds(answers, sent):
    first, last = FIRST + 7, FIRST + 19
    answer = ask(answers, "flamegraph", first=first, last=last)
    assert truth.answered_tree(answer) == truth.tree([s for s in sent if first <= s.second < last])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('comm="python3"', [("comm", "=", "python3")]),
        ('comm!="python3",pod=""', [("comm", "!=", "python3"), ("pod", "=", "")]),
        ('comm=~"py.*|cc1",thread!~"m.*"', [("comm", "=~", "py.*|cc1"), ("thread", "!~", "m.*")]),
        ('comm=~"py"', [("comm", "=~", "py")]),  # anchored: finds nothing
        ('pid="103"', [("pid", "=", "103")]),
        ('pid=~"10[12]",node="node-a"', [("pid", "=~", "10[12]"), ("node", "=", "node-a")]),
        ('team="red"', [("team", "=", "red")]),  # not a column: in the map
        ('team!="red"', [("team", "!=", "red")]),
        ('nosuch="x"', [("nosuch", "=", "x")]),
    ],
)
def test_match_picks_the_samples_it_says(answers, sent, text, wanted):
    answer = ask(answers, "flamegraph", match=text)
    chosen = [s for s in sent if all(truth.matches(s, *matcher) for matcher in wanted)]
    assert answer["total"] == sum(s.value for s in chosen)
    assert truth.answered_tree(answer) == (truth.tree(chosen) or {(): (0, 0)})


def test_several_match_parameters_all_hold(answers, sent):
    answer = ask(answers, "flamegraph", ("match", 'comm="python3"'), ("match", 'node="node-b"'))
    chosen = [s for s in sent if s.labels["comm"] == "python3" and s.labels["node"] == "node-b"]
    assert answer["total"] == sum(s.value for s in chosen)
    assert ask(answers, "flamegraph", match='comm="python3"', node="node-b")["total"] == answer["total"]


@pytest.mark.parametrize(
    ("focus", "exclude"),
    [("collate", ""), ("", "collate"), ("^(run|walk)$", "a<b>"), ("nothing-like-it", ""), ('quote"', "")],
)
def test_focus_and_exclude(answers, sent, focus, exclude):
    answer = ask(answers, "flamegraph", focus=focus, exclude=exclude)
    chosen = [
        s for s in sent if (not focus or truth.on_stack(s, focus)) and (not exclude or not truth.on_stack(s, exclude))
    ]
    assert answer["total"] == sum(s.value for s in chosen)
    assert answer["all_total"] == sum(s.value for s in sent)
    assert truth.answered_tree(answer) == (truth.tree(chosen) or {(): (0, 0)})


@pytest.mark.parametrize("lines", [False, True])
def test_top_counts_recursion_once(answers, sent, lines):
    answer = ask(answers, "top", limit="1000", lines="1" if lines else "0")
    found = {
        (row["name"], row["kind"], row["module"], row["file"], row["line"], row["reason"]): (row["self"], row["total"])
        for row in answer["rows"]
    }
    assert found == truth.top(sent, lines)
    assert [row["self"] for row in answer["rows"]] == sorted((row["self"] for row in answer["rows"]), reverse=True)
    assert len(ask(answers, "top", limit="3")["rows"]) == 3


def test_stacks_are_whole_and_merged(answers, sent):
    answer = ask(answers, "stacks", limit="100000")
    frames = answer["frames"]
    found = Counter()
    for row in answer["rows"]:
        names = tuple(
            tuple(frames[key][index] for key in ("name", "kind", "module", "file", "line", "reason"))
            for index in row["frames"]
        )
        assert row["process"] == row["labels"]["comm"]
        key = (row["labels"]["comm"], row["labels"].get("script", ""), row["labels"]["thread"], names)
        assert key not in found
        found[key] = row["value"]
    wanted = Counter()
    for s in sent:
        process, thread, *rest = truth.path(s)
        wanted[process[0], process[2], thread[0], tuple(rest)] += s.value
    assert found == wanted
    limited = ask(answers, "stacks", limit="5")
    assert len(limited["rows"]) == 5
    assert limited["left_out"] == len(wanted) - 5


def test_pruned_tree_keeps_the_largest_and_says_what_went(answers, sent):
    whole = truth.tree(sent)
    answer = ask(answers, "flamegraph", max_nodes="40")
    found = truth.answered_tree(answer)
    assert len(found) == 40
    assert answer["merged"]["nodes"] == len(whole) - 40
    assert all(whole[path] == figures for path, figures in found.items())
    assert min(total for _, total in found.values()) >= max(
        total for path, (_, total) in whole.items() if path not in found
    )
    share = ask(answers, "flamegraph", min_share="0.05")
    bound = 0.05 * sum(s.value for s in sent)
    assert truth.answered_tree(share) == {path: figures for path, figures in whole.items() if figures[1] >= bound}


def test_labels_most_first_and_truncated(answers, sent):
    answer = ask(answers, "labels")
    for label in ("comm", "node", "pid", "thread", "script", "team"):
        wanted = Counter()
        for s in sent:
            if s.labels.get(label):
                wanted[s.labels[label]] += s.value
        assert {row["value"]: row["samples"] for row in answer["labels"][label]} == wanted
        counts = [row["samples"] for row in answer["labels"][label]]
        assert counts == sorted(counts, reverse=True)
    assert list(ask(answers, "labels", name="comm")["labels"]) == ["comm"]
    assert "truncated" not in answer


def test_labels_past_the_limit_are_counted(tmp_path):
    engine = Engine(tmp_path, reserve=0)
    rows = [({"thread.id": str(number), "process.pid": "1"}, (F("f"),), 1) for number in range(450)]
    engine.submit("profiles", ProfilesBuilder({"host.name": "n"}).window(FIRST, rows).bytes()).result()
    answer = ask(Answers(engine, "test"), "labels")
    engine.close()
    assert len(answer["labels"]["tid"]) == 200
    assert answer["truncated"] == {"tid": 450}


def test_processes(answers, sent):
    wanted = {}
    for s in sent:
        key = (s.labels["node"], int(s.labels["pid"]))
        value, first, last = wanted.get(key, (0, s.second, s.second))
        wanted[key] = (value + s.value, min(first, s.second), max(last, s.second))
    rows = ask(answers, "processes")["rows"]
    assert {
        (row["node"], row["pid"]): (row["value"], row["first_ms"] // 1000, row["last_ms"] // 1000 - 1) for row in rows
    } == wanted
    assert [row["value"] for row in rows] == sorted((row["value"] for row in rows), reverse=True)


def test_cpu_series_by_label_with_the_rest_summed(answers, sent):
    answer = ask(answers, "series", name="cpu", by="comm", limit="2", match='node="node-a"')
    assert answer["t_ms"] == [second * 1000 for second in range(FIRST, FIRST + SECONDS)]
    per = Counter()
    for s in sent:
        if s.labels["node"] == "node-a":
            per[s.labels["comm"], s.second] += s.value
    largest = Counter()
    for (comm, _), value in per.items():
        largest[comm] += value
    order = [comm for comm, _ in largest.most_common()]
    assert [line["labels"]["comm"] for line in answer["series"]] == order[:2]
    for line in answer["series"]:
        wanted = [per[line["labels"]["comm"], second] * PERIOD / 1e9 for second in range(FIRST, FIRST + SECONDS)]
        assert line["mean"] == pytest.approx(wanted, abs=1e-5)
    rest = [sum(per[comm, second] for comm in order[2:]) * PERIOD / 1e9 for second in range(FIRST, FIRST + SECONDS)]
    if order[2:]:
        assert answer["other"]["labels"] == {"by": "other"}
        assert answer["other"]["mean"] == pytest.approx(rest, abs=1e-5)
    coarse = ask(answers, "series", name="cpu", match='node="node-a"', step_ms="10000")
    for index, time_ms in enumerate(coarse["t_ms"]):
        inside = [s for s in range(time_ms // 1000, time_ms // 1000 + 10) if FIRST <= s < FIRST + SECONDS]
        total = sum(s.value for s in sent if s.labels["node"] == "node-a" and s.second in inside)
        assert coarse["series"][0]["mean"][index] == pytest.approx(total * PERIOD / 1e9 / len(inside), abs=1e-5)


def test_empty_range_answers_zero_not_an_error(answers):
    answer = ask(answers, "flamegraph", first=FIRST - 5000, last=FIRST - 4000)
    assert truth.answered_tree(answer) == {(): (0, 0)}
    assert ask(answers, "top", first=FIRST - 5000, last=FIRST - 4000)["rows"] == []
    assert ask(answers, "labels", type="gpu_time")["labels"] == {}
    assert set(ask(answers, "series", first=FIRST - 50, last=FIRST - 40, name="cpu")["series"][0]["mean"]) == {None}


@pytest.fixture
def engine(tmp_path):
    engine = Engine(tmp_path, reserve=0, clock=lambda: NOW * 10**9)
    yield engine
    engine.close()


def test_cpu_gap_is_null_only_where_nothing_was_delivered(engine):
    builder = ProfilesBuilder({"host.name": "n"})
    builder.window(FIRST, [({"process.pid": "1"}, (F("f"),), 50)]).window(FIRST + 1, []).window(FIRST + 4, [])
    engine.submit("profiles", builder.bytes()).result()
    answer = ask(Answers(engine, "test"), "series", name="cpu", last=FIRST + 6)
    assert answer["series"][0]["mean"] == [pytest.approx(50 * PERIOD / 1e9, abs=1e-5), 0.0, None, None, 0.0, None]
    by = ask(Answers(engine, "test"), "series", name="cpu", by="comm", last=FIRST + 6)
    assert by["series"] == [] or by["series"][0]["mean"] == answer["series"][0]["mean"]


def test_gauges_have_mean_min_max_and_gaps(engine):
    metrics = MetricsBuilder({"host.name": "n"})
    for offset, value in ((0.1, 10.0), (0.6, 30.0), (1.5, 50.0), (4.0, 70.0)):
        metrics.gauge(
            "gpu.utilization", FIRST + offset, value, "%", gpu__uuid="GPU-a", gpu__index="0", gpu__name="H100"
        )
    metrics.gauge("gpu.utilization", FIRST + 1.5, 5.0, "%", gpu__uuid="GPU-b", gpu__index="1")
    engine.submit("metrics", metrics.bytes()).result()
    engine.call(engine.writer.restart).result()
    more = MetricsBuilder({"host.name": "n"}).gauge(
        "gpu.utilization", FIRST + 5, 90.0, "%", gpu__uuid="GPU-a", gpu__index="0", gpu__name="H100"
    )
    engine.submit("metrics", more.bytes()).result()  # the same series under another id
    answers = Answers(engine, "test")
    answer = ask(answers, "series", name="gpu.utilization", last=FIRST + 6)
    assert answer["unit"] == "%"
    assert [line["labels"]["gpu"] for line in answer["series"]] == ["GPU-a", "GPU-b"]
    first, second = answer["series"]
    assert first["mean"] == [20.0, 50.0, None, None, 70.0, 90.0]
    assert first["min"][0] == 10.0
    assert first["max"][0] == 30.0
    assert second["mean"] == [None, 5.0, None, None, None, None]
    only = ask(answers, "series", name="gpu.utilization", match='gpu_index="1"', last=FIRST + 6)
    assert [line["labels"]["gpu"] for line in only["series"]] == ["GPU-b"]
    assert ask(answers, "series", name="gpu.utilization", limit="1", last=FIRST + 6)["left_out"] == 1


def test_counters_become_rates(engine):
    metrics = MetricsBuilder({"host.name": "n"})
    for offset in range(4):
        metrics.delta("work.done", FIRST + offset, 6 + offset, "By")
    engine.submit("metrics", metrics.bytes()).result()
    answer = ask(Answers(engine, "test"), "series", name="work.done", last=FIRST + 4)
    assert answer["unit"] == "By/s"
    assert answer["series"][0]["mean"] == [6, 7, 8, 9]


def test_skipped_periods_of_an_idle_machine_are_no_tenth_of_what_ran(engine):
    metrics = MetricsBuilder({"host.name": "n"})
    metrics.books(FIRST, 200, 186, 10, 0, kernel_skipped=4)
    engine.submit("metrics", metrics.bytes()).result()
    answer = ask(Answers(engine, "test"), "losses")
    assert answer["drops"][0]["count"] == 4
    assert answer["share"] == pytest.approx(4 / 200)


def test_losses_close_the_books(engine):
    metrics = MetricsBuilder({"host.name": "n"})
    metrics.books(FIRST, 200, 120, 70, 4, ring_full=5, window_full=1).books(FIRST + 1, 200, 150, 50).books(
        FIRST + 2, 200, 150, 40
    )
    engine.submit("metrics", metrics.bytes()).result()
    answer = ask(Answers(engine, "test"), "losses")
    assert (answer["produced"], answer["idle"], answer["filtered"], answer["delivered"]) == (600, 420, 4, 160)
    assert [(drop["name"], drop["count"]) for drop in answer["drops"]] == [("ring_full", 5), ("window_full", 1)]
    assert all(drop["help"] for drop in answer["drops"])
    assert answer["share"] == pytest.approx(6 / 176)
    assert answer["unexplained"] == 10
    assert answer["seconds"] == [[FIRST * 1000, 6]]
    assert ask(Answers(engine, "test"), "losses", node="other")["produced"] == 0


def test_flamegraph_carries_books_and_cores(engine):
    engine.submit("profiles", ProfilesBuilder({"host.name": "n"}).window(FIRST, [({}, (F("f"),), 3)]).bytes()).result()
    metrics = MetricsBuilder({"host.name": "n"}).books(FIRST, 10, 6, 3, ring_full=1)
    metrics.gauge("system.cpu.logical.count", FIRST, 64.0)
    engine.submit("metrics", metrics.bytes()).result()
    answer = ask(Answers(engine, "test"), "flamegraph")
    assert answer["cores"] == 64
    assert answer["books"] == {"produced": 10, "idle": 6, "filtered": 0, "delivered": 3, "drops": {"ring_full": 1}}


def test_marks_of_processes_and_gaps(engine):
    """`long` runs always, `short` for ten seconds, `rare` is seldom sampled: only `short` came."""
    builder = ProfilesBuilder({"host.name": "n"})
    long, short, rare = (
        {"process.pid": str(n), "process.executable.name": name} for n, name in enumerate(["long", "short", "rare"])
    )
    for second in range(FIRST - 20, FIRST + 60):
        if FIRST + 20 <= second < FIRST + 28:
            continue
        rows = [(long, (F("f"),), 9)]
        if FIRST + 5 <= second < FIRST + 15:
            rows.append((short, (F("f"),), 1))
        if second in (FIRST + 3, FIRST + 16):
            rows.append((rare, (F("f"),), 1))
        builder.window(second, rows)
    engine.submit("profiles", builder.bytes()).result()
    answers = Answers(engine, "test")

    def found(first: int, last: int) -> list[tuple]:
        marks = ask(answers, "marks", first=first, last=last)["marks"]
        return [
            (mark["kind"], mark["t_ms"] // 1000 - FIRST, mark["labels"].get("comm", ""), mark["text"]) for mark in marks
        ]

    # The gap hides whether `short` ended at 15 or slept until the silence at 20.
    wanted = [
        ("process_start", 5, "short", "short first seen"),
        ("agent_start", 28, "", "n: data again after 8 s without"),
    ]
    assert found(FIRST, FIRST + 60) == wanted
    begin = ("agent_start", -20, "", "n: data begins")
    assert found(FIRST - 100, FIRST + 60) == [begin, *wanted], "what runs when the data begins has not started then"
    assert found(FIRST - 100, FIRST + 200) == [begin, *wanted], "what runs when the data ends has not ended then"


def test_mark_of_a_process_that_ends(engine):
    builder = ProfilesBuilder({"host.name": "n"})
    for second in range(FIRST - 30, FIRST + 30):
        rows = [({"process.pid": "1"}, (F("f"),), 9)]
        if second < FIRST + 10:
            rows.append(({"process.pid": "2", "process.executable.name": "cc1"}, (F("f"),), 3))
        builder.window(second, rows)
    engine.submit("profiles", builder.bytes()).result()
    marks = ask(Answers(engine, "test"), "marks")["marks"]
    assert [(mark["kind"], mark["t_ms"] // 1000 - FIRST, mark["text"]) for mark in marks] == [
        ("process_exit", 10, "cc1 last seen")
    ]


def test_status_of_nodes(engine):
    engine.submit(
        "profiles", ProfilesBuilder({"host.name": "n"}).window(NOW - 2, [({}, (F("f"),), 3)]).bytes()
    ).result()
    metrics = MetricsBuilder({"host.name": "n"}).gauge("system.cpu.logical.count", NOW - 1, 4.0)
    metrics.gauge("gpustrobe.agent.cpu", NOW - 1, 0.02).gauge("gpustrobe.agent.bpf", NOW - 1, 0.01)
    metrics.gauge("gpustrobe.agent.memory", NOW - 1, 9e7).gauge("gpustrobe.agent.state", NOW - 1, 1.0, gpu="no driver")
    engine.submit("metrics", metrics.bytes()).result()
    answers = Answers(engine, "9.9")
    first = answers.answer("status", QueryParams({}))
    (node,) = first["nodes"]
    assert first["version"] == "9.9"
    assert first["data"]["samples"] == 3
    assert (node["node"], node["cores"], node["gpu_state"], node["types"], node["live"]) == (
        "n",
        4,
        "no driver",
        ["cpu"],
        True,
    )
    assert node["agent"] == {
        "version": "0.1.0",
        "cpu_cores": 0.02,
        "bpf_cores": 0.01,
        "memory_bytes": 9e7,
        "cpu_share": pytest.approx(0.0075),
        "gpu_duty": None,
        "gpu_budget": None,
    }
    # A store that starts again reads the same from disk.
    engine.call(lambda: engine.state.load(engine._connection, NOW * 10**9)).result()
    again = answers.answer("status", QueryParams({}))
    assert again["nodes"] == first["nodes"]


def test_different_rates_give_one_weighted_period(engine):
    for node, period, count in (("a", 10_000_000, 30), ("b", 20_000_000, 10)):
        builder = ProfilesBuilder({"host.name": node}).window(
            FIRST, [({"process.pid": "1"}, (F("f"),), count)], period=period
        )
        engine.submit("profiles", builder.bytes()).result()
    answer = ask(Answers(engine, "test"), "flamegraph")
    assert answer["total"] == 40
    assert answer["total"] * answer["period_ns"] == pytest.approx(30 * 10_000_000 + 10 * 20_000_000)


def test_finding_names_the_starving_line_and_keeps_quiet_without_evidence(engine):
    load = {"process.pid": "7", "process.executable.name": "python3", "gpustrobe.process.script": "train.py"}
    main = F("main", "python", "", "train.py", 9)
    collate, forward = F("collate", "python", "", "/srv/data.py", 88), F("forward", "python", "", "model.py", 3)
    profiles, metrics = ProfilesBuilder({"host.name": "n"}), MetricsBuilder({"host.name": "n"})
    for second in range(FIRST, FIRST + 60):
        low = second % 3 == 0
        rows = [(load, (collate, main), 70 if low else 5), (load, (forward, main), 10 if low else 60)]
        profiles.window(second, rows)
        metrics.gauge("gpu.utilization", second, 3.0 if low else 90.0, "%", gpu__uuid="GPU-a", gpu__index="0")
    engine.submit("profiles", profiles.bytes()).result()
    engine.submit("metrics", metrics.bytes()).result()
    answers = Answers(engine, "test")
    found = ask(answers, "finding", last=FIRST + 60, node="n")["finding"]
    assert "".join(part["t"] for part in found["text"]) == (
        "GPU 0 was below 10 % utilization for 33 % of this range; "
        "python3 then spent 88 % of its CPU time under collate, data.py:88"
    )
    assert found["focus"] == "^collate$"
    assert found["match"] == 'comm="python3",script="train.py"'
    assert (
        ask(answers, "flamegraph", last=FIRST + 60, focus=found["focus"], match=found["match"])["total"]
        == 20 * 70 + 40 * 5
    )
    assert ask(answers, "finding", last=FIRST + 12, node="n")["finding"] is None


@pytest.mark.parametrize(
    ("name", "params", "code"),
    [
        ("flamegraph", {"focus": "(("}, "bad_regex"),
        ("flamegraph", {"match": 'comm=~"(("'}, "bad_regex"),
        ("flamegraph", {"match": "comm"}, "bad_match"),
        ("flamegraph", {"from": "yesterday"}, "bad_time"),
        ("flamegraph", {"from": "now", "to": "-5m"}, "bad_range"),
        ("flamegraph", {"focous": "x"}, "bad_parameter"),
        ("flamegraph", {"max_nodes": "0"}, "bad_max_nodes"),
        ("flamegraph", {"type": "x'; DROP TABLE samples; --"}, "bad_type"),
        ("series", {}, "bad_name"),
        ("series", {"name": "cpu", "step_ms": "1500"}, "bad_step_ms"),
        ("series", {"name": "cpu", "by": "comm; DROP TABLE samples"}, "bad_by"),
        ("series", {"name": "cpu", "from": "-2d"}, "too_large"),
        ("flamegraph", {"from": "0", "to": "now"}, "too_large"),
    ],
)
def test_bad_questions_are_refused_by_code(engine, name, params, code):
    with pytest.raises(QueryError) as caught:
        Answers(engine, "test").answer(name, QueryParams(params))
    assert caught.value.code == code


def test_text_never_becomes_sql(engine):
    engine.submit("profiles", ProfilesBuilder({"host.name": "n"}).window(FIRST, [({}, (F("f"),), 3)]).bytes()).result()
    answers = Answers(engine, "test")
    for hostile in ("'; DROP TABLE samples; --", '" OR 1=1 --', "$m0", "{m0:String}", "%s", "\\"):
        quoted = hostile.replace("\\", "\\\\").replace('"', '\\"')
        assert ask(answers, "flamegraph", match=f'comm="{quoted}"')["total"] == 0
        assert ask(answers, "series", name=hostile)["series"] == []
    assert ask(answers, "flamegraph")["total"] == 3


def test_rows_and_time_are_limited(engine):
    rows = [({"thread.id": str(number)}, (F(f"f{number % 50}"),), 1) for number in range(2000)]
    engine.submit("profiles", ProfilesBuilder({"host.name": "n"}).window(FIRST, rows).bytes()).result()
    with pytest.raises(TooLarge) as caught:
        ask(Answers(engine, "test", Limits(rows=500)), "flamegraph")
    assert "from=" in caught.value.hint
    with pytest.raises(TimeLimit), engine.readers.reader(Limits(seconds=0.2)) as reader:
        reader.rows("SELECT count(*) FROM range(10000000) a, range(1000000) b WHERE a.range % 7 = b.range % 3")
    assert ask(Answers(engine, "test"), "flamegraph")["total"] == 2000
