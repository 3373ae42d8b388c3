# SPDX-License-Identifier: Apache-2.0
"""The column writer of the wire format against protobuf's own classes."""

from __future__ import annotations

import numpy as np
from google.protobuf.internal import encoder
from gpustrobe.proto import otlp, wire
from hypothesis import given
from hypothesis import strategies as st

U64 = st.integers(0, 2**64 - 1)
U31 = st.integers(0, 2**31 - 1)


def reference(value: int) -> bytes:
    out = bytearray()
    encoder._EncodeVarint(out.extend, value)
    return bytes(out)


@given(st.lists(U64 | st.sampled_from([0, 127, 128, 2**14 - 1, 2**14, 2**63])))
def test_varints_of_any_width(values):
    array = np.array(values, np.uint64)
    assert wire.encode_varints(array) == b"".join(map(reference, values))
    assert wire.varint_sizes(array).tolist() == [len(reference(value)) for value in values]


@given(st.integers(-(2**63), 2**64 - 1))
def test_one_varint(value):
    assert wire.encode_varint(value) == reference(value % 2**64)


ROWS = st.tuples(U31, st.lists(U31, max_size=5), st.lists(st.tuples(U31, U31), max_size=3))


@given(st.lists(ROWS))
def test_tables_of_messages_decode(rows):
    """Location has every shape the writer knows: integers, packed lists and messages, none of them always there."""
    lines = [line for row in rows for line in row[2]]
    data, ends = wire.messages(
        2,
        wire.varint(2, [row[0] for row in rows]),
        wire.nested(3, {1: [line[0] for line in lines], 2: [line[1] for line in lines]}, [len(row[2]) for row in rows]),
        wire.packed(4, [value for row in rows for value in row[1]], [len(row[1]) for row in rows]),
    )
    table = otlp.ProfilesDictionary.FromString(data).location_table
    read = [
        (r.address, list(r.attribute_indices), [(line.function_index, line.line) for line in r.lines]) for r in table
    ]
    assert read == rows
    assert len(ends) == len(rows) and (not rows or ends[-1] == len(data))
    starts = [0, *ends.tolist()][:-1]
    for start, end, row in zip(starts, ends.tolist(), rows, strict=True):
        assert otlp.ProfilesDictionary.FromString(data[start:end]).location_table[0].address == row[0]


def test_32_bit_columns_stay_narrow_and_decode():
    part = wire.packed(1, np.array([1, 2, 300], np.uint32), [1, 2])
    assert part.numbers.dtype == np.uint32
    stacks = otlp.ProfilesDictionary.FromString(wire.messages(7, part)[0]).stack_table
    assert [list(stack.location_indices) for stack in stacks] == [[1], [2, 300]]


def test_text_that_is_no_utf8_is_replaced():
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert otlp.ProfilesDictionary.FromString(wire.text(5, name)).string_table[0] == "caf\N{REPLACEMENT CHARACTER}"
    assert otlp.ProfilesDictionary.FromString(wire.text(5, "a\ud800b")).string_table[0].startswith("a")
