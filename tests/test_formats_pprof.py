# SPDX-License-Identifier: Apache-2.0
"""pprof files read with a message type built here from the public field list, and with Google's pprof where it is
installed.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from gpustrobe.agent.formats import pprof
from gpustrobe.agent.formats.stacks import Row, Stacks
from gpustrobe.agent.model import Books, Frame

PROFILE = {
    "ValueType": "type:1:int64 unit:2:int64",
    "Label": "key:1:int64 str:2:int64 num:3:int64 num_unit:4:int64",
    "Sample": "location_id:1:uint64* value:2:int64* label:3:Label*",
    "Mapping": "id:1:uint64 memory_start:2:uint64 memory_limit:3:uint64 file_offset:4:uint64 "
    "filename:5:int64 build_id:6:int64 "
    "has_functions:7:bool has_filenames:8:bool has_line_numbers:9:bool has_inline_frames:10:bool",
    "Line": "function_id:1:uint64 line:2:int64 column:3:int64",
    "Location": "id:1:uint64 mapping_id:2:uint64 address:3:uint64 line:4:Line* is_folded:5:bool",
    "Function": "id:1:uint64 name:2:int64 system_name:3:int64 filename:4:int64 start_line:5:int64",
    "Profile": "sample_type:1:ValueType* sample:2:Sample* mapping:3:Mapping* location:4:Location* function:5:Function* "
    "string_table:6:string* drop_frames:7:int64 keep_frames:8:int64 time_nanos:9:int64 duration_nanos:10:int64 "
    "period_type:11:ValueType period:12:int64 comment:13:int64* default_sample_type:14:int64",
}


def profile_class():
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="perftools.profiles", syntax="proto3")
    types = descriptor_pb2.FieldDescriptorProto
    for message, fields in PROFILE.items():
        proto = file.message_type.add(name=message)
        for name, number, kind in (field.split(":") for field in fields.split()):
            label = types.LABEL_REPEATED if kind.endswith("*") else types.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            field = proto.field.add(name=name, number=int(number), label=label)
            if kind in PROFILE:
                field.type, field.type_name = types.TYPE_MESSAGE, f".perftools.profiles.{kind}"
            else:
                field.type = types.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perftools.profiles.Profile"))


Profile = profile_class()

INNER = Frame("inner", "native", "libwork.so", "work.h", 12, "aa11", 0x1000)
OUTER = Frame("outer", "native", "libwork.so", "work.c", 90, "aa11", 0x1000)
MAIN = Frame("main", "native", "app", "main.c", 5, "bb22", 0x40)
MODULE = Frame("<module>", "python", "", "/srv/train.py", 214)
UNKNOWN = Frame("libx.so+0x99", "native", "libx.so", address=0x99, reason="no symbols")
FRAMES = (MAIN, OUTER, INNER, MODULE, UNKNOWN)
LABELS = {"comm": "app", "pid": "10", "thread": "worker", "tid": "11", "pod": ""}


def stacks(kind="cpu", unit="samples", period=9_973_013) -> Stacks:
    rows = (
        Row(LABELS, (0, 1, 2), 70),
        Row(LABELS, (0, 1, 2, 1, 2), 5),
        Row({"comm": "python3"}, (3, 4), 25),
        Row({"comm": "idle"}, (), 2),
    )
    books = Books(110, 2, 0, 102, {"ring_full": 6})
    return Stacks(kind, unit, period, 1_760_000_000 * 10**9, 30 * 10**9, FRAMES, rows, books, node="node-1")


def decode(data: bytes):
    return Profile.FromString(gzip.decompress(data))


def test_everything_comes_back():
    p = decode(pprof.render(stacks()))
    text = p.string_table
    assert text[0] == "" and len(set(text)) == len(text)
    assert [(text[t.type], text[t.unit]) for t in p.sample_type] == [("samples", "count"), ("cpu", "nanoseconds")]
    assert (text[p.period_type.type], text[p.period_type.unit], p.period) == ("cpu", "nanoseconds", 9_973_013)
    assert (p.time_nanos, p.duration_nanos, text[p.default_sample_type]) == (1_760_000_000 * 10**9, 30 * 10**9, "cpu")
    assert [text[c] for c in p.comment] == ["gpustrobe cpu of node-1", "lost 6 of 108 samples: ring_full 6"]
    functions = {f.id: (text[f.name], text[f.filename], f.system_name) for f in p.function}
    mappings = {m.id: (text[m.filename], text[m.build_id]) for m in p.mapping}
    locations = {location.id: location for location in p.location}
    assert 0 not in {*functions, *mappings, *locations} and all(
        m.has_functions and m.has_inline_frames for m in p.mapping
    )
    read = []
    for sample in p.sample:
        path = []
        for location in (locations[number] for number in sample.location_id):
            names = [(functions[line.function_id][0], line.line) for line in location.line]
            path.append((mappings.get(location.mapping_id, ("", ""))[0], location.address, names))
        read.append((list(sample.value), path, {text[label.key]: text[label.str] for label in sample.label}))
    both = ("libwork.so", 0, [("inner", 12), ("outer", 90)])
    main = ("app", 0, [("main", 5)])
    labels = {"comm": "app", "pid": "10", "thread": "worker", "tid": "11"}
    assert read == [
        ([70, 70 * 9_973_013], [both, main], labels),
        ([5, 5 * 9_973_013], [both, both, main], labels),
        (
            [25, 25 * 9_973_013],
            [("libx.so", 0x99, [("libx.so+0x99", 0)]), ("", 0, [("<module>", 214)])],
            {"comm": "python3"},
        ),
        ([2, 2 * 9_973_013], [], {"comm": "idle"}),
    ]
    assert mappings[1] == ("app", "bb22"), "pprof takes the first mapping for the program"
    assert all(system == 0 for *_, system in functions.values()), "else pprof strips <module> as if it were a template"


@pytest.mark.parametrize(
    ("kind", "unit", "type_unit"), [("gpu_time", "nanoseconds", "nanoseconds"), ("gpu_launches", "launches", "count")]
)
def test_other_types_have_their_one_value_and_no_period(kind, unit, type_unit):
    p = decode(pprof.render(stacks(kind, unit, 0)))
    assert [(p.string_table[t.type], p.string_table[t.unit]) for t in p.sample_type] == [(kind, type_unit)]
    assert [list(sample.value) for sample in p.sample] == [[70], [5], [25], [2]] and p.period == 0


def test_an_empty_profile_is_valid():
    p = decode(pprof.render(Stacks("cpu", "samples", 10, 0, 0, (), ())))
    assert len(p.sample) == len(p.location) == 0 and p.string_table[0] == ""


def test_the_same_profile_gives_the_same_file():
    assert pprof.render(stacks()) == pprof.render(stacks())


@pytest.mark.skipif(
    shutil.which("pprof") is None, reason="pprof is not installed: go install github.com/google/pprof@latest"
)
def test_google_pprof_reads_it(tmp_path):
    path = tmp_path / "p.pb.gz"
    path.write_bytes(pprof.render(stacks()))

    def run(*words: str) -> str:
        return subprocess.run(["pprof", *words, str(path)], check=True, capture_output=True, text=True).stdout

    top = run("-top", "-sample_index=samples")
    assert "File: app" in top and "Build ID: bb22" in top and "lost 6 of 108" in top
    rows = {
        line.split(maxsplit=5)[5]: line.split()[0]
        for line in top.splitlines()
        if "%" in line and line.split()[0].isdigit()
    }
    assert rows["inner (inline)"] == "75" and rows["libx.so+0x99"] == "25" and "<module>" in rows
    assert "worker" in run("-tags")
    tree = run("-traces", "-lines", "-sample_index=samples")
    assert "inner work.h:12 (inline)" in tree and "<module> /srv/train.py:214" in tree
