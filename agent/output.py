# SPDX-License-Identifier: Apache-2.0
"""Files that commands write: names that never overwrite, whole content or none."""

from __future__ import annotations

import importlib
import os
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpustrobe.agent.errors import EnvironmentProblem

if TYPE_CHECKING:
    from gpustrobe.agent.formats.stacks import Stacks

SUFFIXES = {
    ".pb.gz": "pprof",
    ".pprof": "pprof",
    ".collapsed": "collapsed",
    ".folded": "collapsed",
    ".txt": "collapsed",
    ".speedscope.json": "speedscope",
    ".html": "html",
}
EXTENSION = {"pprof": ".pb.gz", "collapsed": ".collapsed", "speedscope": ".speedscope.json", "html": ".html"}


def form_of(name: str) -> str | None:
    """The format a file name's suffix stands for."""
    return next((form for suffix, form in SUFFIXES.items() if name.endswith(suffix)), None)


def render(form: str, stacks: Stacks) -> bytes:
    """The file's content; `form` is a module of agent/formats/."""
    return importlib.import_module(f"gpustrobe.agent.formats.{form}").render(stacks)


def dated_name(now: datetime, form: str, folder: Path = Path()) -> str:
    """gpustrobe-20260131-120000.html, or with -2, -3 ... where that exists."""
    stem, extension = f"gpustrobe-{now:%Y%m%d-%H%M%S}", EXTENSION[form]
    number = 1
    while True:
        name = f"{stem}{'' if number == 1 else f'-{number}'}{extension}"
        if not (folder / name).exists():
            return name
        number += 1


def check_writable(name: str) -> None:
    """EnvironmentProblem unless a file of this name could be written; asked before a recording, not after it."""
    folder = Path(name).parent
    if Path(name).is_dir():
        raise EnvironmentProblem(f"{name} is a folder.", "Name a file with -o FILE.")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise EnvironmentProblem(
            f"{folder} is no folder that this user can write to.", "Name another file with -o FILE."
        )


def write(name: str, content: bytes) -> None:
    """The whole content under `name`, or an error and what was there before."""
    target = Path(name)
    try:
        if target.exists() and not target.is_file():  # /dev/null, a pipe
            target.write_bytes(content)
            return
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            mask = os.umask(0)
            os.umask(mask)
            Path(temporary).chmod(0o666 & ~mask)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink()
            raise
    except OSError as error:
        raise EnvironmentProblem(
            f"{name} cannot be written: {error.strerror}.", "Free space, or name another file with -o FILE."
        ) from error
