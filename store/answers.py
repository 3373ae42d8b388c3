# SPDX-License-Identifier: Apache-2.0
"""From a parsed URL to an answer as a dict: which parameters each question takes. Runs on reader threads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gpustrobe.store import charts, health, query
from gpustrobe.store.content import Contents
from gpustrobe.store.database import Limits
from gpustrobe.store.errors import QueryError, TooLarge
from gpustrobe.store.finding import finding
from gpustrobe.store.kernels import gpu_estimate, kernels
from gpustrobe.store.node_intervals import node_halves
from gpustrobe.store.question import Question, read_flag, read_number, read_question

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpustrobe.store.database import Reader
    from gpustrobe.store.engine import Engine
    from starlette.datastructures import QueryParams

MAX_EXPRESSION = 1000

COMMON = {"type", "from", "to", "match", "node"}
PROFILE = COMMON | {"focus", "exclude", "lines"}
# Parameters of each question; others are refused, so that a misspelt filter never passes for an answer.
PARAMETERS = {
    "status": set(),
    "labels": COMMON | {"name"},
    "flamegraph": PROFILE | {"min_share", "max_nodes"},
    "top": PROFILE | {"limit"},
    "stacks": PROFILE | {"limit"},
    "series": COMMON | {"name", "by", "step_ms", "limit"},
    "losses": COMMON,
    "marks": COMMON,
    "processes": COMMON,
    "finding": COMMON,
    "kernels": (COMMON - {"type"}) | {"focus", "exclude", "limit"},
}


class Answers:
    def __init__(self, engine: Engine, version: str, limits: Limits | None = None) -> None:
        self.engine, self.version, self.limits = engine, version, limits or Limits()
        self.contents = Contents()
        self._deleted_to = 0

    def answer(self, name: str, params: QueryParams) -> dict[str, object]:
        """Raises QueryError. Names: PARAMETERS."""
        self._check(name, params)
        now = self.engine.clock()
        if name == "status":
            return health.status(self.engine.state, self.version, now, self.engine.used_bytes())
        question = read_question(params, now)
        query.check_type(question.type)
        if (
            self.engine.counters.deleted_to != self._deleted_to
        ):  # ids of dropped generations are not given again, but free the memory
            self._deleted_to = self.engine.counters.deleted_to
            self.contents.clear()
        work: Callable = getattr(self, f"_{name}")
        try:
            with self.engine.readers.reader(self.limits) as reader:
                _check_expressions(reader, question, params)
                return work(reader, question, params)
        except TooLarge as error:
            raise self._narrower(error, question) from None

    def _check(self, name: str, params: QueryParams) -> None:
        if name not in PARAMETERS:
            raise QueryError("unknown_query", f"no query {name!r}", ", ".join(PARAMETERS))
        for given in params:
            if given not in PARAMETERS[name]:
                raise QueryError(
                    "bad_parameter", f"{name} takes no parameter {given[:64]!r}", ", ".join(sorted(PARAMETERS[name]))
                )

    def _narrower(self, error: TooLarge, question: Question) -> TooLarge:
        span = question.span
        if "step_ms" in error.hint:
            return error
        half = max(1, span.seconds // 4)
        return TooLarge(error.message, f"{error.hint}, such as from={(span.last - half) * 1000}&to={span.last * 1000}")

    def _labels(self, reader, question, params):
        return query.labels(reader, question, params.get("name", ""))

    def _flamegraph(self, reader, question, params):
        gpu = question.type.startswith("gpu_")
        answer = query.flamegraph(
            reader,
            self.contents,
            question,
            **_filters(params),
            min_share=read_number(params, "min_share", 0, 0, 1),
            max_nodes=int(read_number(params, "max_nodes", 100_000, 1, 1_000_000)),
            halves=partial(node_halves, reader, self.contents, question) if gpu else None,
        )
        nodes = health.nodes_in(reader, question)
        account, _ = health.books(reader, question)
        answer |= {"cores": health.cores_of(self.engine.state, nodes), "books": account}
        if gpu:
            filters = {name: params.get(name, "") for name in ("focus", "exclude")}
            answer["estimate"] = gpu_estimate(reader, self.contents, question, **filters)
        return answer

    def _kernels(self, reader, question, params):
        _filters(params)
        return kernels(
            reader,
            self.contents,
            question,
            focus=params.get("focus", ""),
            exclude=params.get("exclude", ""),
            limit=int(read_number(params, "limit", 200, 1, 5_000)),
        )

    def _top(self, reader, question, params):
        return query.top(
            reader,
            self.contents,
            question,
            **_filters(params),
            limit=int(read_number(params, "limit", 100, 1, 100_000)),
        )

    def _stacks(self, reader, question, params):
        return query.stacks(
            reader,
            self.contents,
            question,
            **_filters(params),
            limit=int(read_number(params, "limit", 10_000, 1, 100_000)),
        )

    def _series(self, reader, question, params):
        name = params.get("name", "")
        if not name:
            raise QueryError("bad_name", "series needs a name", "cpu, gpu.utilization, ...")
        step = int(read_number(params, "step_ms", 1000, 1000, 86_400_000))
        limit = int(read_number(params, "limit", 8, 1, 200))
        return charts.series(reader, question, name, charts.known_label(params.get("by", "")), step, limit)

    def _losses(self, reader, question, params):
        return health.losses(reader, question)

    def _marks(self, reader, question, params):
        return health.marks(reader, question)

    def _processes(self, reader, question, params):
        return query.processes(reader, question)

    def _finding(self, reader, question, params):
        return {"finding": finding(reader, self.contents, replace(question, type="cpu"))}


def _check_expressions(reader: Reader, question: Question, params: QueryParams) -> None:
    """Compile each regular expression once: where a table is empty the query would not, and a bad one would pass."""
    regexes = [matcher.value for matcher in question.matchers if matcher.operator in ("=~", "!~")]
    for expression in (*regexes, params.get("focus", ""), params.get("exclude", "")):
        if expression:
            reader.rows("SELECT partMatch('', {expression:String})", {"expression": expression})


def _filters(params: QueryParams) -> dict[str, object]:
    for name in ("focus", "exclude"):
        if len(params.get(name, "")) > MAX_EXPRESSION:
            raise QueryError("bad_regex", f"{name} is longer than {MAX_EXPRESSION} characters")
    return {"focus": params.get("focus", ""), "exclude": params.get("exclude", ""), "lines": read_flag(params, "lines")}
