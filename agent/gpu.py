# SPDX-License-Identifier: Apache-2.0
"""GPU time of this node."""

from __future__ import annotations


def uuid_text(raw: bytes) -> str:
    """A device's UUID as NVML and nvidia-smi write it."""
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"
