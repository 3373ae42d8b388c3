# SPDX-License-Identifier: Apache-2.0
"""OTLP requests made with the official classes, for the store's tests, the bench and invented demo data.

builder = ProfilesBuilder({"host.name": "node-a"})
builder.window(second, [(labels, stack, value), ...])   # labels: OTLP attribute -> value; stack: Frames, leaf first
request = builder.request().SerializeToString()
"""

from __future__ import annotations

from typing import NamedTuple

from gpustrobe.proto.otlp import (
    AggregationTemporality,
    ExportMetricsServiceRequest,
    ExportProfilesServiceRequest,
    KeyValueAndUnit,
)

SECOND = 1_000_000_000
PERIOD = 9_973_013
DEVICE_KINDS = ("cuda", "collective", "copy")


class F(NamedTuple):
    """A frame as tests write it."""

    name: str
    kind: str = "native"
    module: str = ""
    file: str = ""
    line: int = 0
    reason: str = ""


class _Table:
    """Interns keys of one dictionary table; index 0 is the zero element."""

    def __init__(self, zero: object) -> None:
        self.index = {zero: 0}

    def __call__(self, key: object) -> int:
        return self.index.setdefault(key, len(self.index))


class ProfilesBuilder:
    def __init__(self, resource: dict[str, str] | None = None) -> None:
        self.message = ExportProfilesServiceRequest()
        self.resource = self.message.resource_profiles.add()
        for name, value in {"service.name": "gpustrobe", "service.version": "0.1.0", **(resource or {})}.items():
            self.resource.resource.attributes.add(key=name).value.string_value = value
        self.scope = self.resource.scope_profiles.add()
        self.strings, self.mappings, self.functions = _Table(""), _Table(0), _Table((0, 0, 0))
        self.attributes, self.locations, self.stacks = _Table((0, "")), _Table(None), _Table(())

    def window(
        self,
        second: int,
        samples: list[tuple[dict[str, str], tuple[F, ...], int]],
        sample_type: tuple[str, str] = ("samples", "count"),
        duration: int = SECOND,
        period: int = PERIOD,
    ) -> ProfilesBuilder:
        profile = self.scope.profiles.add(time_unix_nano=second * SECOND, duration_nano=duration, period=period)
        profile.sample_type.type_strindex = self.strings(sample_type[0])
        profile.sample_type.unit_strindex = self.strings(sample_type[1])
        profile.period_type.type_strindex, profile.period_type.unit_strindex = (
            self.strings("cpu"),
            self.strings("nanoseconds"),
        )
        for labels, stack, value in samples:
            profile.samples.add(
                stack_index=self.stacks(tuple(self.location(frame) for frame in stack)),
                attribute_indices=[self.attribute(name, text) for name, text in labels.items()],
                values=[value],
            )
        return self

    def attribute(self, name: str, value: str) -> int:
        return self.attributes((self.strings(name), value))

    def location(self, frame: F) -> int:
        attributes = [self.attribute("gpustrobe.frame.kind", frame.kind)]
        if frame.reason:
            attributes.append(self.attribute("gpustrobe.frame.reason", frame.reason))
        # Of what runs on a device, `file` is its full name (docs/architecture.md, "GPU data on the wire").
        full = frame.file if frame.kind in DEVICE_KINDS else ""
        function = self.functions(
            (self.strings(frame.name), self.strings("" if full else frame.file), self.strings(full))
        )
        mapping = self.mappings(self.strings(frame.module)) if frame.module else 0
        return self.locations((mapping, function, frame.line, tuple(attributes)))

    def request(self) -> ExportProfilesServiceRequest:
        table = self.message.dictionary
        for name in ("mapping", "location", "function", "link", "stack", "string", "attribute"):
            table.ClearField(f"{name}_table")
        table.string_table.extend(self.strings.index)
        table.link_table.add()
        for filename in self.mappings.index:
            table.mapping_table.add(filename_strindex=filename)
        for name, file, full in self.functions.index:
            table.function_table.add(name_strindex=name, filename_strindex=file, system_name_strindex=full)
        for key, value in self.attributes.index:
            item = KeyValueAndUnit(key_strindex=key)
            if key:
                item.value.string_value = value
            table.attribute_table.append(item)
        for key in self.locations.index:
            location = table.location_table.add()
            if key is not None:
                location.mapping_index = key[0]
                location.lines.add(function_index=key[1], line=key[2])
                location.attribute_indices.extend(key[3])
        for locations in self.stacks.index:
            table.stack_table.add(location_indices=locations)
        return self.message

    def bytes(self) -> bytes:
        return self.request().SerializeToString()


class MetricsBuilder:
    def __init__(self, resource: dict[str, str] | None = None) -> None:
        self.message = ExportMetricsServiceRequest()
        self.resource = self.message.resource_metrics.add()
        for name, value in {"service.name": "gpustrobe", "service.version": "0.1.0", **(resource or {})}.items():
            self.resource.resource.attributes.add(key=name).value.string_value = value
        self.scope = self.resource.scope_metrics.add()
        self.metrics: dict[str, object] = {}

    def gauge(self, name: str, time: float, value: float, unit: str = "", **attributes: str) -> MetricsBuilder:
        """`time` in Unix seconds; attributes with '__' for '.'."""
        metric = self.metrics.setdefault(name, None) or self._new(name, unit)
        self._point(metric.gauge.data_points.add(), time, value, attributes)
        return self

    def delta(self, name: str, time: float, value: int, unit: str = "", **attributes: str) -> MetricsBuilder:
        metric = self.metrics.setdefault(name, None) or self._new(name, unit)
        metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
        metric.sum.is_monotonic = True
        self._point(metric.sum.data_points.add(), time, value, attributes)
        return self

    def books(
        self, second: int, produced: int, idle: int, delivered: int, filtered: int = 0, **drops: int
    ) -> MetricsBuilder:
        for name, count in (("produced", produced), ("idle", idle), ("filtered", filtered), ("delivered", delivered)):
            self.delta(f"gpustrobe.samples.{name}", second, count)
        for reason, count in drops.items():
            self.delta("gpustrobe.samples.dropped", second, count, reason=reason)
        return self

    def _new(self, name: str, unit: str) -> object:
        self.metrics[name] = self.scope.metrics.add(name=name, unit=unit)
        return self.metrics[name]

    def _point(self, point: object, time: float, value: float, attributes: dict[str, str]) -> None:
        point.time_unix_nano = round(time * SECOND)
        if isinstance(value, int):
            point.as_int = value
        else:
            point.as_double = value
        for name, text in attributes.items():
            point.attributes.add(key=name.replace("__", ".")).value.string_value = str(text)

    def bytes(self) -> bytes:
        return self.message.SerializeToString()
