# SPDX-License-Identifier: Apache-2.0
"""Line of an instruction from a code object's line table, for CPython 3.9 to 3.14.

Formats, from CPython's Objects/lnotab_notes.txt and Objects/locations.md (3.11 on):
3.9   co_lnotab: pairs of unsigned address step, signed line step (bytes)
3.10  co_linetable: pairs of unsigned address step (bytes), signed line step; -128 = no line
3.11+ co_linetable: entries of a first byte 1 | code (4 bits) | length - 1 (3 bits, in code units of two bytes),
      then varints by code
"""

from __future__ import annotations


def line_of(version: tuple[int, int], first_line: int, table: bytes, offset: int) -> int:
    """The line that byte `offset` of the bytecode belongs to; 0 where the table gives none. Broken tables give 0 too.

    For 3.9 and 3.10 `offset` is frame.f_lasti as the interpreter keeps it: bytes in 3.9, code units in 3.10.
    """
    if offset >= 1 << 31:  # f_lasti is -1 before the first instruction
        return first_line
    if version < (3, 10):
        return _line_by_lnotab(first_line, table, offset)
    if version < (3, 11):
        return _line_by_pairs(first_line, table, offset * 2)
    return _line_by_locations(first_line, table, offset)


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def _line_by_lnotab(first_line: int, table: bytes, offset: int) -> int:
    line, address = first_line, 0
    for step, line_step in zip(table[::2], table[1::2], strict=False):
        address += step
        if address > offset:
            break
        line += _signed(line_step)
    return line


def _line_by_pairs(first_line: int, table: bytes, offset: int) -> int:
    line, address = first_line, 0
    for step, line_step in zip(table[::2], table[1::2], strict=False):
        no_line = line_step == 128
        if not no_line:
            line += _signed(line_step)
        address += step
        if address > offset:
            return 0 if no_line else line
    return 0


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


def _line_by_locations(first_line: int, table: bytes, offset: int) -> int:
    line, address, at = first_line, 0, 0
    while at < len(table):
        code, address = table[at] >> 3 & 15, address + ((table[at] & 7) + 1) * 2
        at += 1
        if code in (13, 14):  # no columns, or all of them: a signed line step first
            value, at = _varint(table, at)
            line += -(value >> 1) if value & 1 else value >> 1
        elif 10 <= code <= 12:  # one line form: 0, 1 or 2 lines on
            line += code - 10
        if address > offset:
            return 0 if code == 15 else line
        while at < len(table) and not table[at] & 128:  # entries alone start with bit 7 set
            at += 1
    return 0
