# SPDX-License-Identifier: Apache-2.0
"""`gpustrobe agent`: profiles this node and sends to a store elsewhere."""

from __future__ import annotations

import click
from gpustrobe.agent import options
from gpustrobe.agent.config import Settings


@click.command(
    epilog="""\b
Examples:
  sudo gpustrobe agent --store store.example:4317
  sudo gpustrobe agent --store 127.0.0.1:4317 --metrics :9407 --log json

It starts and stays up without the store and without a GPU: what cannot be sent waits in memory and on disk, within
--queue-size and --spool-size. SIGTERM sends the rest and exits 0.
"""
)
@options.settings("agent")
def command(settings: Settings) -> int:
    """Profile this node and send to a store: ours, or any receiver of OTLP profiles and metrics."""
    from gpustrobe.agent import rights

    rights.demand("gpustrobe agent")
    from gpustrobe.agent import log, stopping, wiring

    logger = log.set_up(settings.log)
    stop = stopping.Stopping()
    agent = wiring.Agent(settings, settings.store, logger)
    stop.install()
    logger.info("sampling at %d Hz, sending to %s", settings.rate, settings.store)
    agent.run(stop)
    logger.info("stopped; %s", agent.last_words())
    return 0
