# SPDX-License-Identifier: Apache-2.0
"""The CPythons of this machine: pyenv's, the system's, and those of tests/fetch-interpreters."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def found() -> dict[str, str]:
    """Label -> command; 3.9 and newer."""
    candidates = [
        *sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3")),
        *sorted(p for p in Path("/usr/bin").glob("python3.*") if p.suffix[1:].isdigit()),
        *sorted((ROOT / "build" / "interpreters").glob("3.*/run")),
    ]
    commands = {}
    for path in candidates:
        version = version_of(str(path))
        if version >= (3, 9):
            origin = "pyenv" if ".pyenv" in path.parts else "system" if path.parts[1] == "usr" else "debian"
            commands[f"{origin}-{version[0]}.{version[1]}"] = str(path)
    return commands


def version_of(command: str) -> tuple[int, int]:
    code = "import sys; print(*sys.version_info[:2])"
    answer = subprocess.run([command, "-c", code], capture_output=True, text=True, check=False)
    major, minor = answer.stdout.split() if answer.returncode == 0 else ("0", "0")
    return int(major), int(minor)
