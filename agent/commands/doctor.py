# SPDX-License-Identifier: Apache-2.0
"""`gpustrobe doctor`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

import click
from gpustrobe.agent import doctor, options
from gpustrobe.agent.config import Settings

MARKS = {doctor.OK: ("✓", 32), doctor.ABSENT: ("–", 2), doctor.DEGRADED: ("!", 33), doctor.BROKEN: ("✗", 31)}
SUMMARY = {
    doctor.OK: "All is well: profiling works here.",
    doctor.DEGRADED: "Profiling works here; what is marked ! works less well.",
    doctor.BROKEN: "Profiling cannot work here until what is marked ✗ is mended.",
}


@click.command(
    epilog="""\b
Examples:
  sudo gpustrobe doctor
  sudo gpustrobe doctor --require gpu --json
  gpustrobe doctor --store store.example:4317

Exit status: 0 well, 1 degraded, 3 cannot work.
"""
)
@options.settings("doctor")
@click.option("--require", type=click.Choice(["gpu"]), multiple=True, help="Count this as necessary.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(settings: Settings, require: tuple[str, ...], as_json: bool) -> int:
    """Check what works on this machine, and say what to do about the rest."""
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    found = []
    for check in doctor.checks(doctor.without_rights(doctor.Host()), settings, "gpu" in require):
        found.append(check)
        if not as_json:
            _show(check, colour)
    state, code = doctor.verdict(found)
    if as_json:
        click.echo(json.dumps({"state": state, "checks": [asdict(check) for check in found]}, indent=2))
    else:
        click.echo(f"\n{SUMMARY[state]}")
    return code


def _show(check: doctor.Check, colour: bool) -> None:
    mark, code = MARKS[check.state]
    shown = f"\x1b[{code}m{mark}\x1b[0m" if colour else mark
    click.echo(f"{shown} {check.name:<15} {check.text}", color=True)
    if check.fix and check.state != doctor.OK:
        click.echo(f"  {'':<15} -> {check.fix}")
