# SPDX-License-Identifier: Apache-2.0
"""The table of settings as click options."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click
from gpustrobe.agent import config
from gpustrobe.agent.config import Kind, Setting


class KindType(click.ParamType):
    """A click type that parses as its `Kind` does, so all sources of a setting accept the same text."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.name = kind.metavar

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.kind.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _option(setting: Setting) -> Callable[[Any], Any]:
    default = setting.default_text or (setting.default if isinstance(setting.default, str) else "")
    text = f"{setting.help}  [default: {default}]" if default else setting.help
    if setting.kind is config.SWITCH:
        return click.option(setting.options[0], setting.name, default=None, help=text)
    return click.option(*setting.options, setting.name, type=KindType(setting.kind), default=None, help=text)


def settings(command: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command its settings' options and --config, and passes the effective `Settings` as its first argument."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*arguments: Any, config_file: str | None, **given: Any) -> Any:
            values = {setting.name: given.pop(setting.name) for setting in config.for_command(command)}
            effective = config.load(command, values, config=config_file)
            for warning in effective.warnings:
                click.echo(f"gpustrobe: {warning}", err=True)
            return function(effective, *arguments, **given)

        wrapped = click.option("--config", "config_file", metavar="FILE", help="Read settings from this YAML file.")(
            wrapped
        )
        for setting in reversed(config.for_command(command)):
            wrapped = _option(setting)(wrapped)
        return wrapped

    return decorate
