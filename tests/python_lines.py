# SPDX-License-Identifier: Apache-2.0
"""Twin of bpf/python_lines.c: line of an instruction from a code object's line table, for CPython 3.9 to 3.14.

Formats, from CPython's Objects/lnotab_notes.txt and Objects/locations.md (3.11 on):
3.9   co_lnotab: pairs of unsigned address step, signed line step (bytes)
3.10  co_linetable: pairs of unsigned address step (bytes), signed line step; -128 = no line
3.11+ co_linetable: entries of a first byte 1 | code (4 bits) | length - 1 (3 bits, in code units of two bytes),
      then varints by code
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class LineTable:
    """The table of one code object, decoded when first asked: a busy function is asked for many of its instructions."""

    __slots__ = ("_ends", "_first_line", "_lines", "_unit")

    def __init__(self, version: tuple[int, int], first_line: int, table: bytes) -> None:
        decode = lnotab_spans if version < (3, 10) else pair_spans if version < (3, 11) else location_spans
        spans = list(decode(first_line, table))
        self._first_line = first_line
        self._unit = 2 if version == (3, 10) else 1
        self._ends = [end for end, _ in spans]
        self._lines = [line for _, line in spans]

    def line(self, instruction: int) -> int:
        """The line of an instruction, 0 where the table gives none (broken tables too).

        `instruction` is as the interpreter keeps it: bytes in 3.9 (f_lasti) and from 3.11 on, code units in 3.10.
        """
        if instruction >= 1 << 31:  # f_lasti is -1 before the first instruction
            return self._first_line
        at = bisect_right(self._ends, instruction * self._unit)
        return self._lines[at] if at < len(self._lines) else 0


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


# Each yields (end, line): bytecode from the end before up to `end`, in bytes, belongs to `line`; 0 = to no line.


def lnotab_spans(first_line: int, table: bytes) -> Iterator[tuple[int, int]]:
    line, address = first_line, 0
    for step, line_step in zip(table[::2], table[1::2], strict=False):
        if step:
            address += step
            yield address, line
        line += _signed(line_step)
    yield 1 << 62, line


def pair_spans(first_line: int, table: bytes) -> Iterator[tuple[int, int]]:
    line, address = first_line, 0
    for step, line_step in zip(table[::2], table[1::2], strict=False):
        line += _signed(line_step) if line_step != 128 else 0
        address += step
        if step:
            yield address, 0 if line_step == 128 else line


def _varint(table: bytes, at: int) -> tuple[int, int]:
    """(value, next position): six bits a byte, lowest first, bit 6 set on all but the last."""
    value = shift = 0
    while at < len(table):
        byte = table[at]
        at += 1
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return value, at


def location_spans(first_line: int, table: bytes) -> Iterator[tuple[int, int]]:
    line, address, at = first_line, 0, 0
    while at < len(table):
        code, address = table[at] >> 3 & 15, address + ((table[at] & 7) + 1) * 2
        at += 1
        if code in (13, 14):  # no columns, or all of them: a signed line step first
            value, at = _varint(table, at)
            line += -(value >> 1) if value & 1 else value >> 1
        elif 10 <= code <= 12:  # one line form: 0, 1 or 2 lines on
            line += code - 10
        yield address, 0 if code == 15 else line
        while at < len(table) and not table[at] & 128:  # entries alone start with bit 7 set
            at += 1
