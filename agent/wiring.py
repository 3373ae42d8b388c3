# SPDX-License-Identifier: Apache-2.0
"""The agent, put together from settings: what `up` and `agent` run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gpustrobe.agent import gpu_probe, identity, run, sampling
from gpustrobe.agent.channel import Endpoint
from gpustrobe.agent.control import Control
from gpustrobe.agent.cost import BpfCost, OwnCost
from gpustrobe.agent.encode import Encoder, encode_readings
from gpustrobe.agent.export import Exporter, ExporterOptions
from gpustrobe.agent.fold import Folder
from gpustrobe.agent.naming import Naming
from gpustrobe.agent.nvml import LOG, NvmlPoller
from gpustrobe.agent.own import OwnReadings

if TYPE_CHECKING:
    from gpustrobe.agent.config import Settings
    from gpustrobe.agent.gpu import GpuTime
    from gpustrobe.agent.model import Reading
    from gpustrobe.agent.nvml import NvmlState
    from gpustrobe.agent.units import Address

KEPT = 100_000  # of Encoder: about 20 MB
SWITCHED_OFF = "switched off (--no-gpu)"


class Agent:
    """Making one loads the sampler into the kernel and takes ports; it raises before anything is sampled."""

    def __init__(
        self, settings: Settings, store: Address, logger: logging.Logger, exempt_cpu: Callable[[], float] = float
    ) -> None:
        run.tune_heap()
        self.settings, self.logger = settings, logger
        self.sampler = sampling.open_sampler(
            settings.rate, (), settings.off_cpu_threshold if settings.off_cpu else None, settings.gpu_kernels != "off"
        )
        self.poller = NvmlPoller(settings.gpu_interval) if settings.gpu else None
        self.symbolizer = sampling.open_symbolizer(settings.symbol_cache)
        self.naming = Naming(self.symbolizer, Folder())
        self.gpu_time = self._gpu_time()
        self.control: Control | None = None
        self.resource = identity.resource(settings.node)
        self.encoder = Encoder(self.resource, kept=KEPT)
        self.exporter = Exporter(
            ExporterOptions(
                endpoint=endpoint(settings, store),
                queue_bytes=settings.queue_size,
                spool_folder=settings.data / "spool" if settings.spool_size else None,
                spool_bytes=settings.spool_size,
            )
        )
        cost = OwnCost(self.children, self._bpf, exempt=exempt_cpu)
        self.own = OwnReadings(cost, self.gpu_text, self._late)
        self.endpoint = self._open_endpoint()

    def _gpu_time(self) -> GpuTime | None:
        if self.settings.gpu_kernels == "off":
            return None
        from gpustrobe.agent import gpu

        return gpu.GpuTime(
            gpu.options_of(self.settings),
            self.sampler,
            self.symbolizer.demangle,
            self._gpu_indexes,
            gpu.rules_of(self.settings),
            possible=self._cuda_possible,
        )

    def _cuda_possible(self) -> bool:
        """Without a driver no program runs CUDA; where NVML is not asked (--no-gpu), one may."""
        return self.poller is None or self.poller.state.ok

    def _gpu_indexes(self) -> dict[str, str]:
        """UUID -> index of the GPUs that NVML knows."""
        devices = self.poller.state.devices if self.poller else ()
        return {device.uuid: str(device.index) for device in devices}

    def children(self) -> Iterable[int]:
        return [
            *(self.poller.pids() if self.poller else ()),
            *([self.symbolizer.child_pid] if self.symbolizer.child_pid else []),
        ]

    def first_gpu_state(self, patience: float = 3.0) -> NvmlState | None:
        """What NVML says once it has said something, or after `patience` seconds; None if it is switched off."""
        if self.poller is None:
            return None
        LOG.disabled = True  # the caller says it
        self.poller.start()
        deadline = time.monotonic() + patience
        while (state := self.poller.state).text == gpu_probe.STARTING and time.monotonic() < deadline:
            time.sleep(0.02)
            self.poller.poll()
        LOG.disabled = False
        return state

    def gpu_text(self) -> str:
        return self.poller.state.text if self.poller else SWITCHED_OFF

    def _bpf(self) -> BpfCost:
        counters = self.sampler.counters()
        get = counters.get
        mapped = 4 * get("words_used", 0) + 8 * get("rules_used", 0)
        return BpfCost(get("bpf_time_ns", 0) / 1e9, get("bpf_runs", 0), get("bpf_map_bytes", 0), mapped)

    def _late(self) -> dict[str, int]:
        return {**self.exporter.counters(), **self.encoder.counters()}

    def _open_endpoint(self) -> object | None:
        """The Prometheus endpoint, where one is asked for: prometheus-client costs 5 MB."""
        if self.settings.metrics is None:
            return None
        from gpustrobe.agent.metrics import AgentMetrics, MetricsSources

        endpoint = AgentMetrics(
            MetricsSources(
                node=self.settings.node,
                readings=self._latest_readings if self.poller else None,
                books=self.own.books,
                waits=(lambda: self.own.books("waits")) if self.settings.off_cpu else None,
                symbolizer=self.symbolizer.counters,
                exporter=self.exporter.counters,
                cost=self.own.cost,
                nvml=(lambda: self.poller.state) if self.poller else None,
            )
        )
        endpoint.start(self.settings.metrics.host, self.settings.metrics.port)
        return endpoint

    def _latest_readings(self) -> list[Reading]:
        return self.poller.latest(time.time_ns()) if self.poller else []

    def run(self, stopping: Callable[[], bool], tick: Callable[[], None] = lambda: None) -> None:
        """Until `stopping()`; then all that was sampled is with the store or on disk."""
        if self.poller:
            self.poller.start()
        self.exporter.start()
        sources: dict[str, run.Source] = {"own": self.own}
        if self.poller:
            sources["gpu"] = self.poller
        if self.gpu_time:
            self.gpu_time.start()
            sources["gpu time"] = self.gpu_time
            self.control = Control(self.gpu_time.detail)
            if self.control.trouble:
                self.logger.warning(self.control.trouble)
            self.control.start()
        closers = [self.poller.stop] if self.poller else []
        closers += [self.control.stop] if self.control else []
        closers += [self.symbolizer.close, *([self.endpoint.stop] if self.endpoint else [])]
        parts = run.Parts(
            self.sampler,
            self.naming,
            self.encoder,
            self.exporter,
            sources,
            lambda readings: encode_readings(readings, self.resource),
            self.own.observe,
            tuple(closers),
            self.gpu_time,
        )
        run.loop(parts, self.settings.export_interval, stopping, self.logger, lambda: self._tick(tick))

    def _tick(self, more: Callable[[], None]) -> None:
        if self.poller:
            self.poller.poll()
        more()

    def last_words(self) -> str:
        """What was sampled, lost, and not sent yet, in one sentence."""
        self.own.count_late()
        books, counters = self.own.books(), self.exporter.counters()
        lost = {name: count for name, count in books.drops.items() if count}
        losses = (
            f"{sum(lost.values()):,} lost ({', '.join(f'{n} {c:,}' for n, c in lost.items())})" if lost else "none lost"
        )
        waiting = counters.get("spool_batches", 0)
        rest = f", {waiting:,} batches wait on disk for the store" if waiting else ""
        waits = f", {self.own.books('waits').delivered:,} waits" if self.settings.off_cpu else ""
        return f"{books.delivered:,} samples{waits} delivered, {losses}{rest}"


def endpoint(settings: Settings, store: Address) -> Endpoint:
    """`up` talks to its own store on this machine, so only `agent` has settings for more than the address."""
    names = ("tls", "ca_file", "cert_file", "key_file", "token_file", "headers", "gzip")
    return Endpoint(str(store), **{name: settings.values[name] for name in names if name in settings.values})
