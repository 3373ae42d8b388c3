# SPDX-License-Identifier: Apache-2.0
"""What the encoder remembers of frames, stacks and label sets between batches, and the OTLP dictionary it writes of
them.

A request holds only what its rows use, so requests stand alone. What is remembered is the translation: each distinct
`Frame` object, stack tuple and label mapping is turned into numbers once (found again by identity; a reference is kept,
so an id() cannot be given away), and a request's tables are then made by numpy from columns (gpustrobe.proto.wire).

Inlined frames: a run of native frames at one address of one module is one Location with several Lines, innermost first.
The same frame twice in a run is recursion through one call site, and starts a new Location.

`Location.address` is written where a name is missing, so that the frame can still be named later. Elsewhere it would be
that of the first of many samples merged into the line or function: no information, and different in each request for
the same frame.
"""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from gpustrobe.proto import wire
from gpustrobe.proto.columns import Interned, Ragged, local_numbers, view

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpustrobe.agent.model import Frame
    from numpy.typing import NDArray

# Field numbers of ProfilesDictionary.
MAPPINGS, LOCATIONS, FUNCTIONS, LINKS, STRINGS, ATTRIBUTES, STACKS = range(1, 8)

BUILD_ID, FRAME_KIND, FRAME_REASON = "process.executable.build_id.gnu", "gpustrobe.frame.kind", "gpustrobe.frame.reason"
DEVICE_KINDS = ("cuda", "collective", "copy")
CONTAINER_ID = re.compile(r"[0-9a-f]{12}")
# Label name -> OTLP attribute (docs/architecture.md). Any other label keeps its name.
ATTRIBUTE_NAMES = {
    "service": "service.name",
    "namespace": "k8s.namespace.name",
    "pod": "k8s.pod.name",
    "container": "container.name",
    "comm": "process.executable.name",
    "script": "gpustrobe.process.script",
    "pid": "process.pid",
    "tid": "thread.id",
    "thread": "thread.name",
    "gpu": "gpu.uuid",
    "gpu_index": "gpu.index",
    "stream": "gpu.stream",
    "category": "gpu.category",
    "graph": "gpu.graph",
}


def attribute_name(label: str, value: str) -> str:
    if label == "container" and CONTAINER_ID.fullmatch(value):
        return "container.id"
    return ATTRIBUTE_NAMES.get(label, label)


class Dictionary:
    """Tables for the life of an encoder, or until `size` passes what its owner allows and it makes a new one."""

    def __init__(self, pinned: Sequence[str] = ()) -> None:
        """`pinned` strings stand in every request, at places 1, 2, ..."""
        self._kept: list[object] = []  # what is known by id()
        self._strings = Interned()
        self._string_chunks = [b""]
        for value in (*pinned, BUILD_ID, FRAME_KIND, FRAME_REASON, *ATTRIBUTE_NAMES.values(), "container.id"):
            self._string(value)
        self._pinned = len(self._strings)
        self._attributes = Interned()
        self._attribute_keys = array("I", [0])
        self._attribute_values = [b""]  # field `value`
        self._attribute_chunks: list[bytes | None] = [b""]  # whole, where the key is pinned
        self._functions, self._function_columns = Interned(), (array("I", [0]), array("I", [0]))
        self._full_names = array("I", [0])  # of functions, see _function
        self._mappings, self._mapping_columns = Interned(), (array("I", [0]), array("I", [0]))
        self._frames: dict[int, int] = {}  # id(frame) -> number
        self._frame_numbers = Interned()
        self._frame_rows: list[tuple[Frame, int]] = []  # (frame, mapping)
        self._sites: list[tuple[int, int]] = []  # of each frame: mapping and address
        self._frames_at: dict[tuple[int, int], list[int]] = {}
        self._shared: set[int] = set()  # native frames that share their site with another
        self._single: list[int] = []  # location of each frame when it stands alone
        self._locations = Interned()
        self._location_mapping, self._location_address = array("I", [0]), array("Q", [0])
        self._location_kind, self._location_reason = array("I", [0]), array("I", [0])
        self._location_functions, self._location_lines = Ragged(), Ragged()
        self._location_functions.append(())
        self._location_lines.append(())
        self._stacks: dict[int, int] = {}
        self._stack_rows = Ragged()
        self._label_sets: dict[int, int] = {}
        self._label_rows = Ragged()

    @property
    def size(self) -> int:
        """Numbers held for stacks, and objects kept; about 4 and 200 bytes each."""
        return len(self._stack_rows.values) // 50 + len(self._kept)

    # Objects to numbers, once each.

    def stacks(self, stacks: Sequence[tuple[Frame, ...]]) -> NDArray[np.int64]:
        return self._numbers(self._stacks, self._add_stack, stacks)

    def label_sets(self, label_sets: Sequence[Mapping[str, str]]) -> NDArray[np.int64]:
        return self._numbers(self._label_sets, self._add_labels, label_sets)

    @staticmethod
    def _numbers(known: dict[int, int], add: Callable, values: Sequence) -> NDArray[np.int64]:
        numbers = list(map(known.get, map(id, values)))
        if None in numbers:
            numbers = [add(value) if number is None else number for number, value in zip(numbers, values, strict=True)]
        return np.array(numbers, np.int64)

    def _add_stack(self, stack: tuple[Frame, ...]) -> int:
        self._kept.append(stack)
        number = self._stacks[id(stack)] = self._stack_rows.append(self._locations_of(stack))
        return number

    def _add_labels(self, labels: Mapping[str, str]) -> int:
        self._kept.append(labels)
        row = [self._attribute(attribute_name(name, value), value) for name, value in labels.items()]
        number = self._label_sets[id(labels)] = self._label_rows.append(row)
        return number

    def _locations_of(self, stack: tuple[Frame, ...]) -> list[int]:
        numbers = list(map(self._frames.get, map(id, stack)))
        if None in numbers:
            numbers = [self._add_frame(f) if n is None else n for n, f in zip(numbers, stack, strict=True)]
        if self._shared.isdisjoint(numbers):  # no two of these frames stand at one address: nothing is inlined
            return list(map(self._single.__getitem__, numbers))
        return self._runs(numbers)

    def _runs(self, numbers: list[int]) -> list[int]:
        out: list[int] = []
        run: tuple[int, ...] = ()
        for number in numbers:
            inlined = number in self._shared
            if run and not (inlined and number not in run and self._sites[number] == self._sites[run[0]]):
                out.append(self._location(run))
                run = ()
            if inlined:
                run = (*run, number)
            else:
                out.append(self._single[number])
        return [*out, self._location(run)] if run else out

    def _add_frame(self, frame: Frame) -> int:
        number = self._frame_numbers.add(frame) - 1
        self._frames[id(frame)] = number
        self._kept.append(frame)
        if number == len(self._frame_rows):
            mapping = self._mapping(frame.module, frame.build_id) if frame.module or frame.build_id else 0
            self._frame_rows.append((frame, mapping))
            self._sites.append((mapping, frame.address))
            if frame.address and frame.kind == "native":
                at_site = self._frames_at.setdefault((mapping, frame.address), [])
                at_site.append(number)
                if len(at_site) > 1:
                    self._shared.update(at_site)
            self._single.append(self._location((number,)))
        return number

    def _location(self, run: tuple[int, ...]) -> int:
        return self._locations.ids.get(run) or self._add_location(run)

    def _add_location(self, run: tuple[int, ...]) -> int:
        number = self._locations.add(run)
        frames = [self._frame_rows[index][0] for index in run]
        first = frames[0]
        self._location_mapping.append(self._frame_rows[run[0]][1])
        self._location_address.append(first.address & (1 << 64) - 1 if first.reason else 0)
        self._location_kind.append(self._attribute(FRAME_KIND, first.kind))
        self._location_reason.append(self._attribute(FRAME_REASON, first.reason) if first.reason else 0)
        self._location_functions.append([self._function(frame) for frame in frames])
        self._location_lines.append([max(0, frame.line) for frame in frames])
        return number

    def _function(self, frame: Frame) -> int:
        """What runs on a device has no file; `Frame.file` holds its full name, which goes where linkers' names do."""
        on_device = frame.kind in DEVICE_KINDS
        name, text = self._string(frame.name), self._string(frame.file)
        number = self._functions.add((name, text, on_device))
        if number == len(self._full_names):
            self._function_columns[0].append(name)
            self._function_columns[1].append(0 if on_device else text)
            self._full_names.append(text if on_device else 0)
        return number

    def _mapping(self, module: str, build_id: str) -> int:
        attribute = self._attribute(BUILD_ID, build_id) if build_id else 0
        return self._pair(self._mappings, self._mapping_columns, self._string(module), attribute)

    @staticmethod
    def _pair(table: Interned, columns: tuple[array, array], first: int, second: int) -> int:
        number = table.add((first, second))
        if number == len(columns[0]):
            columns[0].append(first)
            columns[1].append(second)
        return number

    def _string(self, value: str) -> int:
        if not value:
            return 0
        number = self._strings.add(value)
        if number == len(self._string_chunks):
            self._string_chunks.append(wire.text(STRINGS, value))
        return number

    def _attribute(self, name: str, value: str) -> int:
        number = self._attributes.add((name, value))
        if number == len(self._attribute_keys):
            key = self._string(name)
            self._attribute_keys.append(key)
            self._attribute_values.append(wire.chunk(2, wire.text(1, value)))
            self._attribute_chunks.append(self._attribute_chunk(number, key) if key < self._pinned else None)
        return number

    def _attribute_chunk(self, number: int, key: int) -> bytes:
        return wire.chunk(ATTRIBUTES, wire.integer(1, key) + self._attribute_values[number])

    # Numbers to one request's tables.

    def tables(self, stacks: NDArray, label_sets: NDArray) -> Tables:
        """What a request needs for these stacks and label sets: numbers as returned above, each once."""
        locations, depths = self._stack_rows.take(stacks)
        labels, label_counts = self._label_rows.take(label_sets)
        used, place = local_numbers(locations, len(self._locations))
        columns = _Locations(
            view(self._location_mapping)[used],
            view(self._location_address)[used],
            view(self._location_kind)[used],
            view(self._location_reason)[used],
            *self._location_functions.take(used),
            self._location_lines.take(used)[0],
        )
        mappings, mapping_place = local_numbers(columns.mapping, len(self._mappings))
        functions, function_place = local_numbers(columns.functions, len(self._functions))
        names, files = (view(column)[functions] for column in self._function_columns)
        full = view(self._full_names)[functions]
        modules, build_ids = (view(column)[mappings] for column in self._mapping_columns)
        attribute_ids = np.concatenate((columns.kind, columns.reason, build_ids, labels))
        attributes, attribute_place = local_numbers(attribute_ids, len(self._attributes))
        keys = view(self._attribute_keys)[attributes]
        string_ids = np.concatenate((np.arange(self._pinned), names, full, files, modules, keys))
        strings, string_place = local_numbers(string_ids, len(self._strings))
        parts = [
            b"\x0a\x00",
            _mapping_table(string_place[modules], attribute_place[build_ids]),
            b"\x12\x00",
            _location_table(columns, mapping_place, function_place, attribute_place),
            b"\x1a\x00",
            _function_table(string_place[names], string_place[full], string_place[files]),
            b"\x22\x00\x2a\x00",
            *[self._string_chunks[number] for number in strings.tolist()],
            b"\x32\x00",
            *self._attribute_table(attributes, string_place[keys]),
            b"\x3a\x00",
            wire.messages(STACKS, wire.packed(1, place[locations], depths))[0],
        ]
        return Tables(b"".join(parts), attribute_place[labels], np.cumsum(label_counts))

    def _attribute_table(self, attributes: NDArray, keys: NDArray) -> list[bytes]:
        numbers = attributes.tolist()
        chunks = [self._attribute_chunks[number] for number in numbers]
        if None in chunks:
            triples = zip(chunks, numbers, keys.tolist(), strict=True)
            return [
                chunk if chunk is not None else self._attribute_chunk(number, key) for chunk, number, key in triples
            ]
        return chunks


class Tables(NamedTuple):
    """A request's ProfilesDictionary, and the places of its label sets' attributes, label set after label set."""

    dictionary: bytes
    attributes: NDArray[np.uint32]
    attribute_ends: NDArray[np.int64]


class _Locations(NamedTuple):
    """Columns of the locations of a request (n,), and of their lines (m,); ids of the Dictionary."""

    mapping: NDArray[np.uint32]
    address: NDArray[np.uint64]
    kind: NDArray[np.uint32]
    reason: NDArray[np.uint32]
    functions: NDArray[np.uint32]
    line_counts: NDArray[np.int64]  # (n,)
    lines: NDArray[np.uint32]


def _mapping_table(modules: NDArray, build_ids: NDArray) -> bytes:
    has = build_ids > 0
    return wire.messages(MAPPINGS, wire.varint(4, modules), wire.packed(5, build_ids[has], has))[0]


def _function_table(names: NDArray, full: NDArray, files: NDArray) -> bytes:
    return wire.messages(FUNCTIONS, wire.varint(1, names), wire.varint(2, full), wire.varint(3, files))[0]


def _location_table(columns: _Locations, mappings: NDArray, functions: NDArray, attributes: NDArray) -> bytes:
    own = attributes[np.column_stack((columns.kind, columns.reason))]
    has = own > 0
    return wire.messages(
        LOCATIONS,
        wire.varint(1, mappings[columns.mapping]),
        wire.varint(2, columns.address),
        wire.nested(3, {1: functions[columns.functions], 2: columns.lines}, columns.line_counts),
        wire.packed(4, own[has], has.sum(axis=1)),
    )[0]
