# SPDX-License-Identifier: Apache-2.0
"""Retention: whole hours are deleted, the oldest first, by age and until the data fits its size. Free blocks are
reused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpustrobe.store import sql

if TYPE_CHECKING:
    from collections.abc import Callable

    import duckdb

HOUR = 3600


@dataclass(frozen=True, slots=True)
class Retention:
    """0 = without bound. `size` in bytes of data in the file; between two looks it can be passed by what arrives
    meanwhile."""

    age: int = 14 * 86_400  # seconds
    size: int = 20 << 30


def enforce(
    connection: duckdb.DuckDBPyConnection,
    retention: Retention,
    now: int,
    used: Callable[[duckdb.DuckDBPyConnection], int],
    drop: Callable[[duckdb.DuckDBPyConnection, int], None],
) -> int:
    """Delete what is too old or too much; returns the Unix second before which all is gone, 0 if nothing was
    deleted."""
    oldest = connection.execute(sql.OLDEST).fetchall()[0][0]
    if oldest is None:
        return 0
    deleted = 0
    if retention.age and (before := (now - retention.age) // HOUR * HOUR) > oldest:
        drop(connection, before)
        deleted = before
    while retention.size and used(connection) > retention.size:
        oldest = connection.execute(sql.OLDEST).fetchall()[0][0]
        if oldest is None:
            break
        # A span longer than a day loses an hour at a time; a shorter one a twenty-fourth, so that the newest always
        # stays.
        step = max(60, min(HOUR, (now - oldest) // 24))
        before = (oldest // step + 1) * step
        if before > now - step:
            break
        drop(connection, before)
        deleted = before
    return deleted


def drop_before(connection: duckdb.DuckDBPyConnection, before: int) -> None:
    """Delete everything dated before the Unix second `before`, and content that only it used; then checkpoint."""
    connection.begin()
    for table in sql.DATED:
        text, parameters = sql.render(sql.DELETE_BEFORE.format(table=table), {"before": before})
        connection.execute(text, parameters)
    _drop_generations(connection)
    connection.commit()
    connection.execute("CHECKPOINT")


def _drop_generations(connection: duckdb.DuckDBPyConnection) -> None:
    """Content of generations older than the oldest that a row still refers to."""
    node, series, metric = connection.execute(sql.OLDEST_IDS).fetchall()[0]
    found = connection.execute(
        "SELECT max(generation) FROM generations WHERE node <= $node AND series <= $series AND metric <= $metric",
        {"node": _or_last(node), "series": _or_last(series), "metric": _or_last(metric)},
    ).fetchall()[0][0]
    if found is None:
        return
    names = ("node", "frame", "function", "series", "metric")
    first = dict(
        zip(
            names,
            connection.execute(
                f"SELECT {', '.join(names)} FROM generations WHERE generation = $found", {"found": found}
            ).fetchall()[0],
            strict=True,
        )
    )
    for name, table in zip(names, ("chains", "frames", "functions", "series", "metrics"), strict=True):
        connection.execute(f"DELETE FROM {table} WHERE {name} < $first", {"first": first[name]})
    connection.execute("DELETE FROM generations WHERE generation < $found", {"found": found})


def _or_last(value: int | None) -> int:
    return (1 << 62) if value is None else value
