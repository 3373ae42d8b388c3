# SPDX-License-Identifier: Apache-2.0
"""The queue on disk: order, bounds, restarts, and files that are not as they were left."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpustrobe.agent.errors import StoreProblem
from gpustrobe.agent.spool import HEADER, Batch, Spool
from hypothesis import given, settings
from hypothesis import strategies as st

MIB = 1 << 20


def batch(number: int, size: int = 1000) -> Batch:
    return Batch(("profiles", "metrics")[number % 2], number.to_bytes(4, "little") * (size // 4), number)


def drain(spool: Spool) -> list[int]:
    out = []
    while (found := spool.peek()) is not None:
        assert found == batch(found.samples, len(found.request))
        out.append(found.samples)
        spool.acknowledge()
    return out


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.spool"))


def test_first_in_first_out_over_several_files(tmp_path):
    spool = Spool(tmp_path, MIB, segment_size=3000)
    for number in range(10):
        spool.append(batch(number))
    assert (
        len(spool) == 10
        and len(segments(tmp_path)) == 4
        and spool.size == sum(f.stat().st_size for f in segments(tmp_path))
    )
    assert drain(spool) == list(range(10))
    assert len(spool) == spool.size == 0 and segments(tmp_path) == []
    spool.append(batch(11))
    assert drain(spool) == [11]
    spool.close()


def test_a_batch_is_there_until_acknowledged(tmp_path):
    spool = Spool(tmp_path, MIB)
    spool.append(batch(1))
    assert spool.peek() == spool.peek() == batch(1)
    spool.acknowledge()
    assert spool.peek() is None
    with pytest.raises(IndexError):
        spool.acknowledge()
    spool.close()


def test_a_new_process_goes_on_after_the_last_acknowledged(tmp_path):
    spool = Spool(tmp_path, MIB, segment_size=3000)
    for number in range(10):
        spool.append(batch(number))
    for _ in range(5):
        spool.peek()
        spool.acknowledge()
    spool.close()
    again = Spool(tmp_path, MIB, segment_size=3000)
    assert len(again) == 5
    again.append(batch(10))
    assert drain(again) == [5, 6, 7, 8, 9, 10]
    assert again.damaged_batches == 0
    again.close()


def test_a_killed_process_loses_nothing_it_appended(tmp_path):
    program = (
        "import os, signal, sys; from pathlib import Path; from gpustrobe.agent.spool import *\n"
        "spool = Spool(Path(sys.argv[1]), 1 << 20)\n"
        "for n in range(3): spool.append(Batch('profiles', bytes([n]) * 8, n))\n"
        "spool.peek(); spool.acknowledge(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == -9
    spool = Spool(tmp_path, MIB)
    assert [spool.peek().samples, len(spool)] == [1, 2]
    spool.close()


def test_the_bound_holds_and_the_oldest_go_and_are_counted(tmp_path):
    spool = Spool(tmp_path, 10_000)
    for number in range(50):
        spool.append(batch(number))
        assert sum(f.stat().st_size for f in segments(tmp_path)) == spool.size <= 10_000
    kept = drain(spool)
    assert kept == list(range(50 - len(kept), 50)) and len(kept) >= 5
    assert spool.overflow_batches == 50 - len(kept) and spool.overflow_samples == sum(range(50 - len(kept)))
    spool.append(batch(77, 20_000))
    assert spool.peek() is None and spool.overflow_samples == sum(range(50 - len(kept))) + 77
    spool.close()


def test_samples_dropped_with_a_half_sent_file_are_only_the_unsent(tmp_path):
    spool = Spool(tmp_path, 4200, segment_size=2 * (1000 + HEADER.size))
    for number in (1, 2, 3):
        spool.append(batch(number))
    spool.peek()
    spool.acknowledge()
    for number in (4, 5):
        spool.append(batch(number))
    assert (spool.overflow_batches, spool.overflow_samples) == (1, 2)
    assert drain(spool) == [3, 4, 5]
    spool.close()


@pytest.mark.parametrize("cut", [1, HEADER.size - 1, HEADER.size, HEADER.size + 5, HEADER.size + 999])
def test_a_file_cut_short_keeps_what_is_whole(tmp_path, cut):
    spool = Spool(tmp_path, MIB)
    for number in range(3):
        spool.append(batch(number))
    spool.close()
    [path] = segments(tmp_path)
    os.truncate(path, 2 * (1000 + HEADER.size) + cut)
    again = Spool(tmp_path, MIB)
    assert again.damaged_batches == 1 and again.damaged_samples == (2 if cut >= HEADER.size else 0)
    again.append(batch(3))
    assert drain(again) == [0, 1, 3]
    again.close()


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_damage_loses_only_what_it_hit_and_counts_it(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("spool")
    spool = Spool(folder, MIB, sync=lambda file: None)
    for number in range(6):
        spool.append(batch(number, 40))
    spool.close()
    [path] = segments(folder)
    content = bytearray(path.read_bytes())
    record = HEADER.size + 40
    hits = data.draw(st.dictionaries(st.integers(0, len(content) - 1), st.integers(1, 255), min_size=1, max_size=3))
    for at, flip in hits.items():
        content[at] ^= flip
    hit = {at // record for at in hits}
    path.write_bytes(content)
    again = Spool(folder, MIB, sync=lambda file: None)
    found = drain(again)
    assert set(found) >= set(range(6)) - hit and found == sorted(found)
    assert 1 <= again.damaged_batches <= len(hit) and again.damaged_samples <= sum(hit), (
        "only sound headers tell samples"
    )
    again.close()


def test_an_unreadable_position_sends_again_rather_than_lose(tmp_path):
    spool = Spool(tmp_path, MIB)
    for number in range(3):
        spool.append(batch(number))
    spool.peek()
    spool.acknowledge()
    spool.close()
    (tmp_path / "position").write_text("\0\0\0")
    again = Spool(tmp_path, MIB)
    assert drain(again) == [0, 1, 2]
    again.close()


def test_a_file_that_vanishes_is_counted(tmp_path):
    spool = Spool(tmp_path, MIB, segment_size=1000)
    spool.append(batch(3))
    spool.append(batch(4))
    segments(tmp_path)[0].unlink()
    assert drain(spool) == [4] and (spool.damaged_batches, spool.damaged_samples) == (1, 3)
    spool.close()


def test_a_full_disk_raises_and_leaves_no_torn_record(tmp_path):
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    spool = Spool(tmp_path, MIB)
    spool.append(batch(1))
    spool._sync = full
    with pytest.raises(OSError, match="No space"):
        spool.append(batch(2))
    spool._sync = os.fdatasync
    spool.append(batch(3))
    spool.close()
    again = Spool(tmp_path, MIB)
    assert drain(again) == [1, 3] and again.damaged_batches == 0
    again.close()


def test_one_process_at_a_time(tmp_path):
    spool = Spool(tmp_path, MIB)
    with pytest.raises(StoreProblem, match="another agent uses it"):
        Spool(tmp_path, MIB)
    spool.close()
    Spool(tmp_path, MIB).close()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreProblem, match="cannot be used as spool"):
        Spool(tmp_path / "file" / "spool", MIB)
