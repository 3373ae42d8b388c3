# SPDX-License-Identifier: Apache-2.0
"""`gpustrobe query`: a running store's answers as text, collapsed stacks, pprof or JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import click
from gpustrobe.agent import options, tree_text
from gpustrobe.agent.client import Client
from gpustrobe.agent.config import Settings
from gpustrobe.agent.errors import UsageError

ALL_STACKS = 100_000  # the most rows /stacks gives; what it leaves out it counts, and we say


@click.group(
    epilog="""\b
Examples:
  gpustrobe query flamegraph --from -5m --match 'comm="python3"'
  gpustrobe query flamegraph --format collapsed > out.collapsed
  gpustrobe query top --limit 20
  gpustrobe query series --name gpu.utilization --by gpu
  gpustrobe query labels --format json | jq .labels.comm
"""
)
def command() -> None:
    """Ask a running store. Data goes to standard output, notes to standard error."""


def common(formats: tuple[str, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Options every query has: --store, --config, the range, matchers, --format."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(
            (
                options.settings("query"),
                click.option(
                    "--type",
                    "sample_type",
                    default="cpu",
                    metavar="TYPE",
                    help="cpu, off_cpu, gpu_time, gpu_idle ...  [default: cpu]",
                ),
                click.option(
                    "--from",
                    "start",
                    default="-5m",
                    metavar="TIME",
                    help="-5m, RFC 3339, or Unix time.  [default: -5m]",
                ),
                click.option("--to", "end", default="now", metavar="TIME", help="As --from.  [default: now]"),
                click.option(
                    "--match",
                    multiple=True,
                    metavar="MATCHERS",
                    help='comm="python3",pod!="x",script=~"train.*"; all must hold.',
                ),
                click.option("--node", metavar="NAME", help="Only this node."),
                click.option(
                    "-f", "--format", "form", type=click.Choice(formats), default="text", help="[default: text]"
                ),
            )
        ):
            function = option(function)
        return function

    return decorate


def tree_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--exclude", metavar="REGEX", help="Without stacks that have such a frame."),
        click.option("--focus", metavar="REGEX", help="Only stacks that have such a frame."),
    ):
        function = option(function)
    return function


def ask(
    settings: Settings,
    path: str,
    parameters: Iterable[tuple[str, Any]],
    sample_type: str,
    start: str,
    end: str,
    match: tuple[str, ...],
    node: str | None,
) -> dict[str, Any]:
    return Client(settings.api).get(
        path,
        [
            ("type", sample_type),
            ("from", start),
            ("to", end),
            *(("match", one) for one in match),
            ("node", node),
            *parameters,
        ],
    )


def say_empty(settings: Settings, what: str) -> None:
    click.echo(
        f"gpustrobe: no {what} in this range at {settings.api}; widen --from, or see `gpustrobe query labels`", err=True
    )


def show(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line, color=True)  # colour was decided by Look


def show_json(answer: dict[str, Any]) -> None:
    json.dump(answer, sys.stdout, separators=(",", ":"))
    sys.stdout.write("\n")


@command.command()
@common(("text", "collapsed", "pprof", "speedscope", "html", "json"))
@tree_options
@click.option("--lines", is_flag=True, help="Tell frames apart by line too.")
@click.option(
    "--min-share",
    type=click.FloatRange(0, 100),
    default=1.0,
    metavar="PERCENT",
    help="Text: leave out smaller branches.  [default: 1]",
)
@click.option("-o", "--output", metavar="FILE", help="Write to FILE; - is standard output.")
def flamegraph(
    settings: Settings,
    form: str,
    focus: str | None,
    exclude: str | None,
    lines: bool,
    min_share: float,
    output: str | None,
    **where: Any,
) -> None:
    """Where time went, as a tree."""
    look = tree_text.look_of(sys.stdout, os.environ) if output in (None, "-") else tree_text.Look(160)
    asked = [("focus", focus), ("exclude", exclude), ("lines", "1" if lines else None)]
    if form not in ("text", "json"):
        answer = ask(settings, "stacks", [*asked, ("limit", ALL_STACKS)], **where)
        empty = not answer["rows"]
        if answer.get("left_out"):
            rest = f"{answer['left_out']:,} smaller stacks did not fit; narrow the range or add --match"
            click.echo(f"gpustrobe: {rest}", err=True)
    else:
        answer = ask(settings, "flamegraph", asked, **where)
        empty = not answer["total"]
    if empty:
        say_empty(settings, f"{where['sample_type']} samples")
    _deliver(_rendered(form, answer, empty, look, min_share / 100, where["sample_type"]), output)


def _rendered(
    form: str, answer: dict[str, Any], empty: bool, look: tree_text.Look, min_share: float, sample_type: str
) -> bytes:
    if form == "json":
        return json.dumps(answer, separators=(",", ":")).encode() + b"\n"
    if form == "text":
        return (
            b"" if empty else "".join(line + "\n" for line in tree_text.flame_lines(answer, look, min_share)).encode()
        )
    from gpustrobe.agent import output
    from gpustrobe.agent.formats.stacks import from_answer

    return output.render(form, from_answer(answer, sample_type))


def _deliver(content: bytes, output: str | None) -> None:
    from gpustrobe.agent import output as outputs

    if output in (None, "-"):
        if content[:2] == b"\x1f\x8b" and sys.stdout.isatty():
            raise UsageError("pprof is binary; this is a terminal.", "Name a file with -o profile.pb.gz, or pipe it.")
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        outputs.write(output, content)


@command.command()
@common(("text", "json"))
@tree_options
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=30, metavar="N", help="Functions shown.  [default: 30]"
)
def top(settings: Settings, form: str, limit: int, focus: str | None, exclude: str | None, **where: Any) -> None:
    """Functions by their own time."""
    answer = ask(settings, "top", [("focus", focus), ("exclude", exclude), ("limit", limit)], **where)
    if not answer["rows"]:
        say_empty(settings, f"{where['sample_type']} samples")
    if form == "json":
        show_json(answer)
    elif answer["rows"]:
        show(tree_text.top_lines(answer, tree_text.look_of(sys.stdout, os.environ)))


@command.command()
@common(("text", "json"))
@click.option(
    "--name",
    default="cpu",
    metavar="METRIC",
    help="cpu (cores, from samples), gpu.utilization, gpu.power ...  [default: cpu]",
)
@click.option("--by", metavar="LABEL", help="One series per value of this label.")
@click.option(
    "--step",
    "step_ms",
    type=click.IntRange(1),
    metavar="SECONDS",
    help="Width of a point; by default so that the range fits.",
)
@click.option("--limit", type=click.IntRange(1, 200), default=8, metavar="N", help="Series shown.  [default: 8]")
def series(
    settings: Settings, form: str, name: str, by: str | None, step_ms: int | None, limit: int, **where: Any
) -> None:
    """A metric over time."""
    step = step_ms * 1000 if step_ms else None
    answer = ask(settings, "series", [("name", name), ("by", by), ("step_ms", step), ("limit", limit)], **where)
    if not answer["series"]:
        say_empty(settings, name)
    if form == "json":
        show_json(answer)
    elif answer["series"]:
        show(tree_text.series_lines(answer, tree_text.look_of(sys.stdout, os.environ)))


@command.command()
@common(("text", "json"))
@click.option("--name", metavar="LABEL", help="Only this label.")
def labels(settings: Settings, form: str, name: str | None, **where: Any) -> None:
    """Labels and their values, by samples."""
    answer = ask(settings, "labels", [("name", name)], **where)
    if not answer["labels"]:
        say_empty(settings, "labels")
    if form == "json":
        show_json(answer)
    elif answer["labels"]:
        show(tree_text.labels_lines(answer, tree_text.look_of(sys.stdout, os.environ)))
