# SPDX-License-Identifier: Apache-2.0
"""gRPC calls over our HTTP/2 connection, against grpcio's server and against servers that misbehave."""

from __future__ import annotations

import contextlib
import gzip
import socket
import struct
import threading
import time
from concurrent import futures

import grpc
import h2.config
import h2.connection
import h2.events
import pytest
from gpustrobe.agent.channel import Channel, Endpoint, SendFailure
from gpustrobe.proto.methods import METHODS


@pytest.fixture
def grpc_server():
    """grpcio's; answers with the length of the request; keeps what it got."""
    got: list[bytes] = []

    def answer(request: bytes, context) -> bytes:
        got.append(request)
        return str(len(request)).encode()

    _, service, name = METHODS["profiles"].split("/")
    handler = grpc.method_handlers_generic_handler(service, {name: grpc.unary_unary_rpc_method_handler(answer)})
    server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", 8 << 20)])
    server.add_generic_rpc_handlers([handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port, got
    server.stop(0).wait()


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("size", [0, 1, 16_384, 65_530, 1_000_000, 5_000_000])
def test_messages_of_any_size_arrive_whole(grpc_server, size, compress):
    port, got = grpc_server
    message = bytes(range(251)) * (size // 251 + 1)
    channel = Channel(Endpoint(f"127.0.0.1:{port}", gzip=compress))
    for _ in range(2):
        assert channel.send("profiles", message[:size]) == str(size).encode()
    channel.close()
    assert got == [message[:size]] * 2


def test_grpcio_says_when_a_message_is_too_large(grpc_server):
    channel = Channel(Endpoint(f"127.0.0.1:{grpc_server[0]}"))
    with pytest.raises(SendFailure, match=r"RESOURCE_EXHAUSTED: .*message larger than max"):
        channel.send("profiles", bytes(9 << 20))
    assert channel.send("profiles", b"x") == b"1", "the next one goes"
    channel.close()


def test_a_service_that_is_not_there(grpc_server):
    channel = Channel(Endpoint(f"127.0.0.1:{grpc_server[0]}"))
    with pytest.raises(SendFailure, match="UNIMPLEMENTED"):
        channel.send("metrics", b"")
    channel.close()


class Peer:
    """A listening socket whose n-th connection is served by the n-th function, the last one again and again."""

    def __init__(self, *serve) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.connections = 0
        self._serve = serve
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            serve = self._serve[min(self.connections, len(self._serve) - 1)]
            self.connections += 1
            with connection, contextlib.suppress(OSError, h2.exceptions.ProtocolError):
                serve(connection)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join(5)


@pytest.fixture
def peer():
    peers: list[Peer] = []

    def start(*serve):
        peers.append(Peer(*serve))
        return peers[-1], Channel(Endpoint(f"127.0.0.1:{peers[-1].port}", timeout=2.0))

    yield start
    for each in peers:
        each.close()


def http2(answer, calls=1000):
    """A server side by h2: `answer(http, stream)` once a request is complete; hangs up after `calls` of them."""

    def serve(connection: socket.socket) -> None:
        http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        http.initiate_connection()
        connection.sendall(http.data_to_send())
        left = calls
        while left:
            data = connection.recv(65536)
            if not data:
                return
            for event in http.receive_data(data):
                if isinstance(event, h2.events.DataReceived):
                    http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    answer(http, event.stream_id)
                    left -= 1
            connection.sendall(http.data_to_send())

    return serve


def well(http, stream, body=b"fine", compressed=False):
    http.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc"), ("grpc-encoding", "gzip")])
    data = gzip.compress(body) if compressed else body
    http.send_data(stream, struct.pack(">BI", compressed, len(data)) + data)
    http.send_headers(stream, [("grpc-status", "0")], end_stream=True)


def refuse(status: str, message: str = ""):
    def answer(http, stream):
        fields = [(":status", "200"), ("content-type", "application/grpc")]
        http.send_headers(stream, [*fields, ("grpc-status", status), ("grpc-message", message)], end_stream=True)

    return answer


def plain(status: str):
    return lambda http, stream: http.send_headers(stream, [(":status", status)], end_stream=True)


def test_a_compressed_answer(peer):
    _, channel = peer(http2(lambda http, stream: well(http, stream, b"small" * 9, compressed=True)))
    assert channel.send("profiles", b"x") == b"small" * 9


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (refuse("3", "index%20out of%0Arange"), "INVALID_ARGUMENT: index out of\nrange"),
        (refuse("99"), "UNKNOWN"),
        (plain("503"), "UNAVAILABLE: HTTP status 503"),
        (plain("401"), "UNAUTHENTICATED: HTTP status 401"),
        (plain("404"), "UNIMPLEMENTED: HTTP status 404"),
        (lambda http, stream: http.reset_stream(stream, 7), "UNAVAILABLE: it reset the call"),
        (lambda http, stream: http.reset_stream(stream, 2), "INTERNAL: it reset the call"),
    ],
)
def test_every_refusal_becomes_a_status(peer, answer, wanted):
    _, channel = peer(http2(answer))
    with pytest.raises(SendFailure, match=wanted):
        channel.send("profiles", b"x" * 100_000)


def test_a_resting_connection_that_was_closed_is_made_anew_unseen(peer):
    server, channel = peer(http2(well, calls=1), http2(well))
    assert channel.send("profiles", b"1") == b"fine"
    time.sleep(0.05)
    assert channel.send("profiles", b"2") == b"fine" and server.connections == 2


def test_a_connection_that_ends_under_the_call_is_tried_once_more(peer):
    def one_then_hang_up(connection: socket.socket) -> None:
        answered = []

        def answer(http, stream):
            if answered:
                raise OSError
            answered.append(stream)
            well(http, stream)

        http2(answer)(connection)

    server, channel = peer(one_then_hang_up, http2(well))
    assert channel.send("profiles", b"1") == channel.send("profiles", b"2") == b"fine" and server.connections == 2


def test_a_good_bye_is_taken_at_its_word(peer):
    def and_good_bye(http, stream):
        well(http, stream)
        http.close_connection(last_stream_id=stream)

    server, channel = peer(http2(and_good_bye), http2(well))
    assert channel.send("profiles", b"1") == b"fine"
    time.sleep(0.05)
    assert channel.send("profiles", b"2") == b"fine" and server.connections == 2


def test_what_speaks_no_protocol_at_all(peer):
    _, channel = peer(
        lambda connection: connection.sendall(b"\x00\x00\x04\x01\xff\x00\x00\x00\x01abcd") or connection.recv(9)
    )
    with pytest.raises(SendFailure, match="UNAVAILABLE"):
        channel.send("profiles", b"x")


def test_what_hangs_up_at_once_is_unavailable(peer):
    server, channel = peer(lambda connection: None)
    with pytest.raises(SendFailure, match="UNAVAILABLE"):
        channel.send("profiles", b"x")
    assert server.connections == 1, "a fresh connection is not tried twice"


def test_what_speaks_http_1_is_told_apart(peer):
    _, channel = peer(
        lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9) or connection.recv(1000)
    )
    with pytest.raises(SendFailure, match="it speaks HTTP/1, not gRPC"):
        channel.send("profiles", b"x")


def test_nobody_listens():
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    with pytest.raises(SendFailure, match="UNAVAILABLE: Connection refused"):
        Channel(Endpoint(f"127.0.0.1:{port}")).send("profiles", b"x")


def test_a_window_that_never_opens_is_a_deadline(peer):
    def never_reads(connection: socket.socket) -> None:
        http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        http.initiate_connection()
        connection.sendall(http.data_to_send())
        time.sleep(1.0)

    _, channel = peer(never_reads)
    began = time.monotonic()
    with pytest.raises(SendFailure, match="DEADLINE_EXCEEDED"):
        channel.send("profiles", bytes(200_000), timeout=0.3)
    assert time.monotonic() - began < 0.9


def test_an_endless_answer_is_cut_off(peer):
    def endless(http, stream):
        http.send_headers(stream, [(":status", "200")])
        for _ in range(60):
            http.send_data(stream, bytes(1000))

    def serve(connection: socket.socket) -> None:
        http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        http.initiate_connection()
        while data := connection.recv(65536):
            for event in http.receive_data(data):
                if isinstance(event, h2.events.StreamEnded):
                    endless(http, event.stream_id)
                elif isinstance(event, h2.events.WindowUpdated) and event.stream_id:
                    while http.local_flow_control_window(event.stream_id) > 1000:
                        http.send_data(event.stream_id, bytes(1000))
            connection.sendall(http.data_to_send())

    _, channel = peer(serve)
    with pytest.raises(SendFailure, match="RESOURCE_EXHAUSTED: its answer is too long"):
        channel.send("profiles", b"x")


def test_a_ping_behind_a_good_bye(peer):
    """As grpc-go ends a connection that has lived long enough."""
    goaway = b"\x00\x00\x08\x07\x00" + bytes(4) + b"\x7f\xff\xff\xff" + bytes(4)
    ping = b"\x00\x00\x08\x06\x00" + bytes(12)

    def serve(connection: socket.socket) -> None:
        http2(well, calls=1)(connection)
        connection.sendall(goaway + ping)
        connection.recv(65536)

    server, channel = peer(serve, http2(well))
    assert channel.send("profiles", b"1") == b"fine"
    assert channel.send("profiles", b"2") == b"fine" and server.connections == 2


def test_through_an_http_proxy(grpc_server, monkeypatch):
    asked: list[bytes] = []

    def proxy(connection: socket.socket) -> None:
        asked.append(connection.recv(65536))
        if len(asked) > 1:
            connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with socket.create_connection(("127.0.0.1", grpc_server[0])) as target:
            forward = threading.Thread(target=pump, args=(target, connection), daemon=True)
            forward.start()
            pump(connection, target)

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)

    server = Peer(proxy)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server.port}")
    channel = Channel(Endpoint("store.example:4317", timeout=3.0))
    assert channel.send("profiles", b"abc") == b"3"
    assert asked[0].startswith(b"CONNECT store.example:4317 HTTP/1.1\r\nHost: store.example:4317\r\n")
    channel.close()
    with pytest.raises(SendFailure, match=r"UNAVAILABLE: the proxy 127\.0\.0\.1 says: HTTP/1.1 407"):
        channel.send("profiles", b"abc")
    server.close()
    monkeypatch.setenv("no_proxy", "store.example")
    assert Channel(Endpoint("store.example:4317"))._proxy() == Channel(Endpoint("127.0.0.1:4317"))._proxy() == ""
