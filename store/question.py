# SPDX-License-Identifier: Apache-2.0
"""Parameters of a question: times, matchers, limits. Text in, frozen values out; QueryError names what is wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from gpustrobe.store import match, sql
from gpustrobe.store.errors import QueryError, TooLarge

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

SECOND = 1_000_000_000
MAX_SPAN = 400 * 86_400  # seconds
_DURATION = re.compile(r"-(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s)?")
_NUMBER = re.compile(r"-?\d{1,20}(\.\d{1,9})?")


def parse_time(text: str, now: int, name: str) -> int:
    """Unix ns of: `now`, `-1h30m`, RFC 3339, ns, or ms (numbers below 10^14)."""
    bad = QueryError(
        "bad_time",
        f"{name}: {text[:64]!r} is no time",
        "write now, -5m, -1h30m, 2026-01-31T12:00:00Z, or Unix ms or ns",
    )
    if text == "now":
        return now
    if text.startswith("-") and (found := _DURATION.fullmatch(text)) and len(text) > 1:
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return now - (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * SECOND
    if _NUMBER.fullmatch(text):
        number = float(text) if "." in text else int(text)
        time = int(number * 1_000_000) if abs(number) < 10**14 else int(number)
    else:
        try:
            # "+" of an offset arrives as a space when it was not escaped.
            stamp = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
        except ValueError:
            raise bad from None
        whole = int(stamp.replace(microsecond=0, tzinfo=stamp.tzinfo or timezone.utc).timestamp())
        time = whole * SECOND + stamp.microsecond * 1000
    if not 0 <= time < 1 << 62:
        raise bad
    return time


@dataclass(frozen=True, slots=True)
class Span:
    """Whole Unix seconds [first, last)."""

    first: int
    last: int

    @property
    def seconds(self) -> int:
        return self.last - self.first

    def milliseconds(self) -> dict[str, int]:
        return {"from_ms": self.first * 1000, "to_ms": self.last * 1000}


@dataclass(frozen=True, slots=True)
class Picked:
    """Which samples: SQL text over `samples` and its parameters."""

    text: str
    parameters: dict[str, object]


@dataclass(frozen=True, slots=True)
class Question:
    type: str
    span: Span
    matchers: tuple[match.Matcher, ...]
    node: str

    def picked(self, types: list[int]) -> Picked:
        conditions, parameters = self.conditions()
        bounds = {"first": self.span.first, "last": self.span.last, "types": types}
        return Picked(sql.PICKED + sql.among_series(conditions), {**parameters, **bounds})

    def conditions(self) -> tuple[str, dict[str, object]]:
        return match.conditions(list(self.matchers))

    def device_conditions(self) -> tuple[str, dict[str, object]]:
        """What the matchers say of GPUs; for readings, which know no thread."""
        return match.conditions([matcher for matcher in self.matchers if matcher.label in ("node", "gpu", "gpu_index")])

    def node_conditions(self) -> tuple[str, dict[str, object]]:
        """What the matchers say of nodes alone; for tables that know nothing else."""
        return match.conditions([matcher for matcher in self.matchers if matcher.label == "node"])


def read_question(query: QueryParams, now: int) -> Question:
    span = read_span(query, now)
    matchers = [matcher for text in query.getlist("match") for matcher in match.parse(text)]
    node = query.get("node", "")
    if node:
        matchers.append(match.Matcher("node", "=", node))
    return Question(query.get("type", "cpu"), span, tuple(matchers), node)


def read_span(query: QueryParams, now: int) -> Span:
    """Snapped outwards to whole seconds; the default is the last five minutes."""
    begin = parse_time(query.get("from", "-5m"), now, "from")
    end = parse_time(query.get("to", "now"), now, "to")
    if end <= begin:
        raise QueryError("bad_range", "to is not after from", "swap them")
    span = Span(begin // SECOND, -(-end // SECOND))
    if span.seconds > MAX_SPAN:
        raise TooLarge(
            f"the range is longer than {MAX_SPAN // 86_400} days", f"start at {end // SECOND - MAX_SPAN} or later"
        )
    return span


def read_number(query: QueryParams, name: str, default: float, low: float, high: float) -> float:
    text = query.get(name)
    if text is None or text == "":
        return default
    if not re.fullmatch(r"\d{1,12}(\.\d{1,12})?", text) or not low <= float(text) <= high:
        raise QueryError(f"bad_{name}", f"{name}: {text[:40]!r} is no number from {low:g} to {high:g}")
    return float(text)


def read_flag(query: QueryParams, name: str) -> bool:
    return query.get(name, "") in ("1", "true", "yes")
