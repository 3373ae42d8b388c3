# SPDX-License-Identifier: Apache-2.0
"""`gpustrobe detail`: asks the running agent to record all kernels for a while."""

from __future__ import annotations

import click


@click.command(
    epilog="""\b
Examples:
  gpustrobe detail --seconds 10

Between windows a kernel costs its process nothing; recorded, 1 to 3 us a launch (CUPTI 12: up to 20 % of throughput).
"""
)
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True, metavar="N")
def command(seconds: float) -> None:
    """Record all GPU kernels of this node without gaps for N seconds, then go on as before."""
    from gpustrobe.agent import control

    answer = control.ask(seconds)
    count = int(answer.get("processes", 0))
    what = f"{count} CUDA process{'' if count == 1 else 'es'}"
    if not count:
        click.echo("no CUDA process with the library runs here; start it with: gpustrobe run -- CMD", err=True)
        return
    click.echo(f"recording all kernels of {what} for {seconds:g} s", err=True)
    for line in answer.get("costs", ()):
        click.echo(f"  {line}", err=True)
