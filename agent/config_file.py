# SPDX-License-Identifier: Apache-2.0
"""Settings files: where they are and what they hold, as text that a setting's kind can parse."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpustrobe.agent.errors import UsageError


def default_files(environment: Mapping[str, str]) -> list[Path]:
    """Files that are read unasked, the stronger last."""
    home = environment.get("XDG_CONFIG_HOME") or (
        Path(environment["HOME"], ".config") if environment.get("HOME") else None
    )
    return [Path("/etc/gpustrobe/config.yaml"), *([Path(home, "gpustrobe/config.yaml")] if home else [])]


def read_yaml(path: Path) -> dict[str, Any]:
    """The file's mapping. An unreadable file is a UsageError that names the place of the fault."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "Give a readable file with --config.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise UsageError(
            f"{place}: {getattr(error, 'problem', None) or 'not YAML'}", "Write one `name: value` a line."
        ) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(
            f"{path}: not a list of `name: value`", "Write one `name: value` a line, as in docs/settings.md."
        )
    return {str(key): value for key, value in content.items()}


def text_of(value: Any) -> str:
    """What YAML read, back as the text it stood for."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        raise ValueError("one value is expected, not a list or a mapping")
    return str(value)
