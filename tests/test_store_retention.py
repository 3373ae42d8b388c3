# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
import time

from gpustrobe.store.answers import Answers
from gpustrobe.store.engine import Engine
from gpustrobe.store.retention import HOUR, Retention
from starlette.datastructures import QueryParams

from tests.otlp_batches import F, MetricsBuilder, ProfilesBuilder

NOW = int(time.time()) // HOUR * HOUR + 1800
SMALL = Retention(age=0, size=0)


def tables(engine: Engine) -> dict[str, int]:
    names = (
        "samples",
        "windows",
        "readings",
        "batches",
        "resources",
        "series",
        "metrics",
        "chains",
        "frames",
        "functions",
    )
    execute = engine._connection.execute
    return engine.call(
        lambda: {name: execute(f"SELECT count(*) FROM {name}").fetchall()[0][0] for name in names}
    ).result()


def send(engine: Engine, second: int, name: str, rows: int = 20) -> None:
    stacks = [({"process.pid": "1", "thread.id": str(n)}, (F(f"{name}-{n}"), F(name)), 1) for n in range(rows)]
    engine.submit("profiles", ProfilesBuilder({"host.name": "n"}).window(second, stacks).bytes()).result()
    engine.submit("metrics", MetricsBuilder({"host.name": "n"}).gauge(f"metric.{name}", second, 1.0).bytes()).result()


def total(engine: Engine, first: int, last: int) -> int:
    params = {"from": str(first * 1000), "to": str(last * 1000)}
    return Answers(engine, "t").answer("flamegraph", QueryParams(params))["total"]


def test_age_deletes_whole_hours_and_content_nobody_uses(tmp_path):
    clock = [NOW - 5 * HOUR]
    engine = Engine(tmp_path, Retention(age=2 * HOUR, size=0), reserve=0, clock=lambda: clock[0] * 10**9)
    for hours in range(5, -1, -1):
        clock[0] = NOW - hours * HOUR
        engine.call(engine.writer.restart).result()  # a generation each, as a full table or a new day makes one
        send(engine, NOW - hours * HOUR, f"hour{hours}")
    assert tables(engine)["samples"] == 120
    deleted_to = engine.keep().result()
    assert deleted_to == NOW - 1800 - 2 * HOUR
    kept = tables(engine)
    assert kept == {
        "samples": 60,
        "windows": 3,
        "readings": 3,
        "batches": 6,
        "resources": kept["resources"],
        "series": 63,
        "metrics": 3,
        "chains": 60,
        "frames": 63,
        "functions": 63,
    }
    assert total(engine, NOW - 6 * HOUR, NOW + 1) == 60
    assert Answers(engine, "t").answer("status", QueryParams({}))["data"]["oldest_ms"] == (NOW - 2 * HOUR) * 1000
    engine.close()
    again = Engine(tmp_path, SMALL, reserve=0, clock=lambda: NOW * 10**9)
    assert total(again, NOW - 6 * HOUR, NOW + 1) == 60
    send(again, NOW - 10, "later")  # ids go on above what was deleted
    assert total(again, NOW - 6 * HOUR, NOW + 1) == 80
    again.close()


def test_content_of_a_generation_in_use_stays(tmp_path):
    engine = Engine(tmp_path, Retention(age=2 * HOUR, size=0), reserve=0, clock=lambda: NOW * 10**9)
    for hours in (5, 0):
        send(engine, NOW - hours * HOUR, "same")  # one generation: the old rows' content is the new rows' content
    engine.keep().result()
    assert tables(engine)["samples"] == 20
    assert total(engine, NOW - 6 * HOUR, NOW + 1) == 20
    engine.close()


def test_everything_too_old_leaves_an_empty_working_store(tmp_path):
    clock = [NOW]
    engine = Engine(tmp_path, Retention(age=HOUR, size=0), reserve=0, clock=lambda: clock[0] * 10**9)
    send(engine, NOW, "a")
    clock[0] += 10 * HOUR
    engine.keep().result()
    assert tables(engine)["samples"] == 0
    send(engine, NOW + 10 * HOUR, "a")
    assert total(engine, NOW, NOW + 11 * HOUR) == 20
    engine.close()


def test_size_deletes_the_oldest_until_it_fits(tmp_path):
    limit = 3_000_000
    dice = random.Random(1)
    engine = Engine(tmp_path, Retention(age=0, size=limit), reserve=0, clock=lambda: NOW * 10**9)
    for hours in range(40, 0, -1):
        rows = [({"thread.id": str(n)}, tuple(F(f"{dice.random()}") for _ in range(3)), 1) for n in range(600)]
        engine.submit("profiles", ProfilesBuilder({"host.name": "n"}).window(NOW - hours * HOUR, rows).bytes()).result()
        engine.call(engine.writer.restart).result()
    before = engine.used_bytes()
    assert before > limit
    engine.keep().result()
    assert engine.used_bytes() <= limit
    assert total(engine, NOW - HOUR, NOW) == 600, "the newest data must stay"
    assert total(engine, NOW - 50 * HOUR, NOW - 39 * HOUR) == 0
    engine.close()
    assert (tmp_path / "gpustrobe.duckdb").stat().st_size < 2 * limit


def test_a_bound_below_the_newest_hour_never_deletes_everything(tmp_path):
    engine = Engine(tmp_path, Retention(age=0, size=1000), reserve=0, clock=lambda: NOW * 10**9)
    for second in range(NOW - 300, NOW, 30):
        send(engine, second, f"s{second}")
    engine.keep().result()
    assert total(engine, NOW - 400, NOW) > 0
    engine.close()
