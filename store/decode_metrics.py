# SPDX-License-Identifier: Apache-2.0
"""OTLP metrics to a Batch: number points of gauges and sums; histograms and summaries are counted as ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from google.protobuf.message import DecodeError
from gpustrobe.proto.otlp import AggregationTemporality, DataPointFlags, ExportMetricsServiceRequest
from gpustrobe.store.batch import Batch, MetricSeries, Readings, digest64, label_set
from gpustrobe.store.decode import SECOND, any_text, check_time, described, resource_attributes
from gpustrobe.store.errors import Invalid

if TYPE_CHECKING:
    from gpustrobe.proto.otlp import Metric

_NO_VALUE = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK


class _Points:
    def __init__(self, now: int) -> None:
        self.now = now
        self.label_sets: dict[tuple, int] = {}
        self.metrics: dict[MetricSeries, int] = {}
        self.metric: list[int] = []
        self.time: list[int] = []
        self.value: list[float] = []
        self.ignored = 0

    def add(self, metric: Metric, resource: dict[str, str]) -> None:
        data = metric.WhichOneof("data")
        if data not in ("gauge", "sum"):
            self.ignored += len(getattr(metric, data).data_points) if data else 0
            return
        kind = _kind(metric) if data == "sum" else "gauge"
        for point in getattr(metric, data).data_points:
            which = point.WhichOneof("value")
            if which is None or point.flags & _NO_VALUE:
                self.ignored += 1
                continue
            attributes = {pair.key: any_text(pair.value) for pair in point.attributes}
            labels = self.label_sets.setdefault(label_set({**resource, **attributes}), len(self.label_sets))
            series = MetricSeries(metric.name, metric.unit, kind, labels)
            self.metric.append(self.metrics.setdefault(series, len(self.metrics)))
            self.time.append(check_time(point.time_unix_nano, self.now))
            self.value.append(float(getattr(point, which)))


def _kind(metric: Metric) -> str:
    delta = metric.sum.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    if delta:
        return "delta"
    return "cumulative" if metric.sum.is_monotonic else "gauge"


def decode_metrics(data: bytes, now: int) -> Batch:
    """Decode an ExportMetricsServiceRequest; `now` in Unix ns. Raises Invalid."""
    try:
        request = ExportMetricsServiceRequest.FromString(data)
    except DecodeError as error:
        raise Invalid("malformed", f"not an ExportMetricsServiceRequest: {error}") from None
    points = _Points(now)
    resources = []
    for resource in request.resource_metrics:
        every, labels = resource_attributes(resource.resource.attributes)
        resources.append((every.get("host.name", ""), described(every)))
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points.add(metric, labels)
    return Batch(
        digest=digest64(data),
        second=min(points.time, default=now) // SECOND,
        kind="metrics",
        label_sets=list(points.label_sets),
        metrics=list(points.metrics),
        resources=resources,
        ignored=points.ignored,
        readings=Readings(
            np.array(points.metric, dtype=np.int64),
            np.array(points.time, dtype=np.int64),
            np.array(points.value, dtype=np.float64),
        ),
    )
