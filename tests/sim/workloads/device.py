# SPDX-License-Identifier: Apache-2.0
"""libcudart through ctypes, for the workloads of the simulated node: kernels by name and duration, launched as a compiled program would."""

from __future__ import annotations

import ctypes
import os

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3


class Dim3(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class CudaError(RuntimeError):
    pass


def check(code: int) -> None:
    if code:
        raise CudaError(f"CUDA error {code}")


class Runtime:
    """One libcudart (`major` 12 or 13) and the simulated libcuda behind it."""

    def __init__(self, major: int = 13) -> None:
        self.cudart = ctypes.CDLL(f"libcudart.so.{major}")
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.cudart.cudaLaunchKernel.argtypes = (
            ctypes.c_void_p,
            Dim3,
            Dim3,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
        )
        self.cudart.cudaMemcpyAsync.argtypes = (
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_void_p,
        )
        for name in ("cudaMemsetAsync", "cudaStreamSynchronize", "cudaGraphLaunch", "cudaFree"):
            getattr(self.cudart, name).argtypes = {
                "cudaMemsetAsync": (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p),
                "cudaGraphLaunch": (ctypes.c_void_p, ctypes.c_void_p),
            }.get(name, (ctypes.c_void_p,))
        self.cuda.simKernel.argtypes = (
            ctypes.c_char_p,
            ctypes.c_uint64,
            ctypes.c_double,
            ctypes.c_uint32,
            ctypes.c_uint32,
        )
        self.cuda.simCollective.argtypes = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32)
        self.cuda.simNextDuration.argtypes = self.cuda.simAdvance.argtypes = (ctypes.c_uint64,)
        self.cuda.simNow.restype = ctypes.c_uint64
        self.cudart.__getattr__("__cudaRegisterFatBinary").restype = ctypes.c_void_p
        self._register = self.cudart.__getattr__("__cudaRegisterFunction")
        self._register.argtypes = (
            *(ctypes.c_void_p,) * 2,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_int,
            *(ctypes.c_void_p,) * 5,
        )
        self._module = self.cudart.__getattr__("__cudaRegisterFatBinary")(None)
        self._hosts = 0x10000

    def kernel(
        self,
        name: str,
        microseconds: float,
        sigma: float = 0.05,
        registers: int = 64,
        grid: tuple[int, int, int] = (132, 1, 1),
        block: tuple[int, int, int] = (256, 1, 1),
        shared: int = 0,
        ranks: int = 0,
        communicator: int = 1,
    ) -> Kernel:
        """`ranks` above 1: a collective, that ends when all ranks have launched theirs, plus its duration."""
        self._hosts += 16
        self._register(self._module, self._hosts, None, name.encode(), -1, None, None, None, None, None)
        if ranks > 1:
            self.cuda.simCollective(name.encode(), round(1000 * microseconds), communicator, ranks)
        else:
            self.cuda.simKernel(name.encode(), round(1000 * microseconds), sigma, registers, 0)
        return Kernel(self, self._hosts, Dim3(*grid), Dim3(*block), shared)

    def set_device(self, ordinal: int) -> None:
        check(self.cudart.cudaSetDevice(ordinal))

    def stream(self, non_blocking: bool = False) -> int:
        made = ctypes.c_void_p()
        check(self.cudart.cudaStreamCreateWithFlags(ctypes.byref(made), int(non_blocking)))
        return made.value

    def allocate(self, size: int) -> int:
        made = ctypes.c_void_p()
        check(self.cudart.cudaMalloc(ctypes.byref(made), ctypes.c_size_t(size)))
        return made.value

    def pinned(self, size: int) -> int:
        made = ctypes.c_void_p()
        check(self.cudart.cudaMallocHost(ctypes.byref(made), ctypes.c_size_t(size)))
        return made.value

    def copy(self, target: int, source: int, size: int, kind: int, stream: int | None = None) -> None:
        check(self.cudart.cudaMemcpyAsync(target, source, size, kind, stream))

    def fill(self, target: int, value: int, size: int, stream: int | None = None) -> None:
        check(self.cudart.cudaMemsetAsync(target, value, size, stream))

    def synchronize(self, stream: int | None = None) -> None:
        check(self.cudart.cudaStreamSynchronize(stream))

    def synchronize_device(self) -> None:
        check(self.cudart.cudaDeviceSynchronize())

    def capture(self, stream: int, work) -> int:
        """An executable graph of what `work()` launches into `stream`."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        check(self.cudart.cudaStreamBeginCapture(ctypes.c_void_p(stream), 0))
        work()
        check(self.cudart.cudaStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)))
        check(self.cudart.cudaGraphInstantiate(ctypes.byref(executable), graph, ctypes.c_ulonglong(0)))
        check(self.cudart.cudaGraphDestroy(graph))
        return executable.value

    def launch_graph(self, executable: int, stream: int | None = None) -> None:
        check(self.cudart.cudaGraphLaunch(executable, stream))

    def next_duration(self, nanoseconds: int) -> None:
        """Of this thread's next operation."""
        self.cuda.simNextDuration(nanoseconds)

    def advance(self, nanoseconds: int) -> None:
        """Host time passes: at once on the simulated clock."""
        self.cuda.simAdvance(nanoseconds)

    def away(self) -> None:
        """Before this thread waits for another by a lock or a join: the simulated clock goes on without it."""
        self.cuda.simAway()

    def now(self) -> int:
        return self.cuda.simNow()


class Kernel:
    def __init__(self, runtime: Runtime, host: int, grid: Dim3, block: Dim3, shared: int) -> None:
        self._launch = runtime.cudart.cudaLaunchKernel
        self._arguments = (host, grid, block, None, shared)

    def __call__(self, stream: int | None = None) -> None:
        check(self._launch(*self._arguments, stream))


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))
