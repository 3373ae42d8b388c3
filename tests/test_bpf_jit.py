# SPDX-License-Identifier: Apache-2.0
"""JIT code: lists and images as a hostile or hurried program may leave them, read from this process's own memory; and a program
that loads and registers code the way LLVM does, sampled for real."""

from __future__ import annotations

import ctypes
import os
import random
import struct
import subprocess
import time
from collections import Counter
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from gpustrobe.agent.sampler import Sampler, SamplerOptions
from gpustrobe.bpf.loader import library
from gpustrobe.symbolizer.symbolizer import Symbolizer

TARGETS = Path(__file__).parent / "targets"
WHOLE, BROKEN, CUT, NONE = range(4)  # enum gs_jit_list_end
MAX_OBJECTS, MAX_IMAGE = 8192, 16 << 20
SHF_ALLOC, SHF_EXECINSTR = 2, 4


class Symbol(ctypes.Structure):
    _fields_ = (("start", ctypes.c_uint64), ("end", ctypes.c_uint64), ("name", ctypes.c_uint32))


class Object(ctypes.Structure):
    """struct gs_jit_object"""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("entry", "image", "size", "mark")),
        ("number", ctypes.c_uint32),
        ("n_symbols", ctypes.c_uint32),
        ("symbols", ctypes.POINTER(Symbol)),
        ("names", ctypes.c_void_p),
        ("names_size", ctypes.c_uint32),
        ("low", ctypes.c_uint64),
        ("high", ctypes.c_uint64),
        ("frames", ctypes.c_void_p),
        ("frames_size", ctypes.c_size_t),
        ("frames_vaddr", ctypes.c_uint64),
    )


def core() -> ctypes.CDLL:
    lib = library()
    objects = ctypes.POINTER(ctypes.POINTER(Object))
    lib.gs_jit_read_list.argtypes = [ctypes.c_int, ctypes.c_uint64, objects, ctypes.POINTER(ctypes.c_uint32)]
    lib.gs_jit_read_object.argtypes = [ctypes.c_int, ctypes.POINTER(Object)]
    lib.gs_jit_read_object.restype = ctypes.c_char_p
    lib.gs_jit_free_object.argtypes = [ctypes.POINTER(Object)]
    lib.gs_jit_find_descriptor.argtypes = [ctypes.c_int, ctypes.c_uint64]
    lib.gs_jit_find_descriptor.restype = ctypes.c_uint64
    return lib


@pytest.fixture(scope="module")
def memory():
    fd = os.open("/proc/self/mem", os.O_RDONLY)
    yield fd
    os.close(fd)


class Listed:
    """A descriptor and entries in this process's memory, linked as they should be; tests then break them."""

    def __init__(self, images: list[bytes]) -> None:
        self.buffers = [ctypes.create_string_buffer(image, len(image)) for image in images]
        self.entries = (ctypes.c_uint64 * (4 * max(1, len(images))))()
        base = ctypes.addressof(self.entries)
        for i, image in enumerate(images):
            following = base + 32 * (i + 1) if i + 1 < len(images) else 0
            before = base + 32 * (i - 1) if i else 0
            self.entries[4 * i : 4 * i + 4] = [following, before, ctypes.addressof(self.buffers[i]), len(image)]
        self.descriptor = ctypes.create_string_buffer(struct.pack("<IIQQ", 1, 1, 0, base if images else 0), 24)

    def entry(self, i: int) -> int:
        return ctypes.addressof(self.entries) + 32 * i

    def read(self, memory: int) -> tuple[int, list[tuple[int, int, int]]]:
        lib, objects, count = core(), ctypes.POINTER(Object)(), ctypes.c_uint32()
        end = lib.gs_jit_read_list(
            memory, ctypes.addressof(self.descriptor), ctypes.byref(objects), ctypes.byref(count)
        )
        found = [(objects[i].image, objects[i].size, objects[i].mark) for i in range(count.value)]
        ctypes.CDLL(None).free(objects)
        return end, found


def test_a_sound_list(memory):
    listed = Listed([b"a" * 100, b"b" * 5000, b"c" * 40])
    end, found = listed.read(memory)
    assert end == WHOLE
    assert [(image, size) for image, size, _ in found] == [(ctypes.addressof(b), len(b)) for b in listed.buffers]
    assert len({mark for *_, mark in found}) == 3 and all(mark for *_, mark in found)


def test_the_mark_tells_images_apart_that_took_each_others_place(memory):
    listed = Listed([b"x" * 3000])
    marks = set()
    for at in (0, 1023, 2999):
        listed.buffers[0][at] = b"y"
        marks.add(listed.read(memory)[1][0][2])
    assert len(marks) == 3


def test_no_list(memory):
    empty = Listed([])
    assert empty.read(memory) == (WHOLE, [])
    empty.descriptor[0] = b"\x02"  # a version that does not exist
    assert empty.read(memory) == (NONE, [])


def test_a_loop_ends(memory):
    listed = Listed([b"a" * 64] * 4)
    listed.entries[4 * 3] = listed.entry(1)
    end, found = listed.read(memory)
    assert end == BROKEN and len(found) == 4
    listed.entries[4 * 0] = listed.entry(0)  # to itself
    assert listed.read(memory)[0] == BROKEN


@pytest.mark.parametrize("wild", [1, 8, 0x7FFF_FFFF_F000, 1 << 63, (1 << 64) - 8])
def test_pointers_to_nowhere(memory, wild):
    listed = Listed([b"a" * 64] * 3)
    listed.entries[4 * 1] = wild
    end, found = listed.read(memory)
    assert end == BROKEN and len(found) == 2
    listed = Listed([b"a" * 64] * 3)
    listed.entries[4 * 1 + 2] = wild  # the image
    end, found = listed.read(memory)
    assert end == WHOLE and [mark != 0 for *_, mark in found] == [True, False, True]


@pytest.mark.parametrize("size", [0, MAX_IMAGE + 1, 1 << 40, (1 << 64) - 1])
def test_sizes_that_cannot_be(memory, size):
    listed = Listed([b"a" * 64])
    listed.entries[3] = size
    assert listed.read(memory)[1][0][2] == 0
    broken = Object(image=ctypes.addressof(listed.buffers[0]), size=size)
    assert core().gs_jit_read_object(memory, broken)


def test_a_list_without_end_is_cut(memory):
    n = MAX_OBJECTS + 100
    listed = Listed([b"a"])
    entries = (ctypes.c_uint64 * (4 * n))()
    base = ctypes.addressof(entries)
    for i in range(n):
        entries[4 * i : 4 * i + 4] = [base + 32 * (i + 1), base + 32 * (i - 1) if i else 0, 0, 0]
    listed.descriptor = ctypes.create_string_buffer(struct.pack("<IIQQ", 1, 1, 0, base), 24)
    end, found = listed.read(memory)
    assert end == CUT and len(found) == MAX_OBJECTS


def elf(address: int, names: list[str], *, kind: int = 1, size: int = 4096) -> bytes:
    """An image with code of `size` bytes at `address` and a function per name, 16 bytes apart. kind: ET_REL."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    sections = b"\0.text\0.symtab\0.strtab\0"
    symbols = bytes(24)
    at = 1
    for i, name in enumerate(names):
        symbols += struct.pack("<IBBHQQ", at, 0x12, 0, 1, 16 * i, 16)
        at += len(name) + 1
    body = symbols + strings + sections
    start = 64
    headers = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (1, 8, SHF_ALLOC | SHF_EXECINSTR, address, start, size, 0, 0, 16, 0),
        (7, 2, 0, 0, start, len(symbols), 3, 1, 8, 24),
        (15, 3, 0, 0, start + len(symbols), len(strings) + len(sections), 0, 0, 1, 0),
    ]
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", kind, 62, 1, 0, 0, start + len(body), 0, 64, 0, 0, 64, 4, 3
    )
    table = b"".join(struct.pack("<IIQQQQIIQQ", at_name(h, strings), *h[1:]) for h in headers)
    return head + body + table


def at_name(header: tuple[int, ...], strings: bytes) -> int:
    """Section names lie behind the symbols' in one string table."""
    return header[0] + len(strings) if header[0] else 0


def read_object(memory: int, image: bytes) -> tuple[str | None, list[tuple[int, int, bytes]]]:
    buffer = ctypes.create_string_buffer(image, len(image))
    found = Object(image=ctypes.addressof(buffer), size=len(image), mark=1)
    reason = core().gs_jit_read_object(memory, found)
    symbols = []
    if reason is None:
        for i in range(found.n_symbols):
            name = ctypes.string_at(found.names + found.symbols[i].name)
            symbols.append((found.symbols[i].start, found.symbols[i].end, name))
        core().gs_jit_free_object(found)
    return reason, symbols


def test_an_image(memory):
    base = 0x7F00_0000_1000
    assert read_object(memory, elf(base, ["sine", "fusion.1"])) == (
        None,
        [(base, base + 16, b"sine"), (base + 16, base + 32, b"fusion.1")],
    )


@pytest.mark.parametrize(
    "image",
    [
        b"",
        b"\x7fELF",
        b"\x7fELF\x01\x01" + bytes(100),
        elf(0, ["no address"]),
        elf(1 << 63, ["kernel"]),
        elf(4096, [], size=0),
    ],
)
def test_images_that_are_none(memory, image):
    buffer = ctypes.create_string_buffer(image, len(image) + 1)
    found = Object(image=ctypes.addressof(buffer), size=len(image), mark=1)
    assert core().gs_jit_read_object(memory, found)


def test_mutated_images_are_read_or_refused(memory):
    chance, sound = random.Random(4), elf(0x7F00_0000_1000, ["a" * 50, "b", "c" * 9])
    read = 0
    for _ in range(3000):
        image = bytearray(sound)
        for _ in range(chance.randint(1, 6)):
            at = chance.choice(
                (chance.randrange(64), chance.randrange(len(image) - 256, len(image)), chance.randrange(len(image)))
            )
            image[at] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
        reason, symbols = read_object(
            memory, bytes(image[: chance.choice((len(image), chance.randrange(1, len(image))))])
        )
        read += reason is None
        assert all(start < end < 1 << 63 and len(name) <= 1024 for start, end, name in symbols)
    assert read > 100  # the mutations are not so wild that nothing gets through


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("jit")
    code = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-fcf-protection=none", "-fno-pic"]
    subprocess.run(["gcc", *code, "-c", "-o", folder / "jit_code.o", TARGETS / "jit_code.c"], check=True)
    subprocess.run(["gcc", "-O2", "-o", folder / "jit_host", TARGETS / "jit_host.c"], check=True)
    return folder / "jit_host", folder / "jit_code.o"


def test_the_interface_is_found_by_its_symbol(host, tmp_path):
    program, lib = host[0], core()
    lines = subprocess.run(["nm", program], check=True, capture_output=True, text=True).stdout.splitlines()
    address = next(int(line.split()[0], 16) for line in lines if line.endswith(" __jit_debug_descriptor"))
    text = subprocess.run(["readelf", "-lW", program], check=True, capture_output=True, text=True).stdout
    segment = next(line.split() for line in text.splitlines() if " R E " in line)
    offset, vaddr = int(segment[1], 16), int(segment[2], 16)
    with program.open("rb") as file:
        assert lib.gs_jit_find_descriptor(file.fileno(), offset) == address - (vaddr - offset)
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", stripped, program], check=True)
    for path in (stripped, Path("/lib/x86_64-linux-gnu/libc.so.6"), Path(__file__)):
        with path.open("rb") as file:
            assert lib.gs_jit_find_descriptor(file.fileno(), 0) == 0


@contextmanager
def running(*command: object):
    child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"busy\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def profile(pid: int, windows: int, skip: int = 1) -> tuple[Counter, dict[str, int]]:
    """Samples by whole stack of `Frame`s, root first, of all windows but the first `skip`; and the counters."""
    stacks: Counter = Counter()
    with closing(Symbolizer(None)) as symbolizer, Sampler(SamplerOptions(hz=397, pids=(pid,))) as sampler:
        frames, raw, seen = [], [], 0
        end = time.monotonic() + 4 * windows
        while seen < windows and time.monotonic() < end:
            window = sampler.take(2)
            if window is None:
                continue
            symbolizer.learn(window.files, window.processes, window.codes, window.jits)
            frames += symbolizer.resolve(window.frames)
            raw += window.stacks
            seen += 1
            for stack, value in zip(window.stack.tolist(), window.value.tolist(), strict=True) if seen > skip else ():
                stacks[tuple(f for frame in reversed(raw[stack]) for f in reversed(frames[frame]))] += value
        return stacks, sampler.counters()


SHAPE = ["main", "jit_entry", *["jit_middle"] * 6, "jit_leaf"]


def share(stacks: Counter, right) -> float:
    assert sum(stacks.values()) > 100
    return sum(value for stack, value in stacks.items() if right(stack)) / sum(stacks.values())


def user(stack):
    return [frame for frame in stack if frame.kind != "kernel"]


def from_start_to_main(stack) -> bool:
    return stack[0].name == "_start" and any(frame.name == "main" for frame in stack)


@pytest.mark.bpf
def test_registered_code_has_names_and_whole_stacks(host):
    with running(*host, "registered") as child:
        stacks, counters = profile(child.pid, 3)

    def right(stack):
        names = [frame.name for frame in user(stack)]
        jit = [frame for frame in user(stack) if frame.name.startswith("jit_")]
        return (
            from_start_to_main(stack)
            and names[-len(SHAPE) :] == SHAPE[: len(names)]
            and all(frame.module == "[jit jit_host]" and frame.kind == "native" for frame in jit)
        )

    whole = share(stacks, lambda stack: right(stack) or user(stack)[-1].name in ("main", "jit_entry", "jit_middle"))
    assert whole >= 0.99 and share(stacks, right) >= 0.98
    assert (counters["jit_objects"], counters["jit_tables"], counters["jit_lists_broken"]) == (1, 1, 0)


@pytest.mark.bpf
@pytest.mark.parametrize("mode", ["rowless", "nameless"])
def test_code_without_rows_is_walked_by_guessing_and_says_so(host, mode):
    with running(*host, mode) as child:
        stacks, counters = profile(child.pid, 3)
    assert share(stacks, from_start_to_main) >= 0.97
    assert counters["frames_guessed"] > 100
    guessed = share(stacks, lambda stack: any(frame.kind == "guessed" for frame in stack))
    assert guessed > 0.9
    if mode == "rowless":
        names = [frame.name for frame in max(stacks, key=stacks.__getitem__)]
        assert share(stacks, lambda stack: [frame.name for frame in user(stack)][-len(SHAPE) :] == SHAPE) > 0.9, names
    else:
        assert share(stacks, lambda stack: user(stack)[-1].name == "[unknown code]") > 0.9


@pytest.mark.bpf
def test_code_that_is_registered_while_it_is_sampled(host):
    with running(*host, "late") as child:
        stacks, counters = profile(child.pid, 8, skip=7)
    assert share(stacks, lambda stack: user(stack)[-1].name == "jit_leaf") > 0.97
    assert counters["jit_objects"] == 1
