# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - tables, a kernel a line
"""Invented GPU data for bench/fill_store.py: two ranks train on two GPUs, rank 0's loader stalls every 20 s, rank 1 then
waits in AllReduce. 10 % of the launches are recorded, all are counted; values are consistent: device time adds up to
the second, kernels add up to their category, idle stacks to the idle time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from tests.otlp_batches import F

if TYPE_CHECKING:
    import random

RECORDED = 0.1
SECOND = 1_000_000_000
TORCH, CUDA, SITE = "libtorch_cpu.so", "libtorch_cuda.so", "/opt/venv/lib/python3.11/site-packages"


def py(name: str, file: str, line: int) -> F:
    return F(name, "python", "", file, line)


def so(name: str, module: str) -> F:
    return F(name, "native", module)


def api(name: str, module: str = "libcuda.so.1") -> F:
    return F(name, "cuda_api", module)


START = (so("_start", "python3.11"), so("__libc_start_main", "libc.so.6"), so("Py_BytesMain", "libpython3.11.so.1.0"))
MAIN = (*START, py("<module>", "/srv/train/train.py", 212), py("main", "/srv/train/train.py", 187))
EPOCH = (*MAIN, py("train_epoch", "/srv/train/train.py", 121))
STEP = (
    *EPOCH,
    py("Trainer.step", "/srv/train/trainer.py", 74),
    py("DistributedDataParallel.forward", f"{SITE}/torch/nn/parallel/distributed.py", 1643),
    py("Transformer.forward", "/srv/train/model.py", 201),
    py("Block.forward", "/srv/train/model.py", 118),
)
LINEAR = py("Linear.forward", f"{SITE}/torch/nn/modules/linear.py", 125)
MLP, ATTENTION = py("MLP.forward", "/srv/train/model.py", 98), py("Attention.forward", "/srv/train/model.py", 74)
ENGINE = (
    so("clone3", "libc.so.6"),
    so("torch::autograd::Engine::thread_main", TORCH),
    so("torch::autograd::Engine::evaluate_function", TORCH),
)
GEMM = (so("at::_ops::linear::call", TORCH), so("at::cuda::blas::gemm_and_bias<c10::BFloat16>", CUDA))
GEMM_LAUNCH = (
    so("cublasLtMatmul", "libcublasLt.so.12"),
    api("cudaLaunchKernelExC", "libcudart.so.12"),
    api("cuLaunchKernelEx"),
)
LAUNCH = (api("cudaLaunchKernel", "libcudart.so.12"), api("cuLaunchKernel"))
ADAMW = (
    *EPOCH,
    py("AdamW.step", f"{SITE}/torch/optim/adamw.py", 243),
    py("_multi_tensor_adamw", f"{SITE}/torch/optim/adamw.py", 640),
)
NEXT = (*EPOCH, py("next_batch", "/srv/train/data.py", 61), py("ShardIterator.__next__", "/srv/train/data.py", 74))
COLLATE = (*NEXT, py("collate", "/srv/train/data.py", 88))
SYSCALL = (F("entry_SYSCALL_64_after_hwframe", "kernel", "vmlinux"), F("do_syscall_64", "kernel", "vmlinux"))
WAIT = (F("schedule", "kernel", "vmlinux"),)


class Kernel(NamedTuple):
    category: str
    weight: float  # of its category's time
    thread: str
    stack: tuple[F, ...]  # root first
    name: str
    full: str
    mean: float  # ns
    registers: str = ""
    grid: str = ""
    block: str = ""


def backward(node: str) -> tuple[F, ...]:
    return (*ENGINE, so(f"torch::autograd::generated::{node}::apply", TORCH))


def elementwise(functor: str, items: int = 4) -> str:
    return f"void at::native::vectorized_elementwise_kernel<{items}, at::native::{functor}, std::array<char*, 3ul> >(int, at::native::{functor}, std::array<char*, 3ul>)"


KERNELS = [
    Kernel("compute", 0.19, "main", (*STEP, MLP, LINEAR, *GEMM, *GEMM_LAUNCH), "nvjet_tst_192x192_64x4_2x1_v_bz_coopA_bias_TNT", "", 412e3, "168", "132x1x1", "384x1x1"),
    Kernel("compute", 0.17, "autograd", (*backward("AddmmBackward0"), so("at::_ops::mm::call", TORCH), *GEMM_LAUNCH), "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "", 438e3, "168", "132x1x1", "384x1x1"),
    Kernel("compute", 0.16, "autograd", (*backward("AddmmBackward0"), so("at::_ops::mm::call", TORCH), *GEMM_LAUNCH), "nvjet_tst_128x256_64x4_2x1_v_bz_coopB_NTN", "", 361e3, "168", "132x1x1", "384x1x1"),
    Kernel("compute", 0.13, "autograd", (*backward("ScaledDotProductFlashAttentionBackward0"), so("pytorch_flash::mha_bwd", CUDA), *LAUNCH), "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<128>", "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, false, false, cutlass::bfloat16_t>, false, true, false, false, true, true, false>(pytorch_flash::Flash_bwd_params)", 702e3, "255", "16x4x16", "256x1x1"),
    Kernel("compute", 0.09, "main", (*STEP, ATTENTION, LINEAR, *GEMM, *GEMM_LAUNCH), "nvjet_tst_128x192_64x5_2x1_v_bz_coopB_TNN", "", 233e3, "168", "132x1x1", "384x1x1"),
    Kernel("compute", 0.08, "main", (*STEP, ATTENTION, py("scaled_dot_product_attention", f"{SITE}/torch/nn/functional.py", 5505), so("pytorch_flash::mha_fwd", CUDA), *LAUNCH), "flash_fwd_kernel<128>", "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>, false, true, false, false, true, true, false, false>(pytorch_flash::Flash_fwd_params)", 268e3, "254", "16x16x16", "128x1x1"),
    Kernel("compute", 0.045, "main", (*ADAMW, so("at::native::multi_tensor_apply<4>", CUDA), *LAUNCH), "multi_tensor_apply_kernel PointwiseOp addcdiv", "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<4>, at::native::(anonymous namespace)::PointwiseOpScalarFunctor<float, 4, 4, 0>, std::divides<float>, float>(...)", 127e3, "64", "4096x1x1", "512x1x1"),
    Kernel("compute", 0.04, "autograd", (*backward("MulBackward0"), so("at::_ops::mul_Tensor::call", TORCH), *LAUNCH), "vectorized_elementwise_kernel MulFunctor", elementwise("BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, MulFunctor<float> >"), 12.4e3, "26", "8192x1x1", "128x1x1"),
    Kernel("compute", 0.036, "main", (*STEP, MLP, py("silu", f"{SITE}/torch/nn/functional.py", 2102), so("at::_ops::silu::call", TORCH), *LAUNCH), "vectorized_elementwise_kernel silu", elementwise("silu_kernel(at::TensorIteratorBase&)::lambda"), 45e3, "28", "16384x1x1", "128x1x1"),
    Kernel("compute", 0.024, "main", (*STEP, ATTENTION, py("apply_rotary", "/srv/train/model.py", 41), so("at::native::gpu_kernel_impl<BinaryFunctor>", CUDA), *LAUNCH), "elementwise_kernel mul_complex", "void at::native::elementwise_kernel<128, 2, mul_complex>(int, mul_complex)", 36.4e3, "32", "8192x1x1", "128x1x1"),
    Kernel("compute", 0.02, "main", (*STEP, py("RMSNorm.forward", "/srv/train/model.py", 22), so("at::native::mean_kernel_cuda", CUDA), *LAUNCH), "reduce_kernel MeanOps", "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4, 4> >(...)", 24e3, "40", "1024x1x1", "32x16x1"),
    Kernel("compute", 0.015, "main", (*EPOCH, py("cross_entropy", f"{SITE}/torch/nn/functional.py", 3479), so("at::native::host_softmax<LogSoftMaxForwardEpilogue>", CUDA), *LAUNCH), "cunn_SoftMaxForward<8>", "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float, LogSoftMaxForwardEpilogue>(float*, float const*, int)", 27.1e3, "48", "4096x1x1", "1024x1x1"),
    Kernel("collective", 0.92, "autograd", (*ENGINE, so("c10d::Reducer::autograd_hook(unsigned long)", TORCH), so("c10d::ProcessGroupNCCL::allreduce", CUDA), so("ncclAllReduce", "libnccl.so.2"), api("cuLaunchKernelEx")), "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 6.1e6, "96", "24x1x1", "512x1x1"),
    Kernel("collective", 0.08, "main", (*EPOCH, py("clip_grad_norm_", f"{SITE}/torch/nn/utils/clip_grad.py", 62), so("c10d::ProcessGroupNCCL::_allgather_base", CUDA), so("ncclAllGather", "libnccl.so.2"), api("cuLaunchKernelEx")), "ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 410e3, "96", "16x1x1", "512x1x1"),
    Kernel("copy", 0.8, "main", (*EPOCH, py("to_device", "/srv/train/train.py", 118), so("at::native::copy_kernel_cuda", CUDA), api("cudaMemcpyAsync", "libcudart.so.12")), "Memcpy HtoD (pinned)", "", 1.12e6),
    Kernel("copy", 0.2, "main", (*EPOCH, py("log_metrics", "/srv/train/train.py", 160), so("at::native::_local_scalar_dense_cuda", CUDA), api("cudaMemcpyAsync", "libcudart.so.12")), "Memcpy DtoH (pageable)", "", 2.1e3),
]  # fmt: skip
KIND = {"compute": "cuda", "collective": "collective", "copy": "copy"}
STREAM = {"compute": "7", "collective": "22", "copy": "13"}

# (weight, thread, root-first stack) of idle time of rank 0 in a stall; rank 1 and the rest of the time idle in between.
STALLED = [
    (0.30, "main", (*COLLATE, py("pad_and_stack", "/srv/train/data.py", 103), so("at::native::cat_serial_kernel", TORCH))),
    (0.18, "main", (*COLLATE, py("pad_and_stack", "/srv/train/data.py", 103), so("__memmove_avx512_unaligned_erms", "libc.so.6"))),
    (0.26, "main", (*COLLATE, py("unpack_tokens", "/srv/train/data.py", 121), so("PyArray_FromBuffer", "_multiarray_umath.so"))),
    (0.15, "main", (*NEXT, py("shuffle_buffer", "/srv/train/data.py", 139), so("PyList_Extend", "libpython3.11.so.1.0"))),
    (0.11, "main", (*NEXT, *SYSCALL, F("ext4_file_read_iter", "kernel", "ext4.ko"), *WAIT)),
]  # fmt: skip
BETWEEN = [
    (0.55, "main", (*EPOCH, py("log_metrics", "/srv/train/train.py", 160), so("at::native::_local_scalar_dense_cuda", CUDA), api("cudaStreamSynchronize", "libcudart.so.12"))),
    (0.30, "autograd", (*ENGINE, *SYSCALL, F("futex_wait_queue", "kernel", "vmlinux"), *WAIT)),
    (0.15, "main", (*ADAMW, so("at::native::foreach_tensor_lerp_", TORCH))),
]  # fmt: skip
# Waits: (thread, stack, threads waiting while busy, while stalled).
WAITS = [
    ("main", (*EPOCH, py("log_metrics", "/srv/train/train.py", 160), api("cudaStreamSynchronize", "libcudart.so.12"), *SYSCALL, F("nvidia_ioctl", "kernel", "nvidia.ko"), *WAIT), 0.42, 0.03),
    ("main", (*NEXT, *SYSCALL, F("ext4_file_read_iter", "kernel", "ext4.ko"), F("io_schedule", "kernel", "vmlinux"), *WAIT), 0.01, 0.11),
    ("autograd", (*ENGINE, so("pthread_cond_wait", "libc.so.6"), *SYSCALL, F("futex_wait_queue", "kernel", "vmlinux"), *WAIT), 0.38, 0.95),
    ("pin_memory", (so("clone3", "libc.so.6"), py("_pin_memory_loop", f"{SITE}/torch/utils/data/_utils/pin_memory.py", 53), py("Queue.get", "/usr/lib/python3.11/multiprocessing/queues.py", 113), *SYSCALL, F("do_poll", "kernel", "vmlinux"), *WAIT), 0.97, 0.99),
]  # fmt: skip


def stall(second: int) -> float:
    """How much of this second rank 0's loader stalls: about 5 s of each 20."""
    place = second % 20
    return 0.0 if not 7 <= place < 12 else 0.5 if place in (7, 11) else 1.0


def device_time(second: int, rank: int, dice: random.Random) -> dict[str, int]:
    """ns of this second by what the GPU did, as 10 % of it would show; the sum is 10^9."""
    depth = stall(second)
    compute, collective, copy = 0.78 * (1 - depth), 0.11 * (1 - depth), 0.03 * (1 - 0.8 * depth)
    if rank:
        collective += 0.93 * depth
    parts = {
        "compute": compute * (1 + dice.gauss(0, 0.04)),
        "collective": min(0.94, collective * (1 + dice.gauss(0, 0.05))),
        "copy": copy * (1 + dice.gauss(0, 0.2)),
        "unknown": abs(dice.gauss(0.018, 0.006)),
    }
    busy = sum(max(0.0, part) for part in parts.values())
    scale = min(1.0, 0.985 / busy)
    out = {name: round(max(0.0, part) * scale * SECOND) for name, part in parts.items()}
    return {**out, "idle": SECOND - sum(out.values())}


def spread(total: int, weights: list[float], dice: random.Random) -> list[int]:
    """`total` divided by noisy weights, without a remainder."""
    noisy = [weight * max(0.1, dice.gauss(1, 0.12)) for weight in weights]
    whole = sum(noisy)
    parts = [int(total * part / whole) for part in noisy]
    parts[0] += total - sum(parts)
    return parts


def kernel_rows(parts: dict[str, int], depth: float, base: dict, rank: int, dice: random.Random) -> dict[tuple, list]:
    """Rows of gpu_time, gpu_launches, gpu_queue, gpu_copy and gpu_durations of one GPU and second."""
    rows: dict[tuple, list] = {}
    for category in ("compute", "collective", "copy"):
        mine = [kernel for kernel in KERNELS if kernel.category == category]
        for kernel, time in zip(mine, spread(parts[category], [k.weight for k in mine], dice), strict=True):
            waits = depth if kernel.name.startswith("ncclDevKernel_AllReduce") and rank else 0.0
            mean = kernel.mean * (1 + 40 * waits) * max(0.5, dice.gauss(1, 0.06))
            launches = max(1, round(time / mean)) if time else 0
            if not launches:
                continue
            leaf = F(kernel.name, KIND[category], "", kernel.full)
            stack = (leaf, *reversed(kernel.stack))
            label = {**base, **thread(base, kernel.thread), "gpu.category": category, "gpu.stream": STREAM[category]}
            shape = {f"gpu.kernel.{name}": text for name, text in (("registers", kernel.registers), ("grid", kernel.grid), ("block", kernel.block)) if text}  # fmt: skip
            for kind, value in (
                (("gpu_time", "nanoseconds"), time),
                (("gpu_queue", "nanoseconds"), round(launches * (9e6 if waits else 0.2e6 if category == "copy" else 38e6 * (1 - 0.7 * depth)))),
            ):  # fmt: skip
                rows.setdefault(kind, []).append((label, stack, value))
            rows.setdefault(("gpu_launches", "count"), []).append(({**label, **shape}, stack, launches))
            if category == "copy":
                rows.setdefault(("gpu_copy", "bytes"), []).append((label, stack, round(time * 24)))
            for bucket, count in durations(mean, max(1, round(launches * RECORDED)), dice).items():
                gpu = {name: base[name] for name in ("gpu.uuid", "gpu.index")}
                rows.setdefault(("gpu_durations", "count"), []).append(
                    ({**gpu, "gpu.duration.bucket": str(bucket)}, (leaf,), count)
                )
    return rows


def durations(mean: float, count: int, dice: random.Random) -> dict[int, int]:
    out: dict[int, int] = {}
    for _ in range(count):
        bucket = math.floor(
            4 * math.log2(mean * math.exp(dice.gauss(-0.005, 0.1) + (0.5 if dice.random() < 0.012 else 0)))
        )
        out[bucket] = out.get(bucket, 0) + 1
    return out


def thread(base: dict[str, str], name: str) -> dict[str, str]:
    pid = int(base["process.pid"])
    return {"thread.id": str(pid + {"main": 0, "autograd": 31, "pin_memory": 40}[name]), "thread.name": "main" if name == "main" else f"pt_{name}" if name == "autograd" else name}  # fmt: skip


def idle_rows(idle: int, depth: float, base: dict, rank: int, dice: random.Random) -> list:
    stalled = int(idle * (0.97 if depth else 0)) if rank == 0 else 0
    rows = []
    for total, table in ((stalled, STALLED), (idle - stalled, BETWEEN)):
        if total > 0:
            for (_, name, stack), value in zip(table, spread(total, [w for w, _, _ in table], dice), strict=True):
                rows.append(({**base, **thread(base, name)}, tuple(reversed(stack)), value))
    return rows


def wait_rows(depth: float, base: dict, dice: random.Random) -> list:
    rows = []
    for name, stack, busy, stalled in WAITS:
        share = (busy * (1 - depth) + stalled * depth) * max(0.0, dice.gauss(1, 0.05))
        rows.append(({**base, **thread(base, name)}, tuple(reversed(stack)), round(min(1.0, share) * SECOND)))
    return rows
