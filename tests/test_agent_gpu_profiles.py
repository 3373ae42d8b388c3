# SPDX-License-Identifier: Apache-2.0
"""From the ring to profiles: kernels under the stacks that launched them, against the schedule's truth."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from gpustrobe.agent import estimate, launches
from gpustrobe.agent.encode import Encoder
from gpustrobe.agent.gpu_profiles import NOT_TAKEN, GpuProfiles, Origin
from gpustrobe.agent.join import SECOND, ProcessRecords
from gpustrobe.agent.kernels import Ring
from gpustrobe.agent.launches import LaunchStacks
from gpustrobe.agent.model import Frame, Profiles, ProfileWindow
from gpustrobe.cupti import ring

from tests import gpu_schedule
from tests.gpu_schedule import MS, UUID, Schedule
from tests.ring_writer import RingWriter
from tests.test_agent_join import schedule
from tests.test_agent_kernels import reopened

PID, TID = 4321, 4321
GPU = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
LABELS = {"comm": "python3", "pid": str(PID), "thread": "main", "tid": str(TID), "pod": "train-0"}


def frames(stack: int) -> tuple[Frame, ...]:
    return (
        Frame("gpustrobe_launch_probe", "native", "libgpustrobe_cupti.so"),
        Frame("on_call", "native", "libgpustrobe_cupti.so"),
        Frame("cuptiCall", "native", "libcupti.so.12"),
        Frame("cudaLaunchKernel", "native", "libcudart.so.12"),
        Frame(f"layer{stack}", "python", file="model.py", line=stack),
        Frame("train", "python", file="train.py", line=3),
    )


def launch_windows(plan: Schedule, sampled: np.ndarray) -> Profiles:
    """What the sampler gives of launches whose stack was taken."""
    stacks = tuple(frames(stack) for stack in range(int(plan.stack.max()) + 1))
    columns = (
        np.zeros(sampled.size, np.uint32),
        plan.stack[sampled].astype(np.uint32),
        np.ones(sampled.size, np.uint64),
    )
    window = ProfileWindow("launch", 0, SECOND, 1, *columns, mark=(sampled + 1).astype(np.uint64))
    return Profiles((window,), stacks, (LABELS,))


def profiled(plan: Schedule, random, seconds: float, lose_stacks: bool = False, **how) -> tuple[Profiles, object]:
    writer = RingWriter(slots=1 << 15, arena=1 << 18)
    reader = Ring(reopened(writer))
    records, taken = ProcessRecords(), []

    def flush() -> None:
        rows = reader.drain(0)
        of_launches = rows[rows[:, 4] == ring.Record.LAUNCH].copy().view(ring.LAUNCH).ravel()
        taken.append(of_launches["correlation"][of_launches["weight"] > 0].astype(np.int64) - 1)
        records.add(rows)

    written = gpu_schedule.write(writer, plan, random, seconds, flush=flush, **how)
    flush()
    stacks = LaunchStacks()
    if not lose_stacks:
        stacks.add(launch_windows(plan, np.concatenate(taken)))
    folder = GpuProfiles(stacks, lambda names: {name: name for name in names})
    batch = records.take(0, last=True)
    uuid = launches_uuid(records.devices[0])
    folder.add(Origin(PID, LABELS, {0: uuid}, {uuid: "3"}, reader.shape), batch.joined)
    profiles = folder.flush()
    reader.close()
    writer.close()
    return profiles, written


def launches_uuid(raw: bytes) -> str:
    from gpustrobe.agent.gpu import uuid_text

    return uuid_text(raw)


def sums(profiles: Profiles, kind: str, key=lambda stack, labels: stack[0].name) -> Counter:
    total: Counter = Counter()
    for window in profiles.windows:
        if window.sample_type == kind:
            for stack, label, value in zip(window.stack, window.labels, window.value, strict=True):
                total[key(profiles.stacks[stack], profiles.label_sets[label])] += int(value)
    return total


def test_values_are_the_windows_sums_and_stacks_share_them_out():
    random = np.random.default_rng(1)
    plan = schedule(random, 62)
    profiles, written = profiled(plan, random, 60, probability=0.2)
    time, count = sums(profiles, "gpu_time"), sums(profiles, "gpu_launches")
    queue = sums(profiles, "gpu_queue")
    for place, short in enumerate(("gemm", "softmax", "add", "nccl AllReduce_Sum_f32_RING_LL", "fill", "norm")):
        rows = plan.name == place
        assert time[short] == pytest.approx(10 * (plan.duration * written.covered)[rows].sum(), rel=1e-4)
        assert count[short] == pytest.approx(10 * written.covered[rows].sum(), rel=1e-2)
        delay = (plan.start - plan.launch) * written.covered
        assert queue[short] == pytest.approx(10 * delay[rows].sum(), rel=1e-3)
    by_stack = sums(profiles, "gpu_time", lambda stack, labels: stack[2].name)
    assert set(by_stack) == {"layer0", "layer1", "layer2"}
    for stack in range(3):  # each launches two of the kernels
        assert by_stack[f"layer{stack}"] == pytest.approx(
            10 * (plan.duration * written.covered)[plan.stack == stack].sum(), rel=1e-4
        )


def test_the_leaf_is_the_kernel_under_the_api_and_labels_say_where_it_ran():
    random = np.random.default_rng(2)
    profiles, _ = profiled(schedule(random, 12), random, 10)
    stack = next(stack for stack in profiles.stacks if stack[0].name.startswith("nccl") and len(stack) > 1)
    assert [(frame.name, frame.kind) for frame in stack[:3]] == [
        ("nccl AllReduce_Sum_f32_RING_LL", "collective"), ("cudaLaunchKernel", "cuda_api"), ("layer0", "python"),
    ]  # fmt: skip
    assert stack[0].file == "ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)"
    time = next(window for window in profiles.windows if window.sample_type == "gpu_time")
    labels = profiles.label_sets[time.labels[0]]
    assert labels == {**LABELS, "gpu": GPU, "gpu_index": "3", "stream": "7", "category": labels["category"]}
    shapes = sums(profiles, "gpu_launches", lambda stack, labels: (stack[0].name, labels["gpu.kernel.grid"]))
    assert shapes.keys() == {(name, f"{at + 1}x1x1") for at, name in enumerate(
        ("gemm", "softmax", "add", "nccl AllReduce_Sum_f32_RING_LL", "fill", "norm"))}  # fmt: skip
    assert {w.sample_type for w in profiles.windows} == {"gpu_time", "gpu_launches", "gpu_queue", "gpu_durations"}
    assert all(w.duration == SECOND and w.start_unix % SECOND == 0 for w in profiles.windows)
    assert list(Encoder({"host.name": "n"}).encode(profiles))  # it can be sent


def test_durations_count_recorded_launches_by_bucket():
    random = np.random.default_rng(3)
    plan = schedule(random, 12)
    profiles, written = profiled(plan, random, 10)
    buckets = sums(profiles, "gpu_durations", lambda stack, labels: (stack[0].name, int(labels["gpu.duration.bucket"])))
    assert all(len(stack) == 1 for stack in profiles.stacks if stack[-1].name == stack[0].name)
    rows = (written.covered > 0) & (plan.name == 0)
    wanted = Counter(np.floor(4 * np.log2(plan.duration[rows])).astype(int).tolist())
    assert {bucket: n for (name, bucket), n in buckets.items() if name == "gemm"} == wanted


def test_without_any_stack_the_kernel_stands_alone_with_the_reason():
    random = np.random.default_rng(4)
    profiles, _ = profiled(schedule(random, 12), random, 10, lose_stacks=True)
    time = sums(profiles, "gpu_time", lambda stack, labels: stack[1:])
    assert list(time) == [(NOT_TAKEN,)]


def test_intervals_of_the_top_stacks_hold_the_truth():
    """Seconds of the profile are the independent parts, as the store has them. 7 of 18 launches of a window are drawn; with
    one in ten, most kernels have their first launch only, and intervals of single stacks hold in 85 %."""
    random = np.random.default_rng(5)
    plan = schedule(random, 64, step=333 * MS)
    plan.stack = random.choice(6, plan.launch.size, p=np.arange(1, 7) / 21)
    true = (plan.launch >= 5 * SECOND + 50 * MS) & (plan.launch < 65 * SECOND + 50 * MS)
    truth = np.bincount(plan.stack[true], plan.duration[true], minlength=6)
    held, runs, value = 0, 60, np.zeros(6)
    for _ in range(runs):
        profiles, _ = profiled(plan, random, 60, probability=0.4)
        z = np.zeros((60, 6))
        windows = [window for window in profiles.windows if window.sample_type == "gpu_time"]
        for at, window in enumerate(windows):
            for stack, amount in zip(window.stack, window.value, strict=True):
                z[at, int(profiles.stacks[stack][2].name[-1])] += int(amount)
        low, high = estimate.interval(z)
        held += ((low <= truth) & (truth <= high)).sum()
        value += z.sum(axis=0) / truth / runs
    assert 0.92 <= held / runs / 6 <= 0.98
    assert abs(value - 1).max() < 0.15


def test_our_own_frames_go_and_the_program_stays():
    stack = frames(1)
    assert [frame.name for frame in launches.program_frames(stack)] == ["cudaLaunchKernel", "layer1", "train"]
    plain = (Frame("f", "native", "a.out"),)
    assert launches.program_frames(plain) == plain


def test_uuid_of_the_device():
    assert launches_uuid(UUID) == GPU
