# SPDX-License-Identifier: Apache-2.0
"""`match`: a list of matchers as in Prometheus, `comm="python3",pod!="x",script=~"train.*",thread!~"..."`, to SQL
conditions.

A label that a sample does not have is the empty text, so `pod=""` finds what is in no pod. Regular expressions are RE2,
anchored. Label names that are no column are looked up in the map under their own name. Values only ever travel as
parameters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpustrobe.store.errors import QueryError
from gpustrobe.store.schema import LABELS, NUMBER_LABELS

MAX_MATCHERS = 50
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-/]*")
_OPERATOR = re.compile(r"=~|!~|!=|=")
_SPACE = re.compile(r"\s*")
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", '"': '"', "'": "'"}


@dataclass(frozen=True, slots=True)
class Matcher:
    label: str
    operator: str  # = != =~ !~
    value: str


class _Text:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def fail(self, wanted: str) -> QueryError:
        found = f"{self.text[self.at]!r}" if self.at < len(self.text) else "the end"
        return QueryError(
            "bad_match",
            f"match: expected {wanted} at position {self.at + 1}, found {found}: {self.text}",
            'write comm="python3",script=~"train.*"',
        )

    def take(self, pattern: re.Pattern, wanted: str) -> str:
        found = pattern.match(self.text, self.at)
        if not found:
            raise self.fail(wanted)
        self.at = found.end()
        return found.group()

    def skip(self) -> None:
        self.at = _SPACE.match(self.text, self.at).end()

    @property
    def done(self) -> bool:
        self.skip()
        return self.at >= len(self.text)

    def quoted(self) -> str:
        mark = self.text[self.at : self.at + 1]
        if mark not in ('"', "'") or not mark:
            raise self.fail("a quoted value")
        start, self.at, out = self.at, self.at + 1, []
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if char == mark:
                return "".join(out)
            if char == "\\" and self.at < len(self.text):
                escaped = self.text[self.at]
                # A backslash before anything else stays: regular expressions are full of them.
                out.append(_ESCAPES.get(escaped, "\\" + escaped))
                self.at += 1
            else:
                out.append(char)
        self.at = start
        raise self.fail(f"a value that ends with {mark}")


def parse(text: str) -> list[Matcher]:
    """Raises QueryError bad_match, which names the position."""
    source, matchers = _Text(text.strip().removeprefix("{").removesuffix("}")), []
    while not source.done:
        label = source.take(_NAME, "a label name")
        source.skip()
        operator = source.take(_OPERATOR, "=, !=, =~ or !~")
        source.skip()
        matchers.append(Matcher(label, operator, source.quoted()))
        if not source.done:
            if source.text[source.at] != ",":
                raise source.fail("a comma")
            source.at += 1
    return matchers


def conditions(matchers: list[Matcher]) -> tuple[str, dict[str, object]]:
    """SQL over the columns of `series`, and its parameters; "" for no matchers."""
    if len(matchers) > MAX_MATCHERS:
        raise QueryError("bad_match", f"match has {len(matchers)} matchers, more than {MAX_MATCHERS}")
    parts, parameters = [], {}
    for number, matcher in enumerate(matchers):
        column, name = label_text(matcher.label, f"m{number}_name", parameters), f"m{number}"
        parameters[name] = matcher.value
        value = f"{{{name}:String}}"
        parts.append(
            {
                "=": f"{column} = {value}",
                "!=": f"{column} != {value}",
                "=~": f"fullMatch({column}, {value})",
                "!~": f"NOT fullMatch({column}, {value})",
            }[matcher.operator]
        )
    return " AND ".join(parts), parameters


def label_text(label: str, parameter: str, parameters: dict[str, object]) -> str:
    """SQL text of a label's value as text, '' where it is missing."""
    if label in NUMBER_LABELS:
        return f"CASE WHEN {label} < 0 THEN '' ELSE CAST({label} AS VARCHAR) END"
    if label in LABELS:
        return label
    parameters[parameter] = label
    return f"coalesce(labels[{{{parameter}:String}}], '')"
