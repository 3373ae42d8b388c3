# SPDX-License-Identifier: Apache-2.0
"""The fuzz target of the C that reads foreign ELF files and text, under address and undefined-behaviour sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.symbolizer_elf import FUNC, GLOBAL, LOCAL, NOTYPE, TEXT, elf_file

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    program = tmp_path_factory.mktemp("fuzz") / "fuzz"
    sources = [
        ROOT / "tests/fuzz/elf_names.c",
        *(
            ROOT / "bpf" / f
            for f in ("elf_names.c", "elf_symbols.c", "elf_index.c", "elf_facts.c", "text_names.c", "elf_file.c")
        ),
    ]
    flags = ["-g", "-O1", "-std=gnu11", "-D_GNU_SOURCE", "-DSTANDALONE", "-fsanitize=address,undefined"]
    flags += ["-fno-sanitize-recover=all", "-iquote", str(ROOT / "bpf")]
    built = subprocess.run(["gcc", *flags, *sources, "-lz", "-o", program], capture_output=True, text=True, check=False)
    if "cannot find -lasan" in built.stderr:
        pytest.skip("gcc has no address sanitizer")
    assert built.returncode == 0, built.stderr
    return program


SEEDS = {
    "elf": elf_file(
        [(f"f{i}", TEXT + 8 * i, 8, FUNC, GLOBAL) for i in range(20)] + [("label", TEXT + 0xF0, 0, NOTYPE, LOCAL)],
        text_size=0x200,
    ),
    "kallsyms": b"".join(b"%016x t name%d\t[module%d]\n" % (0x1000 * i, i, i % 3) for i in range(60)),
    "perf_map": b"".join(b"%x %x some name %d\n" % (0x1000 + 16 * i, 64, i) for i in range(60)),
}


@pytest.mark.parametrize("kind", SEEDS)
def test_damaged_input_breaks_no_rule_of_c(target: Path, tmp_path: Path, kind: str) -> None:
    seed = tmp_path / "seed"
    seed.write_bytes(SEEDS[kind])
    done = subprocess.run([target, seed, "3000", "17"], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
