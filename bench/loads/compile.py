# SPDX-License-Identifier: Apache-2.0
"""gcc started again and again: short-lived processes. Prints compilations per CPU second on exit (SIGTERM)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

running = True
SOURCE = Path(__file__).with_name("deep.c")


def stop(*_: object) -> None:
    global running
    running = False


def main() -> None:
    signal.signal(signal.SIGTERM, stop)
    start, limit, rounds = time.monotonic(), float(sys.argv[1]) if len(sys.argv) > 1 else 1e9, 0
    while running and time.monotonic() - start < limit:
        subprocess.run(["gcc", "-O2", "-c", "-o", "/dev/null", SOURCE], check=False)
        rounds += 1
    print(f"{rounds / sum(os.times()[:4]):.2f}")


main()
