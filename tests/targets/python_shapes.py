# SPDX-License-Identifier: Apache-2.0
"""Python of known shape, from 3.9 on: `python_shapes.py SHAPE SECONDS` is busy in `leaf`, below what SHAPE says."""

import asyncio
import ctypes
import functools
import sys
import time

DEADLINE = time.monotonic() + float(sys.argv[2])


def leaf():
    print("busy", flush=True)
    total = 0
    while time.monotonic() < DEADLINE:
        for i in range(1000):
            total += i * i % 7
    return total


def nested():
    def inner():
        return leaf()

    return inner()


def generator():
    def numbers():
        yield leaf()

    return sum(numbers())


def from_c():
    """Python -> C (qsort) -> Python: the order must hold."""
    compare_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))

    def compare(a, b):
        leaf()
        return 0

    array = (ctypes.c_int * 2)(1, 2)
    ctypes.CDLL(None).qsort(array, 2, ctypes.sizeof(ctypes.c_int), compare_type(compare))


def sorted_key():
    return sorted([1], key=lambda _: leaf())


def coroutine():
    async def child():
        return leaf()

    async def parent():
        await asyncio.sleep(0)
        return await child()

    return asyncio.run(parent())


def recursion(depth=60):
    return leaf() if depth == 0 else recursion(depth - 1)


class Reader:
    def read(self):
        return leaf()

    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033
    def cached(self):
        return self.read()


def method():
    return Reader().cached()


def threads():
    import threading

    thread = threading.Thread(target=nested, name="worker")
    thread.start()
    thread.join()


globals()[sys.argv[1]]()
