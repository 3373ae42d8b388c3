# SPDX-License-Identifier: Apache-2.0
"""Unwind rows against binutils: `readelf --debug-dump=frames-interp` is the independent truth."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gpustrobe.bpf import unwind_rows
from gpustrobe.bpf.unwind_rows import Bp, Cfa

LIBRARIES = sorted(
    {
        str(path.resolve())
        for pattern in (
            "libc.so.6",
            "libm.so.6",
            "libstdc++.so.6",
            "libgcc_s.so.1",
            "ld-linux-x86-64.so.2",
            "libcrypto.so.3",
            "libssl.so.3",
            "libz.so.1",
            "libelf.so.1",
            "libbpf.so.*",
            "libzstd.so.1",
            "liblzma.so.5",
            "libsqlite3.so.0",
            "libexpat.so.1",
            "libncursesw.so.6",
            "libreadline.so.8",
            "libffi.so.8",
            "libbz2.so.1.0",
            "libuuid.so.1",
            "libgmp.so.10",
            "libpcre2-8.so.0",
            "libselinux.so.1",
            "libsystemd.so.0",
            "libgcrypt.so.20",
            "libdb-5.3.so",
            "libgnutls.so.30",
            "libxml2.so.2",
            "libcurl.so.4",
            "libkrb5.so.3",
            "libmpfr.so.6",
            "libbfd-*.so",
            "libopcodes-*.so",
            "libgomp.so.1",
        )
        for path in Path("/lib/x86_64-linux-gnu").glob(pattern)
    }
)
OWN = [sys.executable, *map(str, Path(sys.prefix).glob("lib/python3*/site-packages/numpy.libs/*.so*"))]
HEAD = re.compile(r"^[0-9a-f]+ [0-9a-f]+ [0-9a-f]+ FDE .*pc=([0-9a-f]+)\.\.([0-9a-f]+)")


def truth(path: str) -> list[tuple[int, int, str, str, str]]:
    """(start, end, CFA, rbp, ra) of every row of .eh_frame; virtual addresses; without signal frames."""
    text = subprocess.run(
        ["readelf", "--wide", "--debug-dump=frames-interp", path], capture_output=True, text=True, check=False
    ).stdout  # 1 for mere warnings
    rows: list[tuple[int, int, str, str, str]] = []
    columns: list[str] = []
    signal: set[str] = set()
    end = 0
    pending: tuple[int, str, str, str] | None = None
    wanted = False
    for line in text.splitlines():
        if line.startswith("Contents of the .debug_frame"):
            break
        head = HEAD.match(line)
        if head or " CIE " in line or not line:
            if pending:
                rows.append((pending[0], end, *pending[1:]))
            pending = None
            wanted = False
            if " CIE " in line and '"' in line and "S" in line.split('"')[1]:
                signal.add(line.split()[0])
            if head:
                end = int(head.group(2), 16)
                wanted = line.split("cie=")[1].split()[0] not in signal and end > int(head.group(1), 16)
            continue
        words = re.sub(r"(r\d+) \(\w+\)", r"\1", line).split()
        if words[:2] == ["LOC", "CFA"]:
            columns = words[1:]
        elif wanted and re.fullmatch(r"[0-9a-f]{16}", words[0]):
            cells = dict(zip(columns, words[1:], strict=False))
            if pending:
                rows.append((pending[0], int(words[0], 16), *pending[1:]))
            pending = (int(words[0], 16), cells["CFA"], cells.get("rbp", "u"), cells.get("ra", "u"))
    return rows


def matches(rule, cfa: str, rbp: str, ra: str) -> bool:
    """Whether our rule says what readelf's cells say; readelf prints "exp" for any expression."""
    if rule.cfa == Cfa.STOP:
        return ra == "u"
    if not ra.startswith("c-8"):
        return rule.cfa == Cfa.BAD  # longjmp and the like: the return address is elsewhere
    if cfa == "exp":
        return rule.cfa in (Cfa.SP_DEREF, Cfa.BP_DEREF, Cfa.PLT, Cfa.LEAF, Cfa.BAD, Cfa.SP, Cfa.BP)
    register, offset = re.fullmatch(r"(\w+)([+-]\d+)", cfa).groups()
    if rule.cfa in (Cfa.SP, Cfa.BP):
        good = register == ("rsp" if rule.cfa == Cfa.SP else "rbp") and int(offset) == rule.cfa_offset
    else:
        good = rule.cfa == Cfa.LEAF and register not in ("rsp", "rbp") and rule.cfa_offset >> 8 == int(offset)
    if rbp.startswith("c"):
        return good and rule.bp == Bp.CFA and rule.bp_offset == int(rbp[1:])
    return good and (rule.bp in (Bp.BP, Bp.SP, Bp.UNKNOWN) if rbp == "exp" else rule.bp in (Bp.SAME, Bp.UNKNOWN))


@pytest.mark.parametrize("path", LIBRARIES + OWN, ids=lambda path: Path(path).name)
def test_rows_equal_readelf(path):
    with open(path, "rb") as file, unwind_rows.build(file.fileno()) as rows:
        wrong = []
        segments = unwind_rows.executable_segments(path)
        checked = 0
        for start, end, cfa, rbp, ra in truth(path):
            offset = next((start - v + o for v, o, size in segments if v <= start < v + size), None)
            if offset is None or start == end:
                continue
            for at in (offset, offset + (end - start) - 1):
                checked += 1
                if not matches(rows.find(at), cfa, rbp, ra):
                    wrong.append((hex(start), cfa, rbp, ra, rows.find(at)))
        assert checked > 4
        assert not wrong, f"{len(wrong)} of {checked}: {wrong[:5]}"
        assert rows.bytes_per_row <= 5.0 or rows.count < 2000
        assert rows.bad <= rows.count // 1000 + 8


def test_library_list_is_long_enough():
    assert len(LIBRARIES + OWN) >= 30


def test_addresses_outside_are_not_covered():
    with open("/lib/x86_64-linux-gnu/libc.so.6", "rb") as file, unwind_rows.build(file.fileno()) as rows:
        assert rows.find(0).cfa == Cfa.NONE
        assert rows.find(1 << 39).cfa == Cfa.NONE


def test_reasons(tmp_path):
    odd = {
        "not an ELF file": b"#!/bin/sh\n",
        "truncated program headers": Path("/bin/true").read_bytes()[:70],
        "not a 64-bit little-endian ELF file": b"\x7fELF\x01\x01\x01" + bytes(60),
    }
    for reason, content in odd.items():
        (tmp_path / "odd").write_bytes(content)
        with open(tmp_path / "odd", "rb") as file, pytest.raises(ValueError, match=reason):
            unwind_rows.build(file.fileno())


def test_section_headers_stripped(tmp_path):
    """Without section headers .eh_frame is found through its program header and gives the same rules."""
    library = Path("/lib/x86_64-linux-gnu/libz.so.1").read_bytes()
    bare = bytearray(library)
    bare[40:48] = bytes(8)  # e_shoff
    bare[60:62] = bytes(2)  # e_shnum
    (tmp_path / "bare").write_bytes(bare)
    with (
        open("/lib/x86_64-linux-gnu/libz.so.1", "rb") as whole,
        unwind_rows.build(whole.fileno()) as expected,
        open(tmp_path / "bare", "rb") as file,
        unwind_rows.build(file.fileno()) as got,
    ):
        assert got.count == expected.count
        assert all(got.find(at) == expected.find(at) for at in range(0x2000, 0x14000, 7))


def test_debug_frame_stands_in_for_eh_frame(tmp_path):
    """-fno-asynchronous-unwind-tables leaves .debug_frame only; a compressed one is read too."""
    source = tmp_path / "x.c"
    source.write_text(
        "int g(int); int f(int a) { int b[64]; b[a] = g(a); return g(b[a & 63]) + b[3]; }\n"
        "int g(int a) { return a * 3; }\n"
    )
    for extra in ([], ["-gz=zlib"]):
        out = tmp_path / "x.so"
        flags = ["-O1", "-g", "-shared", "-fPIC", "-fno-asynchronous-unwind-tables", "-fno-exceptions", *extra]
        subprocess.run(["gcc", *flags, "-o", out, source], check=True)
        nm = subprocess.run(["nm", out], capture_output=True, text=True, check=False).stdout  # 1 for mere warnings
        address = int(next(line.split()[0] for line in nm.splitlines() if line.endswith(" f")), 16)
        with open(out, "rb") as file, unwind_rows.build(file.fileno()) as rows:
            segment = next(s for s in unwind_rows.executable_segments(str(out)) if s[0] <= address < s[0] + s[2])
            rule = rows.find(address - segment[0] + segment[1])
            assert (rule.cfa, rule.cfa_offset) == (Cfa.SP, 8)


def test_hostile_bytes_never_crash(tmp_path):
    """Flipped and cut bytes of a real library, in a process of its own."""
    script = tmp_path / "hostile.py"
    script.write_text(
        "import random, sys\n"
        "from gpustrobe.bpf import unwind_rows\n"
        "data = open('/lib/x86_64-linux-gnu/libz.so.1', 'rb').read()\n"
        "for seed in range(150):\n"
        "    rng = random.Random(seed)\n"
        "    bad = bytearray(data)\n"
        "    for _ in range(rng.choice((1, 30, 3000))):\n"
        "        bad[rng.randrange(len(bad))] = rng.randrange(256)\n"
        "    open(sys.argv[1], 'wb').write(bad[: rng.choice((len(bad), rng.randrange(len(bad))))])\n"
        "    with open(sys.argv[1], 'rb') as f:\n"
        "        try:\n"
        "            with unwind_rows.build(f.fileno()) as rows:\n"
        "                [rows.find(at) for at in range(0, len(data), 997)]\n"
        "        except ValueError:\n"
        "            pass\n"
    )
    subprocess.run(
        [sys.executable, script, tmp_path / "bad"], check=True, env={**os.environ, "PYTHONFAULTHANDLER": "1"}
    )


def test_layout():
    assert ctypes.sizeof(unwind_rows.Rule) == 8
