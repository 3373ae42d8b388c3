# SPDX-License-Identifier: Apache-2.0
"""The store's speed and size: ingest on one core, disk per sample on two loads, flame graph of a day of 10 M samples.

Requests are made by the agent's own encoder, ten 1-second windows each. A row is (second, thread, stack, value); the
load has about two to four samples a row, where busy loops have up to a hundred. Both are reported.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gpustrobe.agent.encode import Encoder
from gpustrobe.agent.model import Frame, Profiles, ProfileWindow
from gpustrobe.store.answers import Answers
from gpustrobe.store.engine import Engine
from gpustrobe.store.retention import Retention

SECOND = 1_000_000_000
DAY = 86_400
WINDOWS = 10  # of a request
PERIOD = 9_973_013


@dataclass(frozen=True)
class Scale:
    rows_per_second: int = 4000  # of 40 busy cores
    seconds: int = 200
    stacks: int = 6000
    day_rows: int = 10_000_000


QUICK = Scale(rows_per_second=300, seconds=20, stacks=300, day_rows=200_000)


class Load:
    """Stacks from a random call tree: 3000 functions, 4 lines each, 20 to 60 deep; stack popularity follows Zipf's
    law."""

    def __init__(self, scale: Scale, seed: int = 7) -> None:
        self.dice = random.Random(seed)
        self.random = np.random.default_rng(seed)
        self.scale = scale
        self.frames = [
            Frame(
                f"namespace_{i % 40}::function_{i // 4}",
                ("python", "native", "kernel")[i % 3],
                f"lib{i % 30}.so",
                f"/src/{i % 300}.cc",
                10 + i,
            )
            for i in range(12_000)
        ]
        self.stacks = [self._stack() for _ in range(scale.stacks)]
        self.labels = [
            {"pid": str(1000 + i // 8), "tid": str(5000 + i), "comm": f"server-{i // 8}", "thread": f"worker-{i % 8}"}
            for i in range(80)
        ]

    def _stack(self) -> tuple[Frame, ...]:
        """Leaf first. Deep frames are shared by many stacks: the first frames are chosen from few."""
        depth = self.dice.randint(20, 60)
        return tuple(self.dice.choice(self.frames[: 2 + 3 * level * level]) for level in range(depth, 0, -1))

    def fresh(self, stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
        """A stack never seen: as `stack` up to a random frame of its lower half, then other frames."""
        new = self.dice.randint(1, len(stack) // 2)
        return tuple(self.dice.choice(self.frames) for _ in range(new)) + stack[new:]

    def profiles(self, second: int, fresh: float) -> Profiles:
        """WINDOWS windows from `second` on; `fresh` of the rows have stacks never seen before."""
        stacks = list(self.stacks)
        windows = []
        rows = self.scale.rows_per_second
        for offset in range(WINDOWS):
            stack = (self.random.zipf(1.3, rows) - 1) % self.scale.stacks
            for row in np.flatnonzero(self.random.random(rows) < fresh).tolist():
                stacks.append(self.fresh(stacks[stack[row]]))
                stack[row] = len(stacks) - 1
            label = stack % len(self.labels)  # a stack belongs to few threads
            label = (label + self.random.integers(0, 4, rows)) % len(self.labels)
            pairs, counts = np.unique(np.stack((label, stack)), axis=1, return_counts=True)
            windows.append(
                ProfileWindow(
                    "cpu",
                    (second + offset) * SECOND,
                    SECOND,
                    PERIOD,
                    pairs[0].astype(np.uint32),
                    pairs[1].astype(np.uint32),
                    counts.astype(np.uint64),
                )
            )
        return Profiles(tuple(windows), tuple(stacks), tuple(self.labels))


@dataclass(frozen=True)
class Ingest:
    rows: int
    samples: int
    wall: float
    cpu: float
    bytes: int  # of the database file after a checkpoint, less an empty one


def ingest(scale: Scale, fresh: float, folder: Path) -> Ingest:
    load, encoder = Load(scale), Encoder({"host.name": "bench", "service.name": "gpustrobe"})
    begin = int(time.time()) - scale.seconds
    requests = [
        request
        for first in range(begin, begin + scale.seconds, WINDOWS)
        for request in encoder.encode(load.profiles(first, fresh))
    ]
    # One warm-up request would move its stacks out of the measurement, so there is none: the first sight of all stacks
    # is in it.
    engine = Engine(folder, Retention(0, 0), threads=1)
    empty = _checkpointed(engine, folder)
    started, cpu = time.perf_counter(), time.process_time()
    for future in [engine.submit("profiles", request.data) for request in requests]:
        future.result()
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    rows, samples = engine.counters.rows, engine.counters.values
    size = _checkpointed(engine, folder) - empty
    engine.close()
    return Ingest(rows, samples, wall, cpu, size)


def _checkpointed(engine: Engine, folder: Path) -> int:
    engine.call(lambda: engine._connection.execute("CHECKPOINT").fetchall()).result()
    return (folder / "gpustrobe.duckdb").stat().st_size


def day(scale: Scale, folder: Path) -> dict[str, float]:
    """Seconds of flame graph, top and a chart over a day of `day_rows` rows. Stacks come by ingest, rows by SQL with
    the same ids."""
    load, encoder = Load(scale), Encoder({"host.name": "bench", "service.name": "gpustrobe"})
    end = int(time.time()) // 60 * 60
    engine = Engine(folder, Retention(0, 0))
    for request in encoder.encode(load.profiles(end - WINDOWS, 0.05)):
        engine.submit("profiles", request.data).result()
    engine.call(lambda: _multiply(engine, scale, end)).result()
    from starlette.datastructures import QueryParams

    answers = Answers(engine, "bench")
    span = {"from": str((end - DAY) * 1000), "to": str(end * 1000)}
    out = {}
    for name, extra in (
        ("flamegraph", {"max_nodes": "20000"}),
        ("top", {}),
        ("series", {"name": "cpu", "step_ms": "60000"}),
    ):
        times = []
        for _ in range(4):
            started = time.perf_counter()
            answers.answer(name, QueryParams({**span, **extra}))
            times.append(time.perf_counter() - started)
        out[name], out[f"{name}_first"] = min(times[1:]), times[0]
    five = {"from": str((end - 300) * 1000), "to": str(end * 1000)}
    times = []
    for _ in range(5):
        started = time.perf_counter()
        answers.answer("flamegraph", QueryParams({**five, "min_share": "0.0002"}))
        times.append(time.perf_counter() - started)
    out["live"] = min(times[1:])
    engine.close()
    return out


def _multiply(engine: Engine, scale: Scale, end: int) -> None:
    """The rows there are, again and again over a day, with seconds of their own."""
    execute = engine._connection.execute
    have = execute("SELECT count(*) FROM samples").fetchall()[0][0]
    times = scale.day_rows // have
    execute(
        "INSERT INTO samples SELECT $first + CAST(floor(copies.i * $step + samples.second % 10) AS BIGINT), "
        "type, series, stack, value "
        "FROM range($times) AS copies(i), samples ORDER BY copies.i, second, series, stack",
        {"first": end - DAY, "step": DAY / times, "times": times},
    ).fetchall()
    execute("CHECKPOINT").fetchall()


def measure(quick: bool = False) -> dict[str, float]:
    """Figures by name; quick: a small run that proves the bench works and measures nothing worth reporting."""
    scale = QUICK if quick else Scale()
    out: dict[str, float] = {}
    for name, fresh in (("steady", 0.0), ("half_new", 0.5)):
        folder = Path(tempfile.mkdtemp(prefix="gpustrobe-bench-"))
        try:
            done = ingest(
                scale if fresh == 0 else Scale(scale.rows_per_second, scale.seconds // 2, scale.stacks), fresh, folder
            )
        finally:
            shutil.rmtree(folder)
        out[f"{name}_samples_per_cpu_second"] = done.samples / done.cpu
        out[f"{name}_samples_per_second"] = done.samples / done.wall
        out[f"{name}_bytes_per_sample"] = done.bytes / done.samples
        out[f"{name}_rows_per_cpu_second"] = done.rows / done.cpu
        out[f"{name}_bytes_per_row"] = done.bytes / done.rows
    folder = Path(tempfile.mkdtemp(prefix="gpustrobe-bench-"))
    try:
        out |= {f"day_{name}_seconds": value for name, value in day(scale, folder).items()}
    finally:
        shutil.rmtree(folder)
    return out


if __name__ == "__main__":
    for key, value in measure().items():
        print(f"{key:36} {value:14.4f}")
