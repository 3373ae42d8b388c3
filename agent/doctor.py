# SPDX-License-Identifier: Apache-2.0
"""What works on this machine: one check a function, each a pure look at a `Host` except where it tries the real thing.

A check says what is and, unless all is well, what to do. `degraded`: something that should work does not, profiling
does. `absent`: not there, and nothing that was asked for needs it. `broken`: CPU profiling cannot work.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpustrobe.agent import kernel_probe, rights
from gpustrobe.agent.units import Address, show_size

OK, ABSENT, DEGRADED, BROKEN = "ok", "absent", "degraded", "broken"
FLOOR = (5, 10)  # BPF ring buffer and CAP_BPF; the oldest kernel the sampler was loaded on
MACHINES = ("x86_64",)
RING_BYTES = 1 << 20
ENOUGH_DISK = 1 << 30
INIT_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h
CUPTI_PLACES = (
    "usr/local/cuda*/extras/CUPTI/lib64/libcupti.so*",
    "usr/local/cuda*/lib64/libcupti.so*",
    "usr/lib/x86_64-linux-gnu/libcupti.so*",
    "opt/cuda/extras/CUPTI/lib64/libcupti.so*",
)


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    state: str
    text: str
    fix: str = ""


@dataclass(frozen=True)
class Host:
    """The machine as checks see it; tests give another root and other probes."""

    root: Path = Path("/")
    release: str = field(default_factory=platform.release)
    machine: str = field(default_factory=platform.machine)
    uid: int = field(default_factory=os.geteuid)
    arguments: Sequence[str] = field(default_factory=lambda: tuple(sys.argv))
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    perf_event: Callable[[], int] = kernel_probe.perf_event
    ring_buffer: Callable[[int], int] = kernel_probe.ring_buffer
    clock: Callable[[], tuple[bool, int]] = kernel_probe.clock_synchronized
    memory_lock: Callable[[], int] = lambda: resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    free_disk: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free
    connect: Callable[[Address], str] = lambda address: connect(address)
    nvml: Callable[[], dict[str, Any]] = lambda: ask_nvml()
    sampler: Callable[[], str] = lambda: try_sampler()

    def read(self, name: str) -> str:
        """Text of a file under the root, "" where it cannot be read."""
        try:
            return (self.root / name).read_text(errors="replace")
        except OSError:
            return ""

    def number(self, name: str, default: int) -> int:
        text = self.read(name).strip()
        return int(text) if re.fullmatch(r"-?\d+", text) else default


def connect(address: Address, timeout: float = 2) -> str:
    """ "" if something accepts connections there, else why not."""
    try:
        socket.create_connection((address.host, address.port), timeout).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def kernel(host: Host) -> Check:
    text = f"Linux {host.release}, {host.machine}"
    version = tuple(int(part) for part in re.findall(r"\d+", host.release)[:2])
    if version < FLOOR:
        return Check("kernel", BROKEN, text, f"Use Linux {FLOOR[0]}.{FLOOR[1]} or newer.")
    if host.machine not in MACHINES:
        return Check("kernel", BROKEN, text, f"Use a machine with {' or '.join(MACHINES)}; others come later.")
    return Check("kernel", OK, text)


def btf(host: Host) -> Check:
    if (host.root / "sys/kernel/btf/vmlinux").exists():
        return Check("btf", OK, "the kernel describes its types")
    fix = "Boot a kernel with CONFIG_DEBUG_INFO_BTF=y (Debian 11, Ubuntu 20.10, RHEL 8.2 and newer have it)."
    return Check("btf", BROKEN, "no /sys/kernel/btf/vmlinux", fix)


def capabilities(host: Host) -> Check:
    mask = rights.effective(host.read("proc/self/status"))
    lacking = rights.missing(mask)
    if not lacking:
        return Check("capabilities", OK, "all that sampling needs")
    text = "missing " + ", ".join(f"{name} ({rights.CAPABILITIES[name][1]})" for name in lacking)
    fix = (
        "Grant them to the container or service (docker: --privileged --pid=host)."
        if host.uid == 0
        else f"Run: {rights.sudo_line(host.arguments, host.environment)}"
    )
    return Check("capabilities", BROKEN if set(lacking) & set(rights.NEEDED) else DEGRADED, text, fix)


def perf(host: Host, rate: int) -> Check:
    limit = host.number("proc/sys/kernel/perf_event_max_sample_rate", rate)
    paranoid = host.read("proc/sys/kernel/perf_event_paranoid").strip()
    number = host.perf_event()
    if number:
        why = {
            errno.ENOENT: "this kernel or hypervisor has no such event",
            errno.ENOSYS: "perf events are compiled out or forbidden by a seccomp profile",
        }.get(number, f"{os.strerror(number)}, perf_event_paranoid is {paranoid or 'not readable'}")
        fix = (
            "Allow perf_event_open in the container's seccomp profile, or boot a kernel with CONFIG_PERF_EVENTS=y."
            if host.uid == 0
            else f"Run: {rights.sudo_line(host.arguments, host.environment)}"
        )
        return Check("perf events", BROKEN, f"cannot be opened: {why}", fix)
    if limit < rate:
        text = f"at most {limit} samples a second, {rate} are asked for"
        return Check("perf events", DEGRADED, text, f"Run: sysctl kernel.perf_event_max_sample_rate={max(rate, 1000)}")
    return Check("perf events", OK, f"cpu-clock opens; up to {limit} samples a second")


def ring_buffer(host: Host) -> Check:
    number = host.ring_buffer(RING_BYTES)
    if not number:
        return Check("ring buffer", OK, f"a BPF ring buffer of {show_size(RING_BYTES)} can be made")
    fix = "See capabilities above." if number == errno.EPERM else "Use Linux 5.8 or newer, with CONFIG_BPF_SYSCALL=y."
    return Check("ring buffer", BROKEN, f"cannot be made: {os.strerror(number)}", fix)


def memory_lock(host: Host) -> Check:
    limit = host.memory_lock()
    text = "no limit" if limit == resource.RLIM_INFINITY else f"limit {show_size(limit)}"
    version = tuple(int(part) for part in re.findall(r"\d+", host.release)[:2])
    if limit == resource.RLIM_INFINITY or version >= (5, 11):  # since then memcg accounts for BPF maps
        return Check(
            "memory lock", OK, f"{text}; this kernel does not count BPF maps against it" if limit > 0 else text
        )
    if host.uid == 0:
        return Check("memory lock", OK, f"{text}; raised when sampling starts")
    return Check("memory lock", DEGRADED, text, "Run: ulimit -l unlimited, or set LimitMEMLOCK=infinity.")


def sampler(host: Host) -> Check:
    """The proof of all above: load the real program, sample for a moment, unload."""
    failure = host.sampler()
    if not failure:
        return Check("sampler", OK, "loads, samples and unloads")
    message, _, fix = failure.partition("\n")
    return Check("sampler", BROKEN, message, fix)


def kernel_symbols(host: Host) -> Check:
    first = next(iter(host.read("proc/kallsyms").splitlines()), "")
    if re.match(r"0*[1-9a-f]", first.split(" ")[0]):
        return Check("kernel symbols", OK, "/proc/kallsyms has addresses")
    text = "kernel frames stay without names: /proc/kallsyms " + ("hides addresses" if first else "is not there")
    return Check("kernel symbols", DEGRADED, text, "Run as root, and: sysctl kernel.kptr_restrict=1")


def lockdown(host: Host) -> Check:
    mode = re.search(r"\[(\w+)\]", host.read("sys/kernel/security/lockdown"))
    if mode is None or mode[1] != "confidentiality":
        return Check("lockdown", OK, mode[1] if mode else "none")
    return Check(
        "lockdown", BROKEN, "confidentiality mode forbids reading kernel memory", "Boot with lockdown=integrity."
    )


def processes(host: Host) -> Check:
    try:
        own = (host.root / "proc/self/ns/pid").stat().st_ino
    except OSError:
        return Check("processes", DEGRADED, "/proc is not readable", "Mount /proc.")
    if own == INIT_PID_NAMESPACE or host.root != Path("/"):
        return Check("processes", OK, "all of the host's are visible")
    text = "a PID namespace hides the host's processes: they are sampled but have no names"
    return Check("processes", DEGRADED, text, "docker: --pid=host; Kubernetes: hostPID: true.")


def tracing(host: Host) -> Check:
    mounted = host.read("proc/mounts")
    found = [name for name in ("tracefs", "bpf") if re.search(rf"^\S+ \S+ {name} ", mounted, re.MULTILINE)]
    if "tracefs" in found:
        return Check("tracefs", OK, f"mounted: {', '.join(found)}")
    return Check(
        "tracefs", ABSENT, "not mounted; CPU sampling does without", "mount -t tracefs tracefs /sys/kernel/tracing"
    )


def cgroups(host: Host) -> Check:
    if (host.root / "sys/fs/cgroup/cgroup.controllers").exists():
        return Check("cgroup v2", OK, "containers and pods are told apart")
    text = "cgroup v1 or hybrid: containers are told apart by /proc/PID/cgroup only, not once a process is gone"
    return Check("cgroup v2", ABSENT, text, "Boot with systemd.unified_cgroup_hierarchy=1.")


def clock(host: Host) -> Check:
    synchronized, error = host.clock()
    if synchronized:
        return Check("clock", OK, f"disciplined by a time service, error at most {error / 1000:g} ms")
    text = "no time service disciplines it; several nodes will not line up"
    return Check("clock", DEGRADED, text, "Install chrony, or: timedatectl set-ntp true")


def disk(host: Host, data: Path) -> Check:
    folder = next(path for path in (data, *data.parents) if path.exists())
    if not os.access(folder, os.W_OK):
        return Check("disk", DEGRADED, f"{data} cannot be written by this user", "Give another folder with --data.")
    free = host.free_disk(folder)
    text = f"{show_size(free - free % 10**6)} free for {data}"
    return (
        Check("disk", OK, text) if free >= ENOUGH_DISK else Check("disk", DEGRADED, text, "Free space, or give --data.")
    )


def store(host: Host, address: Address, asked: bool) -> Check:
    failure = host.connect(address)
    if not failure:
        return Check("store", OK, f"{address} accepts connections")
    if asked:
        return Check("store", DEGRADED, f"{address}: {failure}", "Start it there (gpustrobe store), or open the port.")
    return Check(
        "store", ABSENT, f"none at {address}", "gpustrobe up starts one here; --store HOST:PORT names another."
    )


def ask_nvml() -> dict[str, Any]:
    from gpustrobe.agent.gpu_probe import ask

    return ask()


def try_sampler() -> str:
    from gpustrobe.agent.sampling import trial

    return trial()


def gpu(host: Host, required: bool) -> Check:
    found = host.nvml()
    if found.get("gpus"):
        names = ", ".join(found["gpus"])
        return Check("nvml", OK, f"driver {found['driver']}: {names}")
    text = found.get("why", "no GPU")
    fix = found.get("fix", "") or "Install NVIDIA's driver where there is a GPU."
    return Check("nvml", BROKEN if required else found.get("state", ABSENT), text, fix)


def cupti(host: Host) -> Check:
    libraries = sorted({path.name for place in CUPTI_PLACES for path in host.root.glob(place)})
    if libraries:
        return Check("cupti", OK, libraries[-1])
    return Check("cupti", ABSENT, "no libcupti in the system's folders; CUDA programs from wheels bring their own")


def checks(host: Host, settings: Any, require_gpu: bool = False) -> Iterator[Check]:
    """All checks, in the order in which to mend things."""
    yield kernel(host)
    yield btf(host)
    yield capabilities(host)
    yield perf(host, settings.rate)
    yield ring_buffer(host)
    yield memory_lock(host)
    yield lockdown(host)
    yield sampler(host)
    yield kernel_symbols(host)
    yield processes(host)
    yield cgroups(host)
    yield tracing(host)
    yield gpu(host, require_gpu)
    yield cupti(host)
    yield clock(host)
    yield disk(host, settings.data)
    yield store(host, settings.store, settings.sources["store"] != "default")


def verdict(found: Sequence[Check]) -> tuple[str, int]:
    """(state, exit code) of all checks together."""
    states = {check.state for check in found}
    return (BROKEN, 3) if BROKEN in states else (DEGRADED, 1) if DEGRADED in states else (OK, 0)


def without_rights(host: Host) -> Host:
    """For a user who may not load it, the trial says so instead of failing in its own words."""
    if rights.missing(rights.effective(host.read("proc/self/status")), rights.NEEDED):
        return replace(host, sampler=lambda: "not tried: see capabilities above")
    return host
