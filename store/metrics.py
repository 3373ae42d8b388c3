# SPDX-License-Identifier: Apache-2.0
"""The store's own Prometheus metrics, made from the engine's counters when asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpustrobe.store.errors import REFUSALS
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpustrobe.store.engine import Engine
    from prometheus_client.metrics_core import Metric

PREFIX = "gpustrobe_store"


class _Collector:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def collect(self) -> Iterator[Metric]:
        counters = self.engine.counters
        requests = CounterMetricFamily(f"{PREFIX}_requests", "OTLP requests received", labels=["kind"])
        for kind, count in counters.requests.items():
            requests.add_metric([kind], count)
        yield requests
        refused = CounterMetricFamily(
            f"{PREFIX}_refused",
            "Requests refused, by reason: " + "; ".join(f"{k}: {v}" for k, v in REFUSALS.items()),
            labels=["reason"],
        )
        for reason in REFUSALS:
            refused.add_metric([reason], counters.refused.get(reason, 0))
        yield refused
        for name, value, text in (
            ("duplicate_batches", counters.duplicates, "Batches that were stored already"),
            ("rows", counters.rows, "Sample rows stored"),
            ("samples", counters.values, "Sum of the values of stored samples"),
            ("points", counters.points, "Metric points stored"),
            ("ignored_points", counters.ignored, "Metric points of kinds that are not kept"),
            ("failed_commits", counters.failed_commits, "Commits that failed"),
            ("reopened", counters.reopened, "Times the database was opened again after a failure"),
        ):
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, value=value)
        yield SummaryMetricFamily(
            f"{PREFIX}_commit_seconds", "Time of commits", counters.commits, counters.commit_seconds
        )
        queries = SummaryMetricFamily(f"{PREFIX}_query_seconds", "Time of queries", labels=["query"])
        failed = CounterMetricFamily(
            f"{PREFIX}_failed_queries", "Queries that were not answered", labels=["query", "code"]
        )
        for name, (count, seconds) in list(counters.queries.items()):
            queries.add_metric([name], count, seconds)
        for (name, code), count in list(counters.failed_queries.items()):
            failed.add_metric([name, code], count)
        yield queries
        yield failed
        yield GaugeMetricFamily(
            f"{PREFIX}_waiting_bytes", "Bytes of requests that wait for the writer", counters.waiting_bytes
        )
        yield GaugeMetricFamily(f"{PREFIX}_data_bytes", "Bytes of data on disk", self.engine.used_bytes())
        yield GaugeMetricFamily(
            f"{PREFIX}_newest_timestamp_seconds", "End of the newest data", self.engine.state.newest / 1e9
        )


def exposition(engine: Engine) -> tuple[bytes, str]:
    """Body and content type."""
    registry = CollectorRegistry()
    registry.register(_Collector(engine))
    ProcessCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_LATEST
