# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from gpustrobe.store.errors import QueryError
from gpustrobe.store.match import Matcher, conditions, parse


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        ("  ", []),
        ('comm="python3"', [("comm", "=", "python3")]),
        (
            ' comm = "a" , pod != "b",script=~"t.*",thread!~\'x|y\' ',
            [("comm", "=", "a"), ("pod", "!=", "b"), ("script", "=~", "t.*"), ("thread", "!~", "x|y")],
        ),
        ('{comm="a"}', [("comm", "=", "a")]),
        ('comm="a",', [("comm", "=", "a")]),
        (r'comm="say \"hi\"\\"', [("comm", "=", 'say "hi"\\')]),
        (r'comm=~"\d+\.py"', [("comm", "=~", r"\d+\.py")]),  # other backslashes stay
        ('k8s.node-name="x,y=z"', [("k8s.node-name", "=", "x,y=z")]),
        ('comm="ü"', [("comm", "=", "ü")]),
    ],
)
def test_parse(text, wanted):
    assert parse(text) == [Matcher(*matcher) for matcher in wanted]


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("comm", 5, "=, !=, =~ or !~"),
        ('="a"', 1, "a label name"),
        ("comm=python", 6, "a quoted value"),
        ('comm="python', 6, 'a value that ends with "'),
        ('comm="a" pod="b"', 10, "a comma"),
        ('comm="a",,', 10, "a label name"),
        ('comm>"a"', 5, "=, !=, =~ or !~"),
    ],
)
def test_errors_name_position_and_what_was_expected(text, position, expected):
    with pytest.raises(QueryError) as caught:
        parse(text)
    assert caught.value.code == "bad_match"
    assert f"expected {expected} at position {position}," in caught.value.message


def test_values_and_map_names_are_parameters_only():
    text, parameters = conditions(
        [Matcher("comm", "=", "x' OR 1=1"), Matcher("team", "!~", "a"), Matcher("pid", "=", "7")]
    )
    assert parameters == {"m0": "x' OR 1=1", "m1_name": "team", "m1": "a", "m2": "7"}
    assert "OR" not in text
    assert "team" not in text


def test_too_many_matchers_are_refused():
    with pytest.raises(QueryError, match="more than 50"):
        conditions([Matcher("comm", "=", "x")] * 51)
