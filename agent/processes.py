# SPDX-License-Identifier: Apache-2.0
"""What a process is called and where it belongs, from the texts of /proc/PID that the core read while it lived.

Labels of a process (docs/architecture.md): `script`, `container`, `pod`, `namespace`, `service`, `pod_uid` and
`slurm_job`, each only where it is known. `pid`, `comm`, `tid` and `thread` are added per thread (agent/fold.py).
Kernel threads and processes that were gone before they could be read have none: their name is the comm of their first
sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gpustrobe.agent.cgroup import CONTAINER_DIGITS, parse_cgroup
from gpustrobe.agent.script import script_of


@dataclass(frozen=True, slots=True)
class ContainerNames:
    """What the container runtime or Kubernetes calls a container; "" is not known."""

    container: str = ""
    pod: str = ""
    namespace: str = ""


NO_NAMES: Mapping[str, ContainerNames] = MappingProxyType({})


def cmdline_of(raw: bytes) -> tuple[str, ...]:
    """Arguments of a /proc/PID/cmdline. The last may lack its NUL (cut, or a title written by setproctitle)."""
    if not raw:
        return ()
    return tuple(part.decode("utf-8", "replace") for part in raw.removesuffix(b"\0").split(b"\0"))


def labels_of(
    cmdline: tuple[str, ...], exe: str, cgroup: bytes, names: Mapping[str, ContainerNames] = NO_NAMES
) -> dict[str, str]:
    """Labels of one process. `names` is keyed by whole container ids; without one the id's first 12 digits stand in."""
    where = parse_cgroup(cgroup.decode("utf-8", "replace"))
    known = names.get(where.container, ContainerNames())
    is_id = len(where.container) >= 32 and "-" not in where.container
    labels = {
        "script": script_of(cmdline, exe.removesuffix(" (deleted)")),
        "container": known.container or (where.container[:CONTAINER_DIGITS] if is_id else where.container),
        "pod": known.pod,
        "namespace": known.namespace,
        "pod_uid": "" if known.pod else where.pod_uid,
        "service": where.service,
        "slurm_job": where.slurm_job,
    }
    return {name: value for name, value in labels.items() if value}
