# SPDX-License-Identifier: Apache-2.0
"""python -m gpustrobe.store: the store as a process of its own."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from pathlib import Path

from gpustrobe.store.retention import Retention
from gpustrobe.store.serve import Options, serve

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SIZES = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}


def duration(text: str) -> int:
    """Seconds of "14d", "36h", "3600"; 0 = without bound."""
    found = re.fullmatch(r"(\d+)([smhdw]?)", text.strip().lower())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 14d, 36h or 0")
    return int(found[1]) * _UNITS[found[2] or "s"]


def size(text: str) -> int:
    """Bytes of "20GB", "512MiB", "1000000"; 0 = without bound."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    if not found or found[2] == "i":
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 20GB, 512MiB or 0")
    return int(float(found[1]) * _SIZES[found[2]])


def parse(arguments: list[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m gpustrobe.store", description="The embedded store of gpustrobe.")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--grpc", default=Options.__dataclass_fields__["grpc"].default, metavar="HOST:PORT")
    parser.add_argument("--http", default=Options.__dataclass_fields__["http"].default, metavar="HOST:PORT")
    parser.add_argument("--retention-age", type=duration, default=Retention().age, metavar="14d", help="0 = for ever")
    parser.add_argument(
        "--retention-size", type=size, default=Retention().size, metavar="20GB", help="0 = without bound"
    )
    parser.add_argument("--memory", default="512MB", help="of the database engine")
    parser.add_argument("--threads", type=int, default=2, help="of the database engine")
    parser.add_argument(
        "--die-with-parent", action="store_true", help="stop when the process that started this one ends"
    )
    given = parser.parse_args(arguments)
    return Options(
        given.data,
        given.grpc,
        given.http,
        Retention(given.retention_age, given.retention_size),
        given.memory,
        given.threads,
        given.die_with_parent,
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    sys.exit(serve(parse(sys.argv[1:])))
