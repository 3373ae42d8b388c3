# SPDX-License-Identifier: Apache-2.0
"""`gpustrobe config check FILE`."""

from __future__ import annotations

import json

import click
from gpustrobe.agent import config


@click.group()
def command() -> None:
    """Settings files."""


@command.command(
    epilog="""\b
Examples:
  gpustrobe config check /etc/gpustrobe/config.yaml
  GPUSTROBE_RATE=50 gpustrobe config check agent.yaml
"""
)
@click.argument("file", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(file: str | None, as_json: bool) -> int:
    """Print the value of every setting and where it comes from; exit 2 if anything in FILE or the environment is wrong.

    Without FILE the files that commands read unasked are checked.
    """
    problems: list[str] = []
    effective = config.load(None, {}, config=file, problems=problems)
    rows = [
        (setting, setting.kind.show(effective.values[setting.name]), effective.sources[setting.name])
        for setting in config.SETTINGS
        if setting.name in effective.values
    ]
    if as_json:
        click.echo(
            json.dumps(
                {
                    "settings": {setting.name: {"value": value, "source": source} for setting, value, source in rows},
                    "problems": problems,
                },
                indent=2,
            )
        )
    else:
        names = max(len(setting.name) for setting, _, _ in rows)
        values = max(len(value) for _, value, _ in rows)
        for setting, value, source in rows:
            click.echo(f"{setting.name:<{names}}  {value:<{values}}  {source}")
        for problem in problems:
            click.echo(f"gpustrobe: {problem}", err=True)
    return 2 if problems else 0
