# SPDX-License-Identifier: Apache-2.0
"""The fuzz target of the C that reads /proc texts and ELF headers, under address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = (
    "tests/fuzz/proc_texts.c",
    *(f"bpf/{name}.c" for name in ("maps_text", "listing", "build_id", "process_dir")),
)
SEEDS = {"maps": Path("/proc/self/maps"), "stat": Path("/proc/self/stat"), "elf": Path("/bin/true")}


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("fuzz") / "fuzz"
    flags = ["-std=gnu11", "-g", "-O1", "-D_GNU_SOURCE", "-DSTANDALONE"]
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    built = subprocess.run(
        ["gcc", *flags, "-iquote", "bpf", "-o", out, *SOURCES], cwd=ROOT, capture_output=True, text=True
    )
    if "cannot find -lasan" in built.stderr or "libasan" in built.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert built.returncode == 0, built.stderr
    return out


@pytest.mark.parametrize("seed", SEEDS)
def test_mutated_input_is_read_or_refused(program, tmp_path, seed):
    (tmp_path / "seed").write_bytes(SEEDS[seed].read_bytes())
    rounds = os.environ.get("GPUSTROBE_FUZZ_ROUNDS", "2000")
    done = subprocess.run([program, tmp_path / "seed", rounds, "7"], capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stderr[-4000:]
