# SPDX-License-Identifier: Apache-2.0
"""Which container, pod, systemd unit and batch job a process belongs to, from the text of /proc/PID/cgroup.

Paths as Docker, containerd, CRI-O, Podman, the kubelet (both cgroup drivers), LXC, systemd, ECS and Slurm make them,
below cgroup v1 and v2 (cgroups(7)). In nested containers the innermost counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CONTAINER_DIGITS = 12  # of a container id, as `docker ps` shows it


@dataclass(frozen=True, slots=True)
class Cgroup:
    """What a cgroup path says; "" is not known. `container` is the whole id, or a name (LXC, nspawn)."""

    container: str = ""
    pod_uid: str = ""
    service: str = ""  # systemd unit without .service
    slurm_job: str = ""


# A conmon scope holds the runtime's monitor, which is not in the container.
CONTAINER = re.compile(
    r"(?:^|[/:])"
    r"(?!(?:crio|libpod)-conmon-)"
    r"(?:docker-|cri-containerd-|crio-|libpod-|nerdctl-|containerd-|podman-)?"
    r"(?P<id>[0-9a-f]{64}|[0-9a-f]{32}-\d{5,12})"
    r"(?:\.scope)?(?=/|$)"
)
NAMED = re.compile(r"/(?:lxc\.payload[./]|lxc/|machine-|systemd-nspawn@)(?P<id>[^/]+?)(?:\.scope|\.service)?(?=/|$)")
POD = re.compile(
    r"(?:/|-)pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?=[/:]|$)"
)
UNIT = re.compile(r"/(?P<unit>[^/]+)\.service(?=/|$)")
SLURM = re.compile(r"/(?:slurm|slurmstepd\.scope|[^/]*slurmstepd\.scope)(?:/[^/]+)*?/job_(?P<job>\d+)(?=/|$)")
ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


def parse_cgroup(text: str) -> Cgroup:
    """Of one path per hierarchy (v1) those of memory and systemd say most; on v2 there is one."""
    paths = [path for _, path in sorted(_paths(text), key=lambda row: row[0])]
    found = [_of_path(path) for path in paths]
    best = {name: next((v for f in found if (v := getattr(f, name))), "") for name in Cgroup.__slots__}
    if best["container"]:
        best["service"] = ""  # that of the runtime
    return Cgroup(**best)


def _paths(text: str) -> list[tuple[int, str]]:
    """(rank, path): unified first, then the hierarchies every runtime uses."""
    rows = []
    for line in text.splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        names = controllers.split(",")
        rank = next((i for i, name in enumerate(("memory", "name=systemd")) if name in names), 2) + 1
        if path.startswith("/"):
            rows.append((0 if number == "0" and not controllers else rank, path))
    return rows


def _of_path(path: str) -> Cgroup:
    return Cgroup(
        _last(CONTAINER, path) or _last(NAMED, path),
        _last(POD, path).replace("_", "-"),
        ESCAPE.sub(lambda m: chr(int(m[1], 16)), _last(UNIT, path)),
        _last(SLURM, path),
    )


def _last(pattern: re.Pattern[str], path: str) -> str:
    value = ""
    for match in pattern.finditer(path):
        value = match[1]
    return value
