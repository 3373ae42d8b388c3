# SPDX-License-Identifier: Apache-2.0
"""The store as one process: gRPC and HTTP on one loop, the engine's writer thread beside it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from gpustrobe.store import ingest
from gpustrobe.store.addresses import listen, split_address
from gpustrobe.store.answers import Answers
from gpustrobe.store.engine import Engine
from gpustrobe.store.errors import StoreError
from gpustrobe.store.http import application
from gpustrobe.store.retention import Retention

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp

PR_SET_PDEATHSIG = 1  # linux/prctl.h
GRACE = 5.0  # seconds that requests under way may still take when stopping


@dataclass(frozen=True, slots=True)
class Options:
    data: Path
    grpc: str = "127.0.0.1:4317"
    http: str = "127.0.0.1:7070"
    retention: Retention = field(default_factory=Retention)
    memory: str = "512MB"
    threads: int = 2
    die_with_parent: bool = False


def own_version() -> str:
    try:
        return version("gpustrobe")
    except PackageNotFoundError:
        return "unknown"


class _Web(uvicorn.Server):
    """uvicorn without its signal handlers: this process has one place that stops it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _web(app: ASGIApp) -> _Web:
    return _Web(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            access_log=False,
            log_level="warning",
            server_header=False,
            date_header=True,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(GRACE),
            h11_max_incomplete_event_size=65_536,
        )
    )


def _follow_parent(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        raise StoreError("The process that started the store is gone.")


async def run(options: Options) -> None:
    """Serve until SIGTERM or SIGINT; then stop taking requests, commit, checkpoint. Raises StoreError."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    web_socket = listen(options.http, "HTTP", "--http")
    engine = await asyncio.to_thread(Engine, options.data, options.retention, options.memory, options.threads)
    try:
        server, grpc_port = await ingest.start(engine, options.grpc)
        host, port = web_socket.getsockname()[:2]
        app, handlers = application(engine, Answers(engine, own_version()), split_address(options.http)[0] or host)
        web = _web(app)
        serving = asyncio.create_task(web.serve([web_socket]))
        web_socket.listen(256)  # from here on the kernel takes connections, whatever uvicorn still has to set up
        _say_ready(options, host, port, grpc_port)
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait((stopped, serving), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        handlers.stopping = True
        await server.stop(GRACE)
        web.should_exit = True
        await serving
        await asyncio.to_thread(handlers.close)
    finally:
        await asyncio.to_thread(engine.close)
        web_socket.close()


def _say_ready(options: Options, host: str, port: int, grpc_port: int) -> None:
    """The one line on standard output that `gpustrobe up` waits for."""
    grpc_host = split_address(options.grpc)[0] or "0.0.0.0"
    shown = f"[{host}]" if ":" in host else host
    ready = {"http": f"{shown}:{port}", "grpc": f"{grpc_host}:{grpc_port}", "data": str(options.data)}
    print("ready", json.dumps(ready), flush=True)


def serve(options: Options) -> int:
    """Run the store in this process; exit status 0, or 3 with a sentence on standard error."""
    parent = os.getppid()
    try:
        if options.die_with_parent:
            _follow_parent(parent)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
        asyncio.run(run(options))
    except StoreError as error:
        print(f"gpustrobe store: {error}", file=sys.stderr)
        return error.exit_code
    return 0
