# SPDX-License-Identifier: Apache-2.0
"""Asks NVML once, in a child with a time limit: a call into a hung driver cannot be ended inside this process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

TIME_LIMIT = 15  # seconds; nvmlInit on eight GPUs without persistence mode takes about that long

CHILD = """
import json, pynvml
text = lambda value: value.decode(errors="replace") if isinstance(value, bytes) else value
try:
    pynvml.nvmlInit()
    count = pynvml.nvmlDeviceGetCount()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    print(json.dumps({"driver": text(pynvml.nvmlSystemGetDriverVersion()),
                      "gpus": [text(pynvml.nvmlDeviceGetName(handle)) for handle in handles]}))
except pynvml.NVMLError as error:
    print(json.dumps({"error": type(error).__name__, "why": str(error)}))
"""

MEANINGS = {
    "NVMLError_LibraryNotFound": ("absent", "no NVIDIA driver: libnvidia-ml.so.1 is not there", ""),
    "NVMLError_DriverNotLoaded": ("degraded", "NVIDIA's library is there, its kernel module is not loaded", "modprobe nvidia"),
    "NVMLError_NoPermission": ("degraded", "no permission for /dev/nvidia*", "Run as root, or pass the devices in."),
    "NVMLError_LibRmVersionMismatch": (
        "degraded",
        "driver and library versions differ: the driver was updated",
        "Reboot, or reload NVIDIA's kernel modules.",
    ),
}


def ask(time_limit: float = TIME_LIMIT) -> dict[str, Any]:
    """{"driver", "gpus": [names]}, or {"state", "why", "fix"}."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=time_limit, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        why = f"NVML does not answer within {time_limit:g} s: the driver hangs"
        return {"state": "degraded", "why": why, "fix": "See dmesg for Xid; reset the GPU or reboot."}
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        return {"state": "degraded", "why": f"NVML's child failed: {last}", "fix": ""}
    if "error" in answer:
        state, why, fix = MEANINGS.get(answer["error"], ("degraded", f"NVML: {answer['why']}", ""))
        return {"state": state, "why": why, "fix": fix}
    return answer if answer["gpus"] else {"state": "absent", "why": "NVIDIA's driver sees no GPU", "fix": ""}
