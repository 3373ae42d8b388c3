# SPDX-License-Identifier: Apache-2.0
"""A flame graph that is one file: flamegraph.html beside this module with the profile's tree put in.

It asks nothing of the network.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from gpustrobe.agent.formats import tree
from gpustrobe.agent.formats.stacks import UNITS

if TYPE_CHECKING:
    from gpustrobe.agent.formats.stacks import Stacks

PLACE = "/*PROFILE*/null"


def render(stacks: Stacks, title: str = "") -> bytes:
    """`title` says what was recorded: a command, a process; by default the node."""
    template = resources.files("gpustrobe.agent.formats").joinpath("flamegraph.html").read_text("utf-8")
    before, after = template.split(PLACE)
    return "".join((before, _script_text(_profile(stacks, title)), after)).encode("utf-8", "replace")


def _profile(stacks: Stacks, title: str) -> dict[str, Any]:
    return {
        "title": title or stacks.node,
        "type": stacks.sample_type,
        "label": UNITS.get(stacks.sample_type, ("", stacks.sample_type))[1],
        "unit": stacks.unit,
        "period_ns": stacks.period,
        "from_ms": stacks.start_unix / 1e6,
        "seconds": stacks.duration / 1e9,
        "total": stacks.total,
        "loss": stacks.loss,
        **tree.columns(stacks),
    }


def _script_text(document: dict[str, Any]) -> str:
    """JSON that can stand in a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
