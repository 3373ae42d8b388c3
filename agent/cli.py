# SPDX-License-Identifier: Apache-2.0
"""The `gpustrobe` command: a group that imports a command's module only when it runs (`--help` stays under 150 ms),
and the one place where errors become a sentence and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, NoReturn

import click
from gpustrobe.agent.errors import GpustrobeError

# name -> (section of the help, one line). The module is agent/commands/NAME.py, its command an attribute `command`.
COMMANDS = {
    "up": ("This machine", "Agent, store and page on this machine, in one command."),
    "record": ("This machine", "One profile into a file, without a store."),
    "run": ("This machine", "A command whose GPU kernels an agent can record."),
    "detail": ("This machine", "Record all kernels of this node without gaps for a while."),
    "dump": ("This machine", "Each thread's stack of a process, once."),
    "doctor": ("This machine", "What works here, what does not, and what to do."),
    "agent": ("Several machines", "Profile this node and send to a store."),
    "store": ("Several machines", "Receive, keep and show what agents send."),
    "query": ("Several machines", "Ask a running store: flame graph, top, series, labels."),
    "config": ("Settings", "Check a settings file and show what holds."),
}
MODULES = {"config": "config_check"}
EPILOG = """\b
Examples:
  sudo gpustrobe up                          profile this machine, open the page it names
  sudo gpustrobe record -d 30 -o cpu.html    30 seconds into a flame graph
  gpustrobe query top --match 'comm="python3"'

\b
Settings also come from GPUSTROBE_* variables and YAML files: gpustrobe config check --help.
Completion: eval "$(_GPUSTROBE_COMPLETE=bash_source gpustrobe)"   (or zsh_source, fish_source)
"""


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return importlib.import_module(f"gpustrobe.agent.commands.{MODULES.get(name, name)}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from gpustrobe.agent.config import nearest

            ctx.fail(f"there is no command {args[0]!r}{nearest(args[0], list(COMMANDS))}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """click turns a broken pipe into status 1; whoever left early (`| head`) has what they wanted."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise click.exceptions.Exit(0) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in dict.fromkeys(section for section, _ in COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl([(name, text) for name, (of, text) in COMMANDS.items() if of == section])


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from gpustrobe.agent.identity import version

        click.echo(f"gpustrobe {version()}")
        ctx.exit()


@click.group(
    cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version.")
def gpustrobe() -> None:
    """Continuous GPU and CPU profiler for Linux."""


def report(error: GpustrobeError) -> None:
    print(f"gpustrobe: {error.message}", file=sys.stderr)
    for line in error.fix.splitlines():
        print(f"  {line}", file=sys.stderr)


def _leave(code: int) -> NoReturn:
    """Exit once what was printed is out. A reader that left early (`| head`) is no fault of ours."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def main(arguments: list[str] | None = None) -> Any:
    try:
        result = gpustrobe.main(arguments, prog_name="gpustrobe", standalone_mode=False)
    except click.exceptions.Exit as leave:
        _leave(leave.exit_code)
    except click.ClickException as error:
        error.show()
        _leave(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _leave(130)
    except GpustrobeError as error:
        if os.environ.get("GPUSTROBE_DEBUG"):
            raise
        report(error)
        _leave(error.exit_code)
    _leave(result if isinstance(result, int) else 0)


if __name__ == "__main__":
    main()
