# SPDX-License-Identifier: Apache-2.0
"""Whole stacks of native code without frame pointers, kind by kind: programs of known shape, sampled for real."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import Counter
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from gpustrobe.agent.sampler import Sampler, SamplerOptions
from gpustrobe.symbolizer.symbolizer import Symbolizer

pytestmark = pytest.mark.bpf
TARGETS = Path(__file__).parent / "targets"
FLAGS = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stacks")
    for name, more in (("stacks", []), ("static", ["-static", "-s"])):
        subprocess.run(["gcc", *FLAGS, *more, "-o", folder / name, TARGETS / "stacks.c"], check=True)
    return folder


@contextmanager
def running(*command: object):
    child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"busy\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def profile(pid: int, windows: int = 2, skip: int = 1) -> Counter:
    """Samples by stack of names, root first, kernel frames left out; guessed names end in "?". The first windows settle tables."""
    stacks: Counter = Counter()
    with closing(Symbolizer(None)) as symbolizer, Sampler(SamplerOptions(hz=397, pids=(pid,))) as sampler:
        names, raw, seen, end = [], [], 0, time.monotonic() + 20
        while seen < windows + skip and time.monotonic() < end:
            window = sampler.take(2)
            if window is None:
                continue
            seen += 1
            symbolizer.learn(window.files, window.processes, window.codes, window.jits)
            names += [
                [shown(f) for f in reversed(frames) if f.kind != "kernel"]
                for frames in symbolizer.resolve(window.frames)
            ]
            raw += window.stacks
            rows = zip(window.stack.tolist(), window.value.tolist(), strict=True)
            for stack, value in rows if seen > skip else ():
                stacks[tuple(name for frame in reversed(raw[stack]) for name in names[frame])] += value
    return stacks


def shown(frame) -> str:
    return frame.name + "?" * (frame.kind == "guessed")


def share(stacks: Counter, right) -> float:
    total = sum(stacks.values())
    assert total > 50
    return sum(value for stack, value in stacks.items() if right(stack)) / total


def follows(stack: tuple[str, ...], *names: str) -> bool:
    """The names stand in the stack one right behind the other."""
    return any(stack[i : i + len(names)] == names for i in range(len(stack)))


START = ("_start", "__libc_start_main", "__libc_start_call_main", "main")
# kind -> what every stack holds, in a row; the second: what one in which spin() runs holds
SHAPES = {
    "deep": ((*START, "deep"), ("main", "deep", *["descend"] * 40, "spin")),
    "vfork": (START, ("main", "vforked", "spin")),
    "realigned": ((*START, "realigned"), ("realigned", "spin")),
    "bare_leaf": ((*START, "leaf_without_rows"), ("leaf_without_rows", "bare_leaf")),
    "bare_frame": ((*START, "frame_without_rows"), ("frame_without_rows", "bare_frame", "spin")),
    # its caller is found by scanning: pushes_without_rows? as a rule, marked, and an address left over on the stack at times
    "bare_pushes": (START, ("bare_pushes", "spin")),
    "threads": (("in_thread",), ("in_thread", *["descend"] * 5, "spin")),
    "clone": (("clone", "cloned", "in_thread"), ("in_thread", *["descend"] * 5, "spin")),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_every_stack_reaches_the_first_frame(built, kind):
    always, busy = SHAPES[kind]
    with running(built / "stacks", kind) as child:
        stacks = profile(child.pid)
    worst = [stack[-6:] for stack in stacks if not follows(stack, *always)][:3]
    assert share(stacks, lambda stack: follows(stack, *always)) >= 0.99, worst
    spinning = Counter({stack: n for stack, n in stacks.items() if stack[-1] in ("spin", "bare_leaf")})
    assert share(spinning, lambda stack: follows(stack, *busy)) >= 0.99, spinning.most_common(2)
    if kind == "bare_pushes":  # whatever the scan found is marked as guessed
        assert share(spinning, lambda stack: len(stack) > 2 and stack[-3].endswith("?")) >= 0.99, spinning.most_common(2)


@pytest.mark.parametrize("kind", ["signal", "altstack"])
def test_stacks_go_on_below_a_signal_handler(built, kind):
    with running(built / "stacks", kind) as child:
        time.sleep(1.1)
        stacks = profile(child.pid)
    assert share(stacks, lambda s: follows(s, *START) and "on_signal" in s and "signalled" in s) >= 0.99
    assert share(stacks, lambda s: s.index("signalled") < s.index("on_signal") if "on_signal" in s else False) >= 0.99


def test_a_stripped_static_program(built):
    with running(built / "static", "deep") as child:
        stacks = profile(child.pid)
    assert share(stacks, lambda stack: len(stack) >= 45 and not stack[0].endswith("?")) >= 0.95
    assert share(stacks, lambda stack: not any(name.startswith("[") for name in stack)) >= 0.99


def test_short_lives_have_whole_stacks(built, tmp_path):
    """Each process is sampled a few times only, and first when nobody has listed its mappings."""
    loop = ["sh", "-c", f"echo busy; while :; do timeout 0.04 {built / 'stacks'} deep > /dev/null; done"]
    with running(*loop) as child:
        stacks = profile(child.pid, windows=3, skip=2)
    deep = Counter({stack: n for stack, n in stacks.items() if "descend" in stack})
    assert share(deep, lambda stack: follows(stack, *START, "deep", *["descend"] * 40)) >= 0.95, deep.most_common(3)


@pytest.mark.skipif(not shutil.which("go"), reason="no Go compiler")
@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["-ldflags=-s -w"]])
def test_go(tmp_path, flags):
    (tmp_path / "main.go").write_text(
        'package main\nimport ("fmt"; "os")\n'
        "//go:noinline\nfunc leaf(n int) int { s := 0; for i := 0; i < n; i++ { s += i * i % 7 }; return s }\n"
        "//go:noinline\nfunc down(d, n int) int { if d == 0 { return leaf(n) }; return down(d-1, n) + 1 }\n"
        'func main() { fmt.Println("busy"); s := 0; for { s += down(20, 1000000); if s == 1 { os.Exit(1) } } }\n'
    )
    subprocess.run(["go", "build", *flags, "-o", tmp_path / "go", tmp_path / "main.go"], check=True, cwd=tmp_path)
    with running(tmp_path / "go") as child:
        stacks = profile(child.pid)
    assert share(stacks, lambda stack: len(stack) >= 23 and not any(name.endswith("?") for name in stack)) >= 0.97
    if not flags:
        assert share(stacks, lambda stack: follows(stack, "main.main", *["main.down"] * 21, "main.leaf")) >= 0.97
