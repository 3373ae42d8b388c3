# SPDX-License-Identifier: Apache-2.0
"""Fill a running store with invented data, for work on the page: python -m bench.fill_store --http 127.0.0.1:7070
[--live]

Two nodes. gpu-node-07 has two GPUs and trains on both: rank 0's data loader starves GPU 0 for 5 s of each 20, and GPU 1
waits for it in AllReduce (bench/invented_gpu.py); the trainer restarts once; the agent is away for 40 s; samples are lost
for a few seconds. cpu-node-01 has no GPU and runs PostgreSQL and compilers. Everything is drawn from one seed, so two
fills of the same minutes are the same bytes (and the second changes nothing).
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench import invented_gpu
from tests.otlp_batches import F, MetricsBuilder, ProfilesBuilder

GPUS = (
    ("GPU-3f0c9a52-77d1-4c1e-9f61-0b7a5d2e8c10", "NVIDIA H100 80GB HBM3"),
    ("GPU-b81e44d7-2c5f-4e0a-8a35-6f9d1c7b2e91", "NVIDIA H100 80GB HBM3"),
)
BATCH = 10  # windows of a request


def py(name: str, file: str, line: int) -> F:
    return F(name, "python", "", file, line)


def so(name: str, module: str, file: str = "", line: int = 0) -> F:
    return F(name, "native", module, file, line)


def kernel(name: str, module: str = "vmlinux") -> F:
    return F(name, "kernel", module)


TORCH, SITE = "libtorch_cpu.so", "/opt/venv/lib/python3.11/site-packages"
START = (so("_start", "python3.11"), so("__libc_start_main", "libc.so.6"), so("Py_BytesMain", "libpython3.11.so.1.0"))
MAIN = (*START, py("<module>", "/srv/train/train.py", 212), py("main", "/srv/train/train.py", 187))
EPOCH = (*MAIN, py("train_epoch", "/srv/train/train.py", 121))
SYSCALL = (kernel("entry_SYSCALL_64_after_hwframe"), kernel("do_syscall_64"))
FORWARD = (
    *EPOCH,
    py("Module._call_impl", f"{SITE}/torch/nn/modules/module.py", 1553),
    py("GPT.forward", "/srv/train/model.py", 93),
)
LOADER = (
    so("clone3", "libc.so.6"),
    so("start_thread", "libc.so.6"),
    so("thread_run", "libpython3.11.so.1.0"),
    py("Thread._bootstrap", "/usr/lib/python3.11/threading.py", 1002),
    py("Thread.run", "/usr/lib/python3.11/threading.py", 982),
    py("_worker_loop", f"{SITE}/torch/utils/data/_utils/worker.py", 308),
    py("_MapDatasetFetcher.fetch", f"{SITE}/torch/utils/data/_utils/fetch.py", 54),
)
COLLATE = (*LOADER, py("collate", "/srv/train/data.py", 88))

# (process, thread, root-first stack, weight while the GPU is busy, weight while it starves)
TRAIN = [
    (
        "main",
        (
            *FORWARD,
            py("Block.forward", "/srv/train/model.py", 61),
            so("at::native::linear", TORCH, "Linear.cpp", 77),
            so("at::cuda::blas::gemm<at::BFloat16>", "libtorch_cuda.so"),
            so("cublasGemmEx", "libcublas.so.12"),
            F("cuLaunchKernelEx", "cuda_api", "libcuda.so.1"),
        ),
        9,
        1,
    ),
    (
        "main",
        (
            *FORWARD,
            py("Block.forward", "/srv/train/model.py", 61),
            so("at::native::layer_norm", TORCH, "layer_norm.cpp", 188),
            F("cudaLaunchKernel", "cuda_api", "libcudart.so.12"),
        ),
        5,
        1,
    ),
    (
        "main",
        (
            *FORWARD,
            py("Attention.forward", "/srv/train/model.py", 34),
            so("pytorch_flash::mha_fwd", "libtorch_cuda.so"),
            F("cudaLaunchKernel", "cuda_api", "libcudart.so.12"),
        ),
        6,
        1,
    ),
    (
        "main",
        (*EPOCH, py("Tensor.backward", f"{SITE}/torch/_tensor.py", 521), so("torch::autograd::Engine::execute", TORCH)),
        7,
        1,
    ),
    (
        "main",
        (
            *EPOCH,
            py("AdamW.step", f"{SITE}/torch/optim/adamw.py", 220),
            py("_multi_tensor_adamw", f"{SITE}/torch/optim/adamw.py", 512),
            so("at::native::foreach_tensor_lerp_", TORCH),
        ),
        6,
        1,
    ),
    (
        "main",
        (
            *EPOCH,
            py("Tensor.item", f"{SITE}/torch/_tensor.py", 40),
            so("cuStreamSynchronize", "libcuda.so.1"),
            *SYSCALL,
            kernel("nvidia_ioctl", "nvidia.ko"),
        ),
        10,
        2,
    ),
    (
        "main",
        (
            *EPOCH,
            py("_BaseDataLoaderIter.__next__", f"{SITE}/torch/utils/data/dataloader.py", 630),
            *SYSCALL,
            kernel("futex_wait"),
        ),
        2,
        30,
    ),
    (
        "main",
        (
            *MAIN,
            py("save_checkpoint", "/srv/train/train.py", 164),
            so("std::vector<c10::IValue, std::allocator<c10::IValue> >::push_back", TORCH),
            *SYSCALL,
            kernel("vfs_write"),
            kernel("ext4_file_write_iter", "ext4.ko"),
        ),
        1,
        1,
    ),
    (
        "autograd",
        (
            so("clone3", "libc.so.6"),
            so("torch::autograd::Engine::thread_init", TORCH),
            so("evaluate_function", TORCH),
            so("LinearBackward0::apply", TORCH),
            F("cuLaunchKernelEx", "cuda_api", "libcuda.so.1"),
        ),
        14,
        2,
    ),
    (
        "autograd",
        (
            so("clone3", "libc.so.6"),
            so("torch::autograd::Engine::thread_init", TORCH),
            so("evaluate_function", TORCH),
            F("libtorch_cpu.so+0x4a31f20", "native", TORCH, reason="no symbol"),
        ),
        3,
        1,
    ),
    (
        "data-worker",
        (
            *COLLATE,
            py("pad_sequence", f"{SITE}/torch/nn/utils/rnn.py", 397),
            so("at::native::cat_serial", TORCH, "cat.cpp", 41),
        ),
        9,
        60,
    ),
    (
        "data-worker",
        (*COLLATE, py("tokenize", "/srv/train/data.py", 42), so("tokenizers::tokenizer::encode", "tokenizers.abi3.so")),
        6,
        42,
    ),
    ("data-worker", (*COLLATE, py("tokenize", "/srv/train/data.py", 44), so("_int_malloc", "libc.so.6")), 2, 12),
    (
        "data-worker",
        (
            *COLLATE,
            py("tokenize", "/srv/train/data.py", 42),
            so("re_search", "_sre.so"),
            F("guessed_caller", "guessed", "_sre.so", reason="found by scanning the stack"),
        ),
        1,
        3,
    ),
    (
        "data-worker",
        (
            *LOADER,
            py("JsonlDataset.__getitem__", "/srv/train/data.py", 27),
            py("loads", "/usr/lib/python3.11/json/__init__.py", 346),
            so("scan_once_unicode", "_json.so"),
        ),
        6,
        20,
    ),
    (
        "data-worker",
        (
            *LOADER,
            py("JsonlDataset.__getitem__", "/srv/train/data.py", 25),
            *SYSCALL,
            kernel("ksys_pread64"),
            kernel("filemap_read"),
            kernel("copy_page_to_iter"),
        ),
        5,
        9,
    ),
    *(("main", stack, 0.3, 95 * weight) for weight, _, stack in invented_gpu.STALLED),
    ("data-worker", (*LOADER, F("[stack ends]", "reason", "", reason="stack memory not readable")), 1, 1),
]


def fib(depth: int) -> tuple[F, ...]:
    return tuple(py("walk", "/srv/tools/index.py", 14 + depth % 2) for depth in range(depth))


OTHERS = {
    "gpu-node-07": [
        (
            "containerd",
            "",
            "containerd",
            (
                so("runtime.goexit", "containerd"),
                so("runtime.mcall", "containerd"),
                so("runtime.schedule", "containerd"),
                so("runtime.findRunnable", "containerd"),
                *SYSCALL,
                kernel("ep_poll"),
            ),
            2,
        ),
        (
            "python3",
            "index.py",
            "python3",
            (*START, py("<module>", "/srv/tools/index.py", 40), *fib(9), so("unicode_compare", "libpython3.11.so.1.0")),
            4,
        ),
        (
            "kworker/u256:1",
            "",
            "kworker/u256:1",
            (
                kernel("ret_from_fork_asm"),
                kernel("worker_thread"),
                kernel("process_one_work"),
                kernel("wb_workfn"),
                kernel("blk_mq_submit_bio"),
            ),
            2,
        ),
        (
            "node",
            "server.js",
            "node",
            (
                so("_start", "node"),
                so("node::Start", "node"),
                F("handleRequest", "native", "[jit]", "/srv/web/server.js", 51),
                F("JSON.stringify", "native", "[jit]"),
            ),
            3,
        ),
    ],
    "cpu-node-01": [
        (
            "postgres",
            "",
            "postgres",
            (
                so("_start", "postgres"),
                so("PostmasterMain", "postgres", "postmaster.c", 1463),
                so("PostgresMain", "postgres"),
                so("exec_simple_query", "postgres", "postgres.c", 1274),
                so("ExecHashJoin", "postgres", "nodeHashjoin.c", 681),
            ),
            30,
        ),
        (
            "postgres",
            "",
            "postgres",
            (
                so("_start", "postgres"),
                so("PostmasterMain", "postgres", "postmaster.c", 1463),
                so("PostgresMain", "postgres"),
                so("exec_simple_query", "postgres", "postgres.c", 1274),
                so("heap_getnext", "postgres", "heapam.c", 1318),
                *SYSCALL,
                kernel("ext4_file_read_iter", "ext4.ko"),
            ),
            18,
        ),
        (
            "cc1plus",
            "",
            "cc1plus",
            (
                so("main", "cc1plus"),
                so("toplev::main", "cc1plus", "toplev.cc", 2303),
                so("c_parse_file", "cc1plus"),
                so("cp_parser_declaration", "cc1plus"),
                so("tsubst_expr(tree_node*, tree_node*, int)", "cc1plus"),
            ),
            22,
        ),
    ],
}


def starving(second: int) -> bool:
    return invented_gpu.stall(second) == 1.0


class Invented:
    def __init__(self, node: str, cores: int, end: int, minutes: int) -> None:
        self.node, self.cores = node, cores
        begin = end - minutes * 60
        self.restart = begin + minutes * 60 * 3 // 5  # the trainer restarts
        self.gap = range(begin + minutes * 60 // 3, begin + minutes * 60 // 3 + 40) if minutes >= 10 else range(0)
        self.lossy = range(begin + minutes * 60 // 2, begin + minutes * 60 // 2 + 6)

    @property
    def resource(self) -> dict[str, str]:
        return {"host.name": self.node, "host.id": f"id-{self.node}"}

    def rows(self, second: int, dice: random.Random) -> list:
        counts: dict[tuple, int] = {}
        labels: dict[tuple, dict[str, str]] = {}

        def take(key: tuple, label: dict[str, str], mean: float) -> None:
            count = max(0, round(dice.gauss(mean, math.sqrt(mean) + 0.2)))
            if count:
                counts[key] = counts.get(key, 0) + count
                labels[key] = label

        for rank, base in enumerate(self.ranks(second)):
            pid = int(base["process.pid"])
            for place, (thread, stack, busy, starved) in enumerate(TRAIN):
                if rank and (thread == "data-worker" or stack[: len(invented_gpu.NEXT)] == invented_gpu.NEXT):
                    continue
                for worker in range(4 if thread == "data-worker" else 1):
                    tid = pid if thread == "main" else pid + 10 + worker + (20 if thread == "autograd" else 0)
                    mean = (starved if starving(second) else busy) / (4 if thread == "data-worker" else 1)
                    take(
                        (place + 500 * rank, worker, tuple(reversed(stack))),
                        {**base, "thread.id": str(tid), "thread.name": thread},
                        mean * 1.3,
                    )
        for place, (comm, script, thread, stack, weight) in enumerate(OTHERS[self.node]):
            pid = 700 + place if comm != "cc1plus" else 20_000 + second // 7 % 5000
            label = {
                "process.pid": str(pid),
                "thread.id": str(pid),
                "process.executable.name": comm,
                "thread.name": thread,
            }
            if script:
                label["gpustrobe.process.script"] = script
            if comm == "postgres":
                label["container.id"] = "5f1c0e9ab3d2"
            wave = 1 + 0.5 * math.sin(second / 40 + place)
            take((1000 + place, 0, tuple(reversed(stack))), label, weight * wave)
        return [(labels[key], key[2], count) for key, count in counts.items()]

    def ranks(self, second: int) -> list[dict[str, str]]:
        """Attributes of the trainer's processes in this second."""
        if self.node != "gpu-node-07" or self.restart <= second < self.restart + 12:
            return []
        pid = 4012 if second < self.restart else 9377
        base = {
            "process.executable.name": "python3",
            "gpustrobe.process.script": "train.py",
            "k8s.pod.name": "llm-train-0",
            "k8s.namespace.name": "research",
            "container.name": "trainer",
        }
        return [{**base, "process.pid": str(pid + rank)} for rank in range(2)]

    def device(self, second: int) -> list[dict[str, int]]:
        """Device time of each GPU: all idle, asserted by nobody, while the trainer is away."""
        if not self.ranks(second):
            return []
        return [invented_gpu.device_time(second, rank, random.Random(f"{second}-{rank}")) for rank in range(2)]

    def gpu_windows(self, profiles: ProfilesBuilder, second: int, dice: random.Random) -> None:
        depth, rows = invented_gpu.stall(second), {}
        if self.node != "gpu-node-07":
            return
        for rank, (base, parts) in enumerate(zip(self.ranks(second), self.device(second), strict=True)):
            gpu = {**base, "gpu.uuid": GPUS[rank][0], "gpu.index": str(rank)}
            for kind, more in invented_gpu.kernel_rows(parts, depth, gpu, rank, dice).items():
                rows.setdefault(kind, []).extend(more)
            rows.setdefault(("gpu_idle", "nanoseconds"), []).extend(
                invented_gpu.idle_rows(parts["idle"], depth, gpu, rank, dice)
            )
            rows.setdefault(("off_cpu", "nanoseconds"), []).extend(invented_gpu.wait_rows(depth, base, dice))
        for kind, samples in rows.items():
            profiles.window(second, samples, kind, period=1)

    def batch(self, seconds: range) -> list[tuple[str, bytes]]:
        profiles, metrics = ProfilesBuilder(self.resource), MetricsBuilder(self.resource)
        some = False
        for second in seconds:
            if second in self.gap:
                continue
            some = True
            dice = random.Random(f"{self.node}-{second}")
            rows = self.rows(second, dice)
            profiles.window(second, rows)
            self.gpu_windows(profiles, second, dice)
            self.readings(metrics, second, dice, sum(count for *_, count in rows))
        return [("v1development/profiles", profiles.bytes()), ("v1/metrics", metrics.bytes())] if some else []

    def readings(self, metrics: MetricsBuilder, second: int, dice: random.Random, delivered: int) -> None:
        drops = (
            {"ring_full": dice.randrange(5, 60), "kernel_skipped": dice.randrange(0, 4)} if second in self.lossy else {}
        )
        produced = round(self.cores * 100.27)
        metrics.books(
            second + 1,
            max(produced, delivered + sum(drops.values())),
            max(0, produced - delivered - sum(drops.values())),
            delivered,
            **drops,
        )
        at = second + 0.99
        metrics.gauge("gpustrobe.agent.cpu", at, abs(dice.gauss(0.11, 0.01)), "{cpu}").gauge(
            "gpustrobe.agent.bpf", at, abs(dice.gauss(0.08, 0.01)), "{cpu}"
        )
        metrics.gauge("gpustrobe.agent.memory", at, 96e6 + dice.random() * 2e6, "By").gauge(
            "system.cpu.logical.count", at, float(self.cores), "{cpu}"
        )
        gpu = self.node == "gpu-node-07"
        metrics.gauge("gpustrobe.agent.state", at, 1.0, gpu="ok" if gpu else "no NVIDIA driver on this machine")
        if not gpu:
            return
        down = not self.ranks(second)
        metrics.gauge("gpustrobe.gpu.duty", at, invented_gpu.RECORDED, "1")
        metrics.gauge("gpustrobe.gpu.budget", at, 0.01, "1")
        device = self.device(second)
        for index, (uuid, name) in enumerate(GPUS):
            at_gpu = {"gpu__uuid": uuid, "gpu__index": str(index), "gpu__name": name}
            parts = device[index] if device else {}
            busy = 0.0 if down else 100 - (parts["idle"] + parts["unknown"]) / 1e7
            for name, value in parts.items():
                metrics.gauge(f"gpu.time.{name}", at, float(value), "ns/s", **at_gpu)
            if parts:
                metrics.gauge("gpu.time.recorded", at, invented_gpu.RECORDED, "1", **at_gpu)
                metrics.gauge("gpu.time.counted", at, 1.0, "1", **at_gpu)
            for metric, unit, value in (
                ("gpu.utilization", "%", round(busy)),
                ("gpu.memory.utilization", "%", round(busy * 0.55)),
                ("gpu.memory.used", "By", 1.2e9 if down else 61.3e9 + index * 2e9 + dice.random() * 4e8),
                ("gpu.memory.total", "By", 85.9e9),
                ("gpu.clock.sm", "MHz", 1980 if busy > 5 else 1410),
                ("gpu.clock.memory", "MHz", 2619),
                ("gpu.clock.graphics", "MHz", 1980 if busy > 5 else 1410),
                ("gpu.clock.video", "MHz", 1545),
                ("gpu.power", "W", 95 + (0 if down else parts["compute"] / 1e7) * 5.4 + busy * 0.8 + dice.gauss(0, 8)),
                ("gpu.power.limit", "W", 700),
                ("gpu.temperature", "Cel", 36 + busy * 0.3),
                ("gpu.pcie.tx", "By/s", busy * 2.1e7),
                ("gpu.pcie.rx", "By/s", busy * 4.4e7),
            ):
                metrics.gauge(metric, at, float(value), unit, **at_gpu)
            if not down:
                process = {
                    "process__pid": self.ranks(second)[index]["process.pid"],
                    "process__executable__name": "python3",
                    **at_gpu,
                }
                metrics.gauge("gpu.process.memory", at, 60.1e9, "By", **process).gauge(
                    "gpu.process.utilization", at, float(round(busy)), "%", **process
                )


def post(http: str, path: str, body: bytes) -> None:
    request = urllib.request.Request(f"http://{http}/{path}", body, {"content-type": "application/x-protobuf"})
    try:
        urllib.request.urlopen(request, timeout=30).read()
    except urllib.error.HTTPError as error:
        raise SystemExit(f"the store refused {path}: {error.code} {error.read()[:300]!r}") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--http", default="127.0.0.1:7070", metavar="HOST:PORT")
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--live", action="store_true", help="go on, a window a second, until Ctrl-C")
    given = parser.parse_args()
    end = int(time.time())
    nodes = [Invented("gpu-node-07", 64, end, given.minutes), Invented("cpu-node-01", 16, end, given.minutes)]
    for first in range(end - given.minutes * 60, end, BATCH):
        for node in nodes:
            for path, body in node.batch(range(first, min(first + BATCH, end))):
                post(given.http, path, body)
    print(f"{given.minutes} minutes of two nodes are in the store at http://{given.http}/")
    while given.live:
        while end < int(time.time()) - 1:
            for node in nodes:
                for path, body in node.batch(range(end, end + 1)):
                    post(given.http, path, body)
            end += 1
        time.sleep(0.3)


if __name__ == "__main__":
    main()
