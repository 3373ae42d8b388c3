# SPDX-License-Identifier: Apache-2.0
"""PCIe bytes/s, best source first: byte counters, GPM, counters over a part of the interval, the driver's 20 ms.

Runs in the child process of agent/nvml.py only. Public programs that watch the byte counters take them as 32 bits wide,
and a fast link goes round that 15 times a second: then they say nothing about a whole interval.
"""

from __future__ import annotations

import time

import pynvml

TYPE_CHECKING = False
if TYPE_CHECKING:  # as typing.TYPE_CHECKING, without importing typing
    from nvml_calls import Device

# Bytes/s of one lane and direction by generation, line coding taken off; 1.1 below leaves room for rounding.
LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9, 7: 15.13e9}


class Impossible(Exception):
    """The driver said success and gave a value that cannot be."""


def rates(tx: float, rx: float, device: Device):
    """A rate beyond the link is a counter that was reset."""
    if max(tx, rx) > device.link:
        raise Impossible("PCIe rate beyond the link's")
    return {"gpu.pcie.tx": tx, "gpu.pcie.rx": rx}


def read_counters(device: Device) -> tuple[int, int, int]:
    """(monotonic ns, bytes sent, bytes received)."""
    fields = pynvml.nvmlDeviceGetFieldValues(
        device.handle, (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES)
    )
    for field in fields:
        if field.nvmlReturn:
            raise pynvml.NVMLError(field.nvmlReturn)
    counters = time.monotonic_ns(), *(field.value.ullVal for field in fields)
    # The type of the value proves nothing about the counter's width; only a value past 32 bits does.
    device.wide = device.wide or max(counters[1:]) >= 2**32
    return counters


def counter_rate(device: Device, before: tuple[int, int, int], after: tuple[int, int, int]):
    seconds, modulus = (after[0] - before[0]) / 1e9, 2**64 if device.wide else 2**32
    return rates(*((new - old) % modulus / seconds for old, new in zip(before[1:], after[1:], strict=True)), device)


def counters(device: Device):
    """Exact over the whole interval, if the counters cannot go round in it unseen."""
    clear = device.wide or device.window >= 1.2 * device.interval
    if not clear and device.counters and time.monotonic_ns() - device.counters[0] < 60e9:
        return None
    before, device.counters = device.counters, read_counters(device)
    if not (device.wide or clear):
        return None
    if before is None or (not device.wide and device.counters[0] - before[0] >= device.window * 1e9):
        return {}
    return counter_rate(device, before, device.counters)


def gpm_metrics(device: Device):
    if device.gpm is None:
        if not pynvml.nvmlGpmQueryDeviceSupport(device.handle).isSupportedDevice:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        get = pynvml.c_nvmlGpmMetricsGet_t()
        get.version, get.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 2
        get.metrics[0].metricId, get.metrics[1].metricId = (
            pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
            pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
        )
        device.gpm = [get, pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc(), 0.0]
    return device.gpm


def gpm(device: Device):
    """Hopper and later: the driver's own mean between two samples, which must be more than 100 ms apart."""
    gpm = gpm_metrics(device)
    get, old, new, at = gpm
    now = time.monotonic()
    if now - at < 0.105:
        return {}
    pynvml.nvmlGpmSampleGet(device.handle, new)
    gpm[1:] = new, old, now
    if not at or now - at > 10 * device.interval + 10:
        return {}
    get.sample1, get.sample2 = old, new
    pynvml.nvmlGpmMetricsGet(get)
    for metric in get.metrics[:2]:
        if metric.nvmlReturn:
            raise pynvml.NVMLError(metric.nvmlReturn)
    return rates(*(metric.value * 2**20 for metric in get.metrics[:2]), device)


class Later:
    """The rest of a reading that takes time: `finish` is called `after` seconds later, when all have been read."""

    def __init__(self, after: float, finish) -> None:
        self.after, self.finish = after, finish


def window(device: Device):
    """A part of each interval, short enough for a 32-bit counter on a fast link."""
    before = read_counters(device)
    return Later(device.window, lambda: counter_rate(device, before, read_counters(device)))


def throughput(device: Device):
    """The driver watches for 20 ms in each of the two calls. KB/s."""

    def finish():
        return rates(
            *(
                1000 * pynvml.nvmlDeviceGetPcieThroughput(device.handle, way)
                for way in (pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES)
            ),
            device,
        )

    return Later(0.0, finish)
