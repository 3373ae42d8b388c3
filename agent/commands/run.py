# SPDX-License-Identifier: Apache-2.0
"""`gpustrobe run -- CMD`: CMD, with the library that records its kernels once an agent asks."""

from __future__ import annotations

import os
import signal
import sys

import click
from gpustrobe.agent.errors import GpustrobeError


@click.command(
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog="""\b
Examples:
  gpustrobe run -- python3 train.py
  gpustrobe run -- torchrun --nproc-per-node 8 train.py

CMD's children are recorded, too. It costs nothing until an agent (gpustrobe up) attaches. Exit status: CMD's own; 125,
126, 127 if CMD did not start.
""",
)
@click.argument("command_words", nargs=-1, metavar="-- CMD ...", required=True, type=click.UNPROCESSED)
def command(command_words: tuple[str, ...]) -> int:
    """Run CMD so that its GPU kernels can be recorded."""
    from gpustrobe.agent import injection, launch

    launch.check(command_words[0])
    try:
        added = injection.variables()
    except GpustrobeError as error:
        raise launch.NotStarted(launch.OWN_FAILURE, error.message, error.fix) from error
    if taken := injection.taken_by():
        click.echo(f"gpustrobe: {injection.VARIABLE} is {taken} already: GPU kernels are not recorded.", err=True)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these two; exec would pass that on
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    try:
        os.execvpe(command_words[0], list(command_words), {**os.environ, **added})
    except OSError as error:
        raise launch.refusal(command_words[0], error.errno or 0) from error
