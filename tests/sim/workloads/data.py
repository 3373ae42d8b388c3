# SPDX-License-Identifier: Apache-2.0
"""The training loop's data loader: too slow on purpose, so that the GPU waits for `collate`."""

from __future__ import annotations

import time


def read_shard(seconds: float) -> bytes:
    """Off CPU, as a file on a slow disk."""
    time.sleep(seconds)
    return bytes(range(256)) * 16


def tokenize(shard: bytes, end: float) -> int:
    total = 0
    while time.monotonic() < end:
        for byte in shard:
            total = (total * 31 + byte) & 0xFFFFFFFF
    return total


def collate(seconds: float) -> int:
    """On CPU, in this thread: the stall."""
    return tokenize(b"the quick brown fox" * 20, time.monotonic() + seconds)


class Loader:
    def __init__(self, stall: float, read: float) -> None:
        self.stall, self.read = stall, read

    def next_batch(self) -> int:
        if self.read > 0:
            read_shard(self.read)
        return collate(self.stall)
