# SPDX-License-Identifier: Apache-2.0
"""The agent's Prometheus endpoint, scraped over HTTP and parsed by prometheus-client."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from gpustrobe.agent.cost import BpfCost, Cost
from gpustrobe.agent.errors import EnvironmentProblem
from gpustrobe.agent.metrics import AgentMetrics, MetricsSources
from gpustrobe.agent.model import Books, Reading
from gpustrobe.agent.nvml import DeviceState, NvmlState
from gpustrobe.agent.readings import METRICS
from gpustrobe.bpf.drops import DROPS
from prometheus_client.parser import text_string_to_metric_families

GPU = {"gpu.uuid": "GPU-1", "gpu.index": "0", "gpu.name": 'NVIDIA "H200"\\n'}
GPU_LABELS = {"gpu": "GPU-1", "gpu_index": "0", "gpu_name": GPU["gpu.name"]}
PROCESS = {**GPU, "process.pid": "42", "process.executable.name": "python3"}


def reading(name, value, attributes=GPU):
    return Reading(name, "", 1, value, attributes)


READINGS = [
    *(reading(metric.name, 50.0) for metric in METRICS if not metric.per_process),
    reading("gpu.process.memory", 2048.0, PROCESS),
    reading("gpu.process.utilization", 25.0, {**PROCESS, "gpu.instance": "3"}),
]
STATE = NvmlState(
    True,
    "ok",
    devices=(
        DeviceState("GPU-1", 0, "H200", False, "", {}, {"gpu.pcie.tx": "Not Supported"}, {}),
        DeviceState("GPU-2", 1, "H200", False, "GPU is lost", {}, {}, {}),
    ),
    failures={"nvmlDeviceGetPowerUsage: Unknown Error": 3},
    restarts=2,
    abandoned=1,
    unread=4,
)
SOURCES = MetricsSources(
    "node-7",
    readings=lambda: READINGS,
    books=lambda: Books(100, 60, 5, 30, {"ring_full": 5}),
    symbolizer=lambda: {"resolved": 7},
    exporter=lambda: {"sent": 11, "queue_bytes": 12},
    cost=lambda: Cost(1, 12.5, BpfCost(0.75, 5000, 1 << 20), 0.004, 0.002, 90 << 20, 3),
    nvml=lambda: STATE,
)


@pytest.fixture
def serve():
    running = []

    def start(sources):
        metrics = AgentMetrics(sources)
        metrics.start("127.0.0.1", 0)
        running.append(metrics)
        return metrics

    yield start
    for metrics in running:
        metrics.stop()


def scrape(metrics):
    """Samples as {(name, labels): value}, and the families' types."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=5) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}
    return samples, {family.name: family.type for family in families}


def value(samples, name, /, **labels):
    return samples[name, frozenset(labels.items())]


def test_gpu_readings_in_base_units(serve):
    samples, types = scrape(serve(SOURCES))
    assert value(samples, "gpustrobe_gpu_utilization_ratio", **GPU_LABELS) == 0.5
    assert value(samples, "gpustrobe_gpu_clock_hertz", **GPU_LABELS, domain="memory") == 50e6
    assert value(samples, "gpustrobe_gpu_memory_used_bytes", **GPU_LABELS) == 50
    process = {**GPU_LABELS, "pid": "42", "comm": "python3"}
    assert value(samples, "gpustrobe_gpu_process_memory_bytes", **process, gpu_instance="") == 2048
    assert value(samples, "gpustrobe_gpu_process_utilization_ratio", **process, gpu_instance="3") == 0.25
    for metric in METRICS:
        assert types[metric.series] == "gauge"
        assert any(name == metric.series for name, _ in samples), metric.name


def test_every_drop_reason_is_always_there_and_the_books_close(serve):
    samples, types = scrape(serve(SOURCES))
    total = "gpustrobe_samples_dropped_total"
    drops = {name: value(samples, total, reason=name, where=where) for name, (where, _) in DROPS.items()}
    assert drops.pop("ring_full") == 5 and set(drops.values()) == {0}
    kinds = ("produced", "idle", "filtered", "delivered")
    told = {name: value(samples, f"gpustrobe_samples_{name}_total") for name in kinds}
    assert told["produced"] == told["idle"] + told["filtered"] + told["delivered"] + 5
    assert types["gpustrobe_samples_dropped"] == "counter"


def test_a_drop_reason_the_table_does_not_know_is_shown_all_the_same(serve):
    samples, _ = scrape(serve(MetricsSources("n", books=lambda: Books(1, 0, 0, 0, {"new": 1}))))
    assert value(samples, "gpustrobe_samples_dropped_total", reason="new", where="unknown") == 1


def test_own_cost(serve):
    samples, types = scrape(serve(SOURCES))
    assert value(samples, "gpustrobe_agent_cpu_seconds_total") == 12.5
    assert value(samples, "gpustrobe_agent_cpu_cores") == 0.004
    assert value(samples, "gpustrobe_agent_resident_bytes") == 90 << 20
    assert value(samples, "gpustrobe_bpf_seconds_total") == 0.75
    assert value(samples, "gpustrobe_bpf_runs_total") == 5000
    assert value(samples, "gpustrobe_bpf_map_bytes") == 1 << 20
    assert types["gpustrobe_agent_cpu_seconds"] == types["gpustrobe_bpf_runs"] == "counter"


def test_nvml_state(serve):
    samples, _ = scrape(serve(SOURCES))
    assert value(samples, "gpustrobe_nvml_up") == 1
    assert value(samples, "gpustrobe_nvml_state", state="ok") == 1
    assert value(samples, "gpustrobe_gpu_up", gpu="GPU-1", gpu_index="0", gpu_name="H200") == 1
    assert value(samples, "gpustrobe_gpu_up", gpu="GPU-2", gpu_index="1", gpu_name="H200") == 0
    missing = {"gpu": "GPU-1", "gpu_index": "0", "reading": "gpu.pcie.tx", "reason": "Not Supported"}
    assert value(samples, "gpustrobe_gpu_reading_missing", **missing) == 1
    failures = {"call": "nvmlDeviceGetPowerUsage", "error": "Unknown Error"}
    assert value(samples, "gpustrobe_nvml_call_failures_total", **failures) == 3
    assert [
        value(samples, f"gpustrobe_nvml_{name}") for name in ("restarts_total", "abandoned", "messages_lost_total")
    ] == [2, 1, 4]


def test_a_state_that_counts_seconds_is_one_series(serve):
    state = NvmlState(False, "the driver does not answer since 12 s (nvmlDeviceGetName, GPU 1)")
    samples, _ = scrape(serve(MetricsSources("n", nvml=lambda: state)))
    assert value(samples, "gpustrobe_nvml_state", state="the driver does not answer") == 1
    assert value(samples, "gpustrobe_nvml_up") == 0


def test_parts_counters_and_build(serve):
    samples, _ = scrape(serve(SOURCES))
    assert value(samples, "gpustrobe_symbolizer", name="resolved") == 7
    assert value(samples, "gpustrobe_exporter", name="queue_bytes") == 12
    (build,) = [dict(labels) for name, labels in samples if name == "gpustrobe_build_info"]
    assert build["node"] == "node-7" and build["version"] and build["python"]


def test_what_has_no_source_is_left_out(serve):
    samples, _ = scrape(serve(MetricsSources("n")))
    assert {name for name, _ in samples} == {"gpustrobe_build_info"}


def test_nothing_is_read_before_a_scrape(serve):
    asked = []
    metrics = serve(MetricsSources("n", readings=lambda: asked.append(1) or []))
    assert not asked
    scrape(metrics)
    scrape(metrics)
    assert len(asked) == 2


def test_a_port_that_is_taken_is_a_sentence(serve):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentProblem, match=f":{port}: Address already in use") as raised:
            AgentMetrics(SOURCES).start("127.0.0.1", port)
    assert raised.value.exit_code == 3 and "--metrics" in raised.value.fix


def test_a_host_that_does_not_exist_is_a_sentence():
    with pytest.raises(EnvironmentProblem, match="cannot listen on"):
        AgentMetrics(SOURCES).start("256.0.0.1.invalid", 0)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6():
    metrics = AgentMetrics(MetricsSources("n"))
    try:
        metrics.start("::1", 0)
    except EnvironmentProblem as error:
        pytest.skip(f"no IPv6 here: {error.message}")
    with urllib.request.urlopen(f"http://[::1]:{metrics.port}/metrics", timeout=5) as answer:
        assert b"gpustrobe_build_info" in answer.read()
    metrics.stop()


def test_stop_frees_the_port_and_is_idempotent():
    metrics = AgentMetrics(SOURCES)
    metrics.start("127.0.0.1", 0)
    port = metrics.port
    metrics.stop()
    metrics.stop()
    second = AgentMetrics(SOURCES)
    second.start("127.0.0.1", port)
    second.stop()
