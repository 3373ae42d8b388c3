# SPDX-License-Identifier: Apache-2.0
"""Kernel names against this machine's kallsyms and hand-made ones; the vdso against our own."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from gpustrobe.agent.model import Process, RawFrame, RawKind
from gpustrobe.symbolizer.kernel import KernelNames
from gpustrobe.symbolizer.symbolizer import Symbolizer
from gpustrobe.symbolizer.vdso import VdsoNames, _own_image, vdso_base

BASE = 0xFFFFFFFF81000000
KALLSYMS = f"""\
{BASE:016x} T _stext
{BASE:016x} T _text
{BASE + 0x100:016x} t helper
{BASE + 0x200:016x} T __write_it
{BASE + 0x200:016x} W write_it
{BASE + 0x300:016x} D some_data
{BASE + 0x400:016x} T last_of_kernel
{0xFFFFFFFFC0201000:016x} t ftrace_trampoline\t[__builtin__ftrace]
{0xFFFFFFFFC0300000:016x} t nv_open\t[nvidia]
{0xFFFFFFFFC0300800:016x} t nv_ioctl\t[nvidia]
{0xFFFFFFFFC0500000:016x} t bpf_prog_6deef7357e7b4530_sample\t[bpf]
"""
MODULES = """\
nvidia 8192 12 nvidia_uvm, Live 0xffffffffc0300000 (POE)
loop 4096 0 - Live 0xffffffffc0400000
"""


def proc(tmp_path: Path, kallsyms: str = KALLSYMS, modules: str = MODULES) -> Path:
    (tmp_path / "kallsyms").write_text(kallsyms)
    (tmp_path / "modules").write_text(modules)
    return tmp_path


def shown(names: KernelNames, *addresses: int) -> list[tuple[str, str, int]]:
    found = names.resolve(addresses)
    return [(found[a].name, found[a].module, found[a].address) for a in addresses]


def test_functions_modules_programs_and_trampolines(tmp_path: Path) -> None:
    names = KernelNames(str(proc(tmp_path)), str(tmp_path))
    asked = (BASE + 0x150, BASE + 0x210, 0xFFFFFFFFC0300810, 0xFFFFFFFFC0201010, 0xFFFFFFFFC0500020)
    assert shown(names, *asked) == [
        ("helper", "vmlinux", 0x150),
        ("write_it", "vmlinux", 0x210),  # the better of two aliases
        ("nv_ioctl", "nvidia.ko", 0x810),
        ("ftrace_trampoline", "vmlinux", 0xFFFFFFFFC0201010 - BASE),
        ("bpf_prog_6deef7357e7b4530_sample", "bpf", 0),
    ]
    assert {f.kind for f in names.resolve(asked).values()} == {"kernel"}


def test_an_address_in_another_module_or_far_away_has_no_name(tmp_path: Path) -> None:
    names = KernelNames(str(proc(tmp_path)), str(tmp_path))
    for address in (0xFFFFFFFFC0400010, BASE + (2 << 20), BASE - 1, 0):
        (frame,) = names.resolve([address]).values()
        assert (frame.name, frame.reason) == ("[kernel]", "no kernel symbol")


def test_a_module_that_loads_later_is_found_but_not_at_any_price(tmp_path: Path) -> None:
    now = [1000.0]
    names = KernelNames(str(proc(tmp_path)), str(tmp_path), clock=lambda: now[0])
    late = 0xFFFFFFFFC0400010
    assert shown(names, late)[0][0] == "[kernel]"
    proc(tmp_path, KALLSYMS + f"{late - 0x10:016x} t loop_io\t[loop]\n")
    for _ in range(100):
        names.resolve([late])
    assert names.counts["kallsyms_reads"] == 1
    now[0] += 61
    assert shown(names, late) == [("loop_io", "loop.ko", 0x10)]
    assert names.counts["kallsyms_reads"] == 2


def test_hidden_addresses_say_so_once(tmp_path: Path) -> None:
    hidden = "".join(f"{0:016x}{line[16:]}\n" for line in KALLSYMS.splitlines())
    names = KernelNames(str(proc(tmp_path, hidden)), str(tmp_path))
    found = names.resolve([BASE + i for i in range(500)])
    assert {(f.name, f.reason) for f in found.values()} == {("[kernel]", "kptr_restrict")}
    assert names.counts["kallsyms_reads"] == 1


@pytest.mark.parametrize("content", ["", "garbage\n", "zz T f\n\n\n", "ffffffff81000000\n", "ffffffff81000000 T \n"])
def test_nonsense_in_place_of_kallsyms(tmp_path: Path, content: str) -> None:
    names = KernelNames(str(proc(tmp_path, content)), str(tmp_path))
    assert names.resolve([BASE])[BASE].reason == "no kernel symbols"


def test_no_kallsyms_at_all(tmp_path: Path) -> None:
    names = KernelNames(str(tmp_path / "none"), str(tmp_path))
    assert names.resolve([BASE])[BASE].reason == "kallsyms: No such file or directory"


def own_kallsyms() -> list[tuple[int, str]]:
    rows = []
    for fields in map(str.split, Path("/proc/kallsyms").read_text().splitlines()):
        if fields[1] in "tTwW":
            rows.append((int(fields[0], 16), fields[2]))
    return rows


def test_a_thousand_functions_of_this_kernel() -> None:
    rows = own_kallsyms()
    if not rows or not rows[0][0]:
        pytest.skip("this kernel hides its addresses from us")
    by_start: dict[int, set[str]] = {}
    for start, name in rows:
        by_start.setdefault(start, set()).add(name)
    starts = sorted(by_start)
    picked = random.Random(5).sample(range(len(starts) - 1), 1000)
    names = KernelNames()
    for at in picked:
        address = starts[at] + min(5, starts[at + 1] - starts[at] - 1)
        assert names.resolve([address])[address].name in by_start[starts[at]]
    assert names.resolve([starts[0]])[starts[0]].build_id == build_id_by_notes()
    names.close()


def build_id_by_notes() -> str:
    """The kernel's build id as `file`-like tools find it: 20 bytes after the note's header."""
    notes = Path("/sys/kernel/notes").read_bytes()
    at = notes.index(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0")
    return notes[at + 16 : at + 36].hex()


def clock_gettime_offset() -> int:
    """Offset of clock_gettime in our vdso, by the dynamic linker."""
    vdso = ctypes.CDLL("linux-vdso.so.1")
    address = ctypes.cast(vdso.__vdso_clock_gettime, ctypes.c_void_p).value
    return address - vdso_base(Path("/proc/self/auxv").read_bytes())


def test_the_vdso() -> None:
    offset = clock_gettime_offset()
    names = VdsoNames()
    with subprocess.Popen(
        [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    ) as other:
        try:
            other.stdout.readline()
            for pid in (os.getpid(), other.pid, 0):  # 0: a process that is gone
                found = names.resolve(pid, [offset, offset + 8, 0])
                assert found[offset] == found[offset + 8] == "clock_gettime"
                assert found[0] == ""
        finally:
            other.kill()
    assert len(names._images) == 1  # all have the same
    names.close()


def test_a_process_with_another_vdso_is_named_by_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names = VdsoNames()
    monkeypatch.setattr(
        names, "_read", lambda pid: b"\x7fELF but nothing that we can read".ljust(len(_own_image()), b"\0")
    )
    assert names.resolve(1, [clock_gettime_offset()]) == {clock_gettime_offset(): ""}
    names.close()


def test_vdso_frames() -> None:
    symbolizer = Symbolizer(None)
    symbolizer.learn([], [Process(9, os.getpid(), 0, 0, "python")])
    answers = symbolizer.resolve([RawFrame(RawKind.VDSO, 9, clock_gettime_offset()), RawFrame(RawKind.VDSO, 9, 0)])
    symbolizer.close()
    assert [(a[0].name, a[0].module, a[0].reason) for a in answers] == [
        ("clock_gettime", "[vdso]", ""),
        ("[vdso]+0x0", "[vdso]", "no symbols"),
    ]
