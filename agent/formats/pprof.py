# SPDX-License-Identifier: Apache-2.0
"""Gzipped pprof (github.com/google/pprof/blob/main/proto/profile.proto), for `go tool pprof`, Pyroscope, Grafana, VS
Code.

CPU profiles have two values: samples/count and cpu/nanoseconds (samples times the period). Each sample carries its
labels as text. Mappings have build ids but no addresses: frames are named already, and one mapping stands for a file in
all processes.
"""

from __future__ import annotations

import gzip
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.proto import wire
from gpustrobe.proto.columns import Interned, Ragged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpustrobe.agent.formats.stacks import Stacks
    from gpustrobe.agent.model import Frame
    from numpy.typing import NDArray

# Field numbers of Profile.
SAMPLE_TYPE, SAMPLE, MAPPING, LOCATION, FUNCTION, STRINGS = range(1, 7)
TIME, DURATION, PERIOD_TYPE, PERIOD, COMMENT, DEFAULT_TYPE = range(9, 15)


class _Tables:
    """Everything by number, from 1: pprof keeps 0 for "none", as the string table does for ""."""

    def __init__(self) -> None:
        self.strings, self.mappings, self.functions, self.locations = Interned(), Interned(), Interned(), Interned()

    def string(self, text: str) -> int:
        return self.strings.add(text) if text else 0

    def location(self, run: tuple[Frame, ...]) -> int:
        """`run` is one frame, or inlined frames and the one they are inlined into, innermost first."""
        lines = tuple(self._line(frame) for frame in run)
        return self.locations.add((self.mapping(run[0]), run[0].address if run[0].reason else 0, lines))

    def mapping(self, frame: Frame | None) -> int:
        if frame is None or not (frame.module or frame.build_id):
            return 0
        return self.mappings.add((self.string(frame.module), self.string(frame.build_id)))

    def _line(self, frame: Frame) -> tuple[int, int]:
        return self.functions.add((self.string(frame.name), self.string(frame.file))), max(0, frame.line)


def main_module(stacks: Stacks) -> Frame | None:
    """A frame of the file where most of the time began; pprof takes the first mapping for the program's own."""
    values: dict[tuple[str, str], int] = {}
    frames: dict[tuple[str, str], Frame] = {}
    for row in stacks.rows:
        frame = next((f for f in (stacks.frames[i] for i in row.frames) if f.module and f.kind == "native"), None)
        if frame is not None:
            key = frame.module, frame.build_id
            frames[key] = frame
            values[key] = values.get(key, 0) + row.value
    return frames[max(values, key=values.__getitem__)] if values else None


class _Locator:
    """Locations of paths. Native frames at one address of one module are one location: inlined into each other.

    The same frame twice in a run is recursion through one call site, and begins another location.
    """

    def __init__(self, frames: tuple[Frame, ...], tables: _Tables) -> None:
        self._frames = frames
        self._tables = tables
        self._sites = [(f.module, f.build_id, f.address) if f.kind == "native" and f.address else None for f in frames]
        often = Counter(self._sites)
        self._shared = {place for place, site in enumerate(self._sites) if site and often[site] > 1}
        self._known: dict[tuple[int, ...], int] = {}

    def path(self, places: tuple[int, ...]) -> list[int]:
        """`places` leaf first."""
        return [self._location(run) for run in self._runs(places)]

    def _location(self, run: tuple[int, ...]) -> int:
        number = self._known.get(run)
        if number is None:
            number = self._known[run] = self._tables.location(tuple(self._frames[place] for place in run))
        return number

    def _runs(self, places: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
        if self._shared.isdisjoint(places):
            return zip(places, strict=True)
        runs: list[tuple[int, ...]] = []
        for place in places:
            site = self._sites[place]
            if runs and site and site == self._sites[runs[-1][0]] and place not in runs[-1]:
                runs[-1] = (*runs[-1], place)
            else:
                runs.append((place,))
        return runs


def render(stacks: Stacks) -> bytes:
    """The whole file. Raises nothing: what it is given has been checked."""
    tables = _Tables()
    tables.mapping(main_module(stacks))
    rows = Ragged()
    paths: dict[tuple[int, ...], int] = {}
    locate = _Locator(stacks.frames, tables)
    for row in stacks.rows:
        if row.frames not in paths:
            paths[row.frames] = rows.append(locate.path(row.frames[::-1]))
    types = _types(stacks)
    type_fields = b"".join(wire.chunk(SAMPLE_TYPE, _pair(tables, *pair)) for pair in types)
    samples = _samples(stacks, tables, rows, [paths[row.frames] for row in stacks.rows], len(types))
    head = _head(stacks, tables, types)
    body = type_fields + samples + _mappings(tables) + _locations(tables) + _functions(tables) + head
    strings = b"".join(wire.text(STRINGS, text) for text in ("", *tables.strings.ids))
    return gzip.compress(body + strings, 6, mtime=0)


def _types(stacks: Stacks) -> list[tuple[str, str]]:
    if stacks.sample_type == "cpu":
        return [("samples", "count"), ("cpu", "nanoseconds")] if stacks.period else [("samples", "count")]
    return [(stacks.sample_type, "count" if stacks.unit == "launches" else stacks.unit)]


def _pair(tables: _Tables, name: str, unit: str) -> bytes:
    return wire.integer(1, tables.string(name)) + wire.integer(2, tables.string(unit))


def _samples(stacks: Stacks, tables: _Tables, rows: Ragged, paths: list[int], width: int) -> bytes:
    locations, depths = rows.take(np.array(paths, np.int64))
    labels, label_counts = _labels(stacks, tables)
    value = np.fromiter((row.value for row in stacks.rows), np.uint64, len(stacks.rows))
    values = np.column_stack((value, value * np.uint64(stacks.period)))[:, :width]
    return wire.messages(
        SAMPLE,
        wire.packed(1, locations, depths),
        wire.packed(2, values.ravel(), np.full(value.size, width)),
        wire.nested(3, {1: labels[:, 0], 2: labels[:, 1]}, label_counts),
    )[0]


def _labels(stacks: Stacks, tables: _Tables) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """(key, text) of every label of every row as strings' numbers (m, 2), and how many each row has."""
    known: dict[int, list[tuple[int, int]]] = {}  # many rows share one mapping
    pairs: list[tuple[int, int]] = []
    counts = []
    for row in stacks.rows:
        own = known.get(id(row.labels))
        if own is None:
            own = known[id(row.labels)] = _label_numbers(tables, row.labels)
        pairs.extend(own)
        counts.append(len(own))
    return np.array(pairs, np.uint64).reshape(-1, 2), np.array(counts, np.int64)


def _label_numbers(tables: _Tables, labels: Mapping[str, str]) -> list[tuple[int, int]]:
    return [(tables.string(name), tables.string(value)) for name, value in labels.items() if value]


def _head(stacks: Stacks, tables: _Tables, types: list[tuple[str, str]]) -> bytes:
    comments = [f"gpustrobe {stacks.sample_type}" + (f" of {stacks.node}" if stacks.node else "")]
    comments += [stacks.loss] if stacks.loss else []
    fields = [wire.integer(TIME, stacks.start_unix), wire.integer(DURATION, stacks.duration)]
    if stacks.period:
        fields += [wire.chunk(PERIOD_TYPE, _pair(tables, "cpu", "nanoseconds")), wire.integer(PERIOD, stacks.period)]
    fields += [wire.integer(COMMENT, tables.string(comment)) for comment in comments]
    return b"".join(fields) + wire.integer(DEFAULT_TYPE, tables.string(types[-1][0]))


def _mappings(tables: _Tables) -> bytes:
    flags = b"".join(wire.integer(field, 1) for field in (7, 8, 9, 10))  # has functions, files, lines, inlined frames
    chunks = []
    for number, (module, build_id) in enumerate(tables.mappings.ids, 1):
        body = wire.integer(1, number) + wire.integer(5, module) + wire.integer(6, build_id) + flags
        chunks.append(wire.chunk(MAPPING, body))
    return b"".join(chunks)


def _locations(tables: _Tables) -> bytes:
    mappings, addresses, lines = zip(*tables.locations.ids, strict=True) if tables.locations.ids else ((), (), ())
    flat = np.array([line for location in lines for line in location], np.uint64).reshape(-1, 2)
    return wire.messages(
        LOCATION,
        wire.varint(1, np.arange(1, len(mappings) + 1)),
        wire.varint(2, np.array(mappings, np.uint64)),
        wire.varint(3, np.array(addresses, np.uint64)),
        wire.nested(4, {1: flat[:, 0], 2: flat[:, 1]}, [len(location) for location in lines]),
    )[0]


def _functions(tables: _Tables) -> bytes:
    pairs = np.array(list(tables.functions.ids), np.uint64).reshape(-1, 2)
    numbers = np.arange(1, len(pairs) + 1)
    name, file = pairs[:, 0], pairs[:, 1]
    # No system_name: where it equals the name, pprof takes it for mangled and strips <...> from it.
    return wire.messages(FUNCTION, wire.varint(1, numbers), wire.varint(2, name), wire.varint(4, file))[0]
