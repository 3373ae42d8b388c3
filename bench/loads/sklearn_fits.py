# SPDX-License-Identifier: Apache-2.0
"""Fits of small models. Prints fits per CPU second on exit (SIGTERM)."""

import signal
import sys
import time

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

running = True


def stop(*_: object) -> None:
    global running
    running = False


def main() -> None:
    signal.signal(signal.SIGTERM, stop)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 20))
    y = (x[:, 0] + x[:, 1] ** 2 > 0.5).astype(int)
    used = time.process_time()  # start-up is not the load
    start, limit, rounds = time.monotonic(), float(sys.argv[1]) if len(sys.argv) > 1 else 1e9, 0
    while running and time.monotonic() - start < limit:
        RandomForestClassifier(n_estimators=10, max_depth=8, n_jobs=1).fit(x, y)
        LogisticRegression(max_iter=200).fit(x, y)
        rounds += 1
    print(f"{rounds / (time.process_time() - used):.2f}")


main()
