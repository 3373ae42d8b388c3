# SPDX-License-Identifier: Apache-2.0
"""A writer of the protobuf wire format (https://protobuf.dev/programming-guides/encoding) that works on columns.

Tags, lengths and integers are all varints, so a table of messages without text is one flat array of numbers: `varint`,
`packed` and `nested` lay out a field of every message at once, `messages` joins the fields, fills in the lengths and
encodes all of it in one go. Scalars, text and single messages are written with `integer`, `text` and `chunk`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

VARINT, FIXED64, LENGTH = 0, 1, 2
SURROGATES = re.compile("[\ud800-\udfff]")


class Part(NamedTuple):
    """One field of every message of a table: its numbers, message after message, and how many each message has (n,)."""

    numbers: NDArray[np.uint64]
    counts: NDArray[np.int64]


def encode_varint(value: int) -> bytes:
    """One varint; negative numbers take ten bytes, as int64 does."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer(field: int, value: int) -> bytes:
    return encode_varint(field << 3 | VARINT) + encode_varint(value)


def fixed64(field: int, value: int) -> bytes:
    return encode_varint(field << 3 | FIXED64) + value.to_bytes(8, "little")


def chunk(field: int, payload: bytes) -> bytes:
    """A length-delimited field: bytes or a whole message."""
    return encode_varint(field << 3 | LENGTH) + encode_varint(len(payload)) + payload


def text(field: int, value: str) -> bytes:
    """A string field.

    Lone surrogates, which file names and comms can hold, become U+FFFD: the format allows only UTF-8.
    """
    try:
        data = value.encode()
    except UnicodeEncodeError:
        data = SURROGATES.sub("\N{REPLACEMENT CHARACTER}", value).encode()
    return chunk(field, data)


def varint_sizes(values: NDArray) -> NDArray[np.int64]:
    """Encoded size of each value (any unsigned type) in bytes, 1 to 10; shape as `values`."""
    sizes = np.ones(values.shape, np.int64)
    top = int(values.max(initial=0))
    for shift in range(7, 64, 7):
        if top >> shift == 0:
            break
        sizes += values >= values.dtype.type(1 << shift)
    return sizes


def encode_varints(values: NDArray) -> bytes:
    """All values (any unsigned type) as varints, one after the other.

    A row of 7-bit groups per value, of which the needed ones are kept.
    """
    width = max(1, -(-int(values.max(initial=0)).bit_length() // 7))
    groups = np.empty((values.size, width), np.uint8)
    needed = np.ones((values.size, width), bool)
    groups[:, 0] = values
    for index in range(1, width):
        rest = values >> values.dtype.type(7 * index)
        groups[:, index] = rest
        np.not_equal(rest, 0, out=needed[:, index])
    groups &= 0x7F
    groups[:, :-1] |= needed[:, 1:].view(np.uint8) << 7
    return groups.ravel()[np.flatnonzero(needed)].tobytes()  # twice as fast as a boolean index on an irregular mask


def column(values: ArrayLike) -> NDArray:
    """As unsigned integers; 32 bits are kept, since a table without 64-bit numbers encodes about a third faster."""
    array = np.asarray(values)
    return array if array.dtype == np.uint32 else array.astype(np.uint64)


def varint(field: int, values: ArrayLike) -> Part:
    """An integer field, once in each message; `values` has shape (n,). Zero is written out."""
    values = column(values)
    numbers = np.empty((values.size, 2), values.dtype)
    numbers[:, 0] = field << 3 | VARINT
    numbers[:, 1] = values
    return Part(numbers.ravel(), np.full(values.size, 2, np.int64))


def packed(field: int, values: ArrayLike, counts: ArrayLike) -> Part:
    """A packed repeated integer field: counts[i] of `values` belong to message i."""
    values, per_row = column(values), np.asarray(counts, np.int64)
    ends = np.cumsum(per_row)
    sizes = np.zeros(values.size + 1, np.int64)
    np.cumsum(varint_sizes(values), out=sizes[1:])
    heads = ends - per_row + 2 * np.arange(per_row.size)
    numbers = np.empty(values.size + 2 * per_row.size, values.dtype)
    rest = np.ones(numbers.size, bool)
    rest[heads] = rest[heads + 1] = False
    numbers[heads] = field << 3 | LENGTH
    numbers[heads + 1] = sizes[ends] - sizes[ends - per_row]
    numbers[rest] = values
    return Part(numbers, per_row + 2)


def nested(field: int, columns: dict[int, ArrayLike], counts: ArrayLike) -> Part:
    """A repeated message field whose messages hold one integer under each field number of `columns` (shape (m,)
    each)."""
    per_row = np.asarray(counts, np.int64)
    fields = {number: column(values) for number, values in columns.items()}
    width = 2 + 2 * len(fields)
    numbers = np.empty((int(per_row.sum()), width), np.result_type(*fields.values()))
    numbers[:, 0] = field << 3 | LENGTH
    for index, (number, values) in enumerate(fields.items()):
        numbers[:, 2 + 2 * index] = number << 3 | VARINT
        numbers[:, 3 + 2 * index] = values
    numbers[:, 1] = varint_sizes(numbers[:, 2:]).sum(axis=1)
    return Part(numbers.ravel(), per_row * width)


def messages(field: int, *parts: Part) -> tuple[bytes, NDArray[np.int64]]:
    """A repeated message field made of `parts`, and the offset behind each message (n,)."""
    rows = parts[0].counts.size
    if rows == 0:
        return b"", np.zeros(0, np.int64)
    counts = sum((part.counts for part in parts), start=np.full(rows, 2, np.int64))
    heads = np.cumsum(counts) - counts
    numbers = np.zeros(int(counts.sum()), np.result_type(*(part.numbers for part in parts)))
    numbers[heads] = field << 3 | LENGTH
    if len(parts) == 1:
        rest = np.ones(numbers.size, bool)
        rest[heads] = rest[heads + 1] = False
        numbers[rest] = parts[0].numbers
    else:
        _interleave(numbers, heads + 2, parts)
    sizes = varint_sizes(numbers)
    lengths = np.add.reduceat(sizes, heads) - sizes[heads] - 1
    numbers[heads + 1] = lengths
    sizes[heads + 1] = varint_sizes(lengths.astype(np.uint64))
    return encode_varints(numbers), np.cumsum(lengths + sizes[heads] + sizes[heads + 1])


def _interleave(numbers: NDArray, at: NDArray[np.int64], parts: tuple[Part, ...]) -> None:
    """Write each part's share of message i to `numbers` from at[i] on, one part after the other."""
    for part in parts:
        before = np.cumsum(part.counts) - part.counts
        numbers[np.repeat(at - before, part.counts) + np.arange(part.numbers.size)] = part.numbers
        at = at + part.counts
