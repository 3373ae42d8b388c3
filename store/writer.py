# SPDX-License-Identifier: Apache-2.0
"""Batches to rows: interns content, inserts columns. Used by the one writer thread only; the caller commits.

An insert hands DuckDB a dict of numpy arrays: 1 M rows of two columns in 0.17 s, where executemany needs minutes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.store import sql
from gpustrobe.store.batch import SampleType, hashes, text_hashes
from gpustrobe.store.intern import IdTable, mix
from gpustrobe.store.schema import LABELS, columns

if TYPE_CHECKING:
    import duckdb
    from gpustrobe.store.batch import Batch
    from numpy.typing import NDArray

# A generation ends, and all its content is written anew when it is next seen, once a table has this many entries or the
# day changes. Bounds this process's memory (24-48 bytes an entry), lets readers hold a generation in arrays, and lets
# retention drop content.
LIMITS = {"node": 1_000_000, "frame": 500_000, "function": 500_000, "series": 250_000, "metric": 250_000}
DAY = 86_400
MAX_KNOWN = 50_000  # batches, about 10 MB


@dataclass(frozen=True, slots=True)
class Generation:
    """First ids of its content; it ends where the next one starts."""

    generation: int
    node: int
    frame: int
    function: int
    series: int
    metric: int


def bits(values: list[int] | NDArray) -> NDArray[np.int64]:
    return np.asarray(values, dtype=np.uint64).view(np.int64)


class Writer:
    """Holds the ids of the current generation. After a failed commit call `restart`: ids that were never stored are
    given again."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection
        self.tables: dict[str, IdTable] = {}
        self.restart()

    def restart(self) -> None:
        """Start a generation from what is in the database."""
        last = self.connection.execute(sql.LAST_IDS)
        names = [column[0] for column in last.description]
        found = {name: value or 0 for name, value in zip(names, last.fetchall()[0], strict=True)}
        self.types = {
            SampleType(name, unit, period): number
            for number, name, unit, period in self.connection.execute(sql.TYPES).fetchall()
        }
        self._rows: dict[str, list[dict[str, NDArray]]] = {}
        self._known: dict[tuple[int, int], None] = {}
        self._horizon = self.connection.execute("SELECT coalesce(max(second), 0) FROM batches").fetchall()[0][0]
        self._day = -1
        self._resources: dict[str, tuple] = {}
        self._begin(found["generation"] + 1, {name: found[name] + 1 for name in LIMITS})

    def _begin(self, number: int, first: dict[str, int]) -> None:
        self.generation = Generation(number, **first)
        # About as large as the last one: growing by doubling would hash everything again and again.
        slots = {name: table.slots for name, table in self.tables.items()}
        self.tables = {name: IdTable(first_id, slots.get(name, IdTable.SLOTS)) for name, first_id in first.items()}
        self._written = False
        self._resources.clear()

    def turn(self, now_second: int) -> None:
        """Start a new generation where the old one is full or of yesterday. To be called between transactions."""
        full = any(table.count >= LIMITS[name] for name, table in self.tables.items())
        if (full or now_second // DAY != self._day) and self._written:
            number = self.generation.generation + 1
            self._begin(number, {name: table.next_id for name, table in self.tables.items()})
        self._day = now_second // DAY

    def append(self, batch: Batch, now_second: int) -> bool:
        """Collect a batch's rows for `flush`; False if it is stored already."""
        key = (batch.second, batch.digest)
        if key in self._known or (batch.second <= self._horizon and self._stored(key)):
            return False
        self._remember(key)
        if not self._written:
            self._insert(
                "generations", {**{n: [v] for n, v in asdict(self.generation).items()}, "started": [now_second]}
            )
            self._written = True
        self._insert("batches", {"second": [batch.second], "hash": [batch.digest]})
        self._append_resources(batch)
        series = self._append_series(batch)
        if batch.samples is not None:
            self._append_samples(batch, series)
        if batch.readings is not None:
            self._append_readings(batch, series)
        return True

    def _stored(self, key: tuple[int, int]) -> bool:
        text, parameters = sql.render(sql.KNOWN_BATCH, {"second": key[0], "hash": key[1]})
        return self.connection.execute(text, parameters).fetchall()[0][0] > 0

    def _remember(self, key: tuple[int, int]) -> None:
        """Batches of this process are known without asking the database (0.3 ms), those at or before the horizon are
        looked up."""
        self._known[key] = None
        if len(self._known) > MAX_KNOWN:
            oldest = next(iter(self._known))
            self._horizon = max(self._horizon, oldest[0])
            del self._known[oldest]

    def flush(self) -> None:
        """Insert what was collected into the open transaction, one statement a table: each costs 0.7 ms whatever it
        holds."""
        for table, pieces in self._rows.items():
            names = columns(table)
            mapped = next((name for name in names if f"{name}_keys" in pieces[0]), None)
            # DuckDB finds this variable by its name, and reads the arrays in place.
            rows_in = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
            wanted = [f"map({n}_keys::VARCHAR[], {n}_values::VARCHAR[]) AS {n}" if n == mapped else n for n in names]
            self.connection.execute(f"INSERT INTO {table} SELECT {', '.join(wanted)} FROM rows_in")
            del rows_in
        self._rows.clear()

    def _insert(self, table: str, data: dict[str, object]) -> None:
        self._rows.setdefault(table, []).append({name: np.asarray(column) for name, column in data.items()})

    def _append_resources(self, batch: Batch) -> None:
        fresh = [(node, attributes) for node, attributes in batch.resources if self._resources.get(node) != attributes]
        if fresh:
            self._resources.update(fresh)
            self._insert(
                "resources",
                {
                    "second": np.full(len(fresh), batch.second),
                    "node": texts([node for node, _ in fresh]),
                    **pairs("attributes", [attributes for _, attributes in fresh]),
                },
            )

    def _append_series(self, batch: Batch) -> NDArray[np.int64]:
        """Store ids of the batch's label sets."""
        ids, new = self.tables["series"].intern(hashes(batch.label_sets))
        if len(new):
            rows = [batch.label_sets[row] for row in new]
            data: dict[str, NDArray] = {"series": ids[new]}
            for place, name in enumerate(LABELS):
                column = [row[place] for row in rows]
                data[name] = texts(column) if isinstance(column[0], str) else np.array(column, dtype=np.int64)
            self._insert("series", {**data, **pairs("labels", [row[-1] for row in rows])})
        return ids

    def _append_samples(self, batch: Batch, series: NDArray[np.int64]) -> None:
        leaf = self._append_stacks(batch)
        types = np.array([self._type(kind) for kind in batch.types], dtype=np.int64)
        rows = batch.samples
        if len(rows.value):
            stack, label = leaf[rows.stack], series[rows.labels]
            order = np.lexsort((stack, label, rows.type, rows.second))  # neighbours alike: ids pack into few bits
            self._insert(
                "samples",
                {
                    "second": rows.second[order],
                    "type": types[rows.type[order]],
                    "series": label[order],
                    "stack": stack[order],
                    "value": rows.value[order],
                },
            )
        if batch.windows:
            windows = batch.windows
            self._insert(
                "windows",
                {
                    "second": [w.second for w in windows],
                    "type": types[[w.type for w in windows]],
                    "node": texts([w.node for w in windows]),
                    "start": [w.start for w in windows],
                    "duration": [w.duration for w in windows],
                    "total": [w.total for w in windows],
                },
            )

    def _type(self, kind: SampleType) -> int:
        number = self.types.get(kind)
        if number is None:
            number = self.types[kind] = len(self.types) + 1
            self._insert(
                "types",
                {"type": [number], "name": texts([kind.name]), "unit": texts([kind.unit]), "period": [kind.period]},
            )
        return number

    def _append_stacks(self, batch: Batch) -> NDArray[np.int64]:
        """Store ids (leaf nodes) of the batch's stacks; 0 for an empty stack."""
        content = text_hashes(map("\0".join, batch.functions))
        frame_hash = mix(content[batch.frame_function], batch.frame_line.astype(np.uint64))
        frame_ids = self._append_frames(batch, content, frame_hash)
        offsets, frames = batch.stack_offsets, batch.stack_frames
        lengths = np.diff(offsets)
        chain = chain_hashes(offsets, frame_hash[frames])
        filled = np.flatnonzero(lengths)
        leaf = np.zeros(len(lengths), dtype=np.int64)
        leaf[filled] = self.tables["node"].find(chain[offsets[1:][filled] - 1])
        fresh = np.zeros(len(lengths), dtype=bool)
        fresh[filled] = leaf[filled] < 0
        if fresh.any():  # a known leaf has known ancestors: only the other stacks are looked at frame by frame
            where = np.flatnonzero(np.repeat(fresh, lengths))
            depth = (np.arange(len(frames)) - np.repeat(offsets[:-1], lengths))[where]
            ids, new = self.tables["node"].intern(chain[where])
            self._append_chains(ids, new, depth, frame_ids[frames[where[new]]])
            leaf[fresh] = ids[np.cumsum(lengths[fresh]) - 1]
        return leaf

    def _append_chains(self, ids: NDArray, new: NDArray, depth: NDArray, frames: NDArray) -> None:
        """Nodes at positions `new` of `ids` and `depth` (0 = first frame); `frames` are theirs."""
        if not len(new):
            return
        # A new node right behind a new node of the same stack continues its chain.
        heads = np.flatnonzero(np.concatenate(([True], (np.diff(new) != 1) | (depth[new[1:]] == 0))))
        first = new[heads]
        self._insert(
            "chains",
            {
                "node": ids[first],
                "parent": np.where(depth[first] == 0, 0, ids[first - 1]),
                "depth": depth[first] + 1,
                "frames": slices(frames, heads),
            },
        )

    def _append_frames(
        self, batch: Batch, content: NDArray[np.uint64], frame_hash: NDArray[np.uint64]
    ) -> NDArray[np.int64]:
        functions, new = self.tables["function"].intern(content)
        if len(new):
            rows = [batch.functions[row] for row in new]
            self._insert(
                "functions",
                {
                    "function": functions[new],
                    "hash": bits(content[new]),
                    **{
                        name: texts([row[place] for row in rows])
                        for place, name in enumerate(("name", "kind", "module", "file", "reason"))
                    },
                },
            )
        frames, new = self.tables["frame"].intern(frame_hash)
        if len(new):
            self._insert(
                "frames",
                {
                    "frame": frames[new],
                    "function": functions[batch.frame_function[new]],
                    "line": batch.frame_line[new],
                },
            )
        return frames

    def _append_readings(self, batch: Batch, series: NDArray[np.int64]) -> None:
        named = [(m.name, m.unit, m.kind, int(series[m.labels])) for m in batch.metrics]
        ids, new = self.tables["metric"].intern(hashes(named))
        if len(new):
            rows = [named[row] for row in new]
            self._insert(
                "metrics",
                {
                    "metric": ids[new],
                    "series": [row[3] for row in rows],
                    **{
                        name: texts([row[place] for row in rows]) for place, name in enumerate(("name", "unit", "kind"))
                    },
                },
            )
        points = batch.readings
        if len(points.time):
            metric = ids[points.metric]
            order = np.lexsort((points.time, metric))
            self._insert(
                "readings",
                {
                    "second": points.time[order] // 1_000_000_000,
                    "metric": metric[order],
                    "time": points.time[order],
                    "value": points.value[order],
                },
            )


def texts(values: list[str]) -> NDArray:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def pairs(name: str, rows: list[tuple]) -> dict[str, NDArray]:
    """A MAP column as two columns of lists."""
    keys, values = np.empty(len(rows), dtype=object), np.empty(len(rows), dtype=object)
    for row, items in enumerate(rows):
        keys[row], values[row] = [key for key, _ in items], [value for _, value in items]
    return {f"{name}_keys": keys, f"{name}_values": values}


def slices(values: NDArray[np.int64], starts: NDArray[np.intp]) -> NDArray:
    """A LIST column: values[starts[i]:starts[i + 1]]."""
    out = np.empty(len(starts), dtype=object)
    ends = [*starts[1:].tolist(), len(values)]
    for row, (start, end) in enumerate(zip(starts.tolist(), ends, strict=True)):
        out[row] = values[start:end]
    return out


def chain_hashes(offsets: NDArray[np.int64], frame_hash: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """For each element of the CSR stacks, root first, the hash of the path from the root to it; shape as
    `frame_hash`."""
    chain = np.zeros(len(frame_hash), dtype=np.uint64)
    lengths = np.diff(offsets)
    by_length = np.argsort(-lengths, kind="stable")
    starts, lengths = offsets[:-1][by_length], lengths[by_length]
    so_far = np.zeros(len(starts), dtype=np.uint64)
    for depth in range(int(lengths[0]) if len(lengths) else 0):
        count = int(np.searchsorted(-lengths, -depth, side="left"))  # stacks longer than depth
        where = starts[:count] + depth
        so_far[:count] = chain[where] = mix(so_far[:count], frame_hash[where])
    return chain
