# SPDX-License-Identifier: Apache-2.0
"""Each check on a made-up machine, and all of them on this one."""

import errno
import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from gpustrobe.agent import doctor, kernel_probe
from gpustrobe.agent.doctor import ABSENT, BROKEN, DEGRADED, OK, Host
from gpustrobe.agent.units import Address

GPUSTROBE = Path(sys.executable).with_name("gpustrobe")
ALL_CAPABILITIES = (1 << 41) - 1


@pytest.fixture
def machine(tmp_path):
    """A machine on which all is well; tests take things away."""
    files = {
        "sys/kernel/btf/vmlinux": "",
        "sys/kernel/security/lockdown": "none [integrity] confidentiality\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
        "proc/self/status": f"Name:\tx\nCapEff:\t{ALL_CAPABILITIES:016x}\n",
        "proc/self/ns/pid": "",
        "proc/sys/kernel/perf_event_max_sample_rate": "100000\n",
        "proc/sys/kernel/perf_event_paranoid": "2\n",
        "proc/kallsyms": "ffffffff81000000 T _stext\n",
        "proc/mounts": "tracefs /sys/kernel/tracing tracefs rw 0 0\nbpf /sys/fs/bpf bpf rw 0 0\n",
        "usr/local/cuda-13.0/extras/CUPTI/lib64/libcupti.so.13": "",
    }
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(
        root=tmp_path / "root",
        release="6.1.0-18-amd64",
        machine="x86_64",
        uid=0,
        arguments=("/opt/gpustrobe", "doctor"),
        environment={},
        perf_event=lambda: 0,
        ring_buffer=lambda size: 0,
        clock=lambda: (True, 1500),
        memory_lock=lambda: resource.RLIM_INFINITY,
        free_disk=lambda path: 50 * 10**9,
        connect=lambda address: "",
        nvml=lambda: {"driver": "580.1", "gpus": ["NVIDIA H100", "NVIDIA H100"]},
        sampler=lambda: "",
    )


@pytest.fixture
def settings(tmp_path):
    return SimpleNamespace(
        rate=100, store=Address("db", 4317), data=tmp_path / "data/gpustrobe", sources={"store": "default"}
    )


def states(host, settings, **options):
    return {check.name: check for check in doctor.checks(host, settings, **options)}


def test_a_good_machine_is_well(machine, settings):
    found = states(machine, settings)
    assert {check.state for check in found.values()} == {OK}
    assert doctor.verdict(list(found.values())) == (OK, 0)
    assert found["nvml"].text == "driver 580.1: NVIDIA H100, NVIDIA H100"
    assert found["cupti"].text == "libcupti.so.13"
    assert not any(check.fix for check in found.values())


@pytest.mark.parametrize(
    ("name", "change", "state", "words"),
    [
        ("kernel", {"release": "5.4.0-150-generic"}, BROKEN, "Linux 5.10"),
        ("kernel", {"machine": "riscv64"}, BROKEN, "x86_64"),
        ("perf events", {"perf_event": lambda: errno.ENOSYS}, BROKEN, "seccomp"),
        ("perf events", {"perf_event": lambda: errno.ENOENT}, BROKEN, "hypervisor"),
        ("perf events", {"perf_event": lambda: errno.EACCES, "uid": 1000}, BROKEN, "Run: sudo /opt/gpustrobe doctor"),
        ("ring buffer", {"ring_buffer": lambda size: errno.EINVAL}, BROKEN, "Linux 5.8"),
        ("memory lock", {"memory_lock": lambda: 8 << 20}, OK, "8MiB; this kernel does not count"),
        (
            "memory lock",
            {"memory_lock": lambda: 8 << 20, "release": "5.10.0", "uid": 1},
            DEGRADED,
            "ulimit -l unlimited",
        ),
        ("sampler", {"sampler": lambda: "The kernel refused.\nDo this."}, BROKEN, "Do this."),
        ("clock", {"clock": lambda: (False, 16_000_000)}, DEGRADED, "chrony"),
        ("disk", {"free_disk": lambda path: 10**8}, DEGRADED, "100MB free"),
        ("store", {"connect": lambda address: "Connection refused"}, ABSENT, "gpustrobe up"),
        ("nvml", {"nvml": lambda: {"state": ABSENT, "why": "no driver", "fix": "Install it."}}, ABSENT, "Install it."),
        ("nvml", {"nvml": lambda: {"state": DEGRADED, "why": "it hangs", "fix": ""}}, DEGRADED, "it hangs"),
    ],
)
def test_each_fault_has_a_state_and_a_way_out(machine, settings, name, change, state, words):
    check = states(replace(machine, **change), settings)[name]
    assert check.state == state and words in f"{check.text} {check.fix}"


@pytest.mark.parametrize(
    ("name", "file", "text", "state", "words"),
    [
        ("btf", "sys/kernel/btf/vmlinux", None, BROKEN, "CONFIG_DEBUG_INFO_BTF"),
        ("lockdown", "sys/kernel/security/lockdown", "none integrity [confidentiality]", BROKEN, "lockdown=integrity"),
        ("kernel symbols", "proc/kallsyms", "0000000000000000 T _stext\n", DEGRADED, "kptr_restrict"),
        ("kernel symbols", "proc/kallsyms", None, DEGRADED, "is not there"),
        ("cgroup v2", "sys/fs/cgroup/cgroup.controllers", None, ABSENT, "unified_cgroup_hierarchy"),
        ("tracefs", "proc/mounts", "proc /proc proc rw 0 0\n", ABSENT, "mount -t tracefs"),
        ("perf events", "proc/sys/kernel/perf_event_max_sample_rate", "50\n", DEGRADED, "sysctl kernel."),
        ("capabilities", "proc/self/status", "CapEff:\t0000000000000000\n", BROKEN, "CAP_BPF (loads the sampler)"),
        ("capabilities", "proc/self/status", f"CapEff:\t{1 << 21:016x}\n", DEGRADED, "CAP_SYS_PTRACE"),
    ],
)  # fmt: skip
def test_each_missing_file_has_a_state_and_a_way_out(machine, settings, name, file, text, state, words):
    path = machine.root / file
    path.unlink() if text is None else path.write_text(text)
    check = states(machine, settings)[name]
    assert check.state == state and words in f"{check.text} {check.fix}"


def test_a_required_gpu_that_is_absent_breaks(machine, settings):
    host = replace(machine, nvml=lambda: {"state": ABSENT, "why": "no driver", "fix": ""})
    assert doctor.verdict(list(states(host, settings).values())) == (OK, 0)
    assert doctor.verdict(list(states(host, settings, require_gpu=True).values())) == (BROKEN, 3)


def test_a_store_that_was_named_and_is_away_degrades(machine, settings):
    host = replace(machine, connect=lambda address: "Connection refused")
    settings.sources["store"] = "command line"
    check = states(host, settings)["store"]
    assert check.state == DEGRADED and check.text == "db:4317: Connection refused"
    assert doctor.verdict([check]) == (DEGRADED, 1)


def test_without_rights_the_sampler_is_not_tried(machine, settings):
    (machine.root / "proc/self/status").write_text("CapEff:\t0\n")
    host = doctor.without_rights(replace(machine, sampler=lambda: pytest.fail("tried")))
    assert states(host, settings)["sampler"].text == "not tried: see capabilities above"


def test_the_clock_is_read_as_the_c_library_lays_it_out():
    """struct timex by its own compiler, where there is one."""
    synchronized, error = kernel_probe.clock_synchronized()
    assert isinstance(synchronized, bool) and 0 <= error <= 16_000_000 * 2


@pytest.mark.bpf
def test_the_probes_open_for_root():
    assert kernel_probe.perf_event() == 0
    assert kernel_probe.ring_buffer(1 << 20) == 0
    assert kernel_probe.ring_buffer(12345) == errno.EINVAL  # no power of two: the kernel itself was asked
    assert kernel_probe.perf_event(cpu=4095) in (errno.EINVAL, errno.ENODEV)
    assert kernel_probe.perf_event("vax") == errno.ENOSYS


@pytest.mark.bpf
def test_doctor_on_this_machine(tmp_path):
    words = [GPUSTROBE, "doctor", "--json", "--data", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    answer = json.loads(done.stdout)
    found = {check["name"]: check for check in answer["checks"]}
    assert done.returncode == {"ok": 0, "degraded": 1, "broken": 3}[answer["state"]] and done.returncode != 3
    for name in ("kernel", "btf", "capabilities", "perf events", "ring buffer", "sampler"):
        assert found[name]["state"] == OK, found[name]
    text = subprocess.run([GPUSTROBE, "doctor", "--data", tmp_path], capture_output=True, text=True, timeout=60)
    assert text.returncode == done.returncode
    assert [line.split("  ")[0][2:] for line in text.stdout.splitlines() if line[:1] in "✓–!✗" and line] == list(found)


@pytest.mark.bpf
def test_doctor_leaves_nothing_in_the_kernel():
    assert doctor.try_sampler() == ""
    names = [Path(f"/proc/self/fd/{fd.name}").readlink() for fd in Path("/proc/self/fd").iterdir() if fd.exists()]
    assert not [name for name in names if "bpf" in str(name) or "perf_event" in str(name)]


def test_doctor_on_a_simulated_gpu_node(tmp_path):
    node = Path(__file__).parent / "sim/node"
    words = [sys.executable, node, "--", GPUSTROBE, "doctor", "--json", "--require", "gpu", "--data", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90)
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["nvml"]["state"] == OK and found["nvml"]["text"].count("NVIDIA") == 2, found["nvml"]
