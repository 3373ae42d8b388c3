# SPDX-License-Identifier: Apache-2.0
"""The cache on disk: kept, bounded, shared, and thrown away when it is broken."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from gpustrobe.symbolizer.cache import FunctionCache, Line, SymcacheStore
from gpustrobe.symbolizer.elf import Function


def function(low: int, name: str = "f") -> Function:
    return Function(low, low + 16, low, f"_Z{name}", (Line(name),))


def test_what_was_put_is_loaded(tmp_path: Path) -> None:
    first = FunctionCache(tmp_path)
    first.put({"a": [function(0x10, "one"), function(0x20, "zwei ∞")], "b": [function(0x10, "other")]})
    first.put({"a": [Function(0x40, 0x50, 0x40, "")]})  # nothing there: not kept
    first.close()
    second = FunctionCache(tmp_path)
    assert second.load("a", 10) == [function(0x10, "one"), function(0x20, "zwei ∞")]
    assert second.load("b", 10) == [function(0x10, "other")]
    assert second.load("a", 1) == [function(0x10, "one")]
    assert second.load("none", 10) == []
    second.close()


def test_addresses_above_half_of_64_bits(tmp_path: Path) -> None:
    """SQLite's integers are signed; such a row is left out, the others are kept."""
    cache = FunctionCache(tmp_path)
    cache.put({"a": [function(0x10), Function(2**63 + 5, 2**64 - 1, 2**63 + 5, "g", (Line("g"),))]})
    assert cache.load("a", 10) == [function(0x10)]
    assert cache.errors == 0
    cache.close()


@pytest.mark.parametrize("damage", ["noise", "empty", "cut", "directory of zeros", "wrong version", "wrong table"])
def test_a_broken_file_is_made_anew(tmp_path: Path, damage: str) -> None:
    cache = FunctionCache(tmp_path)
    cache.put({"a": [function(16 * i, f"function{i}" * 5) for i in range(1000)]})
    cache.close()
    path = tmp_path / "functions.sqlite"
    content = path.read_bytes()
    if damage == "noise":
        path.write_bytes(os.urandom(len(content)))
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "directory of zeros":
        path.write_bytes(content[:4096] + bytes(len(content) - 4096))
    else:
        with sqlite3.connect(path) as database:
            if damage == "wrong version":
                database.execute("PRAGMA user_version=999")
            else:
                database.execute("DROP TABLE functions")
                database.execute("CREATE TABLE functions(x)")
    again = FunctionCache(tmp_path)
    again.load("a", 2000)  # may find nothing, must not raise
    again.put({"a": [function(0x10, "new")]})
    again.load("a", 10)
    again.put({"a": [function(0x10, "new")]})
    assert function(0x10, "new") in again.load("a", 2000)
    again.close()


def test_rows_that_nobody_of_us_wrote_are_passed_over(tmp_path: Path) -> None:
    cache = FunctionCache(tmp_path)
    cache.put({"a": [function(0x10)]})
    with sqlite3.connect(tmp_path / "functions.sqlite") as database:
        for row in (
            (0x20, "x", 0, "l", "s"),
            (0x30, 0x40, 0x30, b"\xff", "s"),
            (0x50, 0x40, 0, "l", "s"),
            (0x60, 0x70, 0, "l", ""),
        ):
            database.execute("INSERT INTO functions VALUES ('a', ?, ?, ?, ?, ?)", row)
    database.close()
    assert cache.load("a", 10) == [function(0x10)]
    cache.close()


def test_the_file_stays_within_its_limit_and_keeps_what_is_used(tmp_path: Path) -> None:
    day = [0]
    cache = FunctionCache(tmp_path, limit=400_000, clock=lambda: day[0] * 86400.0)
    for i in range(60):
        day[0] += 1
        cache.put({f"binary{i:02}": [function(16 * n, f"function{n}" * 4) for n in range(200)]})
    assert (tmp_path / "functions.sqlite").stat().st_size < 800_000
    assert len(cache.load("binary59", 1000)) == 200
    assert cache.load("binary00", 1000) == []
    assert cache.errors == 0
    cache.close()


def test_several_processes_share_it(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from gpustrobe.symbolizer.cache import FunctionCache, Line
from gpustrobe.symbolizer.elf import Function
cache = FunctionCache(Path(sys.argv[1]))
for i in range(60):
    own = Function(16 * i, 16 * i + 16, 16 * i, "l", (Line("s"),))
    cache.put({sys.argv[2]: [own], "common": [Function(16, 32, 16, "l", (Line("s"),))]})
assert cache.errors == 0, cache.errors
"""
    running = [subprocess.Popen([sys.executable, "-c", script, tmp_path, str(n)]) for n in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    cache = FunctionCache(tmp_path)
    assert [len(cache.load(str(n), 1000)) for n in range(3)] == [60, 60, 60]
    cache.close()


def test_a_directory_that_vanishes_or_fills(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    directory.mkdir()
    cache = FunctionCache(directory)
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
    cache.put({"a": [function(0x10)]})
    cache.load("a", 10)
    cache.close()
    nowhere = FunctionCache(directory)
    nowhere.put({"a": [function(0x10)]})
    assert nowhere.load("a", 10) == [] and nowhere.marked("a") == "" and nowhere.errors
    nowhere.close()


def test_marks(tmp_path: Path) -> None:
    cache = FunctionCache(tmp_path)
    cache.mark("a", "died twice")
    cache.close()
    again = FunctionCache(tmp_path)
    assert (again.marked("a"), again.marked("b")) == ("died twice", "")
    again.close()


def written(store: SymcacheStore, key: str, size: int) -> None:
    fd = store.create(key)
    os.write(fd, bytes(size))
    store.keep(key, fd, complete=True)


@pytest.mark.parametrize("on_disk", [True, False])
def test_symcaches(tmp_path: Path, on_disk: bool) -> None:
    store = SymcacheStore(tmp_path if on_disk else None)
    assert store.open("a") is None
    written(store, "a", 100)
    fd = store.open("a")
    assert os.fstat(fd).st_size == 100
    os.close(fd)
    half = store.create("b")
    store.keep("b", half, complete=False)
    assert store.open("b") is None
    store.drop("a")
    assert store.open("a") is None
    store.close()
    assert not list(tmp_path.iterdir())


def test_symcaches_are_bounded(tmp_path: Path) -> None:
    store = SymcacheStore(tmp_path, limit=1000)
    for age, key in enumerate("abcdef"):
        written(store, key, 300)
        os.utime(tmp_path / f"{key}.symcache", (1000 + age, 1000 + age))
    os.close(store.create("g"))
    assert sorted(path.stem for path in tmp_path.glob("*.symcache")) == ["d", "e", "f"]
    in_memory = SymcacheStore(None, limit=4000)
    for key in "abcdef":
        written(in_memory, key, 300)
    held = [key for key in "abcdef" if (fd := in_memory.open(key)) is not None and not os.close(fd)]
    assert held == ["d", "e", "f"]
    in_memory.close()


def test_what_a_dead_agent_left_half_written_is_removed(tmp_path: Path) -> None:
    old, fresh = tmp_path / "a.symcache.1.partial", tmp_path / "b.symcache.2.partial"
    old.touch()
    fresh.touch()
    os.utime(old, (1000, 1000))
    SymcacheStore(tmp_path)
    assert not old.exists() and fresh.exists()
