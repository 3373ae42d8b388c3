# SPDX-License-Identifier: Apache-2.0
"""Kinds of settings: how text becomes a value, with a ValueError that says what is allowed, and back."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpustrobe.agent.units import parse_address, parse_duration, parse_size, show_duration, show_size


@dataclass(frozen=True, slots=True)
class Kind:
    """How a setting's text becomes its value (raising ValueError with a sentence) and back."""

    metavar: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str


def whole(low: int, high: int) -> Kind:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\s*-?\d+\s*", text) or not low <= int(text) <= high:
            raise ValueError(f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return Kind("N", parse)


def percent(low: float, high: float) -> Kind:
    """A share, written as a percentage: 10%, or 0.1."""

    def parse(text: str) -> float:
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", text)
        share = float(match[1]) / (100 if match[2] else 1) if match else -1.0
        if not low <= share <= high:
            raise ValueError(f"{text!r} is not between {low * 100:g}% and {high * 100:g}%")
        return share

    return Kind("PERCENT", parse, lambda value: f"{value * 100:g}%")


def duration(low: float, high: float, off: bool = False) -> Kind:
    def parse(text: str) -> float:
        seconds = parse_duration(text)
        if not (low <= seconds <= high or (off and seconds == 0)):
            zero = ", or 0 for none" if off else ""
            raise ValueError(f"{text!r} is not between {show_duration(low)} and {show_duration(high)}{zero}")
        return seconds

    return Kind("DURATION", parse, show_duration)


def size(low: int, off: bool = False) -> Kind:
    def parse(text: str) -> int:
        size = parse_size(text)
        if not (size >= low or (off and size == 0)):
            raise ValueError(f"{text!r} is less than {show_size(low)}{', and not 0 for none' if off else ''}")
        return size

    return Kind("SIZE", parse, show_size)


def address(default_port: int, default_host: str = "", off: bool = False) -> Kind:
    def parse(text: str) -> Any:
        return None if off and text.strip().lower() in ("", "off") else parse_address(text, default_port, default_host)

    return Kind("HOST:PORT", parse, lambda value: "off" if value is None else str(value))


def choice(*choices: str) -> Kind:
    def parse(text: str) -> str:
        if text.strip().lower() not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(choices)}")
        return text.strip().lower()

    return Kind("|".join(choices), parse)


def _parse_switch(text: str) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if text.strip().lower() not in words:
        raise ValueError(f"{text!r} is neither on nor off")
    return words[text.strip().lower()]


def _parse_name(text: str) -> str:
    if not text.strip() or len(text) > 253 or not text.isprintable():
        raise ValueError(f"{text!r} is no name: 1 to 253 printable characters")
    return text.strip()


def _parse_path(text: str) -> Path:
    if not text.strip():
        raise ValueError("a path is needed")
    return Path(text.strip()).expanduser().absolute()


SWITCH = Kind("on|off", _parse_switch, lambda value: "on" if value else "off")
NAME = Kind("NAME", _parse_name)
PATH = Kind("PATH", _parse_path)


def _parse_optional_path(text: str) -> Path | None:
    return _parse_path(text) if text.strip() else None


def _parse_pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not name.strip() or not equals for name, equals, _ in pairs):
        raise ValueError(f"{text!r} is not NAME=VALUE,NAME=VALUE")
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)


FILE = Kind("FILE", _parse_optional_path, lambda value: str(value or ""))
PAIRS = Kind("NAME=VALUE,...", _parse_pairs, lambda value: ",".join(f"{name}={text}" for name, text in value))
