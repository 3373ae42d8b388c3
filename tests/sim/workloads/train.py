#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training loop on the simulated node, as PyTorch would run it: gemms, attention, elementwise, Triton, optimizer, all-reduce.

Its data loader stalls: most of a step the GPU waits for `collate` in data.py.
tests/sim/node -- python tests/sim/workloads/train.py --ranks 2
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from data import Loader
from device import HOST_TO_DEVICE, Runtime, local_rank

# name as a compiler writes it, us, registers, how often a layer has it
FORWARD = (
    ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_", 8, 20, 2),
    (
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        210,
        168,
        3,
    ),
    (
        "_ZN5flash24flash_fwd_splitkv_kernelI23Flash_fwd_kernel_traitsILi128ELi64ELi128ELi4ELb0ELb0EN7cutlass10bfloat16_tEEEEvNS_16Flash_fwd_paramsE",
        160,
        254,
        1,
    ),
    ("triton_per_fused_native_layer_norm_3", 22, 40, 2),
    ("_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_7MeanOpsIffffEEjfLi4EEEEEvT1_", 12, 32, 1),
)
BACKWARD = (
    (
        "_ZN7cutlass6KernelI68cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8EEvNT_6ParamsE",
        380,
        230,
        3,
    ),
    (
        "_ZN5flash30flash_bwd_dq_dk_dv_loop_kernelI23Flash_bwd_kernel_traitsILi128ELi64ELi128ELi8EEEEvNS_16Flash_bwd_paramsE",
        340,
        255,
        1,
    ),
    ("triton_poi_fused_gelu_backward_7", 18, 30, 2),
)
OPTIMIZER = (
    (
        "_ZN2at6native12_GLOBAL__N_125multi_tensor_apply_kernelINS1_18TensorListMetadataILi4EEENS1_20FusedAdamMathFunctorIfLi4EEEEEvT_T0_",
        260,
        60,
        2,
    ),
)
ALL_REDUCE = "_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE"


class Trainer:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.layers = arguments.layers
        self.runtime = Runtime(arguments.cuda)
        self.runtime.set_device(local_rank() if arguments.ranks > 1 else 0)
        self.compute = self.runtime.stream()
        self.communication = self.runtime.stream(non_blocking=True)
        self.parts = {
            part: [
                (self.runtime.kernel(name, us, registers=registers), times) for name, us, registers, times in kernels
            ]
            for part, kernels in (("forward", FORWARD), ("backward", BACKWARD), ("optimizer", OPTIMIZER))
        }
        self.reduce = self.runtime.kernel(ALL_REDUCE, 900, ranks=arguments.ranks) if arguments.ranks > 1 else None
        self.size = 4 << 20
        self.host, self.batch = self.runtime.pinned(self.size), self.runtime.allocate(self.size)
        self.gradients = self.runtime.allocate(1 << 30)
        self.graph = self.runtime.capture(self.compute, self.forward) if arguments.graphs else None

    def launch(self, part: str) -> None:
        for kernel, times in self.parts[part]:
            for _ in range(times):
                kernel(self.compute)

    def forward(self) -> None:
        for _ in range(self.layers):
            self.launch("forward")

    def backward(self) -> None:
        for _ in range(self.layers):
            self.launch("backward")

    def all_reduce(self) -> None:
        self.runtime.synchronize(self.compute)
        self.reduce(self.communication)
        self.runtime.synchronize(self.communication)

    def optimizer_step(self) -> None:
        self.launch("optimizer")
        self.runtime.fill(self.gradients, 0, 1 << 30, self.compute)

    def train_step(self) -> None:
        self.runtime.copy(self.batch, self.host, self.size, HOST_TO_DEVICE, self.compute)
        if self.graph:
            self.runtime.launch_graph(self.graph, self.compute)
        else:
            self.forward()
        self.backward()
        if self.reduce:
            self.all_reduce()
        self.optimizer_step()
        self.runtime.synchronize(self.compute)


def train(arguments: argparse.Namespace) -> int:
    trainer = Trainer(arguments)
    # the first rank's loader is the slow one: the others wait for it in the all-reduce
    slow = 1 if local_rank() == 0 else arguments.other_ranks
    loader = Loader(arguments.stall * slow / 1000, arguments.read * slow / 1000)
    end, steps = time.monotonic() + arguments.seconds, 0
    while time.monotonic() < end if arguments.steps is None else steps < arguments.steps:
        loader.next_batch()
        trainer.train_step()
        steps += 1
    print(f"rank {local_rank()}: {steps} steps", flush=True)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--steps", type=int, help="so many, instead of a time; the same on all ranks")
    parser.add_argument("--stall", type=float, default=60, metavar="MS", help="of collate in each step (default 60)")
    parser.add_argument("--read", type=float, default=5, metavar="MS", help="of read_shard in each step (default 5)")
    parser.add_argument(
        "--other-ranks", type=float, default=0.5, help="stall of ranks above 0, as a share of the first's"
    )
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=1, help="processes, each on its own device")
    parser.add_argument("--graphs", action="store_true", help="the forward pass as a CUDA graph")
    parser.add_argument("--cuda", type=int, default=13, choices=(12, 13))
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    if arguments.ranks == 1 or "LOCAL_RANK" in os.environ:
        return train(arguments)
    if arguments.steps is None:
        arguments.steps = 1 << 30  # stopped from here: a rank that ends by itself leaves the others in their all-reduce
    command = [sys.executable, *sys.argv, "--steps", str(arguments.steps)]
    ranks = [
        subprocess.Popen(command, env={**os.environ, "LOCAL_RANK": str(rank), "RANK": str(rank)})
        for rank in range(arguments.ranks)
    ]
    try:
        if arguments.steps == 1 << 30:
            time.sleep(arguments.seconds)
            for rank in ranks:
                rank.terminate()
            [rank.wait() for rank in ranks]
            return 0
        return max(rank.wait() for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()


if __name__ == "__main__":
    raise SystemExit(main())
