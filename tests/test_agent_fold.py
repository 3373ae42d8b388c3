# SPDX-License-Identifier: Apache-2.0
"""Windows of ids to named, summed profiles."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from gpustrobe.agent.fold import UNNAMED, Folder
from gpustrobe.agent.model import Books, Frame, Process, Profiles, RawFrame, RawKind, Thread, Window
from hypothesis import given, settings
from hypothesis import strategies as st

BOOKS = Books(0, 0, 0, 0, {})


def raw(address: int) -> RawFrame:
    return RawFrame(RawKind.NATIVE, 1, address)


def name(frame: RawFrame) -> tuple[Frame, ...]:
    """Ten addresses a function; function 3 has another inlined into it."""
    outer = Frame(f"f{frame.address // 10}", "native", "a.so", address=frame.address)
    return (Frame("inlined", "native", "a.so", address=frame.address), outer) if frame.address // 10 == 3 else (outer,)


def window(
    rows=(), frames=(), stacks=(), first=(0, 0), epoch=1, second=0, processes=(), threads=(), kind="cpu"
) -> Window:
    thread, stack, value = zip(*rows, strict=True) if rows else ((), (), ())
    return Window(
        epoch, second * 10**9, 10**9, 9_973_013, kind, np.array(stack, np.uint32), np.array(thread, np.uint32),
        np.array(value, np.uint64), list(frames), first[0], list(stacks), first[1], list(processes), list(threads), [],
        BOOKS,
    )  # fmt: skip


PROCESSES = [
    Process(0, 100, 0, 0, "python3", labels={"pod": "p-0", "script": "train.py", "container": ""}),
    Process(1, 200, 0, 0, "make"),
]
THREADS = [Thread(0, 0, 100, "python3"), Thread(1, 0, 101, "loader"), Thread(2, 1, 200, "make")]


def rows(profiles: Profiles, index: int = 0) -> Counter:
    w = profiles.windows[index]
    out = Counter()
    for label, stack, value in zip(w.labels, w.stack, w.value, strict=True):
        key = (profiles.label_sets[label]["tid"], tuple(f.name for f in profiles.stacks[stack]))
        assert key not in out, "each (labels, stack) has one row"
        out[key] = int(value)
    return out


def test_frames_that_read_the_same_are_one_and_their_rows_are_summed():
    folder = Folder()
    frames = [raw(a) for a in (11, 12, 20, 31)]
    stacks = [(0, 2), (1, 2), (3, 2), (2,)]
    folder.add(
        window(
            [(0, 0, 5), (0, 1, 6), (1, 0, 1), (0, 2, 2), (2, 3, 2**60)],
            frames,
            stacks,
            processes=PROCESSES,
            threads=THREADS,
        )
    )
    assert folder.unnamed() == frames and folder.waiting == 1
    profiles = folder.flush([name(f) for f in frames])
    assert rows(profiles) == {
        ("100", ("f1", "f2")): 11,
        ("101", ("f1", "f2")): 1,
        ("100", ("inlined", "f3", "f2")): 2,
        ("200", ("f2",)): 2**60,
    }
    assert profiles.stacks[0][0].address == 11 and len(profiles.stacks) == 3
    assert profiles.windows[0].value.dtype == np.uint64 and profiles.windows[0].books is BOOKS
    assert folder.unnamed() == [] and folder.waiting == 0


def test_label_sets_are_those_of_thread_and_process():
    folder = Folder()
    folder.add(window([(1, 0, 1), (2, 0, 1)], [raw(1)], [(0,)], processes=PROCESSES, threads=THREADS))
    assert folder.flush([name(raw(1))]).label_sets == (
        {"comm": "python3", "pid": "100", "thread": "loader", "tid": "101", "pod": "p-0", "script": "train.py"},
        {"comm": "make", "pid": "200", "thread": "make", "tid": "200"},
    )


def test_a_process_that_becomes_another_program_gets_new_labels():
    folder = Folder()
    folder.add(window([(2, 0, 1)], [raw(1)], [(0,)], processes=PROCESSES, threads=THREADS))
    assert folder.flush([name(raw(1))]).label_sets[0]["comm"] == "make"
    folder.add(
        window([(2, 0, 1)], first=(1, 1), processes=[Process(1, 200, 0, 0, "cc1")], threads=[Thread(2, 1, 200, "cc1")])
    )
    assert folder.flush([]).label_sets[0] == {"comm": "cc1", "pid": "200", "thread": "cc1", "tid": "200"}


def test_later_windows_use_what_is_known_and_the_same_objects():
    folder = Folder()
    folder.add(window([(0, 0, 1)], [raw(10)], [(0,)], processes=PROCESSES, threads=THREADS))
    first = folder.flush([name(raw(10))])
    folder.add(window([(0, 0, 1), (0, 1, 4)], [raw(20)], [(0, 1)], first=(1, 1), second=1))
    assert folder.unnamed() == [raw(20)]
    second = folder.flush([name(raw(20))])
    assert rows(second) == {("100", ("f1",)): 1, ("100", ("f1", "f2")): 4}
    assert second.stacks[0] is first.stacks[0] and second.label_sets[0] is first.label_sets[0], (
        "the encoder knows them by identity"
    )


def test_a_window_that_comes_while_names_are_sought_waits():
    folder = Folder()
    folder.add(window([(0, 0, 1)], [raw(10)], [(0,)], processes=PROCESSES, threads=THREADS))
    asked = folder.unnamed()
    folder.add(window([(0, 1, 1)], [raw(20)], [(1,)], first=(1, 1), second=1))
    folder.add(window([(0, 0, 7)], first=(2, 2), second=2))
    profiles = folder.flush([name(f) for f in asked])
    assert [w.start_unix for w in profiles.windows] == [0]
    assert folder.waiting == 2 and folder.unnamed() == [raw(20)]
    profiles = folder.flush([name(raw(20))])
    assert [w.start_unix for w in profiles.windows] == [10**9, 2 * 10**9]
    assert rows(profiles, 1) == {("100", ("f1",)): 7}


def test_a_frame_not_named_in_time_goes_out_with_a_reason_and_is_asked_for_again():
    folder = Folder()
    folder.add(window([(0, 0, 1)], [raw(10), raw(20)], [(0, 1)], processes=PROCESSES, threads=THREADS))
    profiles = folder.flush([name(raw(10)), None])
    leaf, root = profiles.stacks[0]
    assert leaf.name == "f1" and (root.kind, root.reason, root.name, root.address) == ("reason", UNNAMED, "0x14", 20)
    folder.add(window([(0, 0, 1), (0, 1, 1)], [raw(30)], [(2,)], first=(2, 1), second=1))
    assert folder.unnamed() == [raw(20), raw(30)]
    assert rows(folder.flush([name(raw(20)), name(raw(30))])) == {
        ("100", ("f1", "f2")): 1,
        ("100", ("inlined", "f3")): 1,
    }
    assert folder.unnamed() == []


def test_a_late_frame_that_only_part_of_the_answer_covers_stays_late():
    folder = Folder()
    folder.add(window([(0, 0, 1)], [raw(10), raw(20)], [(0, 1)], processes=PROCESSES, threads=THREADS))
    folder.flush([None, None])
    assert folder.unnamed() == [raw(10), raw(20)]
    folder.add(window([(0, 0, 1)], first=(2, 1), second=1))
    profiles = folder.flush([name(raw(10))])
    assert [f.name for f in profiles.stacks[0]] == ["f1", "0x14"]
    assert folder.unnamed() == [raw(20)]


def test_a_new_epoch_forgets_all_ids_and_the_old_one_is_finished_first():
    folder = Folder()
    folder.add(window([(0, 0, 1)], [raw(10)], [(0,)], processes=PROCESSES, threads=THREADS))
    folder.add(
        window(
            [(0, 0, 2)],
            [raw(20)],
            [(0,)],
            epoch=2,
            second=1,
            processes=PROCESSES[1:],
            threads=[Thread(0, 1, 200, "make")],
        )
    )
    assert (folder.epoch, folder.unnamed()) == (1, [raw(10)])
    assert rows(folder.flush([name(raw(10))])) == {("100", ("f1",)): 1}
    assert (folder.epoch, folder.unnamed()) == (2, [raw(20)])
    assert rows(folder.flush([name(raw(20))])) == {("200", ("f2",)): 2}


def test_windows_that_do_not_continue_are_refused():
    folder = Folder()
    folder.add(window([], [raw(10)], [(0,)]))
    with pytest.raises(ValueError, match="frames from 0"):
        folder.add(window([], [raw(10)], [], first=(0, 1)))
    with pytest.raises(ValueError, match="2 names for 1"):
        folder.flush([(), ()])


def test_nothing_to_fold():
    folder = Folder()
    assert folder.flush([]) == Profiles((), (), ()) and folder.unnamed() == [] and folder.epoch is None
    folder.add(window())
    profiles = folder.flush([])
    assert profiles.windows[0].value.size == 0 and profiles.stacks == ()


@settings(max_examples=60)
@given(st.data())
def test_any_sequence_of_windows_keeps_every_sample(data):
    """Against a plain reading of the ids: same threads, same names, same sums."""
    folder, addresses, stacks = Folder(), [], []
    for second in range(data.draw(st.integers(1, 4))):
        first = (len(addresses), len(stacks))
        addresses += data.draw(st.lists(st.integers(0, 60), min_size=0 if addresses else 1, max_size=4))
        frame_ids = st.lists(st.integers(0, len(addresses) - 1), max_size=4).map(tuple)
        stacks += data.draw(st.lists(frame_ids, min_size=0 if stacks else 1, max_size=4))
        row = st.tuples(st.integers(0, 2), st.integers(0, len(stacks) - 1), st.integers(1, 10))
        drawn = data.draw(st.lists(row, max_size=6))
        new = ([raw(a) for a in addresses[first[0] :]], stacks[first[1] :])
        known = second > 0
        folder.add(window(drawn, *new, first, 1, second, () if known else PROCESSES, () if known else THREADS))
        wanted = Counter()
        for thread, stack, value in drawn:
            names = [f.name for i in stacks[stack] for f in name(raw(addresses[i]))]
            wanted[str(THREADS[thread].tid), tuple(names)] += value
        assert rows(folder.flush([name(f) for f in folder.unnamed()])) == wanted
