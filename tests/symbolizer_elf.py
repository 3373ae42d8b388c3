# SPDX-License-Identifier: Apache-2.0
"""ELF files made in test code: by gcc where a normal one will do, by hand where it must be odd."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

FUNC, NOTYPE, OBJECT, IFUNC = 2, 0, 1, 10
LOCAL, GLOBAL, WEAK = 0, 1, 2
TEXT = 0x1000  # address and file offset of the text of hand-made files


def compile_c(directory: Path, source: str, *flags: str, suffix: str = ".c", name: str = "program") -> Path:
    """An executable, or skips the test where there is no compiler for it."""
    compiler = {".c": "gcc", ".cc": "g++", ".rs": "rustc"}[suffix]
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    path, target = directory / f"{name}{suffix}", directory / name
    path.write_text(source)
    subprocess.run([compiler, *flags, str(path), "-o", str(target)], check=True, capture_output=True, timeout=60)
    return target


def output_of(*command: str | Path, feed: str = "") -> str:
    return subprocess.run([str(c) for c in command], input=feed, check=True, capture_output=True, text=True).stdout


def opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def section(
    name: int,
    kind: int,
    *,
    flags: int = 0,
    address: int = 0,
    offset: int = 0,
    size: int = 0,
    link: int = 0,
    each: int = 0,
) -> bytes:
    return struct.pack("<IIQQQQIIQQ", name, kind, flags, address, offset, size, link, 0, 1, each)


def symbol(name: int, value: int, size: int, kind: int = FUNC, bind: int = GLOBAL, index: int = 1) -> bytes:
    return struct.pack("<IBBHQQ", name, bind << 4 | kind, 0, index, value, size)


def elf_file(symbols: list[tuple[str, int, int, int, int]], text_size: int = 0x1000, extra_sections: int = 0) -> bytes:
    """A 64-bit executable with one text segment and these symbols: (name, value, size, type, binding)."""
    strings = bytearray(b"\0")
    table = bytearray(symbol(0, 0, 0, 0, 0, 0))
    for name, value, size, kind, bind in symbols:
        table += symbol(len(strings), value, size, kind, bind)
        strings += name.encode() + b"\0"
    names = b"\0.text\0.symtab\0.strtab\0.shstrtab\0"
    at_symbols = TEXT + text_size
    at_strings = at_symbols + len(table)
    at_names = at_strings + len(strings)
    at_sections = at_names + len(names)
    sections = [
        section(0, 0),
        section(1, 1, flags=6, address=TEXT, offset=TEXT, size=text_size),
        section(7, 2, offset=at_symbols, size=len(table), link=3, each=24),
        section(15, 3, offset=at_strings, size=len(strings)),
        section(23, 3, offset=at_names, size=len(names)),
        *[section(1, 1)] * extra_sections,
    ]
    many = len(sections) >= 0xFF00
    if many:
        sections[0] = section(0, 0, size=len(sections))
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack(
        "<HHIQQQIHHHHHH", 2, 62, 1, TEXT, 64, at_sections, 0, 64, 56, 1, 64, 0 if many else len(sections), 4
    )
    load = struct.pack("<IIQQQQQQ", 1, 5, TEXT, TEXT, TEXT, text_size, text_size, 0x1000)
    body = bytes(header + load).ljust(TEXT, b"\0") + b"\xc3" * text_size
    return body + bytes(table) + bytes(strings) + names + b"".join(sections)
