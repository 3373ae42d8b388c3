# SPDX-License-Identifier: Apache-2.0
"""Kernel table, intervals, device time and the idle finding, against brute force over what was sent."""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from gpustrobe.store import estimate
from gpustrobe.store.answers import Answers
from gpustrobe.store.engine import Engine
from gpustrobe.store.kernels import percentile
from starlette.datastructures import QueryParams

from tests.otlp_batches import F, MetricsBuilder, ProfilesBuilder

FIRST = int(time.time()) - 120
SECONDS = 40
GPUS = ("GPU-a", "GPU-b")
STALLED = range(10, 30)  # GPU-a idles 90 % of these

PY = F("train_step", "python", "", "/srv/app/train.py", 30)
LIB = F("Linear.forward", "python", "", "/venv/lib/python3.11/site-packages/torch/nn/linear.py", 125)
LOAD, COLLATE = (
    F("next_batch", "python", "", "/srv/app/data.py", 61),
    F("collate", "python", "", "/srv/app/data.py", 88),
)
ENGINE = F("torch::autograd::Engine::thread_main", "native", "libtorch_cpu.so")
NODE = F("torch::autograd::generated::MulBackward0::apply", "native", "libtorch_cpu.so")
CUBLAS, LAUNCH = F("cublasGemmEx", "native", "libcublas.so.12"), F("cuLaunchKernel", "cuda_api", "libcuda.so.1")
GEMM = F("gemm_tn", "cuda", "", "void gemm<128, 64>(float*)")
GEMM2 = F("gemm_tn", "cuda", "", "void gemm<256, 64>(float*)")  # the same short name, another kernel
MUL, NCCL = F("elementwise Mul", "cuda"), F("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "collective")
COPY = F("Memcpy HtoD (pinned)", "copy")
# root first, leaf last; what launched it by the rule of the API
STACKS = [
    ((PY, LIB, CUBLAS, LAUNCH, GEMM), ("Linear.forward", 125)),
    ((PY, CUBLAS, LAUNCH, GEMM), ("train_step", 30)),
    ((PY, LIB, CUBLAS, LAUNCH, GEMM2), ("Linear.forward", 125)),
    ((ENGINE, NODE, LAUNCH, MUL), ("MulBackward0", 0)),
    ((PY, ENGINE, NODE, LAUNCH, MUL), ("MulBackward0", 0)),
    ((ENGINE, CUBLAS, LAUNCH, NCCL), ("torch::autograd::Engine::thread_main", 0)),
    ((PY, LAUNCH, COPY), ("train_step", 30)),
]
CATEGORY = {"cuda": "compute", "collective": "collective", "copy": "copy"}


def base(gpu: int) -> dict[str, str]:
    pid = {"process.pid": str(100 + gpu), "process.executable.name": "python3", "thread.name": "main"}
    return {**pid, "thread.id": str(100 + gpu), "gpu.uuid": GPUS[gpu], "gpu.index": str(gpu)}


def invented() -> dict[str, list[tuple[int, int, int, int]]]:
    """Type -> (second, gpu, stack number, value)."""
    dice, out = random.Random(7), defaultdict(list)
    for second in range(SECONDS):
        for gpu in range(2):
            for number, _ in enumerate(STACKS):
                launches = dice.randrange(0, 60)
                if not launches or (gpu == 0 and second in STALLED and number < 5):
                    continue
                out["gpu_launches"].append((second, gpu, number, launches))
                out["gpu_time"].append(
                    (second, gpu, number, int(launches * (number + 1) * 1e4 * dice.uniform(0.8, 1.2)))
                )
                out["gpu_queue"].append((second, gpu, number, launches * 400_000_000))
    return out


def send(engine: Engine, sent: dict, seconds: range, recorded: float, counted: float) -> None:
    profiles, metrics = ProfilesBuilder({"host.name": "node-g"}), MetricsBuilder({"host.name": "node-g"})
    for second in seconds:
        for kind, unit in (("gpu_time", "nanoseconds"), ("gpu_launches", "count"), ("gpu_queue", "nanoseconds")):
            rows = []
            for at, gpu, number, value in sent[kind]:
                if at == second:
                    stack = STACKS[number][0]
                    extra = {"gpu.stream": "7", "gpu.category": CATEGORY[stack[-1].kind]}
                    if kind == "gpu_launches":
                        extra |= {"gpu.kernel.registers": str(32 + number), "gpu.kernel.grid": "8x1x1"}
                    rows.append(({**base(gpu), **extra}, tuple(reversed(stack)), value))
            profiles.window(FIRST + second, rows, (kind, unit), period=1)
        buckets = [
            ({"gpu.uuid": GPUS[0], "gpu.index": "0", "gpu.duration.bucket": str(k)}, (GEMM,), n)
            for k, n in ((68, 5), (69, 3))
        ]
        profiles.window(FIRST + second, buckets, ("gpu_durations", "count"), period=1)
        idle = (
            [(base(0), (COLLATE, LOAD, PY), 650_000_000), (base(0), (LIB, LOAD, PY), 250_000_000)]
            if second in STALLED
            else []
        )
        profiles.window(
            FIRST + second, [*idle, (base(1), (LIB, PY), 20_000_000)], ("gpu_idle", "nanoseconds"), period=1
        )
        for gpu, uuid in enumerate(GPUS):
            labels = {"gpu__uuid": uuid, "gpu__index": str(gpu), "gpu__name": "H100"}
            stall = second in STALLED
            parts = {
                "idle": 0.9 if stall and not gpu else 0.02,
                "collective": 0.8 if stall and gpu else 0.05,
                "unknown": 0.01,
                "copy": 0.01,
            }
            for name, share in {**parts, "compute": 1 - sum(parts.values())}.items():
                metrics.gauge(f"gpu.time.{name}", FIRST + second + 0.99, share * 1e9, "ns/s", **labels)
            metrics.gauge("gpu.time.recorded", FIRST + second + 0.99, recorded, "1", **labels)
            metrics.gauge("gpu.time.counted", FIRST + second + 0.99, counted, "1", **labels)
    engine.submit("profiles", profiles.bytes()).result()
    engine.submit("metrics", metrics.bytes()).result()


@pytest.fixture(scope="module")
def sent() -> dict:
    return invented()


def stored(folder, sent, recorded=0.1, counted=0.0) -> tuple[Engine, Answers]:
    engine = Engine(folder, reserve=0)
    send(engine, sent, range(SECONDS // 2), recorded, counted)
    engine.call(engine.writer.restart).result()  # a second generation: the same content under new ids
    send(engine, sent, range(SECONDS // 2, SECONDS), recorded, counted)
    return engine, Answers(engine, "test")


@pytest.fixture(scope="module")
def answers(tmp_path_factory, sent):
    engine, found = stored(tmp_path_factory.mktemp("store"), sent)
    yield found
    engine.close()


@pytest.fixture(scope="module")
def counted(tmp_path_factory, sent):
    engine, found = stored(tmp_path_factory.mktemp("store"), sent, counted=1.0)
    yield found
    engine.close()


def ask(answers: Answers, query: str, first: int = 0, last: int = SECONDS, **params: str) -> dict:
    pairs = [("from", str((FIRST + first) * 1000)), ("to", str((FIRST + last) * 1000)), *params.items()]
    return answers.answer(query, QueryParams(pairs))


def by_kernel(rows, pick=lambda *_: True) -> dict[tuple[str, str], int]:
    out: dict[tuple[str, str], int] = defaultdict(int)
    for second, gpu, number, value in rows:
        if pick(second, gpu, number):
            leaf = STACKS[number][0][-1]
            out[(leaf.name, leaf.file or leaf.name)] += value
    return dict(out)


def test_kernels_equal_brute_force(answers, sent):
    answer = ask(answers, "kernels")
    rows = {(row["name"], row["full"]): row for row in answer["kernels"]}
    times, launches, queue = (by_kernel(sent[kind]) for kind in ("gpu_time", "gpu_launches", "gpu_queue"))
    assert {key: row["time"] for key, row in rows.items()} == times
    assert {key: row["launches"] for key, row in rows.items()} == launches
    assert [row["time"] for row in answer["kernels"]] == sorted(times.values(), reverse=True)
    assert answer["total"] == sum(times.values())
    assert answer["launches"] == sum(launches.values())
    assert answer["count"] == 5
    for key, row in rows.items():
        assert row["mean_ns"] == pytest.approx(times[key] / launches[key])
        assert row["queue_ns"] == pytest.approx(queue[key] / launches[key])
        assert row["share"] == pytest.approx(times[key] / answer["total"])
        assert row["category"] == CATEGORY[row["kind"]]
        assert row["grid"] == "8x1x1"
    assert answer["seconds"] == SECONDS
    assert answer["missing"] == {}


def test_launched_from_is_the_heaviest_origin(answers, sent):
    answer = ask(answers, "kernels")
    for row in answer["kernels"]:
        sums: dict[tuple, int] = defaultdict(int)
        for _, _, number, value in sent["gpu_time"]:
            leaf = STACKS[number][0][-1]
            if (leaf.name, leaf.file or leaf.name) == (row["name"], row["full"]):
                sums[STACKS[number][1]] += value
        name, line = max(sums, key=lambda key: sums[key])
        assert (row["from"]["name"], row["from"]["line"]) == (name, line)
        assert row["from"]["share"] == pytest.approx(sums[(name, line)] / sum(sums.values()))


@pytest.mark.parametrize(("first", "last", "gpu"), [(3, 17, ""), (0, SECONDS, "1"), (5, 33, "0")])
def test_kernels_of_a_selection(answers, sent, first, last, gpu):
    answer = ask(answers, "kernels", first, last, **({"match": f'gpu_index="{gpu}"'} if gpu else {}))
    wanted = by_kernel(sent["gpu_time"], lambda s, g, _: first <= s < last and (not gpu or str(g) == gpu))
    assert {(row["name"], row["full"]): row["time"] for row in answer["kernels"]} == wanted
    assert answer["estimate"]["gpus"] == (1 if gpu else 2)
    assert answer["estimate"]["gpu_seconds"] == (last - first) * answer["estimate"]["gpus"]


def test_kernels_under_a_focus(answers, sent):
    answer = ask(answers, "kernels", focus="^MulBackward0|MulBackward0::apply$", limit="1")
    wanted = by_kernel(sent["gpu_time"], lambda s, g, number: number in (3, 4))
    assert {(row["name"], row["full"]): row["time"] for row in answer["kernels"]} == wanted


def half_width(x: list[float]) -> float:
    """By the differences of neighbours, which are worth 2/3 as many free ones; t of 26 and of 12.67 by tables."""
    n = len(x)
    t = {40: 2.0555, 20: 2.166}[n]
    return t * math.sqrt(n / (n - 1) * sum((b - a) ** 2 for a, b in pairwise(x)) / 2)


def around(total: float, half: float) -> list[float]:
    return [total * math.exp(-half / total), total * math.exp(half / total)]


def plain_interval(rows, kernel, n: int = SECONDS) -> float:
    """Over the seconds, in plain Python."""
    per = [
        sum(v for s, _, number, v in rows if s == second and (kernel is None or STACKS[number][0][-1] == kernel))
        for second in range(n)
    ]
    return half_width(per)


def test_intervals_are_those_of_the_spread_between_windows(answers, sent):
    answer = ask(answers, "kernels")
    estimate = answer["estimate"]
    assert (estimate["recorded"], estimate["counted"], estimate["windows"]) == (pytest.approx(0.1), False, SECONDS)
    half = plain_interval(sent["gpu_time"], None)
    assert estimate["interval"] == pytest.approx(around(answer["total"], half), rel=5e-3)
    copy = next(row for row in answer["kernels"] if row["kind"] == "copy")
    half = plain_interval(sent["gpu_time"], COPY)
    assert copy["interval"] == pytest.approx(around(copy["time"], half), rel=5e-3)
    assert ask(answers, "flamegraph", type="gpu_time")["estimate"] == estimate


def test_each_node_of_the_graph_has_its_interval(answers, sent):
    """Each node's sum by second, in plain Python."""
    answer = ask(answers, "flamegraph", type="gpu_time")
    nodes, frames = answer["nodes"], answer["frames"]
    per: dict[tuple, list[int]] = defaultdict(lambda: [0] * SECONDS)
    for second, gpu, number, value in sent["gpu_time"]:
        path = (f"pid {100 + gpu}, GPU {gpu}", "main", *((f.name, f.file) for f in STACKS[number][0]))
        for depth in range(len(path) + 1):
            per[path[:depth]][second] += value
    paths: list[tuple] = []
    for parent, frame, total, half in zip(nodes["parent"], nodes["frame"], nodes["total"], nodes["half"], strict=True):
        kind, name, file = frames["kind"][frame], frames["name"][frame], frames["file"][frame]
        step = (
            () if kind == "root" else (file,) if kind == "process" else (name,) if kind == "thread" else ((name, file),)
        )
        paths.append((*(paths[parent] if parent >= 0 else ()), *step))
        assert total == sum(per[paths[-1]])
        assert half == pytest.approx(half_width(per[paths[-1]]), rel=5e-3)
    assert len(paths) == len(per)
    few = ask(answers, "flamegraph", type="gpu_time", max_nodes="9")["nodes"]
    assert len(few["half"]) == len(few["total"]) == 9
    assert few["half"][0] == nodes["half"][0]
    focused = ask(answers, "flamegraph", type="gpu_time", focus="^Memcpy")["nodes"]
    assert focused["half"][0] == pytest.approx(
        half_width([sum(v for s, _, n, v in sent["gpu_time"] if s == at and n == 6) for at in range(SECONDS)]), rel=5e-3
    )


def test_counted_launches_narrow_the_interval(counted, sent):
    answer = ask(counted, "kernels")
    copy = next(row for row in answer["kernels"] if row["kind"] == "copy")
    x, n = defaultdict(int), defaultdict(int)
    for second, _, number, value in sent["gpu_time"]:
        x[second] += value if number == 6 else 0
    for second, _, number, value in sent["gpu_launches"]:
        n[second] += value if number == 6 else 0
    ratio = sum(x.values()) / sum(n.values())
    rest = [x[s] - ratio * n[s] for s in range(SECONDS)]
    half = half_width(rest)
    assert copy["interval"] == pytest.approx(around(copy["time"], half), rel=5e-3)
    assert half < plain_interval(sent["gpu_time"], COPY) / 3
    assert ask(counted, "flamegraph", type="gpu_launches")["estimate"]["interval"] is None


def test_recorded_whole_is_no_estimate(tmp_path, sent):
    engine, answers = stored(tmp_path, sent, recorded=1.0)
    answer = ask(answers, "kernels")
    assert answer["estimate"]["interval"] is None
    assert answer["estimate"]["windows"] == 0
    assert all(row["interval"] is None for row in answer["kernels"])
    text = "".join(part["t"] for part in ask(answers, "finding")["finding"]["text"])
    assert text.startswith("GPU 0 of node-g was idle 46 % of this range")
    engine.close()


def test_too_few_windows_give_no_interval(answers):
    assert ask(answers, "kernels", 0, 4)["estimate"]["interval"] is None
    assert ask(answers, "kernels", 0, 5)["estimate"]["interval"] is not None


def test_percentiles_come_of_the_buckets(answers):
    rows = {row["full"]: row for row in ask(answers, "kernels")["kernels"]}
    p99 = rows[GEMM.file]["p99_ns"]
    # 200 launches of bucket 68 and 120 of bucket 69; 99 % of 320 is the 116.8th of 120 in the second
    assert p99 == pytest.approx(2 ** ((69 + 116.8 / 120) / 4))
    assert rows[GEMM2.file]["p99_ns"] is None
    assert "does not ship" in rows[GEMM2.file]["p99_why"]
    assert ask(answers, "kernels", 0, 5)["kernels"][0]["p99_why"] in (
        "",
        "40 launches were recorded here, fewer than 100",
        "the agent of this range does not ship it",
    )


def test_percentile_lies_in_the_bucket_of_the_sorted_values():
    dice = random.Random(3)
    for _ in range(50):
        values = sorted(dice.lognormvariate(11, dice.uniform(0.1, 2)) for _ in range(dice.randint(100, 900)))
        buckets: dict[int, int] = defaultdict(int)
        for value in values:
            buckets[math.floor(4 * math.log2(value))] += 1
        true = values[math.ceil(0.99 * len(values)) - 1]
        found, why = percentile(buckets)
        assert why == ""
        assert true / 2**0.25 <= found <= true * 2**0.25


def test_gpu_profiles_part_processes_by_gpu(answers, sent):
    answer = ask(answers, "flamegraph", type="gpu_time")
    files = [
        answer["frames"]["file"][f]
        for f in range(len(answer["frames"]["name"]))
        if answer["frames"]["kind"][f] == "process"
    ]
    assert sorted(files) == ["pid 100, GPU 0", "pid 101, GPU 1"]
    assert answer["total"] == sum(value for *_, value in sent["gpu_time"])


def test_device_time_series(answers):
    answer = ask(answers, "series", name="gpu.time.idle")
    assert answer["unit"] == "ns/s"
    wanted = [[9e8 if gpu == 0 and s in STALLED else 2e7 for s in range(SECONDS)] for gpu in range(2)]
    assert [line["mean"] for line in answer["series"]] == wanted
    names = ("compute", "collective", "copy", "idle", "unknown")
    sums = [
        sum(ask(answers, "series", name=f"gpu.time.{name}")["series"][0]["mean"][s] for name in names)
        for s in range(SECONDS)
    ]
    assert sums == pytest.approx([1e9] * SECONDS)


def test_finding_names_the_line_that_starves_the_gpu(answers):
    found = ask(answers, "finding", node="node-g")["finding"]
    text = "".join(part["t"] for part in found["text"])
    # 20 of 40 s at 90 %, 20 at 2 %; 13 of the stalls' 18 s under collate; GPU 1: (0.8 + 0.05) / 2
    assert (
        text
        == "GPU 0 was idle ~46 % of this range, 72 % of it under collate, data.py:88. GPU 1 waited for it: ~42 % in AllReduce"
    )
    half = half_width([0.9 if second in STALLED else 0.02 for second in range(SECONDS)]) / SECONDS
    low, high = around(0.46, half)
    assert found["evidence"] == f"{low * 100:.0f}–{high * 100:.0f} % (95 % interval), 40 recording windows"
    assert (found["tab"], found["focus"], found["gpu"]) == ("gpu_idle", "^collate$", "GPU-a")
    flame = ask(answers, "flamegraph", type="gpu_idle", match='gpu_index="0"', focus=found["focus"])
    assert flame["total"] / flame["all_total"] == pytest.approx(13 / 18)


@pytest.mark.parametrize(("first", "last"), [(0, 10), (30, 40), (27, 31)])
def test_no_finding_where_evidence_is_weak(answers, first, last):
    """No stall in the range; fewer than 5 windows."""
    assert ask(answers, "finding", first, last)["finding"] is None


def test_samples_of_the_status_are_cpu_samples(answers):
    status = ask_status(answers)
    assert status["data"]["samples"] == 0
    assert {"gpu_time", "gpu_idle", "gpu_launches"} <= set(status["nodes"][0]["types"])
    assert [gpu["index"] for gpu in status["nodes"][0]["gpus"]] == [0, 1]


def ask_status(answers: Answers) -> dict:
    return answers.answer("status", QueryParams([]))


def test_cuda_processes_with_and_without_the_library(tmp_path, sent):
    engine, answers = stored(tmp_path, sent)
    metrics = MetricsBuilder({"host.name": "node-g"})
    for pid in (100, 555):
        metrics.gauge(
            "gpu.process.memory",
            FIRST + 5,
            6e9,
            "By",
            gpu__uuid="GPU-a",
            gpu__index="0",
            process__pid=str(pid),
            process__executable__name="python3",
        )
    engine.submit("metrics", metrics.bytes()).result()
    cpu = ProfilesBuilder({"host.name": "node-g"}).window(
        FIRST + 5, [({k: v for k, v in base(0).items() if "gpu" not in k}, (PY,), 9)]
    )
    engine.submit("profiles", cpu.bytes()).result()
    rows = {row["pid"]: row for row in ask(answers, "processes")["rows"]}
    assert rows[100]["gpu_time"] == sum(value for _, gpu, _, value in sent["gpu_time"] if gpu == 0)
    assert (rows[555]["gpu_memory"], rows[555]["gpu_time"], rows[555]["value"], rows[555]["first_ms"]) == (
        6e9,
        0,
        0,
        None,
    )
    engine.close()


def test_intervals_cover_the_truth_as_often_as_they_say():
    """400 ranges of a load that changes: each second is estimated from a 10 % window at random phase of a bursty second."""
    dice, covered, runs = random.Random(5), 0, 400
    for _ in range(runs):
        truth, seen = 0.0, []
        for second in range(60):
            level = 0.3 + 0.6 * (second // 15 % 2)  # the load itself changes every 15 s
            bursts = [(dice.random(), level * dice.uniform(0.5, 1.5) / 20) for _ in range(20)]
            truth += sum(length for _, length in bursts)
            phase = dice.random()
            seen.append(10 * sum(length for at, length in bursts if (at - phase) % 1 < 0.1))
        half = float(estimate.half_width(np.array([seen]))[0])
        low, high = estimate.bounds(sum(seen), half)
        covered += low <= truth <= high
    assert 0.92 <= covered / runs <= 0.98
