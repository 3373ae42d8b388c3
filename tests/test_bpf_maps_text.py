# SPDX-License-Identifier: Apache-2.0
"""Any text of /proc/PID/maps and stat is read as its twin reads it."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import pytest
from gpustrobe.bpf import mappings as bm
from gpustrobe.bpf.loader import find
from gpustrobe.bpf.mappings import Listing, Mappings
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.proc_children import TICK, false_process, twin

# ---- hostile text


class VmaList(ctypes.Structure):
    _fields_ = (
        ("vmas", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
        ("room", ctypes.c_uint32),
        ("paths", ctypes.c_void_p),
        ("paths_used", ctypes.c_size_t),
        ("paths_room", ctypes.c_size_t),
        ("bad_lines", ctypes.c_uint32),
        ("by_text", ctypes.c_int),
        ("maps_fd", ctypes.c_int),
    )


VMA = struct.Struct("<QQQQIIII")


def parse(text: bytes) -> list[tuple[int, int, int, int, int, bool, bytes]]:
    core, found = ctypes.CDLL(str(find("core.so"))), VmaList(maps_fd=-1)
    core.gs_parse_maps.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(VmaList)]
    assert core.gs_parse_maps(text, len(text), ctypes.byref(found)) == 0
    rows = []
    raw = ctypes.string_at(found.vmas, found.count * VMA.size) if found.count else b""
    paths = ctypes.string_at(found.paths, found.paths_used) if found.paths else b""
    for start, end, offset, inode, device, flags, path, length in VMA.iter_unpack(raw):
        rows.append((start, end, offset, inode, device, bool(flags & 1), paths[path : path + length]))
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free(found.vmas)
    free(found.paths)
    return rows


def same_as_twin(text: bytes) -> None:
    want = [(*row[:6], row[6] if row[3] else b"") for row in twin(text)]
    assert parse(text) == want


HEX = st.integers(0, 1 << 66).map(lambda n: b"%x" % n) | st.integers(0, 1 << 20).map(lambda n: b"%08x" % n)
LINES = st.builds(
    lambda a, b, mode, offset, major, minor, inode, pad, path: (
        b"%s-%s %s %s %s:%s %d%s%s" % (a, b, mode, offset, major, minor, inode, b" " * pad, path)
    ),
    HEX,
    HEX,
    st.sampled_from([b"r-xp", b"rwxp", b"r-xs", b"r--p", b"--xp", b"r-x", b"rxxp", b"r-xp "]),
    HEX,
    st.sampled_from([b"fe", b"00", b"fff", b"1000", b""]),
    st.sampled_from([b"01", b"fffff", b"100000", b"g"]),
    st.integers(0, 1 << 65),
    st.integers(0, 30),
    st.binary(max_size=40) | st.sampled_from([b"[vdso]", b"/usr/lib/a b (deleted)", b"/x\\012y"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(LINES, max_size=8).map(b"\n".join) | st.binary(max_size=300))
def test_any_text_parses_as_its_twin(text):
    same_as_twin(text)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_mutated_text_parses_as_its_twin(data):
    text = bytearray(b"".join(line + b"\n" for line in Path("/proc/self/maps").read_bytes().split(b"\n")[:12]))
    for _ in range(data.draw(st.integers(1, 12))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(
            st.sampled_from(list(b"0123456789abcdef-: \nrwxps/\0\xff"))
        )
    same_as_twin(bytes(text))


@pytest.mark.parametrize("long", [100, 16_384, 65_000, 65_536, 200_000])
def test_very_long_lines_harm_no_other(tmp_path, long):
    maps = f"1000-2000 r-xp 0 00:00 0 \n2000-3000 r-xp 0 08:01 7 /{'x' * long}\n4000-5000 r-xp 0 00:00 0 \n"
    false_process(tmp_path, 3, ticks=1, maps=maps)
    with Mappings(str(tmp_path), text_only=True) as m:
        assert m.refresh(3, TICK) == Listing.LISTED
        kept = long < 65_536
        assert [r.start for r in m.rows(3, TICK)] == ([0x1000, 0x2000, 0x4000] if kept else [0x1000, 0x4000])
        assert m.counters()["bad_maps_line"] == (not kept)


def test_an_endless_maps_is_cut(tmp_path):
    rows = "".join(f"{i * 2 + 1:x}000-{i * 2 + 2:x}000 r-xp 0 00:00 0 \n" for i in range(70_000))
    false_process(tmp_path, 3, ticks=1, maps=rows)
    with Mappings(str(tmp_path), text_only=True) as m:
        assert m.refresh(3, TICK) == Listing.LISTED
        assert len(m.rows(3, TICK)) == 65_536


@pytest.mark.parametrize(
    "text", [b"", b"1", b"1 (x", b"1 (x)", b"1 (x) S 1 2", b"\0" * 900, b"1 (x) S " + b"1 " * 18 + b"-5 " + b"1 " * 30]
)
def test_stat_that_is_none(text):
    assert bm.parse_stat(text) is None


def test_stat_of_every_process_here():
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_bytes()
            except OSError:
                continue
            fields = text.rsplit(b")", 1)[1].split()
            assert bm.parse_stat(text) == (int(fields[19]), int(fields[25]))
