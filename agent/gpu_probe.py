# SPDX-License-Identifier: Apache-2.0
"""Asks NVML once, through the agent's own poller: its child can be given up when the driver hangs."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

TIME_LIMIT = 20.0  # seconds; nvmlInit wakes every GPU first where persistence mode is off
STARTING = "the NVML process is starting"


def ask(time_limit: float = TIME_LIMIT) -> dict[str, Any]:
    """{"driver", "gpus": [names]}, or {"state": absent or degraded, "why", "fix"}."""
    from gpustrobe.agent.nvml import LOG, NvmlPoller, library_exists

    present = library_exists(os.environ)
    LOG.addHandler(logging.NullHandler())
    LOG.propagate = False  # the answer says it
    poller = NvmlPoller()
    poller.start()
    try:
        deadline = time.monotonic() + time_limit
        while (state := poller.state).text == STARTING and time.monotonic() < deadline:
            time.sleep(0.02)
            poller.poll()
    finally:
        poller.stop()
    if state.ok and state.devices:
        return {"driver": state.driver_version, "gpus": [device.name for device in state.devices]}
    if state.ok:
        return {"state": "absent", "why": "NVIDIA's driver sees no GPU", "fix": ""}
    return {"state": "degraded" if present else "absent", "why": state.text, "fix": state.fix}
