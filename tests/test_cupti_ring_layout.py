# SPDX-License-Identifier: Apache-2.0
"""cupti/ring.py says what cupti/ring.h says: the header is compiled and asked for every offset, size, constant and name."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from gpustrobe.cupti import ring

HEADER = Path(__file__).resolve().parent.parent / "cupti" / "ring.h"
STRUCTS = {
    "gs_layout": ring.LAYOUT,
    "gs_agent": ring.AGENT,
    "gs_library": ring.LIBRARY,
    "gs_window": ring.WINDOW,
    "gs_launch": ring.LAUNCH,
    "gs_activity": ring.ACTIVITY,
    "gs_count": ring.COUNT,
    "gs_device": ring.DEVICE,
    "gs_context": ring.CONTEXT,
    "gs_exit": ring.EXIT,
    "gs_shape": ring.SHAPE,
    "gs_string": ring.STRING,
    "gs_entry": ring.ENTRY,
}
INNER = {  # a field's name in numpy -> in C, where a union or a nested struct stands between
    ("gs_activity", "peer_device"): "peer.device",
    ("gs_activity", "peer_context"): "peer.context",
    ("gs_activity", "shape"): "kernel.shape",
    ("gs_activity", "channel"): "kernel.channel",
    **{(s, f): f"entry.{f}" for s in ("gs_shape", "gs_string") for f in ("size", "type", "flags")},
}
CONSTANTS = {
    "GS_RING_MAGIC": ring.MAGIC,
    "GS_RING_VERSION": ring.VERSION,
    "GS_CONTROL_SIZE": ring.CONTROL_SIZE,
    "GS_RING_SLOTS": ring.RING_SLOTS,
    "GS_ARENA_SIZE": ring.ARENA_SIZE,
    "GS_HEARTBEAT_LIMIT_NS": ring.HEARTBEAT_LIMIT_NS,
    "GS_STRING_LIMIT": ring.STRING_LIMIT,
    "GS_MULTIPLICITY_SHIFT": ring.MULTIPLICITY_SHIFT,
    "offsetof(struct gs_control, head)": ring.HEAD_OFFSET,
    "offsetof(struct gs_control, tail)": ring.TAIL_OFFSET,
    "offsetof(struct gs_control, arena_head)": ring.ARENA_HEAD_OFFSET,
    "offsetof(struct gs_control, agent)": ring.AGENT_OFFSET,
    "offsetof(struct gs_control, library)": ring.LIBRARY_OFFSET,
    "offsetof(struct gs_control, counters)": ring.COUNTERS_OFFSET,
    "offsetof(struct gs_string, text)": ring.TEXT_OFFSET,
    "GS_N_COUNTERS": len(ring.COUNTERS),
    "GS_N_STATES": len(ring.STATES),
    "GS_N_REASONS": len(ring.REASONS),
    "GS_N_CLOSES": len(ring.CLOSES),
    "GS_N_RECORDS": len(ring.Record),
    **{f"GS_RECORD_{member.name}": member for member in ring.Record},
    **{f"GS_MODE_{member.name}": member for member in ring.Mode},
    **{f"GS_GRAPH_{member.name}": member for member in ring.GraphLevel},
    **{f"GS_CALL_{member.name}": member for member in ring.Call},
    **{f"GS_ENTRY_{member.name}": member for member in ring.Entry},
    **{f"GS_WINDOW_{member.name}": member for member in ring.WindowFlag},
    **{f"GS_LAUNCH_{member.name}": member for member in ring.LaunchFlag},
    **{f"GS_ACTIVITY_{member.name}": member for member in ring.ActivityFlag},
}


def ask(folder: Path, expressions: list[str]) -> list[int]:
    source = folder / "ask.c"
    asks = "\n".join(f'printf("%llu\\n", (unsigned long long)({text}));' for text in expressions)
    source.write_text(f'#include "{HEADER}"\n#include <stdio.h>\nint main(void) {{ {asks} return 0; }}\n')
    subprocess.run(["gcc", "-std=c11", "-Wall", "-Werror", "-o", folder / "ask", source], check=True)
    return [int(line) for line in subprocess.run([folder / "ask"], check=True, capture_output=True).stdout.split()]


def test_constants(tmp_path):
    assert dict(zip(CONSTANTS, ask(tmp_path, list(CONSTANTS)), strict=True)) == CONSTANTS


def test_offsets_and_sizes(tmp_path):
    expected = {}
    for struct, dtype in STRUCTS.items():
        expected[f"sizeof(struct {struct})"] = dtype.itemsize
        for name, (field, offset) in dtype.fields.items():
            inner = INNER.get((struct, name), name)
            expected[f"offsetof(struct {struct}, {inner})"] = offset
            expected[f"sizeof(((struct {struct} *)0)->{inner})"] = field.itemsize
    assert dict(zip(expected, ask(tmp_path, list(expected)), strict=True)) == expected


@pytest.mark.parametrize("struct", [s for s in STRUCTS if s != "gs_activity"])
def test_no_field_is_left_out(struct):
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    body = re.search(rf"struct {struct} \{{(.*?)\n\}};", text, re.S).group(1)
    names = {n for line in re.findall(r"\w+ ([^;]+);", body) for n in re.findall(r"(\w+)(?:\[\w*\])?(?:,|$)", line)}
    names = {n for n in names if not n.startswith("reserved")} - {"entry", "text"}
    assert names <= set(STRUCTS[struct].names)


@pytest.mark.parametrize(
    "macro,names",
    [
        ("GS_STATES", ring.STATES),
        ("GS_REASONS", ring.REASONS),
        ("GS_CLOSES", ring.CLOSES),
        ("GS_COUNTERS", ring.COUNTERS),
    ],
)
def test_names_and_texts(macro, names):
    body = re.search(rf"#define {macro}\(X\) \\\n((?:\tX.*\n)+)", HEADER.read_text()).group(1)
    assert dict(re.findall(r'X\((\w+), "(.*)"\)', body)) == names
