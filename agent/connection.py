# SPDX-License-Identifier: Apache-2.0
"""Unary gRPC calls over one HTTP/2 connection (github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md), by the h2
package.

grpcio does the same with eight threads of its own. Over loopback, CPU time of one call with 100 B / 330 kB, a second of
idle connection, and memory: grpcio 1.85 3.1 / 3.9 ms, 0.5 ms, 21 MB; this 0.9 / 1.8 ms, nothing, 5 MB. The whole agent
may take 6 ms a second, and calls are small and few; so no thread, and no fork that could meet one.
"""

from __future__ import annotations

import gzip
import select
import socket
import ssl
import struct
import time
import urllib.parse
import zlib
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
from gpustrobe.agent.channel import SendFailure

STATUS = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
]
# Where something else than a gRPC server answered (doc/http-grpc-status-mapping.md).
HTTP_STATUS = {"400": "INTERNAL", "401": "UNAUTHENTICATED", "403": "PERMISSION_DENIED", "404": "UNIMPLEMENTED"}
HTTP_STATUS |= dict.fromkeys(("429", "502", "503", "504"), "UNAVAILABLE")
RESETS = {
    h2.errors.ErrorCodes.REFUSED_STREAM: "UNAVAILABLE",
    h2.errors.ErrorCodes.CANCEL: "CANCELLED",
    h2.errors.ErrorCodes.ENHANCE_YOUR_CALM: "RESOURCE_EXHAUSTED",
    h2.errors.ErrorCodes.INADEQUATE_SECURITY: "PERMISSION_DENIED",
}
LONGEST_ANSWER = 1 << 20  # bytes; OTLP answers are a handful
FRAME_HEADER, GOAWAY = 9, 7
PREFIX = struct.Struct(">BI")  # compressed flag, length of the message


class Broken(Exception):
    """The connection ended before the call was answered."""


@dataclass
class _Call:
    """What has come back of one call."""

    stream: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    over: bool = False


class Connection:
    """Not thread-safe. After any failure but a status of the other side it must be closed."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, proxy: str, deadline: float) -> None:
        """`deadline` by time.monotonic(). `proxy`: URL of an HTTP proxy to go through, or "". Raises SendFailure."""
        self._authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._scheme = "https" if tls else "http"
        self.calls = 0  # answered
        self._heard = self._ended = False
        self._inbound = bytearray()
        try:
            self._socket = _connect(host, port, proxy, deadline)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket.settimeout(_left(deadline))
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        except TimeoutError as error:
            raise SendFailure("DEADLINE_EXCEEDED", f"no connection to {self._authority} in time") from error
        except ssl.SSLCertVerificationError as error:
            raise SendFailure("UNAVAILABLE", f"its certificate is not accepted: {error.verify_message}") from error
        except OSError as error:
            raise SendFailure("UNAVAILABLE", error.strerror or str(error)) from error
        # Inbound validation stays on; our own headers are known to be well-formed.
        config = h2.config.H2Configuration(client_side=True, header_encoding=None, validate_outbound_headers=False)
        self._http = h2.connection.H2Connection(config)
        self._http.initiate_connection()

    def close(self) -> None:
        self._socket.close()

    def is_open(self) -> bool:
        """Take in what came while nobody looked: settings, pings, a good-bye. False if the other side has ended it."""
        try:
            while not self._ended and self._waiting():
                self._events()
            self._flush(time.monotonic() + 1)
        except (OSError, h2.exceptions.ProtocolError, Broken, SendFailure):
            return False
        return not self._ended

    def call(
        self, path: str, message: bytes, metadata: list[tuple[str, str]], compress: bool, deadline: float
    ) -> bytes:
        """The answer's message.

        Raises SendFailure, and Broken if the connection ended and the call may be made again.
        """
        call = _Call(self._http.get_next_available_stream_id())
        try:
            self._http.send_headers(call.stream, self._headers(path, metadata, compress, deadline))
            data = gzip.compress(message, 1) if compress else message
            self._send(call, memoryview(PREFIX.pack(compress, len(data)) + data), deadline)
            while not call.over:
                self._receive(call, deadline)
        except TimeoutError as error:
            raise SendFailure("DEADLINE_EXCEEDED", "no answer in time") from error
        except (OSError, h2.exceptions.StreamClosedError) as error:
            raise Broken(str(error)) from error
        except h2.exceptions.ProtocolError as error:
            raise SendFailure("UNAVAILABLE", f"it does not speak gRPC: {error or type(error).__name__}") from error
        self.calls += 1
        return _answer(call)

    def _headers(self, path: str, metadata: list[tuple[str, str]], compress: bool, deadline: float) -> list:
        return [
            (":method", "POST"),
            (":scheme", self._scheme),
            (":path", path),
            (":authority", self._authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "gpustrobe"),
            ("grpc-timeout", f"{max(1, int(_left(deadline) * 1000))}m"),
            ("grpc-accept-encoding", "identity,gzip"),
            *([("grpc-encoding", "gzip")] if compress else []),
            *metadata,
        ]

    def _send(self, call: _Call, data: memoryview, deadline: float) -> None:
        """As much as the other side's window lets through at a time.

        It may answer, with a refusal, before all is sent.
        """
        while data and not call.over:
            room = min(self._http.local_flow_control_window(call.stream), self._http.max_outbound_frame_size, len(data))
            if room <= 0:
                self._flush(deadline)
                self._receive(call, deadline)
            else:
                self._http.send_data(call.stream, bytes(data[:room]), end_stream=room == len(data))
                data = data[room:]
        self._flush(deadline)

    def _flush(self, deadline: float) -> None:
        data = self._http.data_to_send()
        if data:
            self._socket.settimeout(_left(deadline))
            self._socket.sendall(data)

    def _receive(self, call: _Call, deadline: float) -> None:
        self._socket.settimeout(_left(deadline))
        for event in self._events():
            self._take(call, event)
        if self._ended and not call.over:  # what else comes on this connection, h2 does not take any more
            raise Broken("it is going away")
        self._flush(deadline)

    def _events(self) -> list[h2.events.Event]:
        data = self._socket.recv(65536)
        if not data:
            raise Broken("it closed the connection")
        if not self._heard and data.startswith(b"HTTP/"):
            raise SendFailure("UNAVAILABLE", "it speaks HTTP/1, not gRPC: another port?")
        self._heard = True
        self._inbound += data
        events: list[h2.events.Event] = []
        while not self._ended and (frame := self._next_frame()):
            events += self._http.receive_data(frame)
            self._ended = frame[3] == GOAWAY
        return events

    def _next_frame(self) -> bytes:
        """h2 takes nothing behind a good-bye, not even the ping that grpc-go sends with it: so frame by frame."""
        length = int.from_bytes(self._inbound[:3], "big")
        if length > self._http.max_inbound_frame_size:
            raise SendFailure("UNAVAILABLE", "it does not speak gRPC")
        size = FRAME_HEADER + length
        if len(self._inbound) < size:
            return b""
        frame = bytes(self._inbound[:size])
        del self._inbound[:size]
        return frame

    def _take(self, call: _Call, event: h2.events.Event) -> None:
        if getattr(event, "stream_id", None) != call.stream:
            return
        if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
            call.headers |= {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        elif isinstance(event, h2.events.DataReceived):
            call.body += event.data
            self._http.acknowledge_received_data(event.flow_controlled_length, call.stream)
            if len(call.body) > LONGEST_ANSWER:
                raise SendFailure("RESOURCE_EXHAUSTED", "its answer is too long")
        elif isinstance(event, h2.events.StreamEnded):
            call.over = True
        elif isinstance(event, h2.events.StreamReset):
            call.over = True  # after its status, a server may reset what we have not sent yet
            call.headers.setdefault("grpc-status", str(STATUS.index(RESETS.get(event.error_code, "INTERNAL"))))
            call.headers.setdefault("grpc-message", f"it reset the call ({event.error_code!s})")

    def _waiting(self) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return bool(select.select([self._socket], [], [], 0)[0])


def _answer(call: _Call) -> bytes:
    headers = call.headers
    http_status = headers.get(":status", "")
    if "grpc-status" not in headers:
        code = HTTP_STATUS.get(http_status, "UNKNOWN")
        raise SendFailure(code, f"HTTP status {http_status or 'missing'}, and no gRPC status")
    status = headers["grpc-status"]
    if status != "0":
        code = STATUS[int(status)] if status.isdecimal() and int(status) < len(STATUS) else "UNKNOWN"
        raise SendFailure(code, urllib.parse.unquote(headers.get("grpc-message", "")))
    if len(call.body) < PREFIX.size:
        raise SendFailure("INTERNAL", "its answer holds no message")
    compressed, length = PREFIX.unpack_from(call.body)
    data = bytes(call.body[PREFIX.size : PREFIX.size + length])
    if not compressed:
        return data
    try:
        return zlib.decompressobj(wbits=31).decompress(data, LONGEST_ANSWER)
    except zlib.error as error:
        raise SendFailure("INTERNAL", "its answer is compressed in a way that we do not know") from error


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _connect(host: str, port: int, proxy: str, deadline: float) -> socket.socket:
    if not proxy:
        return socket.create_connection((host, port), timeout=_left(deadline))
    through = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    connection = socket.create_connection((through.hostname, through.port or 3128), timeout=_left(deadline))
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    answer = b""
    while b"\r\n\r\n" not in answer and len(answer) < 65536:
        connection.settimeout(_left(deadline))
        data = connection.recv(1)  # not a byte of what follows the answer
        if not data:
            break
        answer += data
    status = answer.split(b"\r\n", 1)[0].decode("latin-1")
    if status.split(" ")[1:2] != ["200"]:
        connection.close()
        raise OSError(None, f"the proxy {through.hostname} says: {status or 'nothing'}")
    return connection
