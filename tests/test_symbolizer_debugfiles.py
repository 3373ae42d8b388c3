# SPDX-License-Identifier: Apache-2.0
"""Separate debug files by build id and debug link, mini debug information, and roots of other processes."""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from gpustrobe.bpf import elf_names
from gpustrobe.symbolizer.debugfiles import candidates, crc_of, find_debug_file, unpack_minidebug
from gpustrobe.symbolizer.root import open_beneath, process_root
from gpustrobe.symbolizer.symbolizer import Symbolizer

from tests.symbolizer_elf import compile_c, opened, output_of
from tests.test_symbolizer_lines import resolved

SOURCE = "static __attribute__((noinline)) int hidden(int a) { volatile int b = a; return b * 3; } int main(int c) { return hidden(c); }"


@pytest.fixture
def stripped(tmp_path: Path) -> tuple[Path, Path, int]:
    """(program without symbols and build id but with a debug link, its debug file, file offset of `hidden`)."""
    program = compile_c(tmp_path, SOURCE, "-g", "-O1", "-Wl,--build-id=none", name="program")
    hidden = next(int(f[0], 16) for f in map(str.split, output_of("nm", program).splitlines()) if f[-1] == "hidden")
    fd = opened(program)
    text = next(s for s in elf_names.inspect(fd).segments if s.flags & 1)
    os.close(fd)
    debug = tmp_path / "program.debug"
    subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=True)
    subprocess.run(["objcopy", "--strip-all", f"--add-gnu-debuglink={debug}", program], check=True)
    return program, debug, hidden - text.vaddr + text.file_offset


def name_at(program: Path, offset: int) -> tuple[str, int]:
    symbolizer = Symbolizer(None)
    (answer,) = resolved(symbolizer, program, [offset + 4])
    symbolizer.close()
    return answer[0].name, answer[0].line


def test_a_debug_link_beside_the_file(stripped: tuple[Path, Path, int]) -> None:
    program, debug, offset = stripped
    assert name_at(program, offset) == ("hidden", 1)
    (program.parent / ".debug").mkdir()
    debug.rename(program.parent / ".debug" / debug.name)
    assert name_at(program, offset) == ("hidden", 1)


def test_a_debug_file_of_another_build_is_refused(stripped: tuple[Path, Path, int]) -> None:
    program, debug, offset = stripped
    with debug.open("ab") as file:
        file.write(b"\0")  # only the checksum can tell
    name, line = name_at(program, offset)
    assert name.startswith("program+0x") and line == 0


def test_the_checksum_is_the_one_objcopy_writes(stripped: tuple[Path, Path, int]) -> None:
    program, debug, _ = stripped
    fd, debug_fd = opened(program), opened(debug)
    facts = elf_names.inspect(fd)
    assert facts.debug_link == debug.name
    assert crc_of(debug_fd) == facts.debug_link_crc
    os.close(fd)
    os.close(debug_fd)


def test_build_ids_must_be_equal(tmp_path: Path) -> None:
    program = compile_c(tmp_path, SOURCE, "-g", "-O1", name="program")
    other = compile_c(tmp_path, SOURCE + " int more;", "-g", "-O1", name="program.debug")
    subprocess.run(["objcopy", "--strip-all", f"--add-gnu-debuglink={other}", program], check=True)
    fd = opened(program)
    facts = elf_names.inspect(fd)
    os.close(fd)
    assert facts.build_id and facts.debug_link
    assert find_debug_file(str(program), os.getpid(), facts) is None


def test_where_debug_files_are_looked_for(stripped: tuple[Path, Path, int]) -> None:
    fd = opened(stripped[0])
    facts = elf_names.inspect(fd)
    os.close(fd)
    assert list(candidates("/opt/app/bin/program", facts)) == [
        "/opt/app/bin/program.debug",
        "/opt/app/bin/.debug/program.debug",
        "/usr/lib/debug/opt/app/bin/program.debug",
    ]


def test_a_debug_link_with_a_path_leads_nowhere(stripped: tuple[Path, Path, int], tmp_path: Path) -> None:
    program, debug, _ = stripped
    content = program.read_bytes()
    program.write_bytes(
        content.replace(debug.name.encode(), b"../../passwd\0"[: len(debug.name)].ljust(len(debug.name), b"\0"))
    )
    fd = opened(program)
    assert list(candidates(str(program), elf_names.inspect(fd))) == []
    os.close(fd)


def test_mini_debug_information(tmp_path: Path) -> None:
    """As Fedora packs it: the symbol table, xz, in .gnu_debugdata of a stripped file."""
    program = compile_c(tmp_path, SOURCE, "-O1", name="program")
    hidden = next(int(f[0], 16) for f in map(str.split, output_of("nm", program).splitlines()) if f[-1] == "hidden")
    table, packed = tmp_path / "table", tmp_path / "packed.xz"
    subprocess.run(["objcopy", "--only-keep-debug", program, table], check=True)
    packed.write_bytes(lzma.compress(table.read_bytes()))
    subprocess.run(["objcopy", "--strip-all", f"--add-section=.gnu_debugdata={packed}", program], check=True)
    fd = opened(program)
    text = next(s for s in elf_names.inspect(fd).segments if s.flags & 1)
    assert name_at(program, hidden - text.vaddr + text.file_offset)[0] == "hidden"
    memory = unpack_minidebug(fd, elf_names.inspect(fd))
    assert memory is not None and os.pread(memory, 4, 0) == b"\x7fELF"
    os.close(memory)
    os.close(fd)


@pytest.mark.parametrize("damage", ["noise", "cut", "bomb"])
def test_broken_mini_debug_information_is_ignored(tmp_path: Path, damage: str) -> None:
    program = compile_c(tmp_path, SOURCE, "-O1", name="program")
    good = lzma.compress(program.read_bytes())
    bad = {"noise": b"not xz at all", "cut": good[: len(good) // 2], "bomb": lzma.compress(bytes(64 << 20), preset=0)}
    packed = tmp_path / "packed.xz"
    packed.write_bytes(bad[damage])
    subprocess.run(["objcopy", "--strip-all", f"--add-section=.gnu_debugdata={packed}", program], check=True)
    fd = opened(program)
    assert unpack_minidebug(fd, elf_names.inspect(fd)) is None
    os.close(fd)


def test_libc_by_build_id() -> None:
    libc = Path("/lib/x86_64-linux-gnu/libc.so.6")
    if not libc.exists():
        pytest.skip("no libc at this path")
    fd = opened(libc)
    facts = elf_names.inspect(fd)
    os.close(fd)
    place = Path("/usr/lib/debug/.build-id", facts.build_id[:2], f"{facts.build_id[2:]}.debug")
    if not place.exists():
        pytest.skip("libc6-dbg is not installed")
    found = find_debug_file(str(libc), os.getpid(), facts)
    assert found and found[1].debug_bytes > 1_000_000 and found[1].build_id == facts.build_id
    os.close(found[0])


def test_links_stay_in_the_root_they_are_in(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "tmp").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc" / "inner").write_text("inner")
    (tmp_path / "outer").write_text("outer")
    (root / "tmp" / "absolute").symlink_to("/etc/inner")
    (root / "tmp" / "escape").symlink_to("../../outer")
    (root / "tmp" / "outside").symlink_to(tmp_path / "outer")
    os.mkfifo(root / "tmp" / "fifo")
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    with os.fdopen(open_beneath(fd, "/tmp/absolute")) as file:
        assert file.read() == "inner"
    for name in ("escape", "outside", "fifo", "none"):
        with pytest.raises(OSError):
            open_beneath(fd, f"tmp/{name}")
    os.close(fd)


def test_without_openat2_no_link_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpustrobe.symbolizer.root._openat2", lambda root, path: -1)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    (tmp_path / "link").symlink_to("a")
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    os.close(open_beneath(fd, "/a/file"))
    for path in ("link/file", "a/../a/file", "a", ""):
        with pytest.raises(OSError):
            open_beneath(fd, path)
    os.close(fd)


def test_a_debug_file_in_the_root_of_a_container(stripped: tuple[Path, Path, int], tmp_path: Path) -> None:
    """A process with another root directory: the file is at its path, not at ours."""
    if os.geteuid() != 0 or not shutil.which("chroot"):
        pytest.skip("needs root")
    program, debug, _ = stripped
    root = tmp_path / "container"
    for place in (root / "app", root / "usr/lib/debug/app"):
        place.mkdir(parents=True)
    sleeper = compile_c(
        tmp_path, '#include <unistd.h>\nint main(void) { write(1, "x", 1); return pause(); }', "-static", name="sleeper"
    )
    shutil.copy(sleeper, root / "app" / "sleeper")
    shutil.copy(debug, root / "usr/lib/debug/app" / debug.name)
    debug.unlink()
    fd = opened(program)
    facts = elf_names.inspect(fd)
    os.close(fd)
    with subprocess.Popen(["chroot", root, "/app/sleeper"], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.read(1) == b"x"
            with process_root("/proc", process.pid) as inside:
                assert Path(f"/proc/self/fd/{inside}").readlink() == root
            found = find_debug_file("/app/program", process.pid, facts)
            assert found and found[1].symbols
            os.close(found[0])
        finally:
            process.kill()
    assert find_debug_file("/app/program", process.pid, facts) is None
