# SPDX-License-Identifier: Apache-2.0
"""The OTLP messages and services we speak, under the names of opentelemetry-proto 1.10 (profiles v1development).

Field numbers of `Sample` moved between revisions of the profiles signal, and a reader of another revision sees nothing
instead of an error. So importing this module fails unless `Sample.values` is field 4. The agent writes by field number
(agent/encode.py) and needs these classes only for answers; the store reads with them.
"""

from __future__ import annotations

from gpustrobe.proto.methods import METHODS
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
    ExportProfilesServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, DataPointFlags, Metric, NumberDataPoint
from opentelemetry.proto.profiles.v1development.profiles_pb2 import (
    Function,
    KeyValueAndUnit,
    Line,
    Location,
    Mapping,
    Profile,
    ProfilesDictionary,
    Sample,
    Stack,
    ValueType,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

__all__ = [
    "METHODS",
    "AggregationTemporality",
    "AnyValue",
    "DataPointFlags",
    "ExportMetricsServiceRequest",
    "ExportMetricsServiceResponse",
    "ExportProfilesServiceRequest",
    "ExportProfilesServiceResponse",
    "Function",
    "KeyValue",
    "KeyValueAndUnit",
    "Line",
    "Location",
    "Mapping",
    "Metric",
    "NumberDataPoint",
    "Profile",
    "ProfilesDictionary",
    "Resource",
    "Sample",
    "Stack",
    "ValueType",
    "check_revision",
]


def check_revision(sample_fields: dict[str, int]) -> None:
    """Raise ImportError unless `sample_fields` (name to number) are those of proto 1.10."""
    wanted = {"stack_index": 1, "attribute_indices": 2, "link_index": 3, "values": 4, "timestamps_unix_nano": 5}
    if sample_fields != wanted:
        raise ImportError(
            "opentelemetry-proto has another revision of the profiles signal: "
            f"Sample is {sample_fields}, wanted {wanted}. Install opentelemetry-proto>=1.43."
        )


check_revision({field.name: field.number for field in Sample.DESCRIPTOR.fields})
