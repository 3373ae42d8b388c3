# SPDX-License-Identifier: Apache-2.0
"""Group-bys in DuckDB, one thread. Prints queries per CPU second on exit (SIGTERM)."""

import signal
import sys
import time

import duckdb

running = True


def stop(*_: object) -> None:
    global running
    running = False


def main() -> None:
    signal.signal(signal.SIGTERM, stop)
    db = duckdb.connect(config={"threads": 1})
    db.execute(
        "CREATE TABLE t AS SELECT range % 1000 AS k, hash(range) % 100 AS v, (range % 77)::VARCHAR AS s FROM range(2000000)"
    )
    used = time.process_time()  # start-up is not the load
    start, limit, rounds = time.monotonic(), float(sys.argv[1]) if len(sys.argv) > 1 else 1e9, 0
    while running and time.monotonic() - start < limit:
        db.execute("SELECT k, s, sum(v), count(*) FROM t GROUP BY k, s ORDER BY 3 DESC LIMIT 10").fetchall()
        rounds += 1
    print(f"{rounds / (time.process_time() - used):.2f}")


main()
