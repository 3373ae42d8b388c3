# SPDX-License-Identifier: Apache-2.0
"""What the encoder wrote, read back with protobuf's classes and compared with what went in."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from gpustrobe.agent.encode import Encoder, encode_profiles, encode_readings
from gpustrobe.agent.model import FRAME_KINDS, Books, Frame, Profiles, ProfileWindow, Reading
from gpustrobe.proto import otlp
from hypothesis import given, settings
from hypothesis import strategies as st

RESOURCE = {"host.name": "node-1", "host.id": "ab", "service.name": "gpustrobe", "service.version": "0.1.0"}
START = 1_760_000_000_000_000_000


def text_of(attribute: otlp.KeyValueAndUnit, strings) -> tuple[str, str]:
    return strings[attribute.key_strindex], attribute.value.string_value


def read(data: bytes):
    """(resource attributes, [(type, unit, start, duration, period, id, Counter of (labels, stack) -> value)])."""
    request = otlp.ExportProfilesServiceRequest.FromString(data)
    d = request.dictionary
    strings = d.string_table
    for table in (d.mapping_table, d.location_table, d.function_table, d.link_table, d.attribute_table, d.stack_table):
        assert table[0].ByteSize() == 0, "the zero element comes first"
    assert strings[0] == ""
    assert len(set(strings)) == len(strings), "strings are interned"
    [owner] = request.resource_profiles
    [scope] = owner.scope_profiles
    out = []
    for profile in scope.profiles:
        assert (strings[profile.period_type.type_strindex], strings[profile.period_type.unit_strindex]) == (
            "cpu",
            "nanoseconds",
        )
        rows = Counter()
        for sample in profile.samples:
            labels = frozenset(text_of(d.attribute_table[i], strings) for i in sample.attribute_indices)
            [value] = sample.values
            rows[labels, stack_of(d, sample.stack_index)] += value
        kind, unit = strings[profile.sample_type.type_strindex], strings[profile.sample_type.unit_strindex]
        out.append(
            (kind, unit, profile.time_unix_nano, profile.duration_nano, profile.period, profile.profile_id, rows)
        )
    return {a.key: a.value.string_value for a in owner.resource.attributes}, out


def stack_of(d, index: int) -> tuple:
    """Frames as (name, kind, module, file, line, build id, reason), leaf first.

    Kind and reason stand with the first line.
    """
    out = []
    for location in (d.location_table[i] for i in d.stack_table[index].location_indices):
        attributes = dict(text_of(d.attribute_table[i], d.string_table) for i in location.attribute_indices)
        mapping = d.mapping_table[location.mapping_index]
        module = d.string_table[mapping.filename_strindex]
        build = dict(text_of(d.attribute_table[i], d.string_table) for i in mapping.attribute_indices)
        for line in location.lines:
            function = d.function_table[line.function_index]
            # the full name of what runs on a device stands in system_name
            file_index = function.filename_strindex or function.system_name_strindex
            name, file = d.string_table[function.name_strindex], d.string_table[file_index]
            kind, reason = attributes["gpustrobe.frame.kind"], attributes.get("gpustrobe.frame.reason", "")
            build_id = build.get("process.executable.build_id.gnu", "")
            out.append((name, kind, module, file, line.line, build_id, reason))
    return tuple(out)


def plain(stack: tuple[Frame, ...]) -> tuple:
    return tuple((f.name, f.kind, f.module, f.file, f.line, f.build_id, f.reason) for f in stack)


def window(labels, stack, value, kind="cpu", start=START, books=None) -> ProfileWindow:
    columns = (np.array(labels, np.uint32), np.array(stack, np.uint32), np.array(value, np.uint64))
    return ProfileWindow(kind, start, 10**9, 9_973_013, *columns, books=books)


def expected(profiles: Profiles, names: dict[str, str]) -> list[Counter]:
    out = []
    for w in profiles.windows:
        rows = Counter()
        for label, stack, value in zip(w.labels, w.stack, w.value, strict=True):
            labels = frozenset((names.get(k, k), v) for k, v in profiles.label_sets[label].items())
            rows[labels, plain(profiles.stacks[stack])] += int(value)
        out.append(rows)
    return out


words = st.sampled_from(
    [
        "",
        "a",
        "samples",
        "one",
        "gpustrobe.frame.kind",
        "main",
        "λ",
        "std::vector<int>::push_back(int const&)",
        "x" * 200,
    ]
)
frames = st.builds(
    Frame, words, st.sampled_from(FRAME_KINDS), words, words, st.integers(0, 2**31), st.sampled_from(["", "00ff",
    "abcd"]), st.sampled_from([0, 16, 2**63 + 5]), st.sampled_from(["", "no symbols"]),
)  # fmt: skip
label_sets = st.dictionaries(st.sampled_from(["one", "two", "three"]), words, max_size=3)


@st.composite
def batches(draw) -> Profiles:
    stacks = tuple(draw(st.lists(st.lists(frames, max_size=5).map(tuple), min_size=1, max_size=5)))
    labels = tuple(draw(st.lists(label_sets, min_size=1, max_size=4)))
    row = st.tuples(st.integers(0, len(labels) - 1), st.integers(0, len(stacks) - 1), st.integers(0, 2**63 - 1))
    windows = []
    for index in range(draw(st.integers(1, 4))):
        rows = draw(st.lists(row, max_size=6, unique_by=lambda r: r[:2]))
        columns = zip(*rows, strict=True) if rows else ((), (), ())
        windows.append(window(*columns, kind=draw(st.sampled_from(["cpu", "gpu_time"])), start=START + index * 10**9))
    return Profiles(tuple(windows), stacks, labels)


@settings(max_examples=150)
@given(st.lists(batches(), min_size=1, max_size=3))
def test_round_trip(several):
    """One encoder over several batches: nothing of an earlier one shows in a later one."""
    encoder = Encoder(RESOURCE)
    for profiles in several:
        [request] = encoder.encode(profiles)
        attributes, out = read(request.data)
        assert attributes == RESOURCE
        wanted = expected(profiles, {})
        assert [rows for *_, rows in out] == wanted
        units = {"cpu": ("samples", "count"), "gpu_time": ("gpu_time", "nanoseconds")}
        assert [p[:5] for p in out] == [
            (*units[w.sample_type], w.start_unix, 10**9, 9_973_013) for w in profiles.windows
        ]
        assert len({p[5] for p in out}) == len(out) and all(len(p[5]) == 16 for p in out)
        assert request.samples == sum(
            int(w.value.sum()) if w.sample_type == "cpu" else w.value.size for w in profiles.windows
        )


def test_a_request_holds_only_what_its_rows_use():
    stacks = tuple((Frame(f"f{i}", "native", f"lib{i}.so"),) for i in range(50))
    encoder = Encoder(RESOURCE)
    everything = window(range(50), range(50), [1] * 50)
    list(encoder.encode(Profiles((everything,), stacks, tuple({"n": str(i)} for i in range(50)))))
    [request] = encoder.encode(Profiles((window([0], [7], [3]),), stacks, ({"n": "0"},)))
    d = otlp.ExportProfilesServiceRequest.FromString(request.data).dictionary
    assert [len(t) for t in (d.location_table, d.function_table, d.mapping_table, d.stack_table)] == [2, 2, 2, 2]
    assert "f7" in d.string_table and "f8" not in d.string_table and "lib8.so" not in d.string_table


def test_the_same_batch_gives_the_same_bytes():
    profiles = Profiles((window([0], [0], [3]),), ((Frame("f", "native"),),), ({"comm": "x"},))
    encoder = Encoder(RESOURCE)
    assert [r.data for r in encoder.encode(profiles)] == [r.data for r in encoder.encode(profiles)]
    assert list(encode_profiles(profiles, RESOURCE)) == [r.data for r in encoder.encode(profiles)]


def test_labels_get_their_otlp_names():
    labels = {
        "comm": "python3", "script": "train.py", "pid": "12", "tid": "13", "thread": "loader", "pod": "p", "namespace":
        "n", "service": "s", "gpu": "GPU-1", "gpu_index": "0", "team": "vision",
    }  # fmt: skip
    profiles = Profiles(
        (window([0, 1, 2], [0, 0, 0], [1, 1, 1]),), ((),), (labels, {"container": "web"}, {"container": "0123456789ab"})
    )
    [(*_, rows)] = read(next(encode_profiles(profiles, RESOURCE)))[1]
    sets = [dict(labels) for labels, _ in rows]
    assert sets[0] == {
        "process.executable.name": "python3", "gpustrobe.process.script": "train.py", "process.pid": "12", "thread.id":
        "13", "thread.name": "loader", "k8s.pod.name": "p", "k8s.namespace.name": "n", "service.name": "s", "gpu.uuid":
        "GPU-1", "gpu.index": "0", "team": "vision",
    }  # fmt: skip
    assert sets[1:] == [{"container.name": "web"}, {"container.id": "0123456789ab"}]


def locations(stack: tuple[Frame, ...]) -> list[list[str]]:
    profiles = Profiles((window([0], [0], [1]),), (stack,), ({},))
    d = otlp.ExportProfilesServiceRequest.FromString(next(encode_profiles(profiles, RESOURCE))).dictionary
    name = lambda line: d.string_table[d.function_table[line.function_index].name_strindex]  # noqa: E731
    return [[name(line) for line in d.location_table[i].lines] for i in d.stack_table[1].location_indices]


def test_inlined_frames_share_a_location_and_recursion_does_not():
    inner = Frame("inner", "native", "a.so", "a.c", 3, "", 64)
    outer = Frame("outer", "native", "a.so", "a.c", 9, "", 64)
    other = Frame("other", "native", "a.so", "a.c", 9, "", 80)
    elsewhere = Frame("elsewhere", "native", "b.so", "", 0, "", 64)
    assert locations((inner, outer, other)) == [["inner", "outer"], ["other"]]
    assert locations((inner, outer, inner, outer, other)) == [["inner", "outer"], ["inner", "outer"], ["other"]]
    assert locations((other, other, outer)) == [["other"], ["other"], ["outer"]]
    assert locations((inner, elsewhere)) == [["inner"], ["elsewhere"]]
    python = [Frame(name, "python", "", "a.py", 1, "", 64) for name in "ab"]
    assert locations(tuple(python)) == [["a"], ["b"]]


def test_address_is_sent_only_where_the_name_is_missing():
    named, unnamed = (
        Frame("f", "native", "a.so", address=64),
        Frame("a.so+0x50", "native", "a.so", address=80, reason="no symbols"),
    )
    profiles = Profiles((window([0], [0], [1]),), ((named, unnamed),), ({},))
    d = otlp.ExportProfilesServiceRequest.FromString(next(encode_profiles(profiles, RESOURCE))).dictionary
    assert [location.address for location in d.location_table] == [0, 0, 80]


def many(windows: int, rows: int) -> Profiles:
    stacks = tuple(
        tuple(Frame(f"function {i} {j} " + "x" * 60, "native", "a.so") for j in range(10)) for i in range(rows)
    )
    books = Books(rows + 7, 4, 2, rows, {"ring_full": 1})
    return Profiles(
        tuple(
            window([0] * rows, range(rows), [1] * rows, start=START + i * 10**9, books=books) for i in range(windows)
        ),
        stacks,
        ({"comm": "x"},),
    )


@pytest.mark.parametrize("limit", [60_000, 30_000, 12_000])
def test_a_large_batch_is_divided_and_nothing_is_lost(limit):
    profiles = many(4, 100)
    encoder = Encoder(RESOURCE, limit=limit)
    requests = list(encoder.encode(profiles))
    assert len(requests) > 1 and max(len(r.data) for r in requests) <= limit
    total: dict[int, Counter] = {}
    books = Counter()
    for request in requests:
        attributes, out = read(request.data)
        for _, _, start, _, _, _, rows in out:
            total.setdefault(start, Counter()).update(rows)
        if "gpustrobe.loss" in attributes:
            sent = json.loads(attributes["gpustrobe.loss"])
            books.update({**{k: v for k, v in sent.items() if k != "drops"}, **sent["drops"]})
    assert list(total.values()) == expected(profiles, {"comm": "process.executable.name"})
    assert books == Counter(produced=428, idle=16, filtered=8, delivered=400, ring_full=4)
    assert sum(r.samples for r in requests) == 400
    assert encoder.counters() == {"encode_too_large": 0}


def test_a_row_too_large_for_any_request_is_a_named_loss_and_books_stay_closed():
    huge = (Frame("y" * 50_000, "native"),)
    small = (Frame("small", "native"),)
    books = Books(30, 0, 0, 30, {})
    profiles = Profiles((window([0, 0, 0], [0, 1, 0], [5, 20, 5], books=books),), (small, huge), ({},))
    encoder = Encoder(RESOURCE, limit=20_000)
    requests = list(encoder.encode(profiles))
    assert encoder.counters() == {"encode_too_large": 20}
    sent = [json.loads(a["gpustrobe.loss"]) for a, _ in (read(r.data) for r in requests) if "gpustrobe.loss" in a]
    assert sent == [{"produced": 30, "idle": 0, "filtered": 0, "delivered": 10, "drops": {"encode_too_large": 20}}]
    assert sum(r.samples for r in requests) == 10


def test_a_window_without_rows_still_reports_its_second():
    profiles = Profiles((window([], [], [], books=Books(200, 200, 0, 0, {})),), (), ())
    attributes, [(kind, _, start, *_, rows)] = read(next(encode_profiles(profiles, RESOURCE)))
    assert (kind, start, rows) == ("samples", START, Counter())
    assert json.loads(attributes["gpustrobe.loss"])["idle"] == 200
    assert list(encode_profiles(Profiles((), (), ()), RESOURCE)) == []


def test_what_is_remembered_stays_bounded():
    encoder = Encoder(RESOURCE, kept=50)
    for i in range(40):
        stacks = tuple((Frame(f"f{i}.{j}", "native"),) for j in range(10))
        [request] = encoder.encode(Profiles((window([0] * 10, range(10), [1] * 10),), stacks, ({},)))
        assert len(read(request.data)[1][0][6]) == 10
        assert encoder._dictionary.size <= 50 + 21


# Metrics


def points(data: bytes):
    request = otlp.ExportMetricsServiceRequest.FromString(data)
    [owner] = request.resource_metrics
    assert {a.key: a.value.string_value for a in owner.resource.attributes} == RESOURCE
    return {metric.name: metric for metric in owner.scope_metrics[0].metrics}


def test_readings_become_gauges_and_sums():
    gpu = {"gpu.uuid": "GPU-1", "gpu.index": "0"}
    readings = [
        Reading("gpu.power", "W", START, 301.25, gpu),
        Reading("gpu.power", "W", START + 1, 302.0, {"gpu.uuid": "GPU-2"}),
        Reading("gpu.temperature", "Cel", START, -5, gpu),
        Reading(
            "gpustrobe.samples.dropped",
            "1",
            START + 5,
            3,
            {"reason": "ring_full"},
            monotonic=True,
            start_unix=START,
            delta=True,
        ),
        Reading("nvlink.bytes", "By", START + 5, 2.0**62, gpu, monotonic=True, start_unix=START),
        Reading("gpu.utilization", "%", START, float("nan"), gpu),
    ]
    [data] = encode_readings(readings, RESOURCE)
    metrics = points(data)
    power = metrics["gpu.power"].gauge.data_points
    assert metrics["gpu.power"].unit == "W"
    assert [(p.as_double, p.as_int, p.WhichOneof("value"), p.time_unix_nano) for p in power] == [
        (301.25, 0, "as_double", START), (0, 302, "as_int", START + 1),
    ]  # fmt: skip
    assert {a.key: a.value.string_value for a in power[0].attributes} == gpu
    assert metrics["gpu.temperature"].gauge.data_points[0].as_int == -5
    dropped = metrics["gpustrobe.samples.dropped"].sum
    assert (
        dropped.is_monotonic
        and dropped.aggregation_temporality == otlp.AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    )
    assert (dropped.data_points[0].as_int, dropped.data_points[0].start_time_unix_nano) == (3, START)
    link = metrics["nvlink.bytes"].sum
    assert (
        link.is_monotonic
        and link.aggregation_temporality == otlp.AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    )
    assert link.data_points[0].as_int == 2**62
    missing = metrics["gpu.utilization"].gauge.data_points[0]
    assert missing.flags == 1 and missing.WhichOneof("value") is None


def test_many_readings_are_divided():
    readings = [Reading("gpu.process.memory", "By", START, i, {"process.pid": str(i)}) for i in range(1000)]
    requests = list(encode_readings(readings, RESOURCE, limit=10_000))
    assert len(requests) > 1 and max(map(len, requests)) <= 10_000
    values = [p.as_int for data in requests for p in points(data)["gpu.process.memory"].gauge.data_points]
    assert values == list(range(1000))
    assert list(encode_readings([], RESOURCE)) == []
