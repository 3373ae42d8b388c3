# SPDX-License-Identifier: Apache-2.0
"""Collapsed stacks, as flamegraph.pl and speedscope read them: `process;root;...;leaf value`, one line per distinct
text.

A name's own `;` and line ends would break a line apart: they are written as \\x3b and \\x0a. Lines are sorted, so that
two files can be compared with diff.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpustrobe.agent.formats.stacks import Stacks

BREAKING = re.compile(r"[;\x00-\x1f\x7f\x85\u2028\u2029]")


def escape(name: str) -> str:
    return BREAKING.sub(lambda match: f"\\x{ord(match[0]):02x}", name) or "?"


def render(stacks: Stacks) -> bytes:
    names = [escape(frame.name) for frame in stacks.frames]
    values: dict[str, int] = {}
    for row in stacks.rows:
        text = ";".join([escape(row.process), *[names[place] for place in row.frames]])
        values[text] = values.get(text, 0) + row.value
    lines = "".join(f"{text} {value}\n" for text, value in sorted(values.items()))
    return lines.encode("utf-8", "replace")
