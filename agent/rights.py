# SPDX-License-Identifier: Apache-2.0
"""What the kernel lets us do: the capabilities that sampling needs, and the command line that would have them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpustrobe.agent.errors import KernelProblem

# capability(7) numbers, with what each is for.
CAPABILITIES = {
    "CAP_BPF": (39, "loads the sampler"),
    "CAP_PERFMON": (38, "samples all CPUs and reads kernel stacks"),
    "CAP_SYS_PTRACE": (19, "reads the mappings of other users' processes"),
    "CAP_CHECKPOINT_RESTORE": (40, "opens deleted files that are still mapped"),
    "CAP_SYSLOG": (34, "names kernel functions"),
    "CAP_DAC_READ_SEARCH": (2, "reads programs that only their owner may read"),
}
CAP_SYS_ADMIN = 21  # includes those of the following (capabilities(7))
IN_SYS_ADMIN = ("CAP_BPF", "CAP_PERFMON", "CAP_CHECKPOINT_RESTORE", "CAP_SYSLOG")
NEEDED = ("CAP_BPF", "CAP_PERFMON")


def effective(status: str) -> int:
    """The effective capability mask in the text of /proc/PID/status."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def missing(mask: int, names: Sequence[str] = tuple(CAPABILITIES)) -> list[str]:
    """Those of `names` the mask lacks."""
    admin = mask >> CAP_SYS_ADMIN & 1
    return [name for name in names if not mask >> CAPABILITIES[name][0] & 1 and not (admin and name in IN_SYS_ADMIN)]


def sudo_line(arguments: Sequence[str], environment: Mapping[str, str], executable: str = sys.executable) -> str:
    """The same command with sudo: absolute path (sudo resets PATH), our variables kept (sudo drops them)."""
    program = str(Path(arguments[0]).absolute())
    words = [executable, "-m", "gpustrobe.agent.cli"] if program.endswith(".py") else [program]
    ours = [f"{name}={value}" for name, value in sorted(environment.items()) if name.startswith("GPUSTROBE_")]
    return shlex.join(["sudo", *ours, *words, *arguments[1:]])


def demand(what: str, proc: Path = Path("/proc")) -> None:
    """KernelProblem with the exact line to run unless this process may load the sampler."""
    lacking = missing(effective((proc / "self/status").read_text()), NEEDED)
    if not lacking:
        return
    if os.geteuid() == 0:
        raise KernelProblem(
            f"{what} needs {' and '.join(lacking)}, which this container or service does not grant.",
            "Grant them (docker: --privileged --pid=host; systemd: AmbientCapabilities=), then try again.",
        )
    raise KernelProblem(f"{what} loads an eBPF sampler, which needs root.", f"Run: {sudo_line(sys.argv, os.environ)}")
