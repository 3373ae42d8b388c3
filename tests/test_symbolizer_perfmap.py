# SPDX-License-Identifier: Apache-2.0
"""Perf maps: names of JIT code from files that belong to the profiled process, and may be anything."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpustrobe.agent.model import Process, RawFrame, RawKind
from gpustrobe.bpf.text_names import PerfMap
from gpustrobe.symbolizer.perfmap import FOREIGN, NO_MAP, PerfMaps
from gpustrobe.symbolizer.symbolizer import Symbolizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PID = 4711


class Root:
    """A /proc with one process whose root is a directory of the test."""

    def __init__(self, directory: Path, uid: int = 0, inner: int = 7) -> None:
        self.proc, self.root = directory / "proc", directory / "root"
        (self.root / "tmp").mkdir(parents=True)
        (self.proc / str(PID)).mkdir(parents=True)
        (self.proc / str(PID) / "root").symlink_to(self.root)
        (self.proc / str(PID) / "status").write_text(
            f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{PID}\t{inner}\n"
        )
        self.map = self.root / "tmp" / f"perf-{inner}.map"
        self.process = Process(1, PID, 99, 0, "node")


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def names(root: Root, *addresses: int, maps: PerfMaps | None = None) -> list[str]:
    found = (maps or PerfMaps(str(root.proc))).resolve(root.process, list(addresses))
    return [found[a][0] or found[a][1] for a in addresses]


def test_names_by_address(root: Root) -> None:
    root.map.write_text("1000 20 LazyCompile:~run /app/main.js:12\n0x1020 0x8 Builtin:Add\nffffffff00 10 last\n")
    asked = names(root, 0x1000, 0x101F, 0x1020, 0x1027, 0x1028, 0xFFF, 0xFFFFFFFF0F)
    run = "LazyCompile:~run /app/main.js:12"
    assert asked == [run, run, "Builtin:Add", "Builtin:Add", NO_MAP, NO_MAP, "last"]


def test_later_lines_win(root: Root) -> None:
    root.map.write_text("1000 100 old\n2000 10 other\n1010 20 moved here\n")
    assert names(root, 0x1005, 0x1010, 0x102F, 0x1030) == ["old", "moved here", "moved here", "old"]


def test_a_map_that_grows_is_read_on_and_not_at_every_call(root: Root) -> None:
    now = [5.0]
    maps = PerfMaps(str(root.proc), clock=lambda: now[0])
    root.map.write_text("1000 10 one\n2000 10 tw")
    assert names(root, 0x1000, 0x2000, maps=maps) == ["one", NO_MAP]  # the last line is not whole
    with root.map.open("a") as file:
        file.write("o\n3000 10 three\n")
    assert names(root, 0x3000, maps=maps) == [NO_MAP]
    now[0] += 2
    assert names(root, 0x1000, 0x2000, 0x3000, maps=maps) == ["one", "two", "three"]
    reads = maps.counts["perf_maps_read"]
    now[0] += 2
    assert names(root, 0x4000, maps=maps) == [NO_MAP]
    assert maps.counts["perf_maps_read"] == reads == 2


def test_a_map_that_is_written_anew_is_read_anew(root: Root) -> None:
    now = [5.0]
    maps = PerfMaps(str(root.proc), clock=lambda: now[0])
    root.map.write_text("1000 10 one\n" * 10)
    assert names(root, 0x1000, maps=maps) == ["one"]
    root.map.unlink()
    root.map.write_text("1000 10 fresh\n")
    now[0] += 2
    assert names(root, 0x1000, maps=maps) == ["fresh"]


@pytest.mark.parametrize(
    ("uid_of_process", "uid_of_file", "allowed"),
    [(1000, 1000, True), (1000, 0, True), (1000, 1001, False), (0, 1001, False)],
)
def test_whose_map_is_believed(tmp_path: Path, uid_of_process: int, uid_of_file: int, allowed: bool) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give files away")
    root = Root(tmp_path, uid=uid_of_process)
    root.map.write_text("1000 10 name\n")
    os.chown(root.map, uid_of_file, 0)
    assert names(root, 0x1000) == ["name" if allowed else FOREIGN]


def test_links_pipes_and_size_are_refused(root: Root) -> None:
    secret = root.root.parent / "secret"
    secret.write_text("1000 10 secret\n")
    root.map.symlink_to(secret)
    assert names(root, 0x1000) == [NO_MAP]
    root.map.unlink()
    os.mkfifo(root.map)
    assert names(root, 0x1000) == [NO_MAP]
    root.map.unlink()
    root.map.touch()
    os.truncate(root.map, 1 << 40)
    assert names(root, 0x1000) == ["perf map too large"]


def test_more_rows_than_the_limit(root: Root) -> None:
    root.map.write_text("".join(f"{0x1000 + 16 * i:x} 10 f{i}\n" for i in range(1000)))
    maps = PerfMaps(str(root.proc), max_rows=100)
    assert names(root, 0x1000, 0x1000 + 16 * 500, maps=maps) == ["f0", "perf map too large"]


def test_hostile_text(root: Root) -> None:
    lines = [
        b"1000 10 \x1b[31mred\x00\xff\xfe\n",
        b"2000 10 " + b"n" * 5000 + b"\n",
        b"3000 -10 minus\n",
        b"4000 0 nothing\n",
        b"ffffffffffffffff ffffffffffffffff wraps\n",
        b"5000 10\n",
        b"6000 10 \n",
        b" 7000 10 x\n",
        b"11111111111111111 10 y\n",
        b"\n",
        b"8000 10 " + b"m" * 400_000 + b"\n",
        b"9000 10 \xe2\x80\xae<script>\n",
    ]
    root.map.write_bytes(b"".join(lines))
    shown = names(root, 0x1000, 0x2000, 0x3000, 0x4000, 0x5000, 0x6000, 0x7000, 0x8000, 0x9000, 2**64 - 1)
    assert shown[0] == "\ufffd[31mred\ufffd\ufffd\ufffd"
    assert len(shown[1]) == 512 and shown[1].endswith("…")
    assert shown[2:8] == [NO_MAP] * 6
    assert shown[8] == "\ufffd<script>"
    assert shown[9] == NO_MAP


def slow_twin(text: bytes, address: int) -> bytes | None:
    """What jit-interface.txt says, line by line."""
    best = None
    for line in text.split(b"\n")[:-1]:
        with contextlib.suppress(ValueError):
            start, size, name = line.split(b" ", 2)
            low, length = (int(f, 16) for f in (start, size))
            if all(c in b"0123456789abcdefABCDEFxX" for c in start + size) and length and low + length < 2**64 and name:
                best = name if low <= address < low + length else best
    return best


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), noise=st.binary(max_size=30))
def test_equal_to_the_slow_twin(tmp_path: Path, seed: int, noise: bytes) -> None:
    pick = random.Random(seed)
    rows = [b"%x %x name%d" % (pick.randrange(600), pick.randrange(90), i) for i in range(pick.randrange(40))]
    rows.insert(pick.randrange(len(rows) + 1), noise)
    path = tmp_path / "map"
    path.write_bytes(b"\n".join(rows) + b"\n")
    fd = os.open(path, os.O_RDONLY)
    table = PerfMap(1000)
    assert table.grow(fd) == ""
    addresses = sorted(pick.randrange(700) for _ in range(20))
    for address, row in zip(addresses, table.find(addresses), strict=True):
        found = os.pread(fd, row.name_length, row.name_at) if row else None
        assert found == slow_twin(path.read_bytes(), address)
    table.close()
    os.close(fd)


def test_nameless_code_is_one_frame(root: Root) -> None:
    symbolizer = Symbolizer(None, str(root.proc))
    symbolizer.learn([], [root.process])
    raw = [RawFrame(RawKind.RAW, 1, 0x7F0000000000 + 64 * i) for i in range(300)]
    frames = {answer for answer in symbolizer.resolve(raw)}
    symbolizer.close()
    ((frame,),) = frames
    assert (frame.name, frame.kind, frame.module, frame.reason, frame.address) == (
        "[unknown code]", "native", "[jit]", NO_MAP, 0,
    )  # fmt: skip


def test_node_with_perf_basic_prof() -> None:
    """A real one."""
    if not shutil.which("node"):
        pytest.skip("node is not installed")
    code = "function hot(n){let s=0;for(let i=0;i<n;i++)s+=i%7;return s} "
    code += "for(let i=0;i<200;i++)hot(1e5);console.log(1);setTimeout(()=>0,6e4)"
    with subprocess.Popen(["node", "--perf-basic-prof", "-e", code], stdout=subprocess.PIPE, cwd="/tmp") as node:
        try:
            assert node.stdout.readline() == b"1\n"
            map_path = Path(f"/tmp/perf-{node.pid}.map")
            row = next(
                line
                for line in map_path.read_text().splitlines()
                if " hot " in line or ":~hot" in line or "hot [eval]" in line
            )
            address = int(row.split()[0], 16)
            symbolizer = Symbolizer(None)
            symbolizer.learn([], [Process(1, node.pid, 0, 0, "node")])
            ((frame,),) = symbolizer.resolve([RawFrame(RawKind.RAW, 1, address + 1)])
            symbolizer.close()
            assert "hot" in frame.name and frame.reason == ""
        finally:
            node.kill()
            with contextlib.suppress(OSError):
                map_path.unlink()


def test_python_interpreter_with_perf_trampoline() -> None:
    if sys.version_info < (3, 12):
        pytest.skip("CPython writes perf maps from 3.12 on")
    code = "import os\ndef hot(): print(os.getpid(), flush=True); input()\nhot()"
    with subprocess.Popen(
        [sys.executable, "-X", "perf", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        pid = int(process.stdout.readline())
        text = Path(f"/tmp/perf-{pid}.map").read_text()
        row = next(line for line in text.splitlines() if "py::hot" in line)
        found = PerfMaps().resolve(Process(1, pid, 0, 0, "python"), [int(row.split()[0], 16)])
        assert next(iter(found.values()))[0].startswith("py::hot")
        process.communicate(b"\n")
