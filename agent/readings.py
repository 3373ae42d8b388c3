# SPDX-License-Identifier: Apache-2.0
"""The one table of device metrics. NVML, the wire, the Prometheus endpoint and the documentation all read it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """`unit` is UCUM, as OTLP wants it. `series` and `factor` give the value as Prometheus wants it, in base units."""

    name: str
    unit: str
    title: str  # on the page
    help: str
    series: str  # name in Prometheus; label `domain` keeps those apart that share one
    factor: float = 1.0
    domain: str = ""
    kind: str = "gauge"
    per_process: bool = False


METRICS: tuple[Metric, ...] = (
    Metric(
        "gpu.utilization",
        "%",
        "GPU busy",
        "share of time in which any kernel ran",
        "gpustrobe_gpu_utilization_ratio",
        0.01,
    ),
    Metric(
        "gpu.memory.utilization",
        "%",
        "Memory busy",
        "share of time in which device memory was read or written",
        "gpustrobe_gpu_memory_utilization_ratio",
        0.01,
    ),
    Metric(
        "gpu.memory.used",
        "By",
        "GPU memory",
        "device memory in use, without what the driver reserves",
        "gpustrobe_gpu_memory_used_bytes",
    ),
    Metric("gpu.memory.total", "By", "GPU memory, all", "device memory", "gpustrobe_gpu_memory_total_bytes"),
    Metric(
        "gpu.clock.sm",
        "MHz",
        "SM clock",
        "clock of the streaming multiprocessors",
        "gpustrobe_gpu_clock_hertz",
        1e6,
        "sm",
    ),
    Metric(
        "gpu.clock.memory", "MHz", "Memory clock", "clock of device memory", "gpustrobe_gpu_clock_hertz", 1e6, "memory"
    ),
    Metric(
        "gpu.clock.graphics", "MHz", "Graphics clock", "graphics clock", "gpustrobe_gpu_clock_hertz", 1e6, "graphics"
    ),
    Metric(
        "gpu.clock.video", "MHz", "Video clock", "clock of the video engines", "gpustrobe_gpu_clock_hertz", 1e6, "video"
    ),
    Metric(
        "gpu.power",
        "W",
        "Power",
        "power drawn by the board; an average over one second since Ampere",
        "gpustrobe_gpu_power_watts",
    ),
    Metric("gpu.power.limit", "W", "Power limit", "power limit in force", "gpustrobe_gpu_power_limit_watts"),
    Metric("gpu.temperature", "Cel", "Temperature", "temperature of the GPU", "gpustrobe_gpu_temperature_celsius"),
    Metric(
        "gpu.pcie.tx",
        "By/s",
        "PCIe out",
        "bytes the GPU sent over PCIe each second, protocol overhead included",
        "gpustrobe_gpu_pcie_transmit_bytes_per_second",
    ),
    Metric(
        "gpu.pcie.rx",
        "By/s",
        "PCIe in",
        "bytes the GPU received over PCIe each second, protocol overhead included",
        "gpustrobe_gpu_pcie_receive_bytes_per_second",
    ),
    Metric(
        "gpu.process.utilization",
        "%",
        "GPU busy by process",
        "share of time in which the process's kernels ran; absent while the process ran none",
        "gpustrobe_gpu_process_utilization_ratio",
        0.01,
        per_process=True,
    ),
    Metric(
        "gpu.process.memory",
        "By",
        "GPU memory by process",
        "device memory the process holds",
        "gpustrobe_gpu_process_memory_bytes",
        per_process=True,
    ),
)
BY_NAME = {metric.name: metric for metric in METRICS}
