# SPDX-License-Identifier: Apache-2.0
"""All SQL text of the store, in the subset that DuckDB and ClickHouse share: integer arithmetic, explicit AS and ORDER
BY, intDiv, fullMatch and partMatch (macros in DuckDB), parameters written {name:Type}. `render` turns them into
DuckDB's $name.

A question's samples are picked by `PICKED`, to which match.py adds conditions on `series`.
"""

from __future__ import annotations

import re

_PARAMETER = re.compile(r"\{(\w+):[\w()]+\}")


def render(text: str, parameters: dict[str, object]) -> tuple[str, dict[str, object]]:
    """DuckDB text and the parameters it uses (DuckDB refuses parameters that do not occur)."""
    used = {name: parameters[name] for name in _PARAMETER.findall(text)}
    return _PARAMETER.sub(r"$\1", text), used


PICKED = "second >= {first:Int64} AND second < {last:Int64} AND type IN {types:Array(UInt8)}"

IN_SECONDS = " AND second IN (SELECT arrayJoin({seconds:Array(Int64)}))"


def among_series(conditions: str) -> str:
    """A condition on samples or metrics: their series fulfils `conditions` (text of match.py, "" = all)."""
    return f" AND series IN (SELECT series FROM series WHERE {conditions})" if conditions else ""


TYPES = "SELECT type, name, unit, period FROM types ORDER BY type"
GENERATIONS = "SELECT generation, node, frame, function FROM generations ORDER BY generation"

STACK_VALUES = """
SELECT type AS type, series AS series, stack AS stack, sum(value)::BIGINT AS value
FROM samples WHERE {picked} GROUP BY type, series, stack LIMIT {{limit:UInt64}}"""

# By time as well: {{step:Int64}} seconds a bin.
STACK_BINS = """
SELECT type AS type, intDiv(second, {{step:Int64}}) AS bin, stack AS stack, sum(value)::BIGINT AS value
FROM samples WHERE {picked} GROUP BY type, bin, stack LIMIT {{limit:UInt64}}"""

STACK_SERIES_BINS = """
SELECT intDiv(second, {{step:Int64}}) AS bin, series AS series, stack AS stack, sum(value)::BIGINT AS value
FROM samples WHERE {picked} GROUP BY bin, series, stack LIMIT {{limit:UInt64}}"""

SERIES_VALUES = """
SELECT series AS series, type AS type, sum(value)::BIGINT AS value, min(second) AS first, max(second) AS last
FROM samples WHERE {picked} GROUP BY series, type LIMIT {{limit:UInt64}}"""

SERIES_OF = """
SELECT series.series AS series, node, service, namespace, pod, container, comm, script, thread, gpu, pid, tid,
gpu_index, labels FROM series JOIN wanted ON series.series = wanted.id ORDER BY series"""

# The one text that ClickHouse needs differently (ARRAY JOIN): order is checked by the reader.
CHAINS = """
SELECT node, parent, depth, len(frames) AS length FROM chains WHERE node >= {first:Int64} AND node < {last:Int64} ORDER
BY node"""
CHAIN_FRAMES = """
SELECT node + unnest(range(len(frames))) AS node, unnest(frames) AS frame FROM chains
WHERE node >= {first:Int64} AND node < {last:Int64}"""
FRAMES = "SELECT function, line FROM frames WHERE frame >= {first:Int64} AND frame < {last:Int64} ORDER BY frame"
FUNCTIONS = "SELECT hash FROM functions WHERE function >= {first:Int64} AND function < {last:Int64} ORDER BY function"
FUNCTION_TEXT = """
SELECT function AS function, name, kind, module, file, reason FROM functions JOIN wanted ON function = wanted.id ORDER
BY function"""
FUNCTIONS_LIKE = "SELECT function FROM functions WHERE partMatch(name, {expression:String}) ORDER BY function"

# Charts. {key} is the text of the grouping label, or ''.
CPU_SERIES = """
SELECT second AS second, type AS type, {key} AS key, sum(value)::BIGINT AS value
FROM samples JOIN series ON samples.series = series.series
WHERE {picked} GROUP BY ALL LIMIT {{limit:UInt64}}"""
CPU_SECONDS = """
SELECT second AS second, type AS type, sum(value)::BIGINT AS value
FROM samples WHERE {picked} GROUP BY second, type LIMIT {{limit:UInt64}}"""
WINDOWS = """
SELECT node AS node, type AS type, start AS start, max(duration) AS duration
FROM windows WHERE second >= {first:Int64} AND second < {last:Int64} AND type IN {types:Array(UInt8)}
GROUP BY node, type, start ORDER BY node, start LIMIT {limit:UInt64}"""
COVERED = """
SELECT max(covered) AS covered FROM (SELECT node, type, sum(duration) AS covered FROM (
SELECT node AS node, type AS type, start AS start, max(duration) AS duration
FROM windows WHERE second >= {{first:Int64}} AND second < {{last:Int64}} AND type IN {{types:Array(UInt8)}}{among}
GROUP BY node, type, start) AS w GROUP BY node, type) AS n"""
METRICS = """
SELECT metric AS metric, metrics.name AS name, unit, kind, metrics.series AS series FROM metrics
WHERE metrics.name = {name:String}"""
READINGS = """
SELECT metric AS metric, intDiv(time, {{step:Int64}}) AS bin, avg(value) AS mean, min(value) AS low, max(value) AS high,
sum(value) AS total FROM readings WHERE second >= {{first:Int64}} AND second < {{last:Int64}}
AND metric IN (SELECT metric FROM metrics WHERE name = {{name:String}}{among})
GROUP BY metric, bin ORDER BY metric, bin LIMIT {{limit:UInt64}}"""
READINGS_RAW = """
SELECT metric AS metric, time AS time, value AS value
FROM readings WHERE second >= {{first:Int64}} AND second < {{last:Int64}}
AND metric IN (SELECT metric FROM metrics WHERE name = {{name:String}}{among})
ORDER BY metric, time LIMIT {{limit:UInt64}}"""
METRIC_LABELS = """
SELECT metric AS metric, metrics.name AS name, unit, kind, node, gpu, gpu_index, pid, comm, labels
FROM metrics JOIN series ON metrics.series = series.series JOIN wanted ON metrics.metric = wanted.id ORDER BY metric"""
BOOKS = """
SELECT metrics.name AS name, coalesce(labels['reason'], '') AS reason, readings.second AS second, sum(value)::BIGINT AS
value FROM readings JOIN metrics ON readings.metric = metrics.metric JOIN series ON metrics.series = series.series
WHERE readings.second >= {{first:Int64}} AND readings.second < {{last:Int64}} AND metrics.name LIKE
'{accounts}%'{among} GROUP BY ALL ORDER BY second LIMIT {{limit:UInt64}}"""

# What is known at the start of the process; kept up to date in memory afterwards (state.py).
NODE_SPANS = """
SELECT node AS node, type AS type, min(start) AS first, max(start + duration) AS last, sum(total)::BIGINT AS total
FROM windows GROUP BY node, type ORDER BY node"""
METRIC_SPANS = """
SELECT node AS node, min(time) AS first, max(time) AS last
FROM readings JOIN metrics ON readings.metric = metrics.metric JOIN series ON metrics.series = series.series
GROUP BY node ORDER BY node"""
LATEST = """
SELECT node, metrics.name AS name, labels, max(time) AS time, arg_max(value, time) AS value
FROM readings JOIN metrics ON readings.metric = metrics.metric JOIN series ON metrics.series = series.series
WHERE readings.second >= {since:Int64} AND metrics.name IN {names:Array(String)}
GROUP BY ALL ORDER BY time"""
GPUS = """
SELECT node, gpu, max(gpu_index) AS gpu_index, max(coalesce(labels['gpu.name'], '')) AS name
FROM metrics JOIN series ON metrics.series = series.series
WHERE gpu != '' GROUP BY node, gpu ORDER BY node, gpu_index"""
RESOURCES = "SELECT second, node, attributes FROM resources ORDER BY second"
LAST_IDS = """
SELECT (SELECT max(node + len(frames) - 1) FROM chains) AS node, (SELECT max(frame) FROM frames) AS frame,
(SELECT max(function) FROM functions) AS function, (SELECT max(series) FROM series) AS series,
(SELECT max(metric) FROM metrics) AS metric, (SELECT max(generation) FROM generations) AS generation"""
KNOWN_BATCH = "SELECT count(*) FROM batches WHERE second = {second:Int64} AND hash = {hash:Int64}"

# Retention.
OLDEST = """
SELECT min(second) FROM (SELECT min(second) AS second FROM samples UNION ALL SELECT min(second) AS second FROM windows
UNION ALL SELECT min(second) AS second FROM readings UNION ALL SELECT min(second) AS second FROM batches)"""
DATED = ("samples", "windows", "readings", "batches", "resources")
DELETE_BEFORE = "DELETE FROM {table} WHERE second < {{before:Int64}}"
OLDEST_IDS = """
SELECT (SELECT min(stack) FROM samples WHERE stack > 0) AS node, (SELECT min(series) FROM samples) AS series,
(SELECT min(metric) FROM readings) AS metric"""

WINDOW_NODES = """
SELECT DISTINCT node AS node FROM windows WHERE second >= {first:Int64} AND second < {last:Int64} AND type IN
{types:Array(UInt8)}"""
PROCESSES_SEEN = """
SELECT DISTINCT node, pid, comm, script FROM series WHERE series IN (
SELECT DISTINCT series FROM samples WHERE second >= {first:Int64} AND second < {last:Int64} AND type IN
{types:Array(UInt8)})"""
