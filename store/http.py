# SPDX-License-Identifier: Apache-2.0
"""HTTP: the JSON API of docs/api.md, OTLP/HTTP, /metrics, and the page in store/web/dist.

Nothing here allows another origin: no CORS headers; a Host header that is no address or name of ours is refused while
we listen on loopback (DNS rebinding); OTLP needs the protobuf content type, which a form or a script of another origin
cannot send unasked.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import logging
import mimetypes
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpustrobe.store.answers import PARAMETERS, Answers
from gpustrobe.store.engine import MAX_REQUEST
from gpustrobe.store.errors import DiskFull, Invalid, Oversized, QueryError, Refused
from gpustrobe.store.ingest import RETRY_SECONDS, response, status_of
from gpustrobe.store.metrics import exposition
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from gpustrobe.store.engine import Engine
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger("gpustrobe.store")

DIST = Path(__file__).parent / "web" / "dist"
READERS = 3  # threads; DuckDB itself uses two per query
PROTOBUF = "application/x-protobuf"
GZIP_FROM = 1400  # bytes: less fits in one packet anyway
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
NO_PAGE = """gpustrobe's store is running, but its page has not been built.

Build it with `make web` (Node 20 or newer), then reload. The API is there without it: /api/v1/status
"""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class _Asset:
    body: bytes
    packed: bytes
    etag: str
    kind: str
    cache: str


class Page:
    """Files of store/web/dist, read on first use and again when they change."""

    def __init__(self, folder: Path = DIST) -> None:
        self.folder = folder
        self._assets: dict[str, tuple[int, _Asset]] = {}

    def get(self, path: str) -> _Asset | None:
        name = path.lstrip("/") or "index.html"
        if "\0" in name:
            return None
        file = (self.folder / name).resolve()
        if not file.is_relative_to(self.folder.resolve()) or not file.is_file():
            return None
        stamp = file.stat().st_mtime_ns
        held = self._assets.get(name)
        if held is None or held[0] != stamp:
            held = self._assets[name] = (stamp, _asset(file, name))
        return held[1]


def _asset(file: Path, name: str) -> _Asset:
    body = file.read_bytes()
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if kind.startswith("text/") or kind == "application/javascript":
        kind += "; charset=utf-8"
    hashed = name.startswith("assets/")  # the names that Vite makes of their content
    return _Asset(
        body,
        gzip.compress(body, 9, mtime=0),
        f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"',
        kind,
        "public, max-age=31536000, immutable" if hashed else "no-cache",
    )


class Guard:
    """ASGI: Host check, security headers."""

    def __init__(self, app: ASGIApp, allowed: tuple[str, ...] | None) -> None:
        """`allowed`: host names without port; None takes any (not on loopback)."""
        self.app, self.allowed = app, allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if self.allowed is not None and _host(headers.get(b"host", b"")) not in self.allowed:
            text = "This store listens on loopback; ask for it as localhost or 127.0.0.1.\n"
            await PlainTextResponse(text, 403, headers=SECURITY)(scope, receive, send)
            return
        origin = headers.get(b"origin")
        if origin is not None and scope["method"] != "GET" and origin.split(b"://")[-1] != headers.get(b"host", b""):
            await PlainTextResponse("Requests of other origins are not taken.\n", 403, headers=SECURITY)(
                scope, receive, send
            )
            return

        async def with_headers(message: dict) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                extra = [(k.encode(), v.encode()) for k, v in SECURITY.items() if k.encode() not in present]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        await self.app(scope, receive, with_headers)


def _host(header: bytes) -> str:
    text = header.decode("latin-1").lower()
    if text.startswith("["):
        return text[: text.find("]") + 1]
    return text.rsplit(":", 1)[0] if ":" in text else text


class Handlers:
    def __init__(self, engine: Engine, answers: Answers, page: Page) -> None:
        self.engine, self.answers, self.page = engine, answers, page
        self.pool = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self.stopping = False

    def close(self) -> None:
        self.stopping = True
        self.engine.readers.stop()
        self.pool.shutdown(wait=True, cancel_futures=True)

    # -- questions

    async def api(self, request: Request) -> Response:
        name, packed = request.path_params["name"], _takes_gzip(request)
        if name not in PARAMETERS:
            return failure(404, "not_found", f"no query {name[:64]!r}", ", ".join(PARAMETERS))
        if self.stopping:
            return failure(503, "stopping", "the store is stopping", "ask again")
        started = time.perf_counter()
        work = asyncio.get_running_loop().run_in_executor(self.pool, self._answer, name, request.query_params, packed)
        try:
            body = await work
        except QueryError as error:
            self.engine.counters.query(name, time.perf_counter() - started, error.code)
            return failure(error.status, error.code, error.message, error.hint)
        except Exception:
            log.exception("answering %s", request.url)
            self.engine.counters.query(name, time.perf_counter() - started, "internal")
            return failure(500, "internal", "the store failed to answer; its log says why")
        self.engine.counters.query(name, time.perf_counter() - started, "")
        headers = {"content-encoding": "gzip"} if body[:2] == b"\x1f\x8b" else {}
        return Response(
            body,
            media_type="application/json",
            headers={**headers, "cache-control": "no-store", "vary": "accept-encoding"},
        )

    def _answer(self, name: str, params: object, packed: bool) -> bytes:
        body = json.dumps(self.answers.answer(name, params), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        data = body.encode("utf-8", "replace")
        return gzip.compress(data, 1, mtime=0) if packed and len(data) > GZIP_FROM else data

    # -- OTLP/HTTP

    async def profiles(self, request: Request) -> Response:
        return await self._ingest(request, "profiles")

    async def metrics_in(self, request: Request) -> Response:
        return await self._ingest(request, "metrics")

    async def _ingest(self, request: Request, kind: str) -> Response:
        try:
            done = await asyncio.wrap_future(self.engine.submit(kind, await self._body(request)))
        except Refused as error:
            return _refusal(error)
        return Response(response(kind, done), media_type=PROTOBUF)

    async def _body(self, request: Request) -> bytes:
        """The request's bytes, unpacked. Raises Refused (counted)."""
        try:
            if request.headers.get("content-type", "").split(";")[0].strip().lower() != PROTOBUF:
                raise Invalid("bad_encoding", f"content-type must be {PROTOBUF}")
            encoding = request.headers.get("content-encoding", "identity").strip().lower()
            if encoding not in ("identity", "gzip"):
                raise Invalid("bad_encoding", "content-encoding must be gzip or identity")
            chunks, size = [], 0
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_REQUEST:
                    raise Oversized("oversized", f"more than {MAX_REQUEST:,} bytes")
                chunks.append(chunk)
            data = b"".join(chunks)
            return _unpacked(data) if encoding == "gzip" else data
        except Refused as error:
            self.engine.counters.refuse(error.reason)
            raise

    # -- the rest

    async def own_metrics(self, request: Request) -> Response:
        body, kind = exposition(self.engine)
        return Response(body, headers={"content-type": kind, "cache-control": "no-store"})

    async def healthz(self, request: Request) -> Response:
        return PlainTextResponse("stopping\n" if self.stopping else "ok\n", 503 if self.stopping else 200)

    async def static(self, request: Request) -> Response:
        asset = self.page.get(request.url.path)
        if asset is None:
            if request.url.path == "/" or request.url.path == "/index.html":
                return PlainTextResponse(NO_PAGE, 200)
            return failure(404, "not_found", "no such page")
        headers = {"etag": asset.etag, "cache-control": asset.cache, "vary": "accept-encoding"}
        if asset.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if _takes_gzip(request) and len(asset.packed) < len(asset.body):
            return Response(asset.packed, headers={**headers, "content-type": asset.kind, "content-encoding": "gzip"})
        return Response(asset.body, headers={**headers, "content-type": asset.kind})


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def _unpacked(data: bytes) -> bytes:
    """Gunzip within the limit: a small body must not become a large one."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        out = unpacker.decompress(data, MAX_REQUEST + 1)
    except zlib.error as error:
        raise Invalid("malformed", f"not gzip: {error}") from None
    if len(out) > MAX_REQUEST:
        raise Oversized("oversized", f"more than {MAX_REQUEST:,} bytes when unpacked")
    if not unpacker.eof:
        raise Invalid("malformed", "the gzip body is cut short")
    return out


def _refusal(error: Refused) -> Response:
    """google.rpc.Status as OTLP/HTTP asks; 503 with Retry-After where sending again may help."""
    code = status_of(error)
    message = error.message.encode()[:1000]
    body = b"\x08" + bytes((code.value[0],)) + b"\x12" + _length(len(message)) + message
    status = 400 if isinstance(error, Invalid) else 413 if isinstance(error, Oversized) else 503
    headers = {"retry-after": str(RETRY_SECONDS if isinstance(error, DiskFull) else 1)} if status == 503 else {}
    return Response(body, status, media_type=PROTOBUF, headers=headers)


def _length(value: int) -> bytes:
    return bytes((value,)) if value < 128 else bytes((value & 0x7F | 0x80, value >> 7))


def failure(status: int, code: str, message: str, hint: str = "") -> Response:
    body = json.dumps({"error": {"code": code, "message": message, "hint": hint}}, ensure_ascii=False)
    return Response(body, status, media_type="application/json", headers={"cache-control": "no-store"})


def application(engine: Engine, answers: Answers, host: str, page: Page | None = None) -> tuple[ASGIApp, Handlers]:
    """The ASGI application for a store that listens on `host`."""
    handlers = Handlers(engine, answers, page or Page())
    app = Starlette(
        routes=[
            Route("/api/v1/{name}", handlers.api, methods=["GET"]),
            Route("/v1development/profiles", handlers.profiles, methods=["POST"]),
            Route("/v1/metrics", handlers.metrics_in, methods=["POST"]),
            Route("/metrics", handlers.own_metrics, methods=["GET"]),
            Route("/healthz", handlers.healthz, methods=["GET"]),
            Route("/{path:path}", handlers.static, methods=["GET"]),
        ],
    )
    loopback = host in ("localhost", "::1") or host.startswith("127.")
    return Guard(app, (*LOOPBACK_NAMES, host) if loopback else None), handlers
