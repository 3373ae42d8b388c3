# SPDX-License-Identifier: Apache-2.0
"""Files of mappings in strange places: deleted, in memory, under odd names, in other namespaces."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from gpustrobe.bpf import mappings as bm
from gpustrobe.bpf.mappings import Listing, Mappings, PlaceKind

from tests.proc_children import LIBZ, Child, twin

BOTH = pytest.mark.parametrize("text_only", [False, True], ids=["query", "text"])
ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="needs root")


@pytest.fixture
def child():
    started = Child()
    yield started
    started.end()


def file_at(mappings: Mappings, child: Child, path: str | Path) -> bm.Listed:
    """The file listed under this path; its descriptor is closed with the others."""
    taken = mappings.take_files()
    try:
        found = [f for f in taken if f.path == os.fsencode(path)]
        assert len(found) == 1, [f.path for f in taken]
        return found[0]
    finally:
        for f in taken:
            if f.fd >= 0:
                os.close(f.fd)


def content(fd: int) -> bytes:
    return os.pread(fd, 1 << 24, 0)


# ---- files in strange places


@BOTH
def test_deleted_file(child, tmp_path, text_only):
    copy = tmp_path / "lib gone.so"
    shutil.copy(LIBZ, copy)
    child.do(f"lib = ctypes.CDLL({str(copy)!r})")
    copy.unlink()
    with Mappings(text_only=text_only) as m:
        m.refresh(child.pid, child.start)
        taken = {f.path: f for f in m.take_files()}
        f = taken[os.fsencode(copy)]
        assert f.flags == bm.DELETED
        if ROOT:
            assert content(f.fd) == LIBZ.read_bytes()
            assert f.build_id
        place = m.normalize(child.pid, child.start, _start_of_mapping(child, b"lib gone.so"))
        assert (place.kind, place.file_id) == (PlaceKind.NATIVE, f.file_id)


def _start_of_mapping(child: Child, name: bytes) -> int:
    return next(w[0] for w in twin(Path(f"/proc/{child.pid}/maps").read_bytes()) if name in w[6])


@BOTH
def test_a_name_that_only_says_deleted(child, tmp_path, text_only):
    copy = tmp_path / "lib.so (deleted)"
    shutil.copy(LIBZ, copy)
    child.do(f"lib = ctypes.CDLL({str(copy)!r})")
    with Mappings(text_only=text_only) as m:
        m.refresh(child.pid, child.start)
        assert file_at(m, child, copy).flags == 0


@BOTH
def test_newlines_blanks_and_bytes_that_are_no_utf8(child, tmp_path, text_only):
    copy = os.fsencode(tmp_path) + b"/a\nb  c\xff\\ \n.so"
    shutil.copy(LIBZ, copy)
    child.do(f"lib = ctypes.CDLL(os.fsdecode({copy!r}))")
    with Mappings(text_only=text_only) as m:
        m.refresh(child.pid, child.start)
        assert file_at(m, child, os.fsdecode(copy)).flags == 0
        assert m.counters()["bad_maps_line"] == 0


@BOTH
def test_library_from_a_memfd(child, text_only):
    child.do("fd = os.memfd_create('plugin code')")
    child.do(f"os.write(fd, open({str(LIBZ)!r}, 'rb').read()); lib = ctypes.CDLL(f'/proc/self/fd/{{fd}}')")
    with Mappings(text_only=text_only) as m:
        m.refresh(child.pid, child.start)
        f = {f.path: f for f in m.take_files()}[b"/memfd:plugin code"]
        assert f.flags == bm.DELETED | bm.MEMFD
        if ROOT:
            assert content(f.fd) == LIBZ.read_bytes()


@BOTH
@needs_root
def test_jit_code_in_a_memfd_stays_raw(child, text_only):
    child.do("fd = os.memfd_create('doublemapper'); os.ftruncate(fd, 8192)")
    at = child.do("j = mmap.mmap(fd, 8192, prot=7); answer = ctypes.addressof(ctypes.c_char.from_buffer(j))")
    with Mappings(text_only=text_only) as m:
        m.refresh(child.pid, child.start)
        assert m.normalize(child.pid, child.start, at + 3) == (PlaceKind.ANONYMOUS, 0, at + 3)
        assert not [f for f in m.take_files() if b"doublemapper" in f.path]


def without_map_files(tmp_path: Path, pid: int) -> str:
    """A /proc with this one process, where only paths lead to files."""
    folder = tmp_path / "proc" / str(pid)
    folder.mkdir(parents=True)
    for name in ("stat", "maps", "comm", "cmdline", "cgroup", "status", "root", "exe"):
        (folder / name).symlink_to(f"/proc/{pid}/{name}")
    return str(tmp_path / "proc")


NEW_MOUNT = (
    "libc = ctypes.CDLL(None, use_errno=True); libc.unshare(0x20000); "
    "libc.mount(b'none', b'/', None, 0x44000, None); answer = libc.mount(b'tmpfs', b'{}', b'tmpfs', 0, None)"
)


@needs_root
@pytest.mark.parametrize("by_path", [False, True], ids=["map_files", "path"])
def test_file_only_its_mount_namespace_sees(child, tmp_path, by_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    assert child.do(NEW_MOUNT.format(hidden)) == 0
    child.do(f"open('{hidden}/libz.so', 'wb').write(open({str(LIBZ)!r}, 'rb').read())")
    child.do(f"lib = ctypes.CDLL('{hidden}/libz.so')")
    assert not (hidden / "libz.so").exists()
    root = without_map_files(tmp_path, child.pid) if by_path else "/proc"
    with Mappings(root) as m:
        assert m.refresh(child.pid, child.start) == Listing.LISTED
        f = {f.path: f for f in m.take_files()}[os.fsencode(hidden / "libz.so")]
        assert content(f.fd) == LIBZ.read_bytes()
        assert f.flags == 0
        assert (m.counters()["open_by_path"] > 0) == by_path


@needs_root
@pytest.mark.parametrize("by_path", [False, True], ids=["map_files", "path"])
def test_file_of_a_process_in_a_chroot(child, tmp_path, by_path):
    jail = tmp_path / "jail"
    jail.mkdir()
    shutil.copy(LIBZ, jail / "libz.so")
    child.do(f"os.chroot({str(jail)!r}); os.chdir('/'); lib = ctypes.CDLL('/libz.so')")
    root = without_map_files(tmp_path, child.pid) if by_path else "/proc"
    with Mappings(root) as m:
        m.refresh(child.pid, child.start)
        f = {f.path: f for f in m.take_files()}[os.fsencode(jail / "libz.so")]
        assert content(f.fd) == LIBZ.read_bytes()


@needs_root
def test_a_path_that_leads_elsewhere_by_now_is_not_opened(child, tmp_path):
    copy, other, fifo = tmp_path / "a.so", tmp_path / "b.so", tmp_path / "c.so"
    for path in (copy, fifo):
        shutil.copy(LIBZ, path)
    other.write_bytes(b"not the one")
    child.do(f"a = ctypes.CDLL({str(copy)!r}); c = ctypes.CDLL({str(fifo)!r})")
    for path in (copy, fifo):
        path.rename(path.with_suffix(".moved"))
    copy.symlink_to(other)
    os.mkfifo(fifo)
    text = Path(f"/proc/{child.pid}/maps").read_text().replace(".moved", ".so")
    root = without_map_files(tmp_path, child.pid)
    (Path(root) / str(child.pid) / "maps").unlink()
    (Path(root) / str(child.pid) / "maps").write_text(text)
    with Mappings(root) as m:
        m.refresh(child.pid, child.start)
        files = {f.path: f for f in m.take_files()}
        for path in (copy, fifo):
            assert (files[os.fsencode(path)].fd, files[os.fsencode(path)].build_id_reason) == (-1, "not_opened")
        assert m.counters()["open_gone"] == 2
