# SPDX-License-Identifier: Apache-2.0
"""`gpustrobe up`: agent, store and page on this machine."""

from __future__ import annotations

import getpass
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from gpustrobe.agent import options
from gpustrobe.agent.config import Settings

if TYPE_CHECKING:
    from gpustrobe.agent.cost import Cost
    from gpustrobe.agent.units import Address
    from gpustrobe.agent.wiring import Agent

COST_AFTER = 60.0  # seconds: names of all that runs on a machine are learnt in the first minute


@click.command(
    epilog="""\b
Examples:
  sudo gpustrobe up
  sudo gpustrobe up --data /srv/gpustrobe --retention 30d --max-size 50GB
  sudo gpustrobe up --http 0.0.0.0:7070        others may open the page; it has no password

Ctrl-C or SIGTERM ends it in order: nothing that was sampled is lost. A second Ctrl-C forces it.
"""
)
@options.settings("up")
def command(settings: Settings) -> int:
    """Profile this machine, keep the data here, and serve the page: one command, no configuration."""
    from gpustrobe.agent import rights

    rights.demand("gpustrobe up")
    from gpustrobe.agent import log, stopping
    from gpustrobe.agent.commands.store import StoreProcess, arguments

    logger = log.set_up(settings.log)
    stop = stopping.Stopping()
    store = StoreProcess(arguments(settings), logger)
    stop.install()
    ready = store.start()
    try:
        words = _run(settings, store, ready, stop, logger)
    finally:
        store.stop()
    logger.info("stopped; %s; all data is in %s", words, settings.data)
    return 0


def _run(settings: Settings, store: Any, ready: dict[str, Any], stop: Any, logger: logging.Logger) -> str:
    from gpustrobe.agent.units import parse_address
    from gpustrobe.agent.wiring import Agent

    http, grpc = parse_address(ready["http"]), reachable(parse_address(ready["grpc"]))
    agent = Agent(settings, grpc, logger, lambda: store.reaped_cpu)
    for line in banner(settings, http, agent):
        click.echo(line)
    agent.run(stop, _Tick(agent, store))
    return agent.last_words()


class _Tick:
    """About once a second: looks after the store, and once says what the agent costs."""

    def __init__(self, agent: Agent, store: Any) -> None:
        self._agent, self._store = agent, store
        self._started, self._said = time.monotonic(), False

    def __call__(self) -> None:
        self._store.watch()
        if not self._said and time.monotonic() - self._started > COST_AFTER:
            self._said = True
            click.echo(cost_line(self._agent.own.cost(), os.cpu_count() or 1))


def reachable(address: Address) -> Address:
    """Where to reach a server that listens on all interfaces."""
    from gpustrobe.agent.units import Address

    return Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host), address.port)


def banner(settings: Settings, http: Address, agent: Agent) -> Iterator[str]:
    """Where the page is, what is measured and what is not and why, where data lies."""
    near = reachable(http)
    local = near.host in ("127.0.0.1", "::1", "localhost")
    yield f"gpustrobe {agent.resource['service.version']} on {settings.node}"
    yield ""
    yield f"  page       http://{near if local else http}"
    if local:
        yield f"             from another machine: ssh -L {http.port}:{near} {getpass.getuser()}@{settings.node}"
    cpus = os.cpu_count() or 1
    yield f"  measured   CPU stacks of all processes, {settings.rate} a second on each of {cpus} CPUs, kernel included"
    if settings.off_cpu:
        yield f"             where threads wait, from {_span(settings.off_cpu_threshold)} on"
    for label, text in gpu_lines(agent):
        yield f"  {label:<10} {text}"
    kept = f"kept {_span(settings.retention)}, at most {_size(settings.max_size)}"
    yield f"  data       {settings.data}, {kept}"
    if agent.endpoint:
        yield f"  metrics    http://{reachable(replace(settings.metrics, port=agent.endpoint.port))}/metrics"
    yield "  stop       Ctrl-C; nothing is lost"
    yield ""


def _span(seconds: float) -> str:
    from gpustrobe.agent.units import show_duration

    return show_duration(seconds) if seconds else "for ever"


def _size(size: int) -> str:
    from gpustrobe.agent.units import show_size

    return show_size(size) if size else "as large as it gets"


def gpu_lines(agent: Agent) -> Iterator[tuple[str, str]]:
    state = agent.first_gpu_state()
    if state is None:
        yield "not", "GPUs: switched off (--no-gpu)"
    elif state.ok and state.devices:
        yield "", f"{len(state.devices)} GPUs: " + ", ".join(sorted({device.name for device in state.devices}))
        for device in state.devices:
            for name, reason in sorted(device.missing.items()):
                yield "not", f"GPU {device.index} {name}: {reason}"
    else:
        yield "not", f"GPUs: {state.text if not state.ok else 'none in this machine'}"
        if state.fix:
            yield "", state.fix


def cost_line(cost: Cost, cpus: int) -> str:
    """CPU of the agent's processes and of its BPF programs, of one core and of the machine."""
    cores = cost.cpu_cores + cost.bpf_cores
    memory = cost.memory / 2**20
    return (
        f"  own cost   {cores * 100:.2f} % of one core ({cores / cpus * 100:.2f} % of this machine; "
        f"{cost.bpf_cores * 100:.2f} % in the kernel), {memory:.0f} MiB; the store is not part of it"
    )
