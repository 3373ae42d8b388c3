# SPDX-License-Identifier: Apache-2.0
"""cupti/abi.h, which declares NVIDIA's binary interface by ourselves, against NVIDIA's own headers of CUDA 12 and 13."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.sim import simulated_node

CUPTI = Path(__file__).resolve().parent.parent / "cupti"

# our enumerator -> (structure, field); {v} is the release's newest version of the structure
OFFSETS = {
    "DATA_SITE": ("CUpti_CallbackData", "callbackSite"),
    "DATA_PARAMS": ("CUpti_CallbackData", "functionParams"),
    "DATA_SYMBOL": ("CUpti_CallbackData", "symbolName"),
    "DATA_CONTEXT_UID": ("CUpti_CallbackData", "contextUid"),
    "DATA_CORRELATION": ("CUpti_CallbackData", "correlationId"),
    "KERNEL_REGISTERS": ("kernel", "registersPerThread"),
    "KERNEL_START": ("kernel", "start"),
    "KERNEL_END": ("kernel", "end"),
    "KERNEL_DEVICE": ("kernel", "deviceId"),
    "KERNEL_CONTEXT": ("kernel", "contextId"),
    "KERNEL_STREAM": ("kernel", "streamId"),
    "KERNEL_GRID": ("kernel", "gridX"),
    "KERNEL_BLOCK": ("kernel", "blockX"),
    "KERNEL_STATIC_SHARED": ("kernel", "staticSharedMemory"),
    "KERNEL_DYNAMIC_SHARED": ("kernel", "dynamicSharedMemory"),
    "KERNEL_LOCAL": ("kernel", "localMemoryPerThread"),
    "KERNEL_CORRELATION": ("kernel", "correlationId"),
    "KERNEL_NAME": ("kernel", "name"),
    "KERNEL_LAUNCH_TYPE": ("kernel", "launchType"),
    "KERNEL_NODE": ("kernel", "graphNodeId"),
    "KERNEL_GRAPH": ("kernel", "graphId"),
    "KERNEL_CHANNEL": ("kernel", "channelID"),
    "KERNEL_CHANNEL_TYPE": ("kernel", "channelType"),
    "KERNEL_CLUSTER": ("kernel", "clusterX"),
    "MEMCPY_KIND": ("memcpy", "copyKind"),
    "MEMCPY_SOURCE": ("memcpy", "srcKind"),
    "MEMCPY_DESTINATION": ("memcpy", "dstKind"),
    "MEMCPY_FLAGS": ("memcpy", "flags"),
    "MEMCPY_BYTES": ("memcpy", "bytes"),
    "MEMCPY_START": ("memcpy", "start"),
    "MEMCPY_END": ("memcpy", "end"),
    "MEMCPY_DEVICE": ("memcpy", "deviceId"),
    "MEMCPY_CONTEXT": ("memcpy", "contextId"),
    "MEMCPY_STREAM": ("memcpy", "streamId"),
    "MEMCPY_CORRELATION": ("memcpy", "correlationId"),
    "MEMCPY_NODE": ("memcpy", "graphNodeId"),
    "MEMCPY_GRAPH": ("memcpy", "graphId"),
    "PEER_TO_DEVICE": ("CUpti_ActivityMemcpyPtoP4", "dstDeviceId"),
    "PEER_TO_CONTEXT": ("CUpti_ActivityMemcpyPtoP4", "dstContextId"),
    "PEER_CORRELATION": ("CUpti_ActivityMemcpyPtoP4", "correlationId"),
    "PEER_GRAPH": ("CUpti_ActivityMemcpyPtoP4", "graphId"),
    "MEMSET_BYTES": ("memset", "bytes"),
    "MEMSET_START": ("memset", "start"),
    "MEMSET_END": ("memset", "end"),
    "MEMSET_DEVICE": ("memset", "deviceId"),
    "MEMSET_CONTEXT": ("memset", "contextId"),
    "MEMSET_STREAM": ("memset", "streamId"),
    "MEMSET_CORRELATION": ("memset", "correlationId"),
    "MEMSET_FLAGS": ("memset", "flags"),
    "MEMSET_MEMORY": ("memset", "memoryKind"),
    "MEMSET_NODE": ("memset", "graphNodeId"),
    "MEMSET_GRAPH": ("memset", "graphId"),
    "GRAPH_CORRELATION": ("graph", "correlationId"),
    "GRAPH_START": ("graph", "start"),
    "GRAPH_END": ("graph", "end"),
    "GRAPH_DEVICE": ("graph", "deviceId"),
    "GRAPH_ID": ("graph", "graphId"),
    "GRAPH_CONTEXT": ("graph", "contextId"),
    "GRAPH_STREAM": ("graph", "streamId"),
    "SYNC_TYPE": ("sync", "type"),
    "SYNC_START": ("sync", "start"),
    "SYNC_END": ("sync", "end"),
    "SYNC_CORRELATION": ("sync", "correlationId"),
    "SYNC_CONTEXT": ("sync", "contextId"),
    "SYNC_STREAM": ("sync", "streamId"),
    "SYNC_EVENT": ("sync", "cudaEventId"),
    "OVERHEAD_KIND": ("CUpti_ActivityOverhead3", "overheadKind"),
    "OVERHEAD_OBJECT_KIND": ("CUpti_ActivityOverhead3", "objectKind"),
    "OVERHEAD_OBJECT": ("CUpti_ActivityOverhead3", "objectId"),
    "OVERHEAD_START": ("CUpti_ActivityOverhead3", "start"),
    "OVERHEAD_END": ("CUpti_ActivityOverhead3", "end"),
}
VALUES = {
    "CUPTI_OK": "CUPTI_SUCCESS",
    "CUPTI_MAX_LIMIT_REACHED": "CUPTI_ERROR_MAX_LIMIT_REACHED",
    "CUPTI_NOT_COMPATIBLE": "CUPTI_ERROR_NOT_COMPATIBLE",
    "CUPTI_HARDWARE_BUSY": "CUPTI_ERROR_HARDWARE_BUSY",
    "CUPTI_VIRTUALIZED_DEVICE": "CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED",
    "CUPTI_INSUFFICIENT_PRIVILEGES": "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
    "CUPTI_MULTIPLE_SUBSCRIBERS": "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
    "CUPTI_VIRTUALIZED_PRIVILEGES": "CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES",
    "CUPTI_CONFIDENTIAL_COMPUTING": "CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED",
    "CUPTI_MIG_DEVICE": "CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED",
    "DOMAIN_DRIVER": "CUPTI_CB_DOMAIN_DRIVER_API",
    "DOMAIN_RUNTIME": "CUPTI_CB_DOMAIN_RUNTIME_API",
    "SITE_ENTER": "CUPTI_API_ENTER",
    "SITE_EXIT": "CUPTI_API_EXIT",
    "KIND_MEMCPY": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "KIND_MEMSET": "CUPTI_ACTIVITY_KIND_MEMSET",
    "KIND_KERNEL": "CUPTI_ACTIVITY_KIND_KERNEL",
    "KIND_CONCURRENT_KERNEL": "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL",
    "KIND_OVERHEAD": "CUPTI_ACTIVITY_KIND_OVERHEAD",
    "KIND_MEMCPY_PEER": "CUPTI_ACTIVITY_KIND_MEMCPY2",
    "KIND_SYNCHRONIZATION": "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "KIND_GRAPH_TRACE": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "ATTRIBUTE_DEVICE_BUFFER_SIZE": "CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE",
    "ATTRIBUTE_DEVICE_BUFFER_POOL_LIMIT": "CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT",
    "ATTRIBUTE_ZEROED_BUFFER": "CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER",
    "ATTRIBUTE_PER_THREAD_BUFFER": "CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER",
    "ATTRIBUTE_DEVICE_BUFFER_PRE_ALLOCATE": "CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_PRE_ALLOCATE_VALUE",
}
MINIMA = {
    "MIN_MEMCPY": "CUpti_ActivityMemcpy5",
    "MIN_PEER": "CUpti_ActivityMemcpyPtoP4",
    "MIN_MEMSET": "CUpti_ActivityMemset4",
    "MIN_GRAPH": "CUpti_ActivityGraphTrace",
    "MIN_SYNC": "CUpti_ActivitySynchronization",
    "MIN_OVERHEAD": "CUpti_ActivityOverhead",
}
NEWEST = {
    12: {
        "kernel": "CUpti_ActivityKernel9",
        "memcpy": "CUpti_ActivityMemcpy6",
        "memset": "CUpti_ActivityMemset4",
        "graph": "CUpti_ActivityGraphTrace2",
        "sync": "CUpti_ActivitySynchronization2",
    },
    13: {
        "kernel": "CUpti_ActivityKernel13",
        "memcpy": "CUpti_ActivityMemcpy7",
        "memset": "CUpti_ActivityMemset5",
        "graph": "CUpti_ActivityGraphTrace2",
        "sync": "CUpti_ActivitySynchronization2",
    },
}


@pytest.fixture(scope="module", params=[12, 13])
def release(request):
    simulated_node.BIN.mkdir(exist_ok=True)
    return request.param, simulated_node.cuda_headers() / f"cuda{request.param}"


def checks(major):
    newest = NEWEST[major]
    for ours, (struct, field) in OFFSETS.items():
        yield f"{ours} == offsetof({newest.get(struct, struct)}, {field})"
    for ours, theirs in VALUES.items():
        yield f"{ours} == (int){theirs}"
    for ours, struct in MINIMA.items():
        yield f"{ours} <= sizeof({struct})"
    yield "MIN_KERNEL == sizeof(CUpti_ActivityKernel5)"
    if major == 13:
        yield "KERNEL_DEVICE_LAUNCHED == offsetof(CUpti_ActivityKernel10, isDeviceLaunched)"
        yield "216 <= sizeof(CUpti_ActivityKernel10)"
    yield "208 <= sizeof(CUpti_ActivityKernel9)"


def test_offsets_and_values(release, tmp_path):
    major, headers = release
    asserts = "\n".join(f'_Static_assert({text}, "{text}");' for text in checks(major))
    source = tmp_path / "abi.c"
    source.write_text(f'#include <cupti.h>\n#include "{CUPTI / "abi.h"}"\n{asserts}\n')
    made = subprocess.run(
        ["gcc", "-std=gnu11", "-fsyntax-only", "-isystem", headers, source], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr


def test_every_enumerator_is_checked():
    text = re.sub(r"/\*.*?\*/", "", (CUPTI / "abi.h").read_text(), flags=re.S)
    names = {n for body in re.findall(r"enum \{(.*?)\}", text, re.S) for n in re.findall(r"(\w+) =", body)}
    assert names == set(OFFSETS) | set(VALUES) | set(MINIMA) | {
        "MIN_KERNEL",
        "KERNEL_DEVICE_LAUNCHED",
    }


def test_functions_are_declared_as_theirs(release, tmp_path):
    """Assigning NVIDIA's function to our pointer type: pointers and sizes must agree (enum and int are the same on Linux)."""
    _, headers = release
    rows = re.findall(r'X\((\w+), "(\w+)", \d, \((.*)\)\)', (CUPTI / "abi.h").read_text())
    assert len(rows) == 15
    lines = []
    for member, symbol, parameters in rows:
        count = 0 if parameters == "void" else parameters.count(",") + 1
        lines.append(f"_Static_assert({count} == ARGUMENTS({symbol}), \"{symbol}\");")  # fmt: skip
        lines.append(f"void *use_{member} = (void *){symbol};")
    source = tmp_path / "functions.cc"
    source.write_text(
        "#include <cstddef>\n#define _Static_assert static_assert\n#include <cupti.h>\n"
        "template <class R, class... A> constexpr std::size_t arguments(R (*)(A...)) { return sizeof...(A); }\n"
        "#define ARGUMENTS(f) arguments(f)\n" + "\n".join(lines) + "\n"
    )
    made = subprocess.run(
        ["g++", "-std=c++17", "-fsyntax-only", "-isystem", headers, source], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr


def test_launching_calls_fit_the_list(release):
    """Names as cuptiGetCallbackName gives them are those of the cbid headers; gs_calls.listed holds 512."""
    _, headers = release
    launching = 0
    for domain in ("runtime", "driver"):
        names = re.findall(r"TRACE_CBID_(cu\w+)\s*=\s*(\d+)", (headers / f"cupti_{domain}_cbid.h").read_text())
        assert max(int(number) for _, number in names) < 2048
        launching += sum(
            bool(re.match(r"cu(da|64)?(Launch(?!HostFunc)|GraphLaunch|Memcpy|Memset)", n)) for n, _ in names
        )
    assert 200 < launching < 512
