# SPDX-License-Identifier: Apache-2.0
"""Line tables against the interpreters themselves: code.co_lines() (3.10 on), dis.findlinestarts() (3.9)."""

from __future__ import annotations

import base64
import ctypes
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from gpustrobe.bpf.loader import library

from tests.python_lines import LineTable

LINE = library().gs_python_line
LINE.argtypes = [ctypes.c_uint16, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint32]
LINE.restype = ctypes.c_uint32


def in_c(version: tuple[int, int], first_line: int, table: bytes, instruction: int) -> int:
    return LINE(version[0] << 8 | version[1], first_line, table, len(table), instruction)


INTERPRETERS = sorted(
    {
        str(path)
        for pattern in ("/usr/bin/python3.*", str(Path.home() / ".pyenv/versions/3.*/bin/python3"))
        for path in Path("/").glob(pattern[1:])
        if path.name.rpartition(".")[2].isdigit() or path.name == "python3"
    }
    | {sys.executable}
)

# Prints, for many code objects of the standard library: first line, table, and the line of each instruction.
DUMP = r"""
import base64, dis, json, sys, types
import argparse, asyncio.base_events, dataclasses, json.decoder, textwrap
def codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)
out = []
for module in (argparse, asyncio.base_events, dataclasses, json.decoder, textwrap):
    source = open(module.__file__).read()
    for code in codes(compile(source, module.__file__, "exec")):
        if sys.version_info >= (3, 10):
            spans = [list(span) for span in code.co_lines()]
            table = code.co_linetable
        else:
            starts = list(dis.findlinestarts(code)) + [(len(code.co_code), None)]
            spans = [[a, b, line] for (a, line), (b, _) in zip(starts, starts[1:])]
            table = code.co_lnotab
        out.append([code.co_firstlineno, base64.b64encode(table).decode(), spans])
json.dump([sys.version_info[:2], out], sys.stdout)
"""


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_lines_equal_the_interpreter(interpreter):
    answer = subprocess.run([interpreter, "-c", DUMP], capture_output=True, text=True, check=False)
    if answer.returncode:
        pytest.skip(f"{interpreter}: {answer.stderr.strip().splitlines()[-1]}")
    version, codes = json.loads(answer.stdout)
    if tuple(version) < (3, 9):
        pytest.skip("older than 3.9")
    assert len(codes) > 100
    checked = 0
    for first_line, encoded, spans in codes:
        raw = base64.b64decode(encoded)
        table = LineTable(tuple(version), first_line, raw)
        for start, end, line in spans:
            for offset in {start, max(start, end - 2)} if end > start else ():
                checked += 1
                lasti = offset // 2 if tuple(version) == (3, 10) else offset
                assert table.line(lasti) == (line or 0)
                assert in_c(tuple(version), first_line, raw, lasti) == (line or 0)
    assert checked > 5000


def test_before_the_first_instruction():
    assert LineTable((3, 9), 7, b"").line(0xFFFFFFFF) == in_c((3, 9), 7, b"", 0xFFFFFFFF) == 7


def test_hostile_tables_end_and_the_twins_agree():
    rng = random.Random(0)
    for _ in range(3000):
        table = rng.randbytes(rng.randrange(40))
        for version in ((3, 9), (3, 10), (3, 11), (3, 14)):
            at = rng.randrange(1000)
            assert LineTable(version, 1, table).line(at) % 2**32 == in_c(version, 1, table, at)
