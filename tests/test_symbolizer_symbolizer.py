# SPDX-License-Identifier: Apache-2.0
"""The front: every raw frame gets frames or a reason, whatever files and processes do meanwhile."""

from __future__ import annotations

import ast
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from gpustrobe.agent.model import Frame, MappedFile, Process, RawFrame, RawKind
from gpustrobe.bpf import elf_names
from gpustrobe.bpf.drops import ENDS
from gpustrobe.symbolizer.elf import content_key
from gpustrobe.symbolizer.files import FileTable
from gpustrobe.symbolizer.symbolizer import Symbolizer, module_name

from tests.symbolizer_elf import FUNC, GLOBAL, TEXT, elf_file, opened

FUNCTIONS = [("alpha", TEXT, 16, FUNC, GLOBAL), ("beta", TEXT + 16, 16, FUNC, GLOBAL)]


@pytest.fixture
def symbolizer():
    made = Symbolizer(None)
    yield made
    made.close()


def mapped(place: Path, file_id: int = 1, **changes) -> MappedFile:
    status = place.stat()
    facts = {
        "path": str(place),
        "device": status.st_dev,
        "inode": status.st_ino,
        "build_id": "",
        "fd": opened(place),
        "pid": os.getpid(),
    }
    return MappedFile(file_id=file_id, **{**facts, **changes})


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_bytes(elf_file(FUNCTIONS))
    return path


def native(offset: int, file_id: int = 1, kind: RawKind = RawKind.NATIVE) -> RawFrame:
    return RawFrame(kind, file_id, offset)


def test_each_kind(symbolizer: Symbolizer, program: Path) -> None:
    symbolizer.learn([mapped(program, build_id="abcd")], [Process(5, os.getpid(), 1, 0, "x")])
    answers = symbolizer.resolve([
        native(TEXT + 3),
        native(TEXT + 3, kind=RawKind.GUESSED),
        native(TEXT + 500),
        RawFrame(RawKind.PYTHON, 5, 0x1234, 7),
        RawFrame(RawKind.RAW_GUESSED, 5, 0x1234),
        native(TEXT + 20),
    ])  # fmt: skip
    assert answers[0] == (Frame("alpha", "native", "program", build_id="abcd", address=TEXT + 3),)
    assert answers[1] == (Frame("alpha", "guessed", "program", build_id="abcd", address=TEXT + 3),)
    hole = f"program+{TEXT + 500:#x}"
    assert answers[2] == (Frame(hole, "native", "program", build_id="abcd", address=TEXT + 500, reason="no symbols"),)
    assert (answers[3][0].kind, answers[3][0].name) == ("python", "[Python code]")
    assert (answers[4][0].kind, answers[4][0].name) == ("guessed", "[unknown code]")
    assert answers[5][0].name == "beta"


def test_ends_become_reasons_save_those_that_say_nothing(symbolizer: Symbolizer) -> None:
    answers = symbolizer.resolve([RawFrame(RawKind.END, 0, number) for number in range(len(ENDS) + 1)])
    for (name, text), answer in zip(ENDS, answers, strict=False):
        if name in ("complete", "frame_pointer"):
            assert answer == ()
        else:
            assert answer == (Frame(text, "reason", reason=text),)
    assert answers[-1][0].kind == "reason"
    assert symbolizer.counters()["stacks_by_frame_pointer"] == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not an ELF file"),
        (b"\xca\xfe\xba\xbe java", "not an ELF file"),
        (elf_file(FUNCTIONS)[:90], "truncated program headers"),
        (elf_file(FUNCTIONS)[:-200], "no symbols"),
    ],
)
def test_files_that_cannot_be_read(symbolizer: Symbolizer, tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    symbolizer.learn([mapped(path)], [])
    ((frame,),) = symbolizer.resolve([native(TEXT)])
    assert (frame.name, frame.kind, frame.module, frame.reason) == (f"bad+{TEXT:#x}", "native", "bad", reason)
    assert symbolizer.counters()[f"reason:{reason}"] == 1


def test_files_that_are_not_there(symbolizer: Symbolizer, program: Path, tmp_path: Path) -> None:
    gone = mapped(program, 2, fd=-1)
    symbolizer.learn([
        gone,
        mapped(program, 3, fd=-1, deleted=True),
        mapped(program, 4, fd=-1, inode=gone.inode + 1),  # another file lies at the path by now
        mapped(program, 5, fd=-1, path=str(tmp_path / "none")),
        mapped(program, 6, fd=-1, pid=2**22 + 5),
    ], [])  # fmt: skip
    answers = symbolizer.resolve([native(TEXT, file_id) for file_id in (2, 3, 4, 5, 6, 99)])
    assert answers[0][0].name == "alpha"  # found again by its path
    assert [a[0].reason for a in answers[1:5]] == ["file gone"] * 4
    assert (answers[5][0].name, answers[5][0].reason) == (f"[unknown file]+{TEXT:#x}", "file not known")


def test_a_deleted_file_is_read_through_its_descriptor(symbolizer: Symbolizer, program: Path) -> None:
    held = mapped(program, deleted=True)
    program.unlink()
    symbolizer.learn([held], [])
    assert symbolizer.resolve([native(TEXT)])[0][0].name == "alpha"


def test_a_memory_file(symbolizer: Symbolizer) -> None:
    fd = os.memfd_create("jit code")
    os.write(fd, elf_file(FUNCTIONS))
    symbolizer.learn([MappedFile(1, "/memfd:jit code", 1, os.fstat(fd).st_ino, "", fd, os.getpid(), True)], [])
    ((frame,),) = symbolizer.resolve([native(TEXT)])
    assert (frame.name, frame.module) == ("alpha", "memfd:jit code")


def test_a_file_that_changes_between_epochs_is_another(symbolizer: Symbolizer, program: Path) -> None:
    symbolizer.learn([mapped(program)], [])
    assert symbolizer.resolve([native(TEXT)])[0][0].name == "alpha"
    symbolizer.forget(1)
    assert symbolizer.resolve([native(TEXT)])[0][0].reason == "file not known"
    program.write_bytes(elf_file([("gamma", TEXT, 16, FUNC, GLOBAL)]))
    symbolizer.learn([mapped(program)], [])
    assert symbolizer.resolve([native(TEXT)])[0][0].name == "gamma"
    symbolizer.forget(1)  # the same epoch again: nothing is lost
    assert symbolizer.resolve([native(TEXT)])[0][0].name == "gamma"


def test_descriptors_are_owned_bounded_and_closed(program: Path) -> None:
    def held() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = held()
    table = FileTable(open_files=4)
    for file_id in range(20):
        table.learn(mapped(program, file_id))
    assert held() == before + 4
    table.learn(mapped(program, 19))  # learned twice: the first descriptor is closed
    assert held() == before + 4
    fd = table.open(0)  # evicted, found again
    assert table.reopened == 1 and os.fstat(fd).st_ino == program.stat().st_ino
    os.close(fd)
    table.close()
    assert held() == before


def test_only_files_of_root_share_names_by_build_id(program: Path) -> None:
    """Anybody can write libc's build id into a file of his own."""
    status = program.stat()
    fields = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
    mine, roots = (SimpleNamespace(**{**fields, "st_uid": uid}) for uid in (1000, 0))
    assert content_key(roots, "abcd") == "abcd"
    assert content_key(mine, "abcd") == "abcd-u1000"
    assert content_key(roots, "") != content_key(mine, "abcd")


def test_names_of_modules_are_printable() -> None:
    file = MappedFile(1, "/opt/\x1b[31m\nred", 0, 0, "", -1, 1)
    assert module_name(file) == "\ufffd[31m\ufffdred"
    assert len(module_name(MappedFile(1, "/" + "x" * 300, 0, 0, "", -1, 1))) == 128


def test_hostile_addresses(symbolizer: Symbolizer, program: Path) -> None:
    symbolizer.learn([mapped(program)], [Process(5, os.getpid(), 1, 0, "x")])
    edges = (0, 1, 2**40 - 1, 2**47, 2**63 - 1, 2**63, 2**64 - 1)
    raw = [RawFrame(kind, owner, edge) for kind in RawKind for edge in edges for owner in (1, 5)]
    answers = symbolizer.resolve(raw)
    assert len(answers) == len(raw)
    for frame, answer in zip(raw, answers, strict=True):
        assert answer or frame.kind == RawKind.END
        assert all(f.name and f.name.isprintable() for f in answer)


def test_learning_does_not_wait_for_resolving(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    symbolizer = Symbolizer(None)
    entered, leave = threading.Event(), threading.Event()

    def slow(wanted, deadline):
        entered.set()
        leave.wait(10)
        return {(f, o): None for f, offsets in wanted.items() for o in offsets}

    monkeypatch.setattr(symbolizer._native, "resolve", slow)
    monkeypatch.setattr("gpustrobe.symbolizer.symbolizer.native_frames", lambda raw, named, module: ())
    worker = threading.Thread(target=symbolizer.resolve, args=([native(TEXT)],))
    worker.start()
    assert entered.wait(10)
    before = time.monotonic()
    symbolizer.learn([mapped(program)], [])
    symbolizer.counters()
    assert time.monotonic() - before < 2
    leave.set()
    worker.join(10)
    symbolizer.close()


def test_many_threads_get_the_same_answers(program: Path) -> None:
    symbolizer = Symbolizer(None)
    symbolizer.learn([mapped(program)], [])
    raw = [native(TEXT + i) for i in range(32)]
    results: list[list] = []
    threads = [threading.Thread(target=lambda: results.append(symbolizer.resolve(raw))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    symbolizer.close()
    assert len(results) == 6 and all(result == results[0] for result in results)
    assert {answer[0].name for answer in results[0]} == {"alpha", "beta"}


def test_another_address_of_a_known_function_reads_no_file(program: Path) -> None:
    symbolizer = Symbolizer(None)
    symbolizer.learn([mapped(program)], [])
    symbolizer.resolve([native(TEXT + 1), native(TEXT + 17)])
    passes = symbolizer.counters()["symbol_passes"]
    symbolizer.resolve([native(TEXT + i) for i in range(32)])
    symbolizer.close()
    assert symbolizer.counters()["symbol_passes"] == passes == 1


def test_the_symbolizer_imports_nothing_of_the_agent_but_its_model() -> None:
    for path in Path(elf_names.__file__).parent.parent.joinpath("symbolizer").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpustrobe.agent"):
                assert node.module == "gpustrobe.agent.model", path


def test_an_empty_request(symbolizer: Symbolizer) -> None:
    assert symbolizer.resolve([]) == []


def test_a_large_table_that_is_asked_again_and_again_gets_an_index(tmp_path: Path) -> None:
    path = tmp_path / "large"
    symbols = [(f"f{i}", TEXT + 4 * i, 4, FUNC, GLOBAL) for i in range(60_000)]
    path.write_bytes(elf_file(symbols, text_size=0x40000))
    symbolizer = Symbolizer(None)
    symbolizer.learn([mapped(path)], [])
    for i in range(8):
        assert symbolizer.resolve([native(TEXT + 4000 * i)])[0][0].name == f"f{1000 * i}"
    counters = symbolizer.counters()
    symbolizer.close()
    assert (counters["symbol_passes"], counters["index_lookups"]) == (3, 5)
