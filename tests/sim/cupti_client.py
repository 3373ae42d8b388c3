# SPDX-License-Identifier: Apache-2.0
"""A client of libcupti through ctypes, for tests of the simulated one. It reads records by byte offsets, as they were read out of
NVIDIA's wheels with DWARF, not by the headers that the simulation is compiled against."""

from __future__ import annotations

import collections
import ctypes
import struct
import threading

KERNEL, COPY, SET, DRIVER, RUNTIME, DEVICE, CONTEXT = 10, 1, 2, 4, 5, 8, 9
OVERHEAD, PEER, SYNCHRONIZATION, EXTERNAL, GRAPH = 17, 22, 38, 39, 51
DOMAIN_DRIVER, DOMAIN_RUNTIME = 1, 2
FORCED = 1
MAX_LIMIT_REACHED, MULTIPLE_SUBSCRIBERS = 12, 39

REQUEST = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
COMPLETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)

# kind: (name, offset, struct format) ...
FIELDS = {
    KERNEL: (
        ("start", 16, "Q"),
        ("end", 24, "Q"),
        ("device", 40, "I"),
        ("context", 44, "I"),
        ("stream", 48, "I"),
        ("grid", 52, "3i"),
        ("block", 64, "3i"),
        ("correlation", 92, "I"),
        ("name", 104, "Q"),
        ("queued", 120, "Q"),
        ("node", 144, "Q"),
        ("graph", 156, "I"),
    ),
    COPY: (
        ("copy_kind", 4, "B"),
        ("bytes", 8, "Q"),
        ("start", 16, "Q"),
        ("end", 24, "Q"),
        ("device", 32, "I"),
        ("stream", 40, "I"),
        ("correlation", 44, "I"),
        ("graph", 72, "I"),
    ),
    PEER: (
        ("bytes", 8, "Q"),
        ("start", 16, "Q"),
        ("end", 24, "Q"),
        ("device", 32, "I"),
        ("source_device", 44, "I"),
        ("target_device", 52, "I"),
        ("correlation", 60, "I"),
    ),
    SET: (
        ("value", 4, "I"),
        ("bytes", 8, "Q"),
        ("start", 16, "Q"),
        ("end", 24, "Q"),
        ("device", 32, "I"),
        ("stream", 40, "I"),
        ("correlation", 44, "I"),
    ),
    GRAPH: (
        ("correlation", 4, "I"),
        ("start", 8, "Q"),
        ("end", 16, "Q"),
        ("device", 24, "I"),
        ("graph", 28, "I"),
        ("stream", 36, "I"),
    ),
    SYNCHRONIZATION: (
        ("type", 4, "I"),
        ("start", 8, "Q"),
        ("end", 16, "Q"),
        ("correlation", 24, "I"),
        ("stream", 32, "I"),
    ),
    OVERHEAD: (("overhead", 4, "I"), ("start", 24, "Q"), ("end", 32, "Q")),
    DRIVER: (("cbid", 4, "I"), ("start", 8, "Q"), ("end", 16, "Q"), ("thread", 28, "I"), ("correlation", 32, "I")),
    RUNTIME: (("cbid", 4, "I"), ("start", 8, "Q"), ("end", 16, "Q"), ("thread", 28, "I"), ("correlation", 32, "I")),
    EXTERNAL: (("external_kind", 4, "I"), ("id", 8, "Q"), ("correlation", 16, "I")),
    DEVICE: (("device", 112, "I"), ("uuid", 120, "16s")),
    CONTEXT: (("context", 4, "I"), ("device", 8, "I")),
}


def parse(address: int) -> dict:
    (kind,) = struct.unpack("<I", ctypes.string_at(address, 4))
    record = {"kind": kind, "address": address}
    for name, offset, form in FIELDS.get(kind, ()):
        values = struct.unpack("<" + form, ctypes.string_at(address + offset, struct.calcsize("<" + form)))
        record[name] = values[0] if len(values) == 1 else values
    if kind == KERNEL and record["name"]:
        record["name"] = ctypes.string_at(record["name"]).decode()
    return record


class Client:
    """Records and callbacks of one libcupti; `buffers` so many of `size` bytes, then none (NULL)."""

    def __init__(self, major: int = 13, size: int = 1 << 16, buffers: int | None = None) -> None:
        self.cupti = ctypes.CDLL(f"libcupti.so.{major}")
        self.size, self.left = size, buffers
        self.records: list[dict] = []
        self.steps: collections.Counter[tuple[int, int]] = collections.Counter()  # (kind, bytes to the next record)
        self.threads: set[int] = set()
        self.completed: list[int] = []  # order number of each buffer that came back
        self.calls: list[tuple[int, int, int, int, str | None]] = []  # domain, cbid, site, correlation, symbol
        self.inside = None  # called in the buffer callback, for what must not be done there
        self._buffers: dict[int, tuple[int, object]] = {}
        self._requested = 0
        self._keep = (REQUEST(self._request), COMPLETE(self._complete), CALLBACK(self._called))
        self.subscriber = ctypes.c_void_p()

    def _request(self, buffer, size, limit) -> None:
        limit[0] = 0
        if self.left is not None and self.left <= 0:
            buffer[0], size[0] = None, 0
            return
        if self.left is not None:
            self.left -= 1
        made = ctypes.create_string_buffer(self.size + 8)
        address = (ctypes.addressof(made) + 7) & ~7
        self._buffers[address] = (self._requested, made)
        self._requested += 1
        buffer[0], size[0] = address, self.size

    def _complete(self, context, stream, buffer, size, valid) -> None:
        self.threads.add(threading.get_native_id())
        number, kept = self._buffers.pop(buffer)
        self.completed.append(number)
        record = ctypes.c_void_p()
        last = None
        while (
            self.cupti.cuptiActivityGetNextRecord(ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(record))
            == 0
        ):
            if last is not None:
                self.steps[last["kind"], record.value - last["address"]] += 1
            last = parse(record.value)
            self.records.append(last)
        if self.inside:
            self.inside()
        del kept

    def _called(self, data, domain, cbid, more) -> None:
        (site,) = struct.unpack("<I", ctypes.string_at(more, 4))
        (symbol,) = struct.unpack("<Q", ctypes.string_at(more + 32, 8))
        (correlation,) = struct.unpack("<I", ctypes.string_at(more + 64, 4))
        self.calls.append((domain, cbid, site, correlation, ctypes.string_at(symbol).decode() if symbol else None))

    def register(self) -> int:
        return self.cupti.cuptiActivityRegisterCallbacks(self._keep[0], self._keep[1])

    def enable(self, *kinds: int) -> int:
        return max(self.cupti.cuptiActivityEnable(kind) for kind in kinds)

    def disable(self, *kinds: int) -> int:
        return max(self.cupti.cuptiActivityDisable(kind) for kind in kinds)

    def flush(self, flag: int = 0) -> int:
        return self.cupti.cuptiActivityFlushAll(flag)

    def subscribe(self) -> int:
        return self.cupti.cuptiSubscribe(ctypes.byref(self.subscriber), self._keep[2], None)

    def unsubscribe(self) -> int:
        return self.cupti.cuptiUnsubscribe(self.subscriber)

    def enable_callback(self, domain: int, cbid: int, on: int = 1) -> int:
        return self.cupti.cuptiEnableCallback(on, self.subscriber, domain, cbid)

    def dropped(self) -> int:
        count = ctypes.c_size_t()
        self.cupti.cuptiActivityGetNumDroppedRecords(None, 0, ctypes.byref(count))
        return count.value

    def of(self, kind: int) -> list[dict]:
        return [record for record in self.records if record["kind"] == kind]

    def version(self) -> int:
        number = ctypes.c_uint32()
        return self.cupti.cuptiGetVersion(ctypes.byref(number)) or number.value

    def timestamp(self) -> int:
        at = ctypes.c_uint64()
        self.cupti.cuptiGetTimestamp(ctypes.byref(at))
        return at.value

    def attribute(self, number: int, value: int) -> int:
        held, size = ctypes.c_size_t(value), ctypes.c_size_t(8)
        return self.cupti.cuptiActivitySetAttribute(number, ctypes.byref(size), ctypes.byref(held))
