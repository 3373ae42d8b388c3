# SPDX-License-Identifier: Apache-2.0
"""Who this agent is on the wire: resource attributes of everything it sends."""

from __future__ import annotations

import hashlib
from pathlib import Path

NAME = "gpustrobe"


def version() -> str:
    from importlib import metadata

    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return "unknown"


def host_id(root: Path = Path("/")) -> str:
    """The machine id hashed with our name, as machine-id(5) asks of those who publish it; "" where there is none."""
    for name in ("etc/machine-id", "var/lib/dbus/machine-id"):
        try:
            machine = (root / name).read_text().strip()
        except OSError:
            continue
        if machine:
            return hashlib.sha256(f"{NAME}:{machine}".encode()).hexdigest()[:32]
    return ""


def resource(node: str, root: Path = Path("/")) -> dict[str, str]:
    attributes = {"host.name": node, "host.id": host_id(root), "service.name": NAME, "service.version": version()}
    return {name: value for name, value in attributes.items() if value}
