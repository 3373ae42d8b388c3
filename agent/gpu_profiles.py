# SPDX-License-Identifier: Apache-2.0
"""Joined activity becomes profiles: what ran on the device as the leaf, under the stack that launched it.

Stacks are taken of some launches only. What a kernel cost is known of every launch of a window, so stacks only share
that out: within one window, thread and kernel by the launches whose stack was taken there; if that of none was (a
stack was lost), as the same thread launched the same kernel in the other windows of the batch; if there is none either,
the leaf stands alone, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from gpustrobe.agent.gpu_names import RULES, KernelName, Rule, copy_name, kernel_name
from gpustrobe.agent.grouping import group, sums
from gpustrobe.agent.launches import NONE
from gpustrobe.agent.model import Frame, Profiles, ProfileWindow
from gpustrobe.cupti import ring

if TYPE_CHECKING:
    from gpustrobe.agent.join import Joined
    from gpustrobe.agent.kernels import Shape
    from gpustrobe.agent.launches import LaunchStacks
    from numpy.typing import NDArray

MEASURES = ("gpu_time", "gpu_launches", "gpu_queue", "gpu_copy")
KINDS = {"compute": "cuda", "collective": "collective", "copy": "copy"}
NOT_TAKEN = Frame("[launch stack not taken]", "reason", reason="no launch of this kernel had its stack taken")
UNKNOWN_STREAM = 0xFFFFFFFF
KEPT = 100_000  # label sets and stacks remembered


@dataclass(frozen=True, slots=True)
class Origin:
    """The process a batch is of. `uuids`: device ordinal -> UUID text; `indexes`: UUID -> index on this node."""

    pid: int
    labels: Mapping[str, str]
    uuids: Mapping[int, str]
    indexes: Mapping[str, str]
    shape: Callable[[int], Shape | None]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Columns of what goes on: one row per (slot, device, stream, graph, kernel, stack, labels). Shape (n,) each."""

    second: NDArray[np.int64]
    length: NDArray[np.int64]
    device: NDArray[np.int64]
    stream: NDArray[np.int64]
    graph: NDArray[np.int64]
    name: NDArray[np.int64]
    shape: NDArray[np.int64]
    stack: NDArray[np.int64]
    label: NDArray[np.int64]
    value: NDArray[np.float64]  # (n, len(MEASURES))


class GpuProfiles:
    """Takes joined batches of several processes, gives `Profiles`. Not thread-safe."""

    def __init__(
        self,
        stacks: LaunchStacks,
        demangle: Callable[[Iterable[str]], Mapping[str, str]],
        rules: Sequence[Rule] = RULES,
    ) -> None:
        self._stacks, self._demangle, self._rules = stacks, demangle, rules
        self._names: dict[str, KernelName] = {}
        self._leaves: dict[KernelName, Frame] = {}
        self._kept_stacks: dict[tuple[int, KernelName], tuple[Frame, ...]] = {}
        self._kept_labels: dict[tuple, dict[str, str]] = {}
        self._windows: dict[tuple[str, int, int], list[tuple[NDArray, NDArray, NDArray]]] = {}
        self._stack_table: dict[int, tuple[int, tuple[Frame, ...]]] = {}  # id -> place
        self._label_table: dict[int, tuple[int, Mapping[str, str]]] = {}

    def names_of(self, origin: Origin, joined: Joined) -> tuple[list[KernelName], NDArray[np.int64]]:
        """Distinct kernels and copies of a batch, and the place of each row's."""
        detail = np.select(
            [joined.type == ring.Record.KERNEL, joined.type == ring.Record.GRAPH],
            [joined.detail, joined.graph.astype(np.uint64)],
            joined.kind.astype(np.uint64),
        )
        key = joined.type.astype(np.uint64) << np.uint64(48) | (detail & np.uint64((1 << 48) - 1))
        place, one = group(key)
        distinct = key[one]
        keys = [(int(k) >> 48, int(k) & (1 << 48) - 1) for k in distinct.tolist()]
        shapes = {k: origin.shape(k) for t, k in keys if t == ring.Record.KERNEL}
        mangled = {shape.name for shape in shapes.values() if shape is not None and shape.name}
        new = [name for name in mangled if name not in self._names]
        if new:
            shown = self._demangle(new)
            self._names.update((name, kernel_name(shown.get(name) or name, self._rules)) for name in new)
        names = [self._named(t, k, shapes.get(k)) for t, k in keys]
        unique = list(dict.fromkeys(names))
        places = {name: at for at, name in enumerate(unique)}
        return unique, np.array([places[name] for name in names], np.int64)[place] if names else place

    def _named(self, type_: int, detail: int, shape: Shape | None) -> KernelName:
        if type_ == ring.Record.KERNEL:
            if shape is None or not shape.name:
                return KernelName("[kernel without a name]", "", "compute")
            return self._names[shape.name]
        if type_ == ring.Record.GRAPH:
            return KernelName(f"CUDA graph {detail}", f"CUDA graph {detail}", "compute")
        name = "Memset" if type_ == ring.Record.MEMSET else copy_name(detail)
        return KernelName(name, name, "copy")

    def add(self, origin: Origin, joined: Joined) -> None:
        if not len(joined):
            return
        names, name = self.names_of(origin, joined)
        stack, label = self._stacks.match(origin.pid, joined.correlation)
        rows = share_out(joined, name, stack, label)
        self._emit(origin, names, rows)
        self._durations(origin, names, name, joined)

    def _emit(self, origin: Origin, names: list[KernelName], rows: _Rows) -> None:
        """Rows of each measure into the window of their second."""
        stacks = self._numbers(
            np.column_stack((rows.stack, rows.name)), lambda key: self._place_stack(key[0], names[key[1]])
        )
        plain = np.column_stack((rows.label, rows.device, rows.stream, rows.graph, rows.name))
        labels = self._numbers(plain, lambda key: self._place_labels(origin, names, key, None))
        shaped = np.column_stack((plain, rows.shape))
        with_shape = self._numbers(shaped, lambda key: self._place_labels(origin, names, key[:5], key[5]))
        for at, measure in enumerate(MEASURES):
            has = rows.value[:, at] > 0
            chosen = with_shape if measure == "gpu_launches" else labels
            self._collect(measure, rows.second[has], rows.length[has], chosen[has], stacks[has], rows.value[has, at])

    def _collect(
        self, measure: str, second: NDArray, length: NDArray, labels: NDArray, stacks: NDArray, value: NDArray
    ) -> None:
        place, one = group(second, length)
        for at, row in enumerate(one.tolist()):
            start, duration, rows = int(second[row]), int(length[row]), place == at
            columns = (labels[rows], stacks[rows], value[rows])
            self._windows.setdefault((measure, start, duration), []).append(columns)

    def _durations(self, origin: Origin, names: list[KernelName], name: NDArray, joined: Joined) -> None:
        """Recorded launches by duration, 19 % a bucket."""
        kernels = np.flatnonzero(joined.first & (joined.type == ring.Record.KERNEL) & (joined.end > joined.start))
        if not kernels.size:
            return
        duration = (joined.end - joined.start)[kernels].astype(np.float64)
        bucket = np.floor(4 * np.log2(duration)).astype(np.int64)
        columns = (joined.second[kernels], joined.length[kernels], joined.device[kernels], name[kernels], bucket)
        place, one = group(*columns)
        counts = np.bincount(place, minlength=one.size)
        distinct = np.column_stack([column[one].astype(np.int64) for column in columns])
        stacks = np.array([self._place_stack(None, names[k]) for k in distinct[:, 3].tolist()], np.int64)
        labels = self._numbers(
            distinct[:, 2:],
            lambda k: self._place_labels(origin, names, (NONE, k[0], UNKNOWN_STREAM, 0, k[1]), None, k[2]),
        )
        self._collect("gpu_durations", distinct[:, 0], distinct[:, 1], labels, stacks, counts.astype(np.float64))

    @staticmethod
    def _numbers(keys: NDArray, number: Callable[[list[int]], int]) -> NDArray[np.int64]:
        """`number` of each row of `keys`, asked once per distinct row."""
        place, one = group(*keys.T)
        return np.array([number(key) for key in keys[one].tolist()], np.int64)[place]

    def _place_stack(self, stack: int | None, name: KernelName) -> int:
        """`stack`: a place in LaunchStacks.stacks, NONE for a launch without one, None for the device frame alone."""
        key = (-2 if stack is None else stack, name)
        found = self._kept_stacks.get(key)
        if found is None:
            leaf = self._leaves.get(name)
            if leaf is None:
                full = name.full if name.full != name.short else ""
                leaf = self._leaves[name] = Frame(name.short, KINDS[name.category], file=full)
            under = () if stack is None else (NOT_TAKEN,) if stack == NONE else self._stacks.stacks[stack]
            found = self._kept_stacks[key] = (leaf, *under)
        return self._stack_table.setdefault(id(found), (len(self._stack_table), found))[0]

    def _place_labels(
        self, origin: Origin, names: list[KernelName], key: Sequence[int], shape: int | None, bucket: int | None = None
    ) -> int:
        label, device, stream, graph, name = key
        category = names[name].category
        whole = (origin.pid, label, origin.uuids.get(device, ""), stream, graph, category, shape, bucket)
        found = self._kept_labels.get(whole)
        if found is None:
            uuid = origin.uuids.get(device, "")
            found = dict(origin.labels if label == NONE else self._stacks.labels[label])
            found |= {"gpu": uuid, "gpu_index": origin.indexes.get(uuid, str(device)), "category": category}
            found |= {"stream": str(stream)} if stream != UNKNOWN_STREAM else {}
            found |= {"graph": str(graph)} if graph else {}
            found |= {"gpu.duration.bucket": str(bucket)} if bucket is not None else {}
            found |= _shape_labels(origin.shape(shape)) if shape else {}
            self._kept_labels[whole] = found
        return self._label_table.setdefault(id(found), (len(self._label_table), found))[0]

    def flush(self) -> Profiles:
        """What was added since the last flush: a window of each type and second, rows with equal stack and labels summed."""
        windows = tuple(
            _summed(measure, start, length, parts)
            for (measure, start, length), parts in sorted(self._windows.items(), key=lambda item: item[0][1:])
        )
        profiles = Profiles(
            windows,
            tuple(stack for _, stack in self._stack_table.values()),
            tuple(labels for _, labels in self._label_table.values()),
        )
        self._windows, self._stack_table, self._label_table = {}, {}, {}
        if len(self._kept_stacks) + len(self._kept_labels) > KEPT:
            self._kept_stacks, self._kept_labels = {}, {}
        return profiles


def share_out(joined: Joined, name: NDArray[np.int64], stack: NDArray[np.int64], label: NDArray[np.int64]) -> _Rows:
    """Values of all launches on the stacks of those whose stack was taken."""
    weight, duration = joined.weight, (joined.end - joined.start).astype(np.float64)
    queue = np.where(joined.launch >= 0, np.maximum(joined.start - joined.launch, 0), 0)
    copied = np.where(joined.type == ring.Record.KERNEL, 0, joined.detail).astype(np.float64)
    value = np.column_stack((duration, np.ones(len(joined)), queue, copied)) * weight[:, None]
    taken = np.where(stack == NONE, 0.0, joined.stack_weight)
    pool, _ = group(joined.device, joined.stream, name, joined.tid, joined.graph)
    own, left = _by_sample(group(pool, joined.second)[0], value, taken)
    shape = np.where(joined.type == ring.Record.KERNEL, joined.detail, 0).astype(np.int64)
    columns = (joined.second, joined.length, joined.device, joined.stream, joined.graph, name, shape)
    fixed = np.column_stack([np.asarray(column, np.int64) for column in columns])
    with_own, with_left = own.any(axis=1), left.any(axis=1)
    parts = [(fixed[with_own], stack[with_own], label[with_own], own[with_own])]
    parts += _by_pool(fixed[with_left], pool[with_left], left[with_left], pool, stack, label, taken)
    keys = np.concatenate([np.column_stack((f, s, b)) for f, s, b, _ in parts])
    return _main_shape(keys, np.concatenate([values for *_, values in parts]))


def _by_sample(of: NDArray, value: NDArray, taken: NDArray) -> tuple[NDArray, NDArray]:
    """Each group's whole value on its records whose stack was taken, several measures at once; and what is left.

    Launches taken for certain keep their own value, what the others are worth goes to those of them that were drawn
    (estimate.split_stacks). Where none was drawn, it goes to the certain ones: a launch that is the first of its kind in
    a window of random phase is nearly a random one. It favours those that follow a pause, but the alternative, sharing
    out as other windows do, makes seconds depend on each other: intervals of single stacks held the truth in 70 % of
    runs then, in 95 % with this.
    """
    groups = int(of.max(initial=-1)) + 1
    certain, drawn = taken == 1, np.where(taken == 1, 0.0, taken)
    has_drawn = np.bincount(of, drawn, minlength=groups) > 0
    own, left = np.zeros_like(value), np.zeros_like(value)
    for at in range(value.shape[1]):
        one = value[:, at]
        rest = np.bincount(of, np.where(certain, 0, one), minlength=groups)
        by = np.where(has_drawn[of], one * drawn, one * certain)
        met = np.bincount(of, by, minlength=groups)
        share = np.divide(rest, met, out=np.zeros(groups), where=met > 0)
        own[:, at] = np.where(certain, one, 0) + by * share[of]
        left[:, at] = np.where(certain | (met[of] > 0), 0, one)
    return own, left


def _by_pool(
    fixed: NDArray, pool: NDArray, left: NDArray, pools: NDArray, stack: NDArray, label: NDArray, taken: NDArray
) -> list[tuple[NDArray, NDArray, NDArray, NDArray]]:
    """Records without a sample of their own: on the stacks of the pool, in proportion to the launches those stand for."""
    if not pool.size:
        return []
    at, one = group(pool, *fixed.T)
    rows = np.column_stack((pool, fixed))[one]
    summed = sums(at, left, one.size)
    sampled = taken > 0
    columns = (pools[sampled], stack[sampled], label[sampled])
    of_pair, one = group(*columns)
    pairs = np.column_stack(columns)[one]
    launches = np.bincount(of_pair, taken[sampled], minlength=one.size)
    begin = np.searchsorted(pairs[:, 0], rows[:, 0], side="left")
    end = np.searchsorted(pairs[:, 0], rows[:, 0], side="right")
    none = begin == end
    unknown = np.full(int(none.sum()), NONE, np.int64)
    parts = [(rows[none, 1:], unknown, unknown, summed[none])]
    count = (end - begin)[~none]
    if count.size:
        row = np.repeat(np.flatnonzero(~none), count)
        pair = np.arange(row.size) - np.repeat(np.cumsum(count) - count, count) + np.repeat(begin[~none], count)
        whole = np.bincount(row, launches[pair], minlength=rows.shape[0])
        share = launches[pair] / whole[row]
        parts.append((rows[row, 1:], pairs[pair, 1], pairs[pair, 2], summed[row] * share[:, None]))
    return parts


def _main_shape(keys: NDArray[np.int64], value: NDArray[np.float64]) -> _Rows:
    """Rows summed over shapes; each keeps the shape that was launched most."""
    at, one = group(*keys.T)
    distinct, summed = keys[one], sums(at, value, one.size)
    without = np.delete(distinct, 6, axis=1)
    place, one = group(*without.T)
    merged, total = without[one], sums(place, summed, one.size)
    order = np.lexsort((summed[:, 1], place))  # the last of each place has most launches
    last = np.flatnonzero(np.diff(place[order], append=-1) != 0)
    shape = distinct[order[last], 6]
    second, length, device, stream, graph, name, stack, label = merged.T
    return _Rows(second, length, device, stream, graph, name, shape, stack, label, total)


def _summed(measure: str, start: int, length: int, parts: list[tuple[NDArray, NDArray, NDArray]]) -> ProfileWindow:
    labels, stacks, value = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    place, one = group(labels, stacks)
    rows = np.rint(np.bincount(place, value, minlength=one.size)).astype(np.uint64)
    one, rows = one[rows > 0], rows[rows > 0]
    return ProfileWindow(measure, start, length, 1, labels[one].astype(np.uint32), stacks[one].astype(np.uint32), rows)


def _shape_labels(shape: Shape | None) -> dict[str, str]:
    if shape is None:
        return {}
    grid = {"gpu.kernel.grid": "x".join(map(str, shape.grid)), "gpu.kernel.block": "x".join(map(str, shape.block))}
    known = grid if shape.grid else {}
    return {"gpu.kernel.registers": str(shape.registers), "gpu.kernel.shared": str(shape.shared), **known}
