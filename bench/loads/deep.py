# SPDX-License-Identifier: Apache-2.0
"""A busy loop below 22 nested Python calls. Prints rounds per CPU second on exit (SIGTERM)."""

import signal
import sys
import time

running = True


def stop(*_: object) -> None:
    global running
    running = False


def work(n: int) -> int:
    total = 0
    for i in range(n):
        total += i * i % 7
    return total


def descend(level: int) -> int:
    return work(2000) if level == 0 else descend(level - 1) + 1


def main() -> None:
    signal.signal(signal.SIGTERM, stop)
    used = time.process_time()  # start-up is not the load
    start, limit, rounds = time.monotonic(), float(sys.argv[1]) if len(sys.argv) > 1 else 1e9, 0
    while running and time.monotonic() - start < limit:
        descend(19)
        rounds += 1
    print(f"{rounds / (time.process_time() - used):.1f}")


main()
