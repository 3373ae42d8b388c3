# SPDX-License-Identifier: Apache-2.0
"""A busy loop 22 Python frames deep: the module, 20 times descend(), spin()."""


def spin() -> int:
    total = 0
    for i in range(1_000_000):
        total += i & 3
    return total


def descend(depth: int) -> int:
    return descend(depth - 1) if depth > 1 else spin()


while True:
    descend(20)
