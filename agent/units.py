# SPDX-License-Identifier: Apache-2.0
"""What people type for times, sizes and addresses, and back. Each parser raises ValueError with a sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass

# SI for "MB", binary for "MiB", as `ls`, `dd` and Kubernetes quantities read them ("512Mi" is accepted for the latter).
SIZE_FACTORS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
DURATION_FACTORS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Address:
    """HOST:PORT; an IPv6 host is kept without its brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_duration(text: str) -> float:
    """Seconds from "5s", "1h30m", "250ms", or a bare number of seconds."""
    text = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is no duration; write it as 5s, 90m, 2h or 1h30m")
    return sum(float(number) * DURATION_FACTORS[unit] for number, unit in parts)


def show_duration(seconds: float) -> str:
    if seconds and seconds < 1:
        return f"{seconds * 1000:g}ms"
    for unit in ("d", "h", "m"):
        factor = DURATION_FACTORS[unit]
        if seconds and seconds % factor == 0:
            return f"{seconds / factor:g}{unit}"
    return f"{seconds:g}s"


def parse_size(text: str) -> int:
    """Bytes from "512MB" (10^6), "1GiB" or "1Gi" (2^30), or a bare number of bytes."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size; write it as 512MB, 10GB or 1GiB")
    return int(float(match[1]) * SIZE_FACTORS[match[2].lower()])


def show_size(size: float) -> str:
    """The shortest exact name, so "10GB" and "1GiB" come back as typed; else four digits."""
    for unit in ("ti", "t", "gi", "g", "mi", "m", "ki", "k"):
        count, rest = divmod(size, SIZE_FACTORS[unit])
        if 1 <= count < 10_000 and rest == 0:
            return f"{count:g}{_unit_name(unit)}"
    for unit in ("t", "g", "m", "k"):
        if size >= SIZE_FACTORS[unit]:
            return f"{size / SIZE_FACTORS[unit]:.4g}{_unit_name(unit)}"
    return f"{size:g}B"


def _unit_name(unit: str) -> str:
    return {"k": "kB", "ki": "KiB"}.get(unit) or f"{unit[0].upper()}{unit[1:]}B"


def parse_address(text: str, default_port: int = 0, default_host: str = "") -> Address:
    """HOST:PORT, [IPV6]:PORT; HOST alone where there is a default port, :PORT where there is a default host."""
    text = text.strip()
    bracket = re.fullmatch(r"\[([0-9A-Fa-f:.%\w]+)\](?::(\d+))?", text)
    if bracket:
        host, port = bracket[1], bracket[2]
    elif text.count(":") > 1 and "/" not in text:
        raise ValueError(f"{text!r}: write an IPv6 address in brackets, as [::1]:{default_port or 7070}")
    else:
        host, _, port = text.partition(":")
    number = default_port if not port else int(port) if port.isdecimal() else -1
    host = host or default_host
    if not host or not 0 <= number <= 65535 or (not port and not default_port) or re.search(r"[\s/]", host):
        raise ValueError(f"{text!r} is no address; write it as HOST:PORT or [IPV6]:PORT")
    return Address(host, number)
