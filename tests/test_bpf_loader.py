# SPDX-License-Identifier: Apache-2.0
"""ctypes shapes against the compiler's, and offsets for kernels without BTF as far as they can be had without BCC."""

from __future__ import annotations

import ctypes
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from gpustrobe.bpf import bcc_offsets, loader
from gpustrobe.bpf.drops import DROPS, ENDS

BPF = Path(__file__).parent.parent / "bpf"

STRUCTS = {
    "gs_error": loader.Error,
    "gs_options": loader.Options,
    "gs_books": loader.Books,
    "gs_frame": loader.RawFrameRecord,
    "gs_process_record": loader.ProcessRecord,
    "gs_thread_record": loader.ThreadRecord,
    "gs_file_record": loader.FileRecord,
    "gs_window": loader.WindowRecord,
}


def test_structs_equal_the_compilers(tmp_path):
    """Size and the offset of every field, as gcc sees them."""
    lines = []
    for name, shape in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for field, *_ in shape._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof(struct {name}, {field}));')
    source = tmp_path / "shapes.c"
    body = "\n".join(lines)
    source.write_text(
        f'#include <stdio.h>\n#include <stddef.h>\n#include "files.h"\nint main(void) {{ {body} return 0; }}'
    )
    subprocess.run(["gcc", f"-I{BPF}", "-o", tmp_path / "shapes", source], check=True)
    printed = subprocess.run([tmp_path / "shapes"], check=True, capture_output=True, text=True).stdout
    wanted = {name: int(value) for name, value in (line.split() for line in printed.splitlines())}
    for name, shape in STRUCTS.items():
        assert ctypes.sizeof(shape) == wanted[name], name
        for field, *_ in shape._fields_:
            assert getattr(shape, field).offset == wanted[f"{name}.{field}"], f"{name}.{field}"


def entries(header: str, macro: str) -> list[tuple[str, ...]]:
    text = (BPF / header).read_text()
    body = re.search(rf"#define {macro}\(X\)((?:.*\\\n)*.*)", text).group(1)
    return [tuple(part.strip() for part in re.split(r",\s*", entry)) for entry in re.findall(r"X\(([^)]*)\)", body)]


def test_lists_equal_the_headers():
    assert [entry[0] for entry in entries("core.h", "GS_FAULTS")] == list(loader.FAULTS)
    assert [entry[0] for entry in entries("drops.h", "GS_DROPS")] == list(DROPS)
    assert [entry[0] for entry in entries("sample.h", "GS_ENDS")] == [name for name, _ in ENDS]
    detail = re.search(r"enum gs_detail \{([^}]*)\}", (BPF / "mappings.h").read_text()).group(1)
    assert [name.strip().removeprefix("GS_DETAIL_").lower() for name in detail.split(",")][:-1] == list(loader.DETAILS)


def config_fields() -> list[str]:
    """Field names of struct gs_offsets in order."""
    text = (BPF / "config.h").read_text()
    body = re.search(r"struct gs_offsets \{(.*?)\n\};", text, re.S).group(1)
    fields: list[str] = []
    for line in body.splitlines():
        if macro := re.match(r"\s*(GS_\w+)\(X\)", line):
            fields += ["_".join(entry) for entry in entries("config.h", macro.group(1))]
        elif field := re.match(r"\s*__u32 (\w+);", line):
            fields.append(field.group(1))
    return fields


def test_bcc_offsets_are_in_the_order_of_the_struct():
    assert ["_".join(part for part in field if part) for field in bcc_offsets.FIELDS] == config_fields()


def test_bcc_program_compiles_to_constants(tmp_path):
    """With made-up types: each function compiles to one constant, which constant() reads."""
    members: dict[str, list[str]] = {}
    for owner, member in bcc_offsets.FIELDS:
        if owner:
            members.setdefault(owner, []).append(member)
    types = "\n".join(
        f"struct {owner} {{ char head[{40 * (i + 1)}]; " + " ".join(f"long {name};" for name in names) + " };"
        for i, (owner, names) in enumerate(members.items())
    )
    headers = (
        "#define offsetof(t, m) __builtin_offsetof(t, m)\n#define THREAD_SIZE 16384\n"
        f"struct pt_regs {{ long r[21]; }};\n{types}\n"
    )
    source = tmp_path / "offsets.c"
    source.write_text(bcc_offsets.program(headers).replace("int offset_", '__attribute__((section("s"))) int offset_'))
    subprocess.run(["clang", "-O2", "-target", "bpf", "-c", source, "-o", tmp_path / "offsets.o"], check=True)
    subprocess.run(
        ["llvm-objcopy-14", "-O", "binary", "--only-section=s", tmp_path / "offsets.o", tmp_path / "s"], check=True
    )
    code = (tmp_path / "s").read_bytes()
    assert len(code) == 16 * len(bcc_offsets.FIELDS)
    got = [bcc_offsets.constant(code[i : i + 16]) for i in range(0, len(code), 16)]
    wanted = []
    for owner, member in bcc_offsets.FIELDS:
        place = list(members).index(owner) if owner else 0
        wanted.append(40 * (place + 1) + 8 * members[owner].index(member) if owner else 16384 - 168)
    assert got == wanted


def test_what_is_no_constant_is_refused():
    exit_ = bytes([0x95, 0, 0, 0, 0, 0, 0, 0])
    assert bcc_offsets.constant(struct.pack("<BBhi", 0xB7, 0, 0, 1136) + exit_) == 1136
    assert bcc_offsets.constant(struct.pack("<BBhi", 0xB4, 0, 0, 7) + exit_) == 7
    for bad in (b"", exit_, struct.pack("<BBhi", 0xB7, 1, 0, 1) + exit_, struct.pack("<BBhi", 0x85, 0, 0, 1) + exit_):
        with pytest.raises(ValueError):
            bcc_offsets.constant(bad)


def test_without_bcc_there_are_no_offsets(tmp_path):
    assert bcc_offsets.ask(str(tmp_path / "missing")) == ()
    silent = tmp_path / "python3"
    silent.write_text("#!/bin/sh\necho hello\n")
    silent.chmod(0o755)
    assert bcc_offsets.read([str(silent)]) == ()


def test_with_bcc_its_numbers_are_taken(tmp_path):
    """A stand-in for BCC that answers each function with its own number."""
    (tmp_path / "bcc.py").write_text(
        "import struct\n"
        "class BPF:\n"
        "    def __init__(self, text): assert 'offsetof(struct task_struct, mm)' in text\n"
        "    def dump_func(self, name):\n"
        "        return struct.pack('<BBhi', 0xb7, 0, 0, int(name.split(b'_')[1])) + b'\\x95' + bytes(7)\n"
    )
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert bcc_offsets.read([str(python)]) == tuple(range(len(bcc_offsets.FIELDS)))


@pytest.mark.bpf
def test_offsets_from_btf_are_what_the_kernel_uses(tmp_path):
    """bpftool's own reading of BTF, with anonymous members expanded by the compiler."""
    header = subprocess.run(
        ["bpftool", "btf", "dump", "file", "/sys/kernel/btf/vmlinux", "format", "c"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    (tmp_path / "kernel.h").write_text(header)
    fields = [(owner, member) for owner, member in bcc_offsets.FIELDS if owner]
    numbers = ", ".join(f"__builtin_offsetof(struct {owner}, {member})" for owner, member in fields)
    source = tmp_path / "numbers.c"
    source.write_text(f'#include "kernel.h"\nunsigned numbers[] = {{ {numbers} }};\n')
    subprocess.run(["clang", "-target", "bpf", "-c", source, "-o", tmp_path / "numbers.o"], check=True)
    subprocess.run(
        ["llvm-objcopy-14", "-O", "binary", "--only-section=.data", tmp_path / "numbers.o", tmp_path / "data"],
        check=True,
    )
    wanted = dict(zip(fields, struct.unpack(f"<{len(fields)}I", (tmp_path / "data").read_bytes()), strict=True))
    loaded = loaded_offsets()
    assert {field: loaded[i] for i, field in enumerate(bcc_offsets.FIELDS) if field[0]} == wanted


def loaded_offsets() -> list[int]:
    """What the loader put into .rodata, read back from the running sampler's map."""
    import json
    import os

    from gpustrobe.agent.sampler import Sampler

    sampler = Sampler()
    sampler.open()
    try:
        ids = {
            int(line.split()[1])
            for info in list(Path(f"/proc/{os.getpid()}/fdinfo").iterdir())
            if info.exists()
            for line in info.read_text().splitlines()
            if line.startswith("map_id:")
        }
        for number in ids:
            shown = subprocess.run(
                ["bpftool", "-j", "map", "show", "id", str(number)], capture_output=True, check=True
            ).stdout
            if json.loads(shown)["name"].endswith(".rodata"):
                dump = subprocess.run(
                    ["bpftool", "-j", "map", "dump", "id", str(number)], capture_output=True, check=True
                ).stdout
                value = bytes(int(byte, 16) for byte in json.loads(dump)[0]["value"])
                return list(struct.unpack_from(f"<{len(bcc_offsets.FIELDS)}I", value))
    finally:
        sampler.close()
    raise AssertionError("no .rodata map")
