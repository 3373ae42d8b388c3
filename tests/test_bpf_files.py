# SPDX-License-Identifier: Apache-2.0
"""Build ids of good and hostile ELF files (truth: pyelftools), and which files share an id."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection
from gpustrobe.bpf import mappings as bm
from gpustrobe.bpf.mappings import Mappings, PlaceKind, read_build_id
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.proc_children import LIBZ, Child

LIBRARIES = sorted(Path("/lib/x86_64-linux-gnu").glob("lib*.so.*"))[:60]


def build_id_of(data: bytes) -> tuple[str, str]:
    fd = os.memfd_create("elf")
    try:
        os.write(fd, data)
        return read_build_id(fd)
    finally:
        os.close(fd)


def note(name: bytes, kind: int, description: bytes, align: int = 4) -> bytes:
    head = struct.pack("<III", len(name), len(description), kind) + name
    head += b"\0" * (-len(head) % align)
    return head + description + b"\0" * (-len(description) % align)


def elf(*segments: tuple[int, bytes], align: int = 4, **header: int) -> bytes:
    """An ELF64 file of program headers (type, content); header fields can be overridden by name."""
    fields = {"phoff": 64, "phentsize": 56, "phnum": len(segments), "class": 2, "data": 1, **header}
    ident = b"\x7fELF" + bytes((fields["class"], fields["data"], 1)) + b"\0" * 9
    out = ident + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, fields["phoff"], 0, 0, 64, fields["phentsize"], fields["phnum"], 0, 0, 0
    )
    at, contents = 64 + 56 * len(segments), b""
    for kind, content in segments:
        out += struct.pack("<IIQQQQQQ", kind, 4, at + len(contents), 0, 0, len(content), len(content), align)
        contents += content
    return out + contents


PT_LOAD, PT_NOTE, GNU_BUILD_ID = 1, 4, 3
ID = bytes(range(20))
GOOD = elf((PT_LOAD, b"x" * 100), (PT_NOTE, note(b"GNU\0", 1, b"abi " * 4) + note(b"GNU\0", GNU_BUILD_ID, ID)))


def test_build_ids_of_system_libraries_are_what_pyelftools_reads():
    checked = 0
    for path in LIBRARIES:
        with path.open("rb") as file:
            try:
                notes = [n for s in ELFFile(file).iter_sections() if isinstance(s, NoteSection) for n in s.iter_notes()]
            except Exception:  # noqa: BLE001 - a linker script, or what pyelftools cannot read: not this test's matter
                continue
            want = next((n["n_desc"] for n in notes if n["n_type"] == "NT_GNU_BUILD_ID"), "")
            assert read_build_id(file.fileno()) == (want, "found" if want else "no_note"), path
            checked += 1
    assert checked > 20


def test_made_elf_files():
    assert build_id_of(GOOD) == (ID.hex(), "found")
    assert (
        build_id_of(elf((PT_NOTE, note(b"GNU\0", 5, b"p" * 16, 8) + note(b"GNU\0", 3, ID, 8)), align=8))[0] == ID.hex()
    )
    assert build_id_of(elf((PT_NOTE, note(b"GNU\0", 3, ID)[:-1] + b"")))[1] == "corrupt"
    assert build_id_of(elf((PT_NOTE, note(b"Go\0\0", 4, b"go id")), (PT_NOTE, note(b"GNU\0", 3, b"12345678")))) == (
        b"12345678".hex(),
        "found",
    )
    assert build_id_of(elf((PT_LOAD, b"x")))[1] == "no_note"
    assert build_id_of(elf())[1] == "no_note"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not_elf"),
        (b"\x7fEL", "not_elf"),
        (b"#!/bin/sh\n" * 20, "not_elf"),
        (elf((PT_NOTE, b""), **{"class": 1}), "not_elf"),
        (elf((PT_NOTE, b""), data=2), "not_elf"),
        (GOOD[:40], "truncated"),
        (GOOD[:100], "truncated"),
        (GOOD[:-30], "truncated"),
        (elf((PT_NOTE, note(b"GNU\0", 3, ID)), phoff=1 << 63), "corrupt"),
        (elf((PT_NOTE, note(b"GNU\0", 3, ID)), phoff=(1 << 64) - 56), "corrupt"),
        (elf((PT_NOTE, note(b"GNU\0", 3, ID)), phentsize=55), "corrupt"),
        (elf((PT_NOTE, note(b"GNU\0", 3, ID)), phnum=60000), "found"),
        (elf((PT_NOTE, b"\xff" * 40)), "corrupt"),
        (elf((PT_NOTE, struct.pack("<III", 4, 0xFFFFFFFF, 3) + b"GNU\0" + ID)), "corrupt"),
        (elf((PT_NOTE, struct.pack("<III", 0xFFFFFFFF, 20, 3) + b"GNU\0" + ID)), "corrupt"),
        (elf((PT_NOTE, note(b"GNU\0", 3, b"x" * 33))), "no_note"),
        (elf((PT_NOTE, note(b"GNU\0", 3, b""))), "no_note"),
        (elf((PT_NOTE, b"\0" * 10)), "corrupt"),
        (elf((PT_NOTE, note(b"", 0, b"") * 5000 + note(b"GNU\0", 3, ID))), "no_note"),
        (elf(*[(PT_LOAD, b"")] * 300, (PT_NOTE, note(b"GNU\0", 3, ID))), "no_note"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_hostile_elf_files(data, reason):
    build_id, got = build_id_of(data)
    assert got == reason
    assert build_id == (ID.hex() if reason == "found" else "")


def test_descriptors_that_are_no_file():
    read, write = os.pipe()
    assert read_build_id(read)[1] == "not_elf"
    for fd in (read, write):
        os.close(fd)
    assert read_build_id(read)[1] == "not_opened"
    assert read_build_id(-1)[1] == "not_opened"
    folder = os.open("/", os.O_RDONLY)
    assert read_build_id(folder)[1] in ("not_elf", "unreadable")
    os.close(folder)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=6), st.integers(0, len(GOOD)))
def test_any_change_gives_an_id_or_a_reason(changes, length):
    data = bytearray(GOOD)
    for at, value in changes:
        data[at] = value
    build_id, reason = build_id_of(bytes(data[:length]))
    assert (reason == "found") == bool(build_id)
    assert bytes.fromhex(build_id) in bytes(data[:length])


# ---- which files share an id


class Mapper(Child):
    """A process that maps the files it is told to, executable."""

    def __init__(self) -> None:
        super().__init__()
        self.do("maps = {}")

    def map(self, path: Path) -> None:
        self.do(f"f = open({str(path)!r}, 'rb'); maps[f.name] = mmap.mmap(f.fileno(), 0, flags=2, prot=5); f.close()")


@pytest.fixture
def mapper():
    processes: list[Mapper] = []

    def start() -> Mapper:
        processes.append(Mapper())
        return processes[-1]

    yield start
    for process in processes:
        process.end()


def id_of(m: Mappings, process: Mapper, path: Path) -> int:
    m.refresh(process.pid, process.start)
    lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    line = next(ln for ln in lines if ln.split(" ", 5)[-1].strip().startswith(str(path)))
    place = m.normalize(process.pid, process.start, int(line.split("-")[0], 16))
    assert place.kind == PlaceKind.NATIVE
    return place.file_id


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_processes_share_a_file_and_its_id(mapper, tmp_path):
    shutil.copy(LIBZ, tmp_path / "a.so")
    one, two = mapper(), mapper()
    one.map(tmp_path / "a.so")
    two.map(tmp_path / "a.so")
    with Mappings() as m:
        assert id_of(m, one, tmp_path / "a.so") == id_of(m, two, tmp_path / "a.so")
        found = m.counters()["files_found"]
        assert len(m.take_files()) == found
        assert m.take_files() == [], "told once"


def test_touched_or_unlinked_is_the_same_file(mapper, tmp_path):
    path = tmp_path / "a.so"
    path.write_bytes(GOOD)
    one, two, three = mapper(), mapper(), mapper()
    for process in (one, two, three):
        process.map(path)
    with Mappings() as m:
        first = id_of(m, one, path)
        path.chmod(0o755)
        os.link(path, tmp_path / "b.so")
        assert id_of(m, two, path) == first
        path.unlink()
        (tmp_path / "b.so").unlink()
        assert id_of(m, three, path) == first
        assert m.counters()["files_replaced"] == 0


def test_a_rewritten_file_is_another(mapper, tmp_path):
    path = tmp_path / "a.so"
    path.write_bytes(GOOD)
    one, two = mapper(), mapper()
    one.map(path)
    with Mappings() as m:
        first = id_of(m, one, path)
        path.write_bytes(GOOD.replace(ID, ID[::-1]))
        two.map(path)
        second = id_of(m, two, path)
        assert second != first
        ids = {f.file_id: f.build_id for f in m.take_files()}
        assert (ids[first], ids[second]) == (ID.hex(), ID[::-1].hex())
        assert m.counters()["files_replaced"] == 1
        device, inode = next((r.device, r.inode) for r in m.rows(two.pid, two.start) if r.file_id == second)
        assert m.hint(device, inode, 16).file_id == second, "the hint names what the inode is now"


def test_without_a_build_id_a_changed_ctime_is_another_file(mapper, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"no elf" * 100)
    one, two, three = mapper(), mapper(), mapper()
    for process in (one, two, three):
        process.map(path)
    with Mappings() as m:
        first = id_of(m, one, path)
        assert id_of(m, two, path) == first
        path.chmod(0o600)
        assert id_of(m, three, path) != first


def test_record_of_a_file(mapper, tmp_path):
    path = tmp_path / "a.so"
    path.write_bytes(GOOD)
    process = mapper()
    process.map(path)
    with Mappings() as m:
        number, st = id_of(m, process, path), path.stat()
        f = next(f for f in m.take_files() if f.file_id == number)
        assert f.path == os.fsencode(path)
        assert (f.inode, f.size, f.mtime_ns, f.ctime_ns) == (st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns)
        assert (f.pid, f.flags, f.open_errno, f.build_id) == (process.pid, 0, 0, ID.hex())
        assert os.pread(f.fd, 1000, 0) == GOOD
        assert os.get_inheritable(f.fd) is False


def test_descriptors_pass_to_who_takes_them(mapper, tmp_path):
    process = mapper()
    before = open_descriptors()
    m = Mappings()
    m.refresh(process.pid, process.start)
    taken = m.take_files()
    m.close()
    assert open_descriptors() == before + len([f for f in taken if f.fd >= 0])
    for f in taken:
        if f.fd >= 0:
            os.close(f.fd)
    with Mappings() as m:
        m.refresh(process.pid, process.start)
    assert open_descriptors() == before, "what nobody takes is closed"


def many_files(process: Mapper, folder: Path, count: int) -> None:
    for i in range(count):
        (folder / f"{i}.so").write_bytes(GOOD)
    process.do(
        f"for i in range({count}): f = open('{folder}/%d.so' % i, 'rb'); "
        "maps[i] = mmap.mmap(f.fileno(), 0, flags=2, prot=5); f.close()"
    )


def test_more_files_than_descriptors_are_held(mapper, tmp_path):
    process = mapper()
    many_files(process, tmp_path, 500)
    before = open_descriptors()
    with Mappings() as m:
        m.refresh(process.pid, process.start)
        assert 384 <= open_descriptors() - before <= 390
        taken = [f for f in m.take_files() if os.fsencode(tmp_path) in f.path]
        assert len(taken) == 500
        for f in taken:
            assert os.pread(f.fd, 1000, 0) == GOOD, (f.path, f.open_errno)
            os.close(f.fd)


def test_the_table_of_files_is_bounded(mapper, tmp_path):
    one, two = mapper(), mapper()
    many_files(one, tmp_path, 50)
    with Mappings(max_files=40) as m:
        m.refresh(one.pid, one.start)
        assert m.counters()["files_no_room"] > 0, "all are held by the process"
        rows = m.rows(one.pid, one.start)
        assert len({r.file_id for r in rows if r.file_id}) == 40
        one.end()
        m.refresh(one.pid, one.start)
        m.tick(now := 10**18)
        m.tick(now + 10**12)
        assert m.rows(one.pid, one.start) is None
        refused = m.counters()["files_no_room"]
        two.map(LIBZ)
        m.refresh(two.pid, two.start)
        assert m.counters()["files_no_room"] == refused, "those of the gone process make room"
        assert m.counters()["files_evicted"] > 0


def test_new_epoch_tells_all_files_again_with_a_descriptor(mapper, tmp_path):
    one, two = mapper(), mapper()
    (tmp_path / "a.so").write_bytes(GOOD)
    for process in (one, two):
        process.map(tmp_path / "a.so")
    with Mappings() as m:
        number = id_of(m, two, tmp_path / "a.so")
        assert id_of(m, one, tmp_path / "a.so") == number
        first = {f.file_id: f.path for f in m.take_files()}
        one.end()  # seen last here: the descriptor must come from the other
        m.new_epoch()
        again = m.take_files()
        assert {f.file_id: f.path for f in again} == first
        assert all(f.flags & bm.AGAIN for f in again)
        f = next(f for f in again if f.file_id == number)
        assert os.pread(f.fd, 1000, 0) == GOOD
        two.end()
        m.new_epoch()
        f = next(f for f in m.take_files() if f.file_id == number)
        assert (f.fd, f.open_errno, f.build_id) == (-1, errno.ENOENT, ID.hex())


def test_a_file_first_seen_without_its_process_is_completed_later(mapper, tmp_path):
    """The maps of a process that ended right after: no map_files, no root."""
    path = tmp_path / "a.so"
    path.write_bytes(GOOD)
    process = mapper()
    process.map(path)
    folder = tmp_path / "proc" / str(process.pid)
    folder.mkdir(parents=True)
    for name in ("stat", "maps"):
        (folder / name).symlink_to(f"/proc/{process.pid}/{name}")
    hidden = path.rename(tmp_path / "hidden.so")
    text = Path(f"/proc/{process.pid}/maps").read_text().replace(str(hidden), str(path))
    (folder / "maps").unlink()
    (folder / "maps").write_text(text)
    with Mappings(str(tmp_path / "proc"), text_only=True) as m:
        m.refresh(process.pid, process.start)
        f = next(f for f in m.take_files() if f.path == os.fsencode(path))
        assert (f.fd, f.build_id) == (-1, "")
        (folder / "map_files").symlink_to(f"/proc/{process.pid}/map_files")
        (folder / "maps").write_text(text + "7fffffff0000-7fffffff1000 r-xp 00000000 00:00 0 \n")
        stat = (folder / "stat").read_text()
        (folder / "stat").unlink()
        (folder / "stat").write_text(stat)
        other = tmp_path / "proc" / "999999"
        folder.rename(other)
        m.refresh(999999, process.start)
        later = next(g for g in m.take_files() if g.file_id == f.file_id)
        assert later.build_id == ID.hex()
        assert os.pread(later.fd, 1000, 0) == GOOD
