#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An Nsight Systems recording (its SQLite export) as a schedule that replay.c plays on the simulated node.

A schedule is text, one operation a line, in the order of the calls:
    thread device stream call_ns kind duration_ns bytes copy_kind gridX gridY gridZ blockX blockY blockZ shared registers name
call_ns counts from the first call of the recording; kind is kernel, copy, set or wait. Columns and units are those of the export's
schema (CUPTI_ACTIVITY_KIND_*).
"""

from __future__ import annotations

import argparse
import sqlite3
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import simulated_node

# The API call's thread and time, then what the device did for it; globalTid is PID << 24 | TID below the machine's own bits.
# What was launched before the recording began has no call in it: it is the backlog in the streams at the start, so its call is at 0.
CALL = """SELECT coalesce(r.globalTid, (SELECT min(globalTid) FROM CUPTI_ACTIVITY_KIND_RUNTIME t
WHERE t.globalTid / 16777216 * 16777216 = a.globalPid)), r.start, a.deviceId, a.streamId, a.start, a.end, {columns}
FROM {table} a LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
ON a.correlationId = r.correlationId AND a.globalPid = r.globalTid / 16777216 * 16777216 {more}"""
SHAPE = "a.gridX, a.gridY, a.gridZ, a.blockX, a.blockY, a.blockZ, a.staticSharedMemory + a.dynamicSharedMemory, a.registersPerThread"
NO_SHAPE = (1, 1, 1, 1, 1, 1, 0, 0)
WAITED = 3  # syncType: on a stream


def operations(path: Path) -> list[tuple]:
    """(thread, device, stream, call_ns, kind, duration_ns, bytes, copy_kind, shape ..., name), by call."""
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)

    def ask(table: str, columns: str, more: str = "") -> list[tuple]:
        return connection.execute(
            CALL.format(table="CUPTI_ACTIVITY_KIND_" + table, columns=columns, more=more)
        ).fetchall()

    found = [
        (tid, device, stream, call, start, "kernel", end - start, 0, 0, *rest)
        for tid, call, device, stream, start, end, *rest in ask(
            "KERNEL", SHAPE + ", m.value", "JOIN StringIds m ON m.id = coalesce(a.mangledName, a.demangledName)"
        )
    ]
    found += [
        (tid, device, stream, call, start, "copy", end - start, size, kind, *NO_SHAPE, "-")
        for tid, call, device, stream, start, end, size, kind in ask("MEMCPY", "a.bytes, a.copyKind")
    ]
    found += [
        (tid, device, stream, call, start, "set", end - start, size, 0, *NO_SHAPE, "-")
        for tid, call, device, stream, start, end, size in ask("MEMSET", "a.bytes")
    ]
    found += [
        (tid, device, stream, call, start, "wait", 0, 0, 0, *NO_SHAPE, "-")
        for tid, call, device, stream, start, end, kind in ask("SYNCHRONIZATION", "a.syncType")
        if kind == WAITED and call is not None
    ]
    found = [row for row in found if row[0] is not None]
    first = min(row[3] for row in found if row[3] is not None)
    threads = {tid: number for number, tid in enumerate(sorted({row[0] for row in found}))}
    found.sort(key=lambda row: (row[0], (row[3] or first) - first, row[4]))  # the backlog in the order in which it ran
    return [
        (threads[tid], device, stream, 0 if call is None else call - first, *rest)
        for tid, device, stream, call, _, *rest in found
    ]


def write_schedule(recording: Path, schedule: Path) -> int:
    rows = operations(recording)
    schedule.write_text("".join(" ".join(map(str, row)) + "\n" for row in rows), "utf-8")
    return len(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording", type=Path, help="SQLite export of Nsight Systems")
    parser.add_argument("--loops", type=int, default=0, help="times to play it; 0: until stopped")
    parser.add_argument("--schedule", type=Path, help="keep it in this file")
    arguments = parser.parse_args()
    schedule = arguments.schedule or simulated_node.BIN / (arguments.recording.stem + ".schedule")
    write_schedule(arguments.recording, schedule)
    return subprocess.call([simulated_node.build() / "workloads/replay", schedule, str(arguments.loops)])


if __name__ == "__main__":
    raise SystemExit(main())
