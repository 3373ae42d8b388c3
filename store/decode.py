# SPDX-License-Identifier: Apache-2.0
"""OTLP profiles (v1development, proto 1.10) to a Batch. Pure: checks every index, changes nothing.

One Python step per sample, location and function of the request; hashing and interning are vectorized later. The loop
over samples costs about 1 us each.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING

import numpy as np
from google.protobuf.message import DecodeError
from gpustrobe.proto.otlp import ExportProfilesServiceRequest
from gpustrobe.store.batch import Batch, Columns, ProfileWindow, SampleType, digest64, label_set
from gpustrobe.store.errors import Invalid
from gpustrobe.store.schema import TYPE_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpustrobe.proto.otlp import AnyValue, Profile, ProfilesDictionary

EARLIEST = 1_577_836_800_000_000_000  # 2020-01-01
DAY = 86_400_000_000_000
SECOND = 1_000_000_000
MAX_DEPTH = 4096  # frames of a stack, inlined ones included; the agent's own limit is 384 frames before inlining
# Frames of what runs on a device have no source file; in its place stands the full name (docs/architecture.md).
DEVICE_KINDS = ("cuda", "collective", "copy")
_TYPE_NAME = re.compile(r"[a-z][a-z0-9_.]{0,63}")

# Attributes of our own agent's resource that are no labels of its samples.
_AGENT = "gpustrobe"
_NO_LABELS = frozenset({"host.id", "service.name", "service.version", "service.instance.id", "gpustrobe.loss"})


def check_time(time: int, now: int) -> int:
    """`time` (Unix ns) itself; refused before 2020 and more than a day after `now`."""
    if not EARLIEST <= time <= now + DAY:
        side = "before 2020" if time < EARLIEST else "more than a day ahead of the store's clock"
        raise Invalid("bad_time", f"time {time} ns is {side}")
    return time


def any_text(value: AnyValue) -> str:
    """An attribute's value as text: lists and maps as JSON, bytes as base64."""
    kind = value.WhichOneof("value")
    if kind is None:
        return ""
    if kind == "string_value":
        return value.string_value
    if kind == "bool_value":
        return "true" if value.bool_value else "false"
    if kind in ("int_value", "double_value"):
        return str(getattr(value, kind))
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {item.key: _plain(item.value) for item in value.kvlist_value.values}
    return any_text(value)


def resource_attributes(pairs: Iterable) -> tuple[dict[str, str], dict[str, str]]:
    """(all attributes, those that become labels). Our agent's own service is no label: `service` is that of the
    profiled program."""
    every = {pair.key: any_text(pair.value) for pair in pairs}
    ours = every.get("service.name") == _AGENT
    kept = {name: value for name, value in every.items() if name == "host.name" or not (ours and name in _NO_LABELS)}
    if not ours:
        kept = {name: value for name, value in kept.items() if not name.startswith(("telemetry.", "service.version"))}
    return every, kept


def checked(indices: list[int], size: int, table: str) -> None:
    """Refuse indices outside a table. Index 0 means "not set", so it is taken even when the table is empty."""
    if indices and not (min(indices) >= 0 and max(indices) < max(size, 1)):
        bad = next(index for index in indices if not 0 <= index < max(size, 1))
        raise out_of_range(bad, size, table)


class _Dictionary:
    """The request's dictionary as columns: strings, attributes, frames and stacks."""

    def __init__(self, dictionary: ProfilesDictionary) -> None:
        self._check_zero(dictionary)
        self.strings = list(dictionary.string_table) or [""]
        self.attributes = [self._attribute(item) for item in dictionary.attribute_table] or [("", "")]
        self.functions: dict[tuple[str, str, str, str, str], int] = {}
        self.frames: dict[tuple[int, int], int] = {}
        self._read_frames(dictionary)

    def _check_zero(self, dictionary: ProfilesDictionary) -> None:
        for name in ("mapping", "location", "function", "link", "attribute", "stack"):
            table = getattr(dictionary, f"{name}_table")
            if table and table[0].ByteSize():
                raise Invalid("bad_zero", f"{name}_table[0] is not the zero element: index 0 would be ambiguous")
        if dictionary.string_table and dictionary.string_table[0]:
            raise Invalid("bad_zero", 'string_table[0] is not ""')

    def string(self, index: int) -> str:
        if not 0 <= index < len(self.strings):
            raise Invalid("bad_index", f"index {index} is outside string_table, which has {len(self.strings)} elements")
        return self.strings[index]

    def _attribute(self, item: object) -> tuple[str, str]:
        return self.string(item.key_strindex), any_text(item.value)

    def pairs(self, indices: Iterable[int]) -> dict[str, str]:
        listed = list(indices)
        checked(listed, len(self.attributes), "attribute_table")
        return {name: value for name, value in (self.attributes[index] for index in listed) if name}

    def _read_frames(self, dictionary: ProfilesDictionary) -> None:
        modules = [self.string(item.filename_strindex).rsplit("/", 1)[-1] for item in dictionary.mapping_table] or [""]
        functions = [
            (self.string(f.name_strindex), self.string(f.filename_strindex), self.string(f.system_name_strindex))
            for f in dictionary.function_table
        ] or [("", "", "")]
        # A location is a run of frames, callers first: location_frames[starts[i]:starts[i + 1]].
        located, starts = [], [0]
        seen: dict[tuple, tuple[str, str]] = {}
        for location in dictionary.location_table or [None]:
            if location is not None and len(starts) > 1:
                located.extend(self._location(location, modules, functions, seen))
            starts.append(len(located))
        self._expand(dictionary, np.array(located, dtype=np.int64), np.array(starts, dtype=np.int64))

    def _location(
        self,
        location: object,
        modules: list[str],
        functions: list[tuple[str, str, str]],
        seen: dict[tuple, tuple[str, str]],
    ) -> list[int]:
        mapping = location.mapping_index
        if not 0 <= mapping < len(modules):
            raise out_of_range(mapping, len(modules), "mapping_table")
        module, key = modules[mapping], tuple(location.attribute_indices)
        described = seen.get(key)
        if described is None:
            described = seen[key] = _kind_and_reason(self.pairs(key))
        kind, reason = described
        frames = []
        for line in location.lines:
            index = line.function_index
            if not 0 <= index < len(functions):
                raise out_of_range(index, len(functions), "function_table")
            name, file, system = functions[index]
            if kind in DEVICE_KINDS and name:
                file = file or (system if system != name else "")
            name = name or system or _place(module, location.address)
            frames.append(self._frame((name, kind, module, file, reason), line.line))
        if not frames:
            frames.append(self._frame((_place(module, location.address), kind, module, "", reason or "no symbol"), 0))
        return frames[::-1]

    def _frame(self, function: tuple[str, str, str, str, str], line: int) -> int:
        number = self.functions.setdefault(function, len(self.functions))
        return self.frames.setdefault((number, line if 0 < line < 1 << 31 else 0), len(self.frames))

    def _expand(self, dictionary: ProfilesDictionary, located: np.ndarray, starts: np.ndarray) -> None:
        """Stacks of locations, leaf first, to stacks of frames, root first."""
        lengths, locations = [], []
        for stack in dictionary.stack_table or [None]:
            before = len(locations)
            if stack is not None:
                locations.extend(stack.location_indices)
            lengths.append(len(locations) - before)
        where, length = np.array(locations, dtype=np.int64), np.array(lengths, dtype=np.int64)
        table = len(starts) - 1
        if len(where) and not (where.min() >= 0 and where.max() < table):
            raise out_of_range(int(where[(where < 0) | (where >= table)][0]), table, "location_table")
        bounds = np.concatenate(([0], np.cumsum(length)))
        turned = np.repeat(bounds[:-1] + bounds[1:] - 1, length) - np.arange(len(where))
        where = where[turned]
        sizes = starts[where + 1] - starts[where]
        ends = np.concatenate(([0], np.cumsum(sizes)))
        self.stack_offsets = ends[bounds]
        if (deepest := int(np.diff(self.stack_offsets).max(initial=0))) > MAX_DEPTH:
            raise Invalid("too_deep", f"a stack has {deepest} frames, more than {MAX_DEPTH}")
        self.stack_frames = located[np.repeat(starts[where] - ends[:-1], sizes) + np.arange(ends[-1])]


def out_of_range(index: int, size: int, table: str) -> Invalid:
    return Invalid("bad_index", f"index {index} is outside {table}, which has {size} elements")


def _kind_and_reason(attributes: dict[str, str]) -> tuple[str, str]:
    kind = attributes.get("gpustrobe.frame.kind") or _KINDS.get(attributes.get("profile.frame.type", ""), "native")
    return kind, attributes.get("gpustrobe.frame.reason", "")


# OpenTelemetry's profile.frame.type, for senders that are not our agent.
_KINDS = {"cpython": "python", "kernel": "kernel", "native": "native", "cuda": "cuda", "gpu": "cuda"}


def _place(module: str, address: int) -> str:
    return f"{module or '[unknown]'}+{address:#x}"


def _type(dictionary: _Dictionary, profile: Profile) -> SampleType:
    name, unit = (
        dictionary.string(profile.sample_type.type_strindex),
        dictionary.string(profile.sample_type.unit_strindex),
    )
    name = TYPE_NAMES.get((name, unit), name)
    if not _TYPE_NAME.fullmatch(name):
        raise Invalid("bad_type", f"sample type {name[:64]!r} is no name: lower-case letters, digits, '_' and '.'")
    if unit in ("count", "") and name == "cpu":
        return SampleType(name, "samples", max(profile.period, 1))
    return SampleType(name, unit, 1)


class _Rows:
    """Sample rows of all profiles of a request, collected as lists."""

    def __init__(self, dictionary: _Dictionary, now: int) -> None:
        self.dictionary, self.now = dictionary, now
        self.second: list[int] = []
        self.type: list[int] = []
        self.labels: list[int] = []
        self.stack: list[int] = []
        self.value: list[int] = []
        self.label_sets: dict[tuple, int] = {}
        self.types: dict[SampleType, int] = {}
        self.windows: list[ProfileWindow] = []

    def add(self, profile: Profile, node: str, labels: dict[str, str]) -> None:
        start, duration = check_time(profile.time_unix_nano, self.now), min(profile.duration_nano, DAY)
        second = check_time(start + duration // 2, self.now) // SECOND
        kind = _type(self.dictionary, profile)
        number = self.types.setdefault(kind, len(self.types))
        if profile.attribute_indices:
            labels = {**labels, **self.dictionary.pairs(profile.attribute_indices)}
        before, samples = len(self.value), profile.samples
        seen: dict[tuple[int, ...], int] = {}
        for sample in samples:
            key = tuple(sample.attribute_indices)
            label = seen.get(key)
            if label is None:
                label = seen[key] = self._label_set({**labels, **self.dictionary.pairs(key)})
            if sample.timestamps_unix_nano:
                self._add_events(sample, label)
                continue
            values = sample.values
            if not values:
                raise Invalid(
                    "bad_value", "a sample has neither value nor timestamps (another revision of OTLP profiles?)"
                )
            self.second.append(second)
            self.labels.append(label)
            self.stack.append(sample.stack_index)
            self.value.append(values[0] if len(values) == 1 else self._sum(values))
        self.type.extend([number] * (len(self.value) - before))
        total = sum(self.value[before:])
        if total >= 1 << 62 or min(self.value[before:], default=0) < 0:
            raise Invalid("bad_value", "a sample's value is negative or beyond 2^62")
        self.windows.append(ProfileWindow(second, number, node, start, duration, total))

    def _sum(self, values: Iterable[int]) -> int:
        if min(values) < 0:
            raise Invalid("bad_value", "a sample's value is negative")
        return sum(values)

    def _add_events(self, sample: object, label: int) -> None:
        """Timestamped observations: each belongs to the second it happened in; without values each counts one."""
        times, values = list(sample.timestamps_unix_nano), list(sample.values)
        if values and len(values) != len(times):
            raise Invalid("bad_value", f"a sample has {len(values)} values for {len(times)} timestamps")
        by_second: dict[int, int] = {}
        for position, time in enumerate(times):
            second = check_time(time, self.now) // SECOND
            value = values[position] if values else 1
            if value < 0:
                raise Invalid("bad_value", "a sample's value is negative")
            by_second[second] = by_second.get(second, 0) + value
        for second, value in by_second.items():
            self.second.append(second)
            self.labels.append(label)
            self.stack.append(sample.stack_index)
            self.value.append(value)

    def _label_set(self, attributes: dict[str, str]) -> int:
        return self.label_sets.setdefault(label_set(attributes), len(self.label_sets))

    def columns(self) -> Columns:
        checked(self.stack, len(self.dictionary.stack_offsets) - 1, "stack_table")
        lists = (self.second, self.type, self.labels, self.stack, self.value)
        return Columns(*(np.array(values, dtype=np.int64) for values in lists))


def decode_profiles(data: bytes, now: int) -> Batch:
    """Decode an ExportProfilesServiceRequest; `now` in Unix ns. Raises Invalid."""
    try:
        request = ExportProfilesServiceRequest.FromString(data)
    except DecodeError as error:
        raise Invalid("malformed", f"not an ExportProfilesServiceRequest: {error}") from None
    dictionary = _Dictionary(request.dictionary)
    rows = _Rows(dictionary, now)
    resources = []
    for resource in request.resource_profiles:
        every, labels = resource_attributes(resource.resource.attributes)
        node = every.get("host.name", "")
        resources.append((node, described(every)))
        for scope in resource.scope_profiles:
            for profile in scope.profiles:
                rows.add(profile, node, labels)
    samples = rows.columns()
    second = min((window.second for window in rows.windows), default=now // SECOND)
    return Batch(
        digest=digest64(data),
        second=second,
        kind="profiles",
        label_sets=list(rows.label_sets),
        functions=list(dictionary.functions),
        frame_function=np.array([function for function, _ in dictionary.frames], dtype=np.int64),
        frame_line=np.array([line for _, line in dictionary.frames], dtype=np.int64),
        stack_offsets=dictionary.stack_offsets,
        stack_frames=dictionary.stack_frames,
        types=list(rows.types),
        samples=samples,
        windows=rows.windows,
        resources=resources,
    )


def described(attributes: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """What describes a node: its resource attributes without the books, which differ in every batch."""
    return tuple(sorted((name, value) for name, value in attributes.items() if name != "gpustrobe.loss"))
