# SPDX-License-Identifier: Apache-2.0
"""Parts of cupti/ called through ctypes: the ring under many writers, interning, windows, sampling, policy, names of calls."""

from __future__ import annotations

import ctypes
import re
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from gpustrobe.cupti import ring

CUPTI = Path(__file__).resolve().parent.parent / "cupti"
SLOTS, ARENA = 4096, 1 << 16


class Ring(ctypes.Structure):
    _fields_ = (
        ("control", ctypes.c_void_p),
        ("records", ctypes.c_void_p),
        ("arena", ctypes.c_void_p),
        ("slots", ctypes.c_uint32),
        ("arena_size", ctypes.c_uint32),
        ("fd", ctypes.c_int),
    )


class Cover(ctypes.Structure):
    _fields_ = (("window", ctypes.c_uint32), ("multiplicity", ctypes.c_uint32), ("probability", ctypes.c_uint32))


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    target = tmp_path_factory.mktemp("cupti") / "parts.so"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-fPIC", "-shared", "-Wall", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", target, *CUPTI.glob("*.c"), "-lpthread", "-ldl"], check=True)
    lib = ctypes.CDLL(str(target))
    lib.gs_random.restype = lib.gs_window_start.restype = ctypes.c_uint64
    lib.gs_random.argtypes = (ctypes.c_uint64, ctypes.c_uint64)
    lib.gs_window_start.argtypes = (ctypes.c_uint64,) * 3
    lib.gs_weight.restype = ctypes.c_uint32
    lib.gs_names_create.restype = ctypes.c_void_p
    lib.gs_string_id.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
    lib.gs_shape_id.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    for name in ("gs_windows_launch", "gs_windows_find", "gs_windows_at"):
        getattr(lib, name).restype = Cover
    lib.gs_windows_launch.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32)
    lib.gs_windows_find.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
    lib.gs_windows_at.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
    lib.gs_windows_open.restype = ctypes.c_void_p
    lib.gs_windows_open.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
    lib.gs_windows_activate.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    lib.gs_windows_close.argtypes = (ctypes.c_void_p, ctypes.c_uint)
    lib.gs_policy_of.restype = ctypes.POINTER(ctypes.c_uint32)
    lib.gs_first_in_stratum.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32)
    return lib


class Shared:
    """A ring and the view of it that its reader has."""

    def __init__(self, code):
        self.ring = Ring()
        assert code.gs_ring_create(ctypes.byref(self.ring), SLOTS, ARENA) == 0
        size = ring.CONTROL_SIZE + 64 * SLOTS + ARENA
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.ring.control))
        self.slots = self.bytes[ring.CONTROL_SIZE : ring.CONTROL_SIZE + 64 * SLOTS].reshape(SLOTS, 64)
        self.head, self.tail, self.arena_head = (
            self.bytes[at : at + 8].view("<u8") for at in (ring.HEAD_OFFSET, ring.TAIL_OFFSET, ring.ARENA_HEAD_OFFSET)
        )

    def counters(self):
        at = ring.COUNTERS_OFFSET
        return dict(zip(ring.COUNTERS, self.bytes[at : at + 8 * len(ring.COUNTERS)].view("<u8").tolist(), strict=True))

    def take(self):
        head, tail = int(self.head[0]), int(self.tail[0])
        numbers = np.arange(tail, head, dtype=np.uint64)
        rows = self.slots[numbers % SLOTS]
        ready = rows[:, :4].copy().view("<u4")[:, 0] == ((numbers + 1) & 0xFFFFFFFF).astype(np.uint32)
        n = len(ready) if ready.all() else int(np.argmin(ready))
        rows = self.slots[(numbers % SLOTS)[:n]].copy()
        self.tail[0] = tail + n
        return rows

    def entries(self):
        """(offset, ENTRY) of each finished arena entry."""
        at, base = 8, ring.CONTROL_SIZE + 64 * SLOTS
        while at < min(int(self.arena_head[0]), ARENA):
            entry = self.bytes[base + at : base + at + 8].view(ring.ENTRY)[0]
            if not entry["size"]:
                return
            yield at, entry
            at += int(entry["size"])


@pytest.fixture
def shared(code):
    return Shared(code)


def test_many_writers_lose_and_mix_nothing(code, shared):
    writers, each = 6, 4000
    rows = []

    def write(number):
        record = np.zeros(64, np.uint8)
        for i in range(each):
            record[8:].view("<u8")[:] = number << 32 | i  # every word the same: a torn record shows
            record[4] = ring.Record.LAUNCH
            while not code.gs_ring_push(ctypes.byref(shared.ring), record.ctypes.data_as(ctypes.c_void_p), 1):
                pass

    threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        rows.append(shared.take())
    rows.append(shared.take())
    words = np.concatenate(rows)[:, 8:].copy().view("<u8")
    assert len(words) == writers * each
    assert np.all(words == words[:, :1])
    for n in range(writers):  # each writer's records in its own order
        assert np.array_equal(words[words[:, 0] >> 32 == n][:, 0] & 0xFFFFFFFF, np.arange(each))
    assert shared.counters()["records"] == writers * each


def test_a_full_ring_takes_what_fits(code, shared):
    records = np.zeros((100, 64), np.uint8)
    pointer = records.ctypes.data_as(ctypes.c_void_p)
    taken = [code.gs_ring_push(ctypes.byref(shared.ring), pointer, 100) for _ in range(42)]
    assert taken == [100] * 40 + [96, 0]
    assert shared.counters()["drop_ring_full"] == 104
    assert len(shared.take()) == SLOTS
    assert code.gs_ring_push(ctypes.byref(shared.ring), pointer, 100) == 100


def test_an_uncommitted_record_holds_back_what_follows(code, shared):
    records = np.zeros((3, 64), np.uint8)
    code.gs_ring_push(ctypes.byref(shared.ring), records.ctypes.data_as(ctypes.c_void_p), 3)
    shared.slots[1, :4] = 0  # as its writer left it before the commit
    assert len(shared.take()) == 1
    shared.slots[1, :4].view("<u4")[0] = 2
    assert len(shared.take()) == 2


def text(shared, at):
    base = ring.CONTROL_SIZE + 64 * SLOTS + at
    head = shared.bytes[base : base + 16].view(ring.STRING)[0]
    return bytes(shared.bytes[base + 16 : base + 16 + int(head["length"])])


def test_strings_are_interned_once(code, shared):
    names = code.gs_names_create(ctypes.byref(shared.ring))
    texts = [b"", b"a", b"_Z4gemmPf", b"_Z4gemmPg", b"x" * 1000]
    ids = [code.gs_string_id(names, t, 1) for t in texts]
    assert len(set(ids)) == len(texts)
    assert [code.gs_string_id(names, t, 0) for t in texts] == ids
    assert [text(shared, i) for i in ids] == texts
    assert [at for at, _ in shared.entries()] == ids
    assert all(i % 8 == 0 for i in ids)


def test_a_long_name_is_cut(code, shared):
    names = code.gs_names_create(ctypes.byref(shared.ring))
    entry = code.gs_string_id(names, b"n" * 40000, 1)
    assert text(shared, entry) == b"n" * ring.STRING_LIMIT
    assert shared.counters()["strings_cut"] == 1


def test_threads_intern_the_same_names(code, shared):
    names = code.gs_names_create(ctypes.byref(shared.ring))
    found = [{} for _ in range(4)]

    def intern(mine):
        for i in range(200):
            mine[i] = code.gs_string_id(names, b"kernel%d" % i, 1)

    threads = [threading.Thread(target=intern, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1] == found[2] == found[3]
    assert shared.counters()["strings"] == 200


def test_shapes_grow_coarse_then_stop(code, shared):
    names = code.gs_names_create(ctypes.byref(shared.ring))
    name = code.gs_string_id(names, b"kernel", 1)
    shape = np.zeros(1, ring.SHAPE)
    shape["name"], shape["block"] = name, [[128, 1, 1]]
    ids = []
    for grid in range(2000):
        shape["grid"] = [[grid, 1, 1]]
        ids.append(code.gs_shape_id(names, shape.ctypes.data_as(ctypes.c_void_p)))
    counters = shared.counters()
    assert counters["shapes_coarse"] + len(set(ids)) - 1 == 2000
    assert len(set(ids[-500:])) == 1  # one for all of them
    assert len(set(ids)) == pytest.approx(ARENA * 3 / 4 / 64, abs=3)
    entries = dict(shared.entries())
    assert entries[ids[0]]["flags"] == 0
    assert entries[ids[-1]]["flags"] == 1
    assert int(shared.arena_head[0]) <= ARENA
    for i in range(3000):  # and when the arena is full to the end
        shape["name"] = code.gs_string_id(names, b"k%d" % i, 1)
        last = code.gs_shape_id(names, shape.ctypes.data_as(ctypes.c_void_p))
    assert last == 0 or dict(shared.entries())[last]["flags"] == 1
    assert shared.counters()["shapes_full"] > 0
    assert int(shared.arena_head[0]) <= ARENA


def splitmix(seed, n):
    mask = (1 << 64) - 1
    z = (seed + (n + 1) * 0x9E3779B97F4A7C15) & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return z ^ z >> 31


@pytest.mark.parametrize("seed", [0, 1, 0xFFFFFFFFFFFFFFFF])
def test_window_starts(code, seed):
    period = 1_000_000_000
    starts = [code.gs_window_start(seed, i, period) for i in range(2000)]
    assert starts == [i * period + (splitmix(seed, i) * period >> 64) for i in range(2000)]
    assert starts == sorted(starts)
    phase = np.array([s - i * period for i, s in enumerate(starts)]) / period
    assert abs(phase.mean() - 0.5) < 5 * (1 / 12 / 2000) ** 0.5
    # E[m] = W/T for any moment, whatever the period of the workload: here moments that repeat with T
    width = 100_000_000
    for moment in (0, 0.03, 0.5, 0.99):
        times = (np.arange(2, 1999) + moment) * period
        covers = (times[:, None] >= np.array(starts)) & (times[:, None] < np.array(starts) + width)
        assert abs(covers.sum(1).mean() - 0.1) < 5 * (0.1 / 1997) ** 0.5


def test_weights(code):
    assert code.gs_weight(0) == 0
    assert code.gs_weight(1 << 31) == 2 << 16
    assert code.gs_weight(0xFFFFFFFF) == 1 << 16
    assert code.gs_weight(1 << 20) == 4096 << 16
    assert code.gs_weight(1) == 0xFFFFFFFF


def test_first_of_each_stratum(code):
    strata = (ctypes.c_uint64 * 8192)()
    keys = [code.gs_random(5, n) for n in range(1000)]
    for window in (1, 2, 3):
        assert sum(code.gs_first_in_stratum(strata, key, window) for key in keys) == 1000
        assert sum(code.gs_first_in_stratum(strata, key, window) for key in keys) == 0


def test_windows_cover_what_is_theirs(code):
    windows = (ctypes.c_uint8 * (1 << 16))()

    def open_window(begin, end):
        row = code.gs_windows_open(windows, begin, end)
        code.gs_windows_activate(windows, row)
        return row

    open_window(100, 200)
    open_window(150, 250)
    seen = {}
    for correlation, time in enumerate((90, 100, 149, 150, 199, 200, 249, 250), start=0xFFFFFFFC):
        correlation &= 0xFFFFFFFF  # across the wrap
        cover = code.gs_windows_launch(windows, time, correlation)
        seen[correlation] = (cover.window, cover.multiplicity)
    assert list(seen.values()) == [(0, 0), (1, 1), (1, 1), (2, 2), (2, 2), (2, 1), (2, 1), (0, 0)]
    for correlation, expected in seen.items():
        found = code.gs_windows_find(windows, correlation)
        assert (found.window, found.multiplicity) == expected
    assert code.gs_windows_at(windows, 160).multiplicity == 2
    assert code.gs_windows_at(windows, 99).window == 0
    code.gs_windows_close(windows, 0)
    assert code.gs_windows_launch(windows, 160, 9).multiplicity == 1
    assert code.gs_windows_open(windows, 300, 400)  # a third is allowed
    for i in range(500):  # rows are used again; what is long past is forgotten, not mistaken
        row = open_window(1000 + 10 * i, 1010 + 10 * i)
        assert row
        code.gs_windows_launch(windows, 1005 + 10 * i, 100 + i)
        code.gs_windows_close(windows, 0)
    assert code.gs_windows_find(windows, 599).multiplicity == 1
    assert code.gs_windows_find(windows, 110).window == 0


class Plan(ctypes.Structure):
    _fields_ = (
        ("mode", ctypes.c_uint32),
        ("detail", ctypes.c_uint8),
        *((name, ctypes.c_uint64) for name in ("width", "period", "seed", "index", "next_begin")),
    )


MS, S = 1_000_000, 1_000_000_000


@pytest.mark.parametrize(
    "version,wish,mode,width,period",
    [
        (130001, {"mode": ring.Mode.AUTO}, "WINDOWS", 100 * MS, S),
        (130001, {"mode": ring.Mode.AUTO, "window_ns": 10 * MS, "period_ns": 2 * S}, "WINDOWS", 10 * MS, 2 * S),
        (130001, {"mode": ring.Mode.WINDOWS, "window_ns": 5 * S, "period_ns": S}, "WINDOWS", S, S),
        (24, {"mode": ring.Mode.AUTO}, "WINDOWS", 2 * S, 60 * S),  # sessions
        (24, {"mode": ring.Mode.AUTO, "window_ns": 100 * MS, "period_ns": S}, "WINDOWS", 100 * MS, 10 * S),
        (24, {"mode": ring.Mode.WINDOWS}, "WINDOWS", 100 * MS, S),  # a user's choice
        (20, {"mode": ring.Mode.AUTO}, "ON_DEMAND", None, None),
        (20, {"mode": ring.Mode.AUTO, "detail_until": 100 * S}, "ALWAYS", S, S),
        (20, {"mode": ring.Mode.AUTO, "detail_until": 10 * S}, "ON_DEMAND", None, None),  # over
        (20, {"mode": ring.Mode.ALWAYS}, "ALWAYS", S, S),
        (130001, {"mode": ring.Mode.OFF, "detail_until": 100 * S}, "OFF", None, None),
        (130001, {"mode": 77}, "OFF", None, None),
        (17, {"mode": ring.Mode.ALWAYS}, "OFF", None, None),
    ],
)
def test_what_a_wish_means(code, version, wish, mode, width, period):
    said = np.zeros(1, ring.AGENT)
    for name, value in {"seed": 9, **wish}.items():
        said[name] = value
    plan, now = Plan(next_begin=0xFFFFFFFFFFFFFFFF), 50 * S
    code.gs_plan_advance.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
    code.gs_plan_advance.restype = ctypes.c_uint64
    update = code.gs_plan_update
    update.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
    policy = code.gs_policy_of(version, b"libcupti.so.12")
    update(ctypes.byref(plan), said.ctypes.data, policy, now)
    assert plan.mode == ring.Mode[mode]
    assert update(ctypes.byref(plan), said.ctypes.data, policy, now + 1) == 0  # nothing new
    if width is None:
        assert plan.next_begin == 0xFFFFFFFFFFFFFFFF
        return
    assert (plan.width, plan.period) == (width, period)
    begin = plan.next_begin
    if mode == "ALWAYS":
        assert begin == now
        code.gs_plan_advance(ctypes.byref(plan), begin, now)
        assert plan.next_begin == now + period
        return
    starts = [s for i in range(1000) if (s := code.gs_window_start(9, i, period)) >= now]
    assert begin == starts[0]
    assert code.gs_plan_advance(ctypes.byref(plan), begin, begin) == 0
    assert plan.next_begin == starts[1]
    assert code.gs_plan_advance(ctypes.byref(plan), 0, starts[5] + width) == 4  # four were missed meanwhile
    assert plan.next_begin == starts[6]


@pytest.mark.parametrize(
    "version,soname,mode",
    [
        (17, "libcupti.so.11.7", "OFF"),
        (18, "libcupti.so.11.8", "OFF"),
        (18, "libcupti.so.12", "ON_DEMAND"),
        (20, "libcupti.so.12", "ON_DEMAND"),
        (24, "libcupti.so.12", "SESSIONS"),
        (28, "libcupti.so.12", "SESSIONS"),
        (130000, "libcupti.so.13", "SESSIONS"),
        (130001, "libcupti.so.13", "WINDOWS"),
        (130500, "libcupti.so.13", "WINDOWS"),
        (0, "libcupti.so.13", "OFF"),
    ],
)
def test_policy(code, version, soname, mode):
    assert code.gs_policy_of(version, soname.encode())[1] == ring.Mode[mode]


@pytest.mark.parametrize(
    "name,call",
    [
        ("cudaLaunchKernel_v7000", 1),
        ("cudaLaunchKernel_ptsz_v7000", 1),
        ("cudaLaunchKernelExC_v11060", 1),
        ("cudaLaunchCooperativeKernel_v9000", 1),
        ("cuLaunchKernel", 1),
        ("cuLaunchKernelEx_ptsz", 1),
        ("cuLaunchHostFunc", 0),
        ("cudaLaunchHostFunc_v10000", 0),
        ("cudaGraphLaunch_v10000", 2),
        ("cuGraphLaunch_ptsz", 2),
        ("cudaGraphAddMemcpyNode_v10000", 0),
        ("cuGraphExecMemcpyNodeSetParams", 0),
        ("cudaMemcpyAsync_v3020", 3),
        ("cu64MemcpyHtoD", 3),
        ("cuMemcpyBatchAsync_v2_ptsz", 3),
        ("cudaMemset2DAsync_v3020", 4),
        ("cuMemsetD32Async_ptsz", 4),
        ("cudaMalloc_v3020", 0),
        ("cuMemAlloc_v2", 0),
        ("nvtxRangePush", 0),
    ],
)
def test_which_calls_launch(code, name, call):
    assert code.gs_call_of(name.encode()) == call


def test_only_old_symbols_of_glibc():
    """It must load in the container of a program built years ago: nothing newer than glibc 2.17, no other library than libc's."""
    from gpustrobe.cupti import library

    table = subprocess.run(["objdump", "-T", library.path()], check=True, capture_output=True, text=True).stdout
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", table)}
    assert versions and max(versions) <= (2, 17)
    defined = {line.split()[-1] for line in table.splitlines() if " .text" in line and " g " in line}
    assert defined == {"InitializeInjection", "gpustrobe_launch_probe"}
    needed = subprocess.run(["objdump", "-p", library.path()], check=True, capture_output=True, text=True).stdout
    loaders = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    assert set(re.findall(r"NEEDED +(\S+)", needed)) - loaders <= {"libc.so.6", "libpthread.so.0", "libdl.so.2"}
