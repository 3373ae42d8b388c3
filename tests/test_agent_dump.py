# SPDX-License-Identifier: Apache-2.0
"""The walk over a stack of known words, rule by rule; and the real thing on processes of this machine."""

import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpustrobe.agent import dump
from gpustrobe.agent.dump import BP, SP, Area, ProcessMemory, ThreadState, walk
from gpustrobe.agent.model import RawFrame, RawKind
from gpustrobe.bpf.unwind_rows import Bp, Cfa, RuleValue

HEADER = Path(__file__).parent.parent / "bpf/dump.h"
CODE = Area(0x1000, 0x9000, 0, "/bin/x", 1)


class Words:
    """A stack as a dict of words, rules by address; 0x1000-0x9000 is code."""

    def __init__(self, words, rules):
        self.words, self.rules, self.asked = words, rules, []

    def find(self, address):
        return CODE if CODE.start <= address < CODE.end else None

    def read(self, address):
        return self.words.get(address)

    def rule(self, area, address):
        self.asked.append(address)
        return self.rules.get(address)


def state(pc, sp=0x100, bp=0, **registers):
    values = [0] * 16
    values[SP], values[BP] = sp, bp
    for name, value in registers.items():
        values[int(name[1:])] = value
    return ThreadState(7, "x", False, pc, tuple(values), ())


def rule(cfa, offset=0, bp=Bp.SAME, bp_offset=0):
    return RuleValue(cfa, offset, bp, bp_offset)


STOP = rule(Cfa.STOP)


def addresses(found):
    return [address for address, _ in found[0]], found[1]


def test_return_addresses_are_named_inside_the_call():
    memory = Words({0x108: 0x3000}, {0x2000: rule(Cfa.SP, 16), 0x2FFF: STOP})
    assert addresses(walk(state(0x2000), memory)) == ([0x2000, 0x2FFF], "")


@pytest.mark.parametrize(
    ("first", "words", "registers"),
    [
        (rule(Cfa.SP, 0x20), {0x118: 0x3000}, {}),
        (rule(Cfa.BP, 0x10), {0x208: 0x3000}, {"bp": 0x200}),
        (rule(Cfa.SP_DEREF, 0x08 << 8 | 0x10), {0x108: 0x300, 0x308: 0x3000}, {}),
        (rule(Cfa.BP_DEREF, -8 << 8 | 0x08), {0x1F8: 0x300, 0x300: 0x3000}, {"bp": 0x200}),
        (rule(Cfa.LEAF, 0x10 << 8 | 10), {0x308: 0x3000}, {"r10": 0x300}),
        (rule(Cfa.PLT, 11), {0x100: 0x3000}, {}),
        (None, {0x180: 0x190, 0x188: 0x3000}, {"bp": 0x180}),
    ],
)
def test_each_rule_finds_its_caller(first, words, registers):
    memory = Words(words, {0x2000: first, 0x2FFF: STOP})
    assert addresses(walk(state(0x2000, **registers), memory)) == ([0x2000, 0x2FFF], "")


def test_the_plt_rule_counts_the_push():
    memory = Words({0x108: 0x3000}, {0x200C: rule(Cfa.PLT, 11), 0x2FFF: STOP})
    assert addresses(walk(state(0x200C), memory)) == ([0x200C, 0x2FFF], "")


@pytest.mark.parametrize(
    ("bp", "offset", "where"), [(Bp.CFA, -16, 0x100), (Bp.BP, 8, 0x208), (Bp.SP, 24, 0x118), (Bp.SAME, 0, None)]
)
def test_the_callers_frame_pointer_is_found(bp, offset, where):
    words = {0x108: 0x3000, 0x308: 0x4000} | ({where: 0x300} if where else {})
    second = rule(Cfa.BP, 0x10)
    memory = Words(words, {0x2000: rule(Cfa.SP, 0x10, bp, offset), 0x2FFF: second, 0x3FFF: STOP})
    start = state(0x2000, bp=0x200 if where else 0x300)
    assert addresses(walk(start, memory)) == ([0x2000, 0x2FFF, 0x3FFF], "")


def test_a_signal_frame_gives_the_interrupted_registers_back():
    frame = {0x110 + dump.SIGNAL_PC: 0x4000, 0x110 + dump.SIGNAL_SP: 0x500, 0x110 + dump.SIGNAL_BP: 0x600}
    memory = Words(
        {0x108: 0x3000, 0x508: 0x5000} | frame,
        {0x2000: rule(Cfa.SP, 16), 0x2FFF: rule(Cfa.SIGNAL), 0x4000: rule(Cfa.SP, 16), 0x4FFF: STOP},
    )
    # 0x4000 was interrupted, not called: it is looked up as it is
    assert addresses(walk(state(0x2000), memory)) == ([0x2000, 0x2FFF, 0x4000, 0x4FFF], "")


@pytest.mark.parametrize(
    ("rules", "words", "registers", "end"),
    [
        ({0x2000: rule(Cfa.SP, 16)}, {}, {}, "stack memory not readable"),
        ({0x2000: rule(Cfa.SP, 16)}, {0x108: 0xFFFF0000}, {}, "address in no known mapping"),
        ({0x2000: rule(Cfa.SP, 0)}, {0xF8: 0x3000}, {}, "the unwind rule gave an impossible frame"),
        ({0x2000: rule(Cfa.BAD)}, {}, {}, "the unwind rule gave an impossible frame"),
        ({0x2000: rule(Cfa.BP, 16, Bp.UNKNOWN)}, {0x208: 0x3000}, {"bp": 0x200}, "walked by frame pointers"),
        ({}, {}, {"bp": 0x33}, "walked by frame pointers, end not certain"),
        ({}, {0x200: 0x100, 0x208: 0x3000}, {"bp": 0x200}, "walked by frame pointers, end not certain"),
        ({0x2000: rule(Cfa.SIGNAL)}, {}, {}, "stack memory not readable"),
    ],
)
def test_every_early_end_has_its_reason(rules, words, registers, end):
    assert walk(state(0x2000, **registers), Words(words, rules))[1].startswith(end)


def test_a_zero_return_address_is_the_first_frame():
    assert addresses(walk(state(0x2000), Words({0x108: 0}, {0x2000: rule(Cfa.SP, 16)}))) == ([0x2000], "")


def test_an_endless_stack_ends():
    class Endless(Words):
        def read(self, address):
            return 0x3000

        def rule(self, area, address):
            return rule(Cfa.SP, 16)

    frames, end = walk(state(0x2000), Endless({}, {}))
    assert len(frames) == dump.MAX_FRAMES and end == "more frames than the limit"


def test_the_struct_is_the_headers():
    """Size and offsets of struct gs_dump_thread by the fields bpf/dump.h declares."""
    sizes = {"__u32": 4, "__u64": 8, "char": 1}
    lines = HEADER.read_text().split("struct gs_dump_thread {")[1].split("};")[0]
    total = 0
    for line in lines.splitlines():
        words = line.split(";")[0].split()
        if words:
            _name, _, count = words[1].partition("[")
            number = count.rstrip("]")
            total += sizes[words[0]] * (64 if number == "GS_DUMP_KERNEL" else int(number or 1))
    assert total == dump.THREAD.size
    row = struct.pack("<IIII Q 16Q 64Q 16s", 5, 1, 2, 0, 9, *range(16), *range(100, 164), b"name\0\xff")
    assert dump.parse_threads(row) == {5: ThreadState(5, "name", True, 9, tuple(range(16)), (100, 101))}
    too_many = struct.pack("<IIII Q 16Q 64Q 16s", 5, 0, 999, 0, 9, *range(80), b"x" * 16)
    assert len(dump.parse_threads(too_many)[5].kernel) == 64


def test_an_area_is_found_by_address_and_offset():
    memory = ProcessMemory(1, [Area(0x1000, 0x2000, 0x500, "/a", 1), Area(0x3000, 0x4000, 0, "", 0)])
    assert memory.find(0xFFF) is None and memory.find(0x2000) is None and memory.find(0x4000) is None
    assert memory.find(0x1FFF).path == "/a"
    assert memory.raw(0x1010, memory.find(0x1010)) == RawFrame(RawKind.NATIVE, 1, 0x510)
    assert memory.raw(0x3010, memory.find(0x3010)) == RawFrame(RawKind.RAW, 1, 0x3010)


@pytest.fixture
def sleeper():
    program = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import threading,time\nthreading.Thread(target=time.sleep, args=(60,)).start()\ntime.sleep(60)",
        ]
    )
    deadline = time.monotonic() + 10
    while len(os.listdir(f"/proc/{program.pid}/task")) < 2:  # noqa: PTH208
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.2)
    yield program
    program.kill()
    program.wait()


@pytest.mark.bpf
def test_sleeping_threads_are_whole_and_as_the_kernel_lists_them(sleeper):
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with ProcessMemory(sleeper.pid) as memory:
        stacks = {stack.state.tid: stack for stack in dump.sleeping_stacks(memory)}
        kinds = {stack.frames[0].kind for stack in stacks.values()}
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert sorted(stacks) == sorted(int(tid) for tid in os.listdir(f"/proc/{sleeper.pid}/task"))  # noqa: PTH208
    assert {stack.end for stack in stacks.values()} == {""} and kinds == {RawKind.KERNEL}
    for stack in stacks.values():
        syscall = Path(f"/proc/{sleeper.pid}/task/{stack.state.tid}/syscall").read_text().split()
        assert (int(syscall[-2], 16), int(syscall[-1], 16)) == (stack.state.registers[SP], stack.state.pc)


@pytest.mark.bpf
def test_the_kernel_stack_is_the_one_in_proc(sleeper):
    (state,) = [state for tid, state in dump.snapshot(sleeper.pid).items() if tid == sleeper.pid]
    names = {}
    for line in Path("/proc/kallsyms").read_text().splitlines():
        address, _, name = line.split(maxsplit=2)
        names[int(address, 16)] = name
    ordered = sorted(names)
    found = []
    for address in state.kernel:
        from bisect import bisect_right

        found.append(names[ordered[bisect_right(ordered, address) - 1]])
    shown = [line.split()[1].split("+")[0] for line in Path(f"/proc/{sleeper.pid}/stack").read_text().splitlines()]
    assert [name for name in found if name in shown] == shown
