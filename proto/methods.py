# SPDX-License-Identifier: Apache-2.0
"""Full gRPC method names by what is sent; free of imports, so that a sender of ready bytes needs no protobuf."""

from __future__ import annotations

METHODS = {
    "profiles": "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
