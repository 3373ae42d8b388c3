# SPDX-License-Identifier: Apache-2.0
"""Source lines and inlined frames against addr2line -i; children that die, are late, or are told to read nonsense."""

from __future__ import annotations

import os
import random
import re
import stat
import sys
from pathlib import Path

import pytest
from gpustrobe.agent.model import Frame, MappedFile, RawFrame, RawKind
from gpustrobe.bpf import elf_names
from gpustrobe.symbolizer.child import ChildLimits
from gpustrobe.symbolizer.elf import vaddr_of
from gpustrobe.symbolizer.symbolizer import Symbolizer

from tests.symbolizer_elf import compile_c, opened, output_of

CXX = """
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>
namespace shop {
template <class T> struct Basket {
  std::vector<T> goods;
  __attribute__((noinline)) T weigh(T factor) const { T sum{}; for (auto g : goods) sum += g * factor; return sum; }
};
static inline __attribute__((always_inline)) int deepest(int a) { volatile int b = a; return b * 3; }
static inline __attribute__((always_inline)) int middle(int a) { return deepest(a) + deepest(a + 1); }
int __attribute__((noinline)) outermost(int a) { return middle(a) + deepest(a + 2); }
std::string __attribute__((noinline)) spell(const std::vector<int>& v) {
  std::vector<int> w(v); std::sort(w.begin(), w.end()); std::string s;
  for (int i : w) s += std::to_string(i + std::accumulate(w.begin(), w.end(), 0)); return s;
}
}
int main(int argc, char** argv) {
  shop::Basket<int> b{std::vector<int>(argc + 5, 3)};
  std::puts(shop::spell(b.goods).c_str());
  return b.weigh(2) + shop::outermost(argc);
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("cxx"), CXX, "-g", "-O2", suffix=".cc", name="basket")


def mapped(path: Path, file_id: int = 1) -> MappedFile:
    fd = opened(path)
    try:
        build_id = elf_names.inspect(fd).build_id
    except ValueError:
        build_id = ""
    status = os.fstat(fd)
    return MappedFile(file_id, str(path), status.st_dev, status.st_ino, build_id, fd, os.getpid())


def text_offsets(path: Path, count: int, seed: int = 3) -> list[int]:
    fd = opened(path)
    text = next(s for s in elf_names.inspect(fd).segments if s.flags & 1)
    os.close(fd)
    pick = random.Random(seed)
    return [text.file_offset + pick.randrange(text.file_size) for _ in range(count)]


def resolved(symbolizer: Symbolizer, path: Path, offsets: list[int]) -> list[tuple[Frame, ...]]:
    symbolizer.learn([mapped(path)], [])
    return symbolizer.resolve([RawFrame(RawKind.NATIVE, 1, offset) for offset in offsets])


def addr2line(path: Path, vaddrs: list[int]) -> list[list[tuple[str, int]]]:
    """(base name of the file, line) of each frame of each address, innermost first."""
    shown = output_of("addr2line", "-i", "-a", "-e", path, feed="\n".join(map(hex, vaddrs)))
    answers: list[list[tuple[str, int]]] = []
    for line in shown.splitlines():
        if line.startswith("0x"):
            answers.append([])
        else:
            file, _, number = re.sub(r" \(discriminator \d+\)", "", line).rpartition(":")
            answers[-1].append((Path(file).name, int(number) if number.isdigit() else 0))
    return answers


def test_lines_and_inlined_frames_equal_addr2line(program: Path, tmp_path: Path) -> None:
    offsets = text_offsets(program, 1000)
    fd = opened(program)
    vaddrs = [vaddr_of(elf_names.inspect(fd), offset) for offset in offsets]
    os.close(fd)
    with_lines = Symbolizer(tmp_path / "cache")
    answers = resolved(with_lines, program, offsets)
    with_lines.close()
    compared = inlined = 0
    for answer, truth in zip(answers, addr2line(program, vaddrs), strict=True):
        if truth[0][0] == "??" or not truth[0][1] or answer[0].reason:
            continue  # the padding between functions, to which addr2line gives the line before it
        got = [(Path(frame.file).name, frame.line) for frame in answer]
        # binutils 2.40 gives some lines of std::__adjust_heap to basket.cc, which has no line 229
        got = [
            truth[i] if truth[i] == ("basket.cc", row[1]) and row[1] > CXX.count("\n") else row
            for i, row in enumerate(got)
        ]
        assert got == truth
        compared += 1
        inlined += len(truth) > 1
    assert compared > 400 and inlined > 200


def test_the_chain_of_a_known_function(program: Path, tmp_path: Path) -> None:
    start, size = next(
        (int(f[0], 16), int(f[1], 16)) for f in map(str.split, output_of("nm", "-S", program).splitlines())
        if f[-1] == "_ZN4shop9outermostEi"
    )  # fmt: skip
    symbolizer = Symbolizer(tmp_path / "cache")
    fd = opened(program)
    text = next(s for s in elf_names.inspect(fd).segments if s.flags & 1)
    os.close(fd)
    offsets = [start + i - text.vaddr + text.file_offset for i in range(size)]
    chains = {tuple(frame.name for frame in answer) for answer in resolved(symbolizer, program, offsets)}
    symbolizer.close()
    # functions that no other file can see have no linkage name in DWARF, so no namespace either
    assert ("deepest", "middle", "shop::outermost") in chains
    assert all(chain[-1] == "shop::outermost" for chain in chains)


def test_a_second_symbolizer_reads_the_cache_and_converts_nothing(program: Path, tmp_path: Path) -> None:
    offsets = text_offsets(program, 200)
    first = Symbolizer(tmp_path / "cache")
    wanted = resolved(first, program, offsets)
    first.close()
    second = Symbolizer(tmp_path / "cache", limits=ChildLimits(convert_memory=1))  # a conversion would fail
    assert resolved(second, program, offsets) == wanted
    assert second.counters()["functions_loaded"] > 5
    second.close()


def test_without_a_cache_directory_the_answers_are_the_same(program: Path, tmp_path: Path) -> None:
    offsets = text_offsets(program, 200)
    answers = []
    for cache in (tmp_path / "cache", None, "/proc/no/such/place"):
        symbolizer = Symbolizer(cache)
        answers.append(resolved(symbolizer, program, offsets))
        symbolizer.close()
    assert answers[0] == answers[1] == answers[2]
    assert symbolizer.cache_error.startswith("symbol cache /proc/no/such/place: ")


def script(path: Path, text: str) -> tuple[str, ...]:
    """A child that does what `text` says in place of its work when it is told to convert."""
    ours = "import sys; from gpustrobe.symbolizer.dwarf import main"
    path.write_text(f"{ours}\nif sys.argv[1] == 'convert':\n    {text}\nsys.exit(main(sys.argv[1:]))\n")
    return (sys.executable, str(path))


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        ("import os; os.kill(os.getpid(), 11)", "died of signal 11"),
        ("import time; time.sleep(60)", "took too long"),
        ("print('debug information: corrupt'); sys.exit(1)", "debug information: corrupt"),
    ],
)
def test_a_file_that_kills_its_child_twice_is_never_tried_again(
    program: Path, tmp_path: Path, work: str, reason: str
) -> None:
    offsets, started = text_offsets(program, 20), tmp_path / "started"
    command = script(tmp_path / "child.py", f"open({str(started)!r}, 'a').write('x'); {work}")
    limits = ChildLimits(command=command, convert_seconds=1)
    for run in range(4):
        symbolizer = Symbolizer(tmp_path / "cache", limits=limits)
        for _ in range(3):
            answers = resolved(symbolizer, program, offsets)
            assert {frame.line for answer in answers for frame in answer} == {0}
            assert any(frame.name.startswith("shop::") for answer in answers for frame in answer)  # the names stay
        if run == 0:
            assert any(key.startswith("debug:") for key in symbolizer.counters())
        symbolizer.close()
    assert len(started.read_text()) == (1 if "corrupt" in reason else 2)


def test_lines_that_come_late_are_there_the_next_time(program: Path, tmp_path: Path) -> None:
    command = script(tmp_path / "child.py", "import time; time.sleep(1)")
    symbolizer = Symbolizer(tmp_path / "cache", wait_seconds=0.2, limits=ChildLimits(command=command))
    offsets = text_offsets(program, 50)
    early = resolved(symbolizer, program, offsets)
    assert {frame.line for answer in early for frame in answer} == {0}
    symbolizer._wait = 20
    late = resolved(symbolizer, program, offsets)
    symbolizer.close()
    assert max(frame.line for answer in late for frame in answer) > 0
    assert [answer[-1].name for answer in late] == [answer[-1].name for answer in early]


def test_debug_information_over_the_limit_is_not_read(program: Path, tmp_path: Path) -> None:
    symbolizer = Symbolizer(tmp_path / "cache", max_debug_bytes=1000)
    answers = resolved(symbolizer, program, text_offsets(program, 50))
    assert {frame.line for answer in answers for frame in answer} == {0}
    assert symbolizer.counters()["debug:debug information too large"] == 1
    assert symbolizer.counters()["child_starts"] == 1  # the demangler
    symbolizer.close()


def test_a_conversion_that_needs_more_memory_than_allowed_ends(program: Path, tmp_path: Path) -> None:
    symbolizer = Symbolizer(tmp_path / "cache", limits=ChildLimits(convert_memory=6 << 20))
    for _ in range(2):
        answers = resolved(symbolizer, program, text_offsets(program, 50))
    assert any(key.startswith("debug:") for key in symbolizer.counters())
    assert any(frame.name.startswith("shop::") for answer in answers for frame in answer)
    symbolizer.close()


def test_a_broken_symcache_is_made_again(program: Path, tmp_path: Path) -> None:
    offsets = text_offsets(program, 100)
    first = Symbolizer(tmp_path / "cache")
    wanted = resolved(first, program, offsets)
    first.close()
    (symcache,) = (tmp_path / "cache").glob("*.symcache")
    assert stat.S_IMODE(symcache.stat().st_mode) == 0o600
    symcache.write_bytes(symcache.read_bytes()[:100])
    second = Symbolizer(tmp_path / "cache")
    assert {f.line for answer in resolved(second, program, offsets) for f in answer} == {0}
    assert resolved(second, program, offsets) == wanted
    second.close()


def test_a_reader_killed_in_the_middle_is_replaced(program: Path, tmp_path: Path) -> None:
    symbolizer = Symbolizer(tmp_path / "cache")
    wanted = resolved(symbolizer, program, text_offsets(program, 60))
    os.kill(symbolizer.child_pid, 9)
    again = resolved(symbolizer, program, text_offsets(program, 60, seed=4))
    assert max(frame.line for answer in again for frame in answer) > 0
    assert symbolizer.counters()["child_starts"] == 2
    assert wanted
    symbolizer.close()


def test_debug_sections_that_are_compressed(tmp_path: Path) -> None:
    program = compile_c(tmp_path, CXX, "-g", "-O2", "-gz=zlib", suffix=".cc", name="packed")
    symbolizer = Symbolizer(None)
    answers = resolved(symbolizer, program, text_offsets(program, 100))
    symbolizer.close()
    assert max(len(answer) for answer in answers) > 1


def test_a_symbolizer_leaves_no_process_and_no_descriptor(program: Path, tmp_path: Path) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    symbolizer = Symbolizer(tmp_path / "cache")
    resolved(symbolizer, program, text_offsets(program, 20))
    pid = symbolizer.child_pid
    symbolizer.close()
    assert pid and not Path(f"/proc/{pid}").exists()
    assert set(Path("/proc/self/fd").iterdir()) == before
    assert not list((tmp_path / "cache").glob("*.partial"))
