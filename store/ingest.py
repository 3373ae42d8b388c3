# SPDX-License-Identifier: Apache-2.0
"""OTLP over gRPC: ProfilesService and MetricsService. Bytes go to the engine as they came, and OK means committed.

Requests are decoded by the engine, not by gRPC, so that what cannot be parsed is INVALID_ARGUMENT and counted, never
INTERNAL.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
from gpustrobe.proto.otlp import METHODS, ExportMetricsServiceResponse, ExportProfilesServiceResponse
from gpustrobe.store.addresses import listen
from gpustrobe.store.engine import MAX_REQUEST
from gpustrobe.store.errors import DiskFull, Invalid, Oversized, Refused, StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gpustrobe.store.engine import Done, Engine

# gRPC itself refuses past this, also with RESOURCE_EXHAUSTED, but uncounted; between the two the engine refuses and
# counts.
GRPC_LIMIT = 2 * MAX_REQUEST
RETRY_SECONDS = 30

STATUS = (
    (Invalid, grpc.StatusCode.INVALID_ARGUMENT),
    (Oversized, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DiskFull, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Refused, grpc.StatusCode.UNAVAILABLE),
)


def status_of(error: Refused) -> grpc.StatusCode:
    return next(code for kind, code in STATUS if isinstance(error, kind))


def response(kind: str, done: Done) -> bytes:
    """Serialized answer; metric points that are not kept (histograms) are reported as OTLP asks."""
    if kind == "profiles":
        return ExportProfilesServiceResponse().SerializeToString()
    answer = ExportMetricsServiceResponse()
    if done.ignored:
        answer.partial_success.rejected_data_points = done.ignored
        answer.partial_success.error_message = "only number points of gauges and sums are kept"
    return answer.SerializeToString()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def retry_details(code: int, message: str, seconds: int) -> bytes:
    """google.rpc.Status with a google.rpc.RetryInfo: without it OTLP senders take RESOURCE_EXHAUSTED for final."""
    delay = b"\x08" + _varint(seconds)
    info = _field(1, b"type.googleapis.com/google.rpc.RetryInfo") + _field(2, _field(1, delay))
    return b"\x08" + _varint(code) + _field(2, message.encode()) + _field(3, info)


def _handler(engine: Engine, kind: str) -> Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]]:
    async def export(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            done = await asyncio.wrap_future(engine.submit(kind, data))
        except Refused as error:
            code = status_of(error)
            if isinstance(error, DiskFull):
                details = retry_details(code.value[0], error.message, RETRY_SECONDS)
                context.set_trailing_metadata((("grpc-status-details-bin", details),))
            await context.abort(code, error.message)
        return response(kind, done)

    return export


async def start(engine: Engine, address: str) -> tuple[grpc.aio.Server, int]:
    """Listen on HOST:PORT; the server and the port it got. Raises StoreError where it cannot."""
    server = grpc.aio.server(
        maximum_concurrent_rpcs=1000,
        options=[
            ("grpc.max_receive_message_length", GRPC_LIMIT),
            ("grpc.so_reuseport", 0),  # a second store on this port must fail, not take half of the requests
        ],
    )
    for kind, path in METHODS.items():
        service, method = path.strip("/").rsplit("/", 1)
        handler = grpc.unary_unary_rpc_method_handler(_handler(engine, kind))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    listen(address, "gRPC", "--grpc").close()  # gRPC itself would print a line of its own and not say why
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise StoreError(
            f"The gRPC address {address} cannot be used: {error}.", "Choose another with --grpc HOST:PORT."
        ) from None
    await server.start()
    return server, port
