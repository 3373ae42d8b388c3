# SPDX-License-Identifier: Apache-2.0
"""Kernel offsets (bpf/config.h, struct gs_offsets) for a kernel without BTF: BCC compiles a small program against the
kernel's headers, and the constants are read from its instructions; nothing is loaded.

BCC is Debian's python3-bpfcc, which belongs to the system's Python; PyPI's `bcc` is an unrelated package. So this file
also runs as a script of whatever python3 has it, and prints JSON. Compiling takes 3.6 s.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence

# (struct, member) in the order of struct gs_offsets; ("", "pt_regs") is where the user registers lie above task->stack
FIELDS = (
    ("task_struct", "mm"),
    ("task_struct", "stack"),
    ("task_struct", "flags"),
    ("task_struct", "pid"),
    ("task_struct", "tgid"),
    ("task_struct", "group_leader"),
    ("task_struct", "start_boottime"),
    ("task_struct", "thread"),
    ("thread_struct", "fsbase"),
    ("mm_struct", "exec_vm"),
    ("mm_struct", "start_stack"),
    ("task_struct", "thread_pid"),
    ("pid", "level"),
    ("pid", "numbers"),
    ("pid_namespace", "ns"),
    ("ns_common", "inum"),
    ("", "pt_regs"),
    ("vm_area_struct", "vm_start"),
    ("vm_area_struct", "vm_pgoff"),
    ("vm_area_struct", "vm_file"),
    ("file", "f_inode"),
    ("inode", "i_ino"),
    ("inode", "i_sb"),
    ("super_block", "s_dev"),
)

HEADERS = """
#include <linux/sched.h>
#include <linux/mm_types.h>
#include <linux/fs.h>
#include <linux/pid_namespace.h>
#include <linux/ptrace.h>
#include <linux/thread_info.h>
"""

# The padding above the registers came with FRED; it is defined on x86 only.
REGISTERS = """
#ifndef TOP_OF_KERNEL_STACK_PADDING
#define TOP_OF_KERNEL_STACK_PADDING 0
#endif
"""


def program(headers: str = HEADERS) -> str:
    """One function for each offset, returning it as a constant."""
    lines = [headers, REGISTERS]
    for i, (owner, member) in enumerate(FIELDS):
        value = (
            f"offsetof(struct {owner}, {member})"
            if owner
            else "THREAD_SIZE - TOP_OF_KERNEL_STACK_PADDING - sizeof(struct pt_regs)"
        )
        lines.append(f"int offset_{i}(void *ctx) {{ return {value}; }}")
    return "\n".join(lines)


def constant(instructions: bytes) -> int:
    """The number that `return CONSTANT` compiles to: r0 = imm (32 or 64 bit), exit. ValueError for anything else."""
    if len(instructions) != 16:
        raise ValueError(f"{len(instructions)} bytes of instructions, 16 expected")
    code, registers, _, value = struct.unpack_from("<BBhi", instructions)
    if code not in (0xB7, 0xB4) or registers & 0xF or instructions[8] != 0x95:
        raise ValueError(f"not a constant: {instructions.hex()}")
    return value


def compile_with_bcc(bpf: Callable[..., object]) -> list[int]:
    module = bpf(text=program())
    return [constant(module.dump_func(f"offset_{i}".encode())) for i in range(len(FIELDS))]


def ask(python: str, timeout: float = 60) -> tuple[int, ...]:
    """Runs this file under another Python; empty if it has no BCC, or no kernel headers."""
    try:
        done = subprocess.run([python, __file__], capture_output=True, text=True, timeout=timeout, check=True)
        return tuple(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return ()


def read(pythons: Sequence[str] = ("/usr/bin/python3", sys.executable)) -> tuple[int, ...]:
    """Offsets in the order of FIELDS, or () where BCC or the headers are missing."""
    for python in pythons:
        offsets = ask(python)
        if len(offsets) == len(FIELDS):
            return offsets
    return ()


if __name__ == "__main__":
    from bcc import BPF

    print(json.dumps(compile_with_bcc(BPF)))
