# SPDX-License-Identifier: Apache-2.0
"""The agent's own Prometheus endpoint. Nothing is kept for it: each scrape reads what others hold anyway.

Importing this costs memory (prometheus-client brings an HTTP server), so import it only where `--metrics` asks for it.
"""

from __future__ import annotations

import importlib.metadata
import platform
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from gpustrobe.agent.cost import Cost
from gpustrobe.agent.errors import EnvironmentProblem
from gpustrobe.agent.model import Books, Reading
from gpustrobe.agent.nvml import NvmlState
from gpustrobe.agent.readings import BY_NAME, METRICS
from gpustrobe.bpf.drops import DROPS
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric, UnknownMetricFamily
from prometheus_client.registry import Collector

GPU_LABELS = ("gpu", "gpu_index", "gpu_name")
PROCESS_LABELS = ("pid", "comm", "gpu_instance")
ATTRIBUTES = {
    "gpu": "gpu.uuid",
    "gpu_index": "gpu.index",
    "gpu_name": "gpu.name",
    "pid": "process.pid",
    "comm": "process.executable.name",
    "gpu_instance": "gpu.instance",
}


@dataclass(frozen=True, slots=True)
class MetricsSources:
    """Where a scrape reads; each is a cheap snapshot that any thread may ask for. What is None is left out.

    `books` and `cost` are totals since the agent started.
    """

    node: str
    readings: Callable[[], Sequence[Reading]] | None = None
    books: Callable[[], Books] | None = None
    waits: Callable[[], Books] | None = None
    symbolizer: Callable[[], Mapping[str, int]] | None = None
    exporter: Callable[[], Mapping[str, int]] | None = None
    cost: Callable[[], Cost] | None = None
    nvml: Callable[[], NvmlState] | None = None


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


def _labelled(family: Metric, rows: Iterable[tuple[Sequence[str], float]]) -> Metric:
    for labels, value in rows:
        family.add_metric(labels, value)
    return family


def _split(values: Mapping[str, int], of: str) -> Iterator[Metric]:
    """Counters of a part of the agent, by the names that part gives them."""
    yield _labelled(
        UnknownMetricFamily(
            f"gpustrobe_{of}", f"what the {of} counts, by its own names: totals and present sizes", labels=("name",)
        ),
        (((name,), float(value)) for name, value in sorted(values.items())),
    )


def _reading_labels(metric_domain: bool, per_process: bool) -> tuple[str, ...]:
    return (*GPU_LABELS, *(("domain",) if metric_domain else ()), *(PROCESS_LABELS if per_process else ()))


def gpu_families(readings: Sequence[Reading]) -> Iterator[Metric]:
    """All series of the table, also those without a value now, so that their names are always there."""
    families: dict[str, GaugeMetricFamily] = {}
    for metric in METRICS:
        if metric.series not in families:
            text = metric.help if not metric.domain else "clock by domain"
            families[metric.series] = GaugeMetricFamily(
                metric.series, text, labels=_reading_labels(bool(metric.domain), metric.per_process)
            )
    for reading in readings:
        metric = BY_NAME.get(reading.name)
        if metric is None:
            continue
        values = {label: reading.attributes.get(attribute, "") for label, attribute in ATTRIBUTES.items()} | {
            "domain": metric.domain
        }
        labels = [values[label] for label in _reading_labels(bool(metric.domain), metric.per_process)]
        families[metric.series].add_metric(labels, reading.value * metric.factor)
    yield from families.values()


def book_families(books: Books) -> Iterator[Metric]:
    yield _counter("gpustrobe_samples_produced", "samples the kernel's timers called for", books.produced)
    yield _counter("gpustrobe_samples_idle", "samples of an idle CPU: counted, not taken", books.idle)
    yield _counter("gpustrobe_samples_filtered", "samples of processes that are not asked for", books.filtered)
    yield _counter("gpustrobe_samples_delivered", "samples handed on with their stack", books.delivered)
    drops = CounterMetricFamily(
        "gpustrobe_samples_dropped",
        "samples lost, by reason; produced = idle + filtered + delivered + these",
        labels=("reason", "where"),
    )
    unknown = {name: ("unknown", "") for name in books.drops if name not in DROPS}
    yield _labelled(
        drops, (((name, where), books.drops.get(name, 0)) for name, (where, _) in {**DROPS, **unknown}.items())
    )


def wait_families(books: Books) -> Iterator[Metric]:
    yield _counter("gpustrobe_waits_produced", "context switches: each ends a wait, or idleness", books.produced)
    yield _counter("gpustrobe_waits_idle", "switches to no thread", books.idle)
    yield _counter(
        "gpustrobe_waits_filtered", "waits below the threshold, first runs, processes not asked for", books.filtered
    )
    yield _counter("gpustrobe_waits_delivered", "waits of at least the threshold, handed on", books.delivered)
    yield _labelled(
        CounterMetricFamily(
            "gpustrobe_waits_dropped",
            "waits lost, by reason; produced = idle + filtered + delivered + these",
            labels=("reason", "where"),
        ),
        (((name, DROPS[name][0]), count) for name, count in books.drops.items() if name in DROPS),
    )


def cost_families(cost: Cost) -> Iterator[Metric]:
    yield _counter(
        "gpustrobe_agent_cpu_seconds", "CPU time of the agent's processes, user and system", cost.cpu_seconds
    )
    yield GaugeMetricFamily(
        "gpustrobe_agent_cpu_cores", "CPU of the agent's processes over the last interval", value=cost.cpu_cores
    )
    yield GaugeMetricFamily(
        "gpustrobe_agent_resident_bytes",
        "resident memory of the agent's processes; shared pages count in each",
        value=cost.resident,
    )
    yield GaugeMetricFamily("gpustrobe_agent_processes", "processes of the agent", value=cost.processes)
    yield _counter("gpustrobe_bpf_seconds", "time spent in the agent's BPF programs", cost.bpf.seconds)
    yield _counter("gpustrobe_bpf_runs", "runs of the agent's BPF programs", cost.bpf.runs)
    yield GaugeMetricFamily(
        "gpustrobe_bpf_cores", "CPU of the BPF programs over the last interval", value=cost.bpf_cores
    )
    yield GaugeMetricFamily("gpustrobe_bpf_map_bytes", "memory of the agent's BPF maps", value=cost.bpf.map_bytes)


def nvml_families(state: NvmlState) -> Iterator[Metric]:
    yield GaugeMetricFamily("gpustrobe_nvml_up", "1 if GPUs can be read", value=float(state.ok))
    yield _labelled(
        GaugeMetricFamily(
            "gpustrobe_nvml_state", "1 for the present state: ok, or why there are no GPU readings", labels=("state",)
        ),
        [((state.text.partition(" since ")[0],), 1.0)],
    )
    yield _labelled(
        GaugeMetricFamily("gpustrobe_gpu_up", "0 if nothing can be read from this GPU", labels=GPU_LABELS),
        (((device.uuid, str(device.index), device.name), float(not device.lost)) for device in state.devices),
    )
    yield _labelled(
        GaugeMetricFamily(
            "gpustrobe_gpu_reading_missing",
            "1 for each reading that a GPU does not give, with the reason",
            labels=("gpu", "gpu_index", "reading", "reason"),
        ),
        (
            ((device.uuid, str(device.index), name, reason), 1.0)
            for device in state.devices
            for name, reason in device.missing.items()
        ),
    )
    failures = ((name.partition(": ")[::2], count) for name, count in sorted(state.failures.items()))
    yield _labelled(
        CounterMetricFamily("gpustrobe_nvml_call_failures", "NVML calls that failed", labels=("call", "error")),
        failures,
    )
    yield _counter("gpustrobe_nvml_restarts", "NVML processes that died or were given up", state.restarts)
    yield GaugeMetricFamily(
        "gpustrobe_nvml_abandoned", "NVML processes that hang in the driver and cannot be ended", value=state.abandoned
    )
    yield _counter("gpustrobe_nvml_messages_lost", "messages of readings that were not taken in time", state.unread)


class AgentCollector(Collector):
    def __init__(self, sources: MetricsSources) -> None:
        self.sources = sources
        self.info = {
            "version": importlib.metadata.version("gpustrobe"),
            "python": platform.python_version(),
            "node": sources.node,
        }

    def collect(self) -> Iterator[Metric]:
        sources = self.sources
        yield InfoMetricFamily("gpustrobe_build", "this agent", value=self.info)
        if sources.readings is not None:
            yield from gpu_families(sources.readings())
        if sources.books is not None:
            yield from book_families(sources.books())
        if sources.waits is not None:
            yield from wait_families(sources.waits())
        if sources.symbolizer is not None:
            yield from _split(sources.symbolizer(), "symbolizer")
        if sources.exporter is not None:
            yield from _split(sources.exporter(), "exporter")
        if sources.cost is not None:
            yield from cost_families(sources.cost())
        if sources.nvml is not None:
            yield from nvml_families(sources.nvml())


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """As prometheus-client's own, but HTTPServer would look its name up, which takes seconds where no DNS answers."""

    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        self.address_family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        super().__init__(address[:2], _Handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = 30  # a client that says nothing does not keep its thread

    def log_message(self, format: str, *arguments: object) -> None:
        """Scrapes are not logged."""


class AgentMetrics:
    """The endpoint, from `start(host, port)` to `stop()`; port 0 takes a free one, which `port` then tells."""

    def __init__(self, sources: MetricsSources) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(AgentCollector(sources))
        self.port = 0
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self, host: str, port: int) -> None:
        try:
            self._server = _Server(host, port)
        except OSError as error:  # taken, not permitted, no such address; gaierror too
            raise EnvironmentProblem(
                f"the Prometheus endpoint cannot listen on {host}:{port}: {error.strerror or error}",
                "Give another address with --metrics HOST:PORT, or --metrics off.",
            ) from error
        self._server.set_app(make_wsgi_app(self.registry))
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        if self._thread is not None:
            self._thread.join(1)
        self._server = None
