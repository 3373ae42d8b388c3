# SPDX-License-Identifier: Apache-2.0
"""Group-bys in pandas with JSON on either side. Prints rounds per CPU second on exit (SIGTERM)."""

import json
import signal
import sys
import time

import numpy as np
import pandas as pd

running = True


def stop(*_: object) -> None:
    global running
    running = False


def main() -> None:
    signal.signal(signal.SIGTERM, stop)
    rng = np.random.default_rng(0)
    rows = [
        {"k": int(k), "v": float(v), "s": f"name{k % 17}"}
        for k, v in zip(rng.integers(0, 99, 5000), rng.normal(size=5000), strict=True)
    ]
    text = json.dumps(rows)
    used = time.process_time()  # start-up is not the load
    start, limit, rounds = time.monotonic(), float(sys.argv[1]) if len(sys.argv) > 1 else 1e9, 0
    while running and time.monotonic() - start < limit:
        frame = pd.DataFrame(json.loads(text))
        grouped = frame.groupby(["s", "k"]).agg({"v": ["mean", "std", "max"]})
        json.dumps(grouped.reset_index(drop=True).to_numpy().tolist())
        rounds += 1
    print(f"{rounds / (time.process_time() - used):.2f}")


main()
