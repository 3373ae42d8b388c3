# SPDX-License-Identifier: Apache-2.0
"""Which format a file is written in: by name, or by the suffix of the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpustrobe.agent import output
from gpustrobe.agent.errors import UsageError

if TYPE_CHECKING:
    from gpustrobe.agent.formats.stacks import Stacks


def for_path(path: str, name: str | None = None) -> Callable[[Stacks], bytes]:
    """The writer of format `name`, or of the one that `path` ends in. Raises UsageError that lists what there is."""
    form = name or output.form_of(path)
    if form not in output.EXTENSION:
        formats = ", ".join(f"{known} ({suffix})" for known, suffix in output.EXTENSION.items())
        raise UsageError(f"{name or path!r} names no format.", f"There are {formats}.")
    return writer(form)


def writer(form: str) -> Callable[[Stacks], bytes]:
    from gpustrobe.agent.formats import collapsed, html, pprof, speedscope

    return {"pprof": pprof.render, "collapsed": collapsed.render, "speedscope": speedscope.render, "html": html.render}[
        form
    ]
