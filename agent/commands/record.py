# SPDX-License-Identifier: Apache-2.0
"""`gpustrobe record`: one profile into a file, without a store."""

from __future__ import annotations

import os
import sys
from datetime import datetime

import click
from gpustrobe.agent import options, output
from gpustrobe.agent.config import Settings
from gpustrobe.agent.errors import EnvironmentProblem, GpustrobeError, UsageError
from gpustrobe.agent.units import parse_duration

FORMS = tuple(output.EXTENSION)


class Seconds(click.ParamType):
    name = "DURATION"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return seconds if seconds > 0 else self.fail("must be more than nothing", param, ctx)


@click.command(
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog="""\b
Examples:
  sudo gpustrobe record -d 30                      the whole system, into a dated .html
  sudo gpustrobe record -p 4012 -d 1m -o cpu.pb.gz
  sudo gpustrobe record -o out.collapsed -- python3 train.py
  sudo gpustrobe record -d 10 -f collapsed -o - | head
  sudo gpustrobe record --off-cpu -p 4012 -d 30    where its threads wait, in wall time

Formats by suffix: .pb.gz (pprof), .collapsed, .speedscope.json, .html. Without -d: until CMD ends or Ctrl-C.
SIGUSR1 writes what there is so far. Exit status: CMD's own, or 128 + signal; 125, 126, 127 if CMD did not start.
""",
)
@options.settings("record")
@click.option(
    "-p",
    "--pid",
    "pids",
    type=click.IntRange(1),
    multiple=True,
    metavar="PID",
    help="Only this process; may be repeated.",
)
@click.option("-a", "--all", "everything", is_flag=True, help="The whole system, with CMD too.")
@click.option("-d", "--duration", "seconds", type=Seconds(), help="Stop after this long (5s, 2m).")
@click.option(
    "-o", "--output", "file", metavar="FILE", help="File to write; - is standard output.  [default: a dated name]"
)
@click.option("-f", "--format", "form", type=click.Choice(FORMS), help="Beats the suffix of FILE.")
@click.argument("command_words", nargs=-1, metavar="[-- CMD ...]", type=click.UNPROCESSED)
def command(
    settings: Settings,
    pids: tuple[int, ...],
    everything: bool,
    seconds: float | None,
    file: str | None,
    form: str | None,
    command_words: tuple[str, ...],
) -> int:
    """Record CPU stacks (or with --off-cpu, waits) of the whole system, of processes, or of a command, into one file."""
    form, file = _target(file, form)
    if command_words and pids:
        raise UsageError("Give either --pid or a command, not both.")
    if everything and pids:
        raise UsageError("Give either --pid or --all, not both.")
    from gpustrobe.agent import launch, recording, rights

    try:
        for pid in pids:
            if not os.path.exists(f"/proc/{pid}"):  # noqa: PTH110
                raise UsageError(f"There is no process {pid}.", "See: ps -e")
        rights.demand("gpustrobe record")
        if file != "-":
            output.check_writable(file)
        plan = recording.Plan(settings, pids, everything, seconds, file, form, command_words)
        return recording.run(plan)
    except launch.NotStarted:
        raise
    except GpustrobeError as error:
        if command_words:  # as `env` and `docker run`: 125 is our own failure, before CMD
            raise launch.NotStarted(launch.OWN_FAILURE, error.message, error.fix) from error
        raise


def _target(file: str | None, form: str | None) -> tuple[str, str]:
    """(format, file name); a dated name where none is given."""
    if file is None:
        form = form or "html"
        return form, output.dated_name(datetime.now(), form)
    found = form or output.form_of(file)
    if found is None and file == "-":
        found = "collapsed"
    if found is None:
        raise UsageError(
            f"{file}: its suffix names no format.",
            f"End it in {', '.join(output.EXTENSION.values())}, or give --format.",
        )
    if file == "-" and found == "pprof" and sys.stdout.isatty():
        raise UsageError("pprof is binary; this is a terminal.", "Name a file with -o profile.pb.gz, or pipe it.")
    return found, file


def deliver(content: bytes, file: str) -> None:
    if file != "-":
        output.write(file, content)
        return
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise EnvironmentProblem(f"standard output cannot be written: {error.strerror}.") from error
