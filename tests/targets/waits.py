# SPDX-License-Identifier: Apache-2.0
"""Python threads that wait in known places."""

import os
import queue
import select
import threading
import time

items: queue.Queue = queue.Queue()


def feed():
    while True:
        time.sleep(0.05)
        items.put(1)


def nap(seconds):
    time.sleep(seconds)


def seventy():
    nap(0.07)


def thirty():
    nap(0.03)


def sleep_in_turns():
    while True:
        seventy()
        thirty()


def get_items():
    while True:
        items.get()


def poll():
    end, _ = os.pipe()
    while True:
        select.select([end], [], [], 0.2)


for body in (feed, sleep_in_turns, get_items):
    threading.Thread(target=body, daemon=True).start()
poll()
