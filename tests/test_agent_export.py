# SPDX-License-Identifier: Apache-2.0
"""The exporter against a twin of the channel with a clock of its own, then against a real gRPC server on loopback."""

from __future__ import annotations

import errno
import logging
import threading
import time
from concurrent import futures

import grpc
import pytest
from gpustrobe.agent.channel import Channel, Endpoint, SendFailure, is_loopback
from gpustrobe.agent.errors import UsageError
from gpustrobe.agent.export import DOUBTFUL_TRIES, LONGEST_WAIT, LOSSES, Exporter, ExporterOptions
from gpustrobe.bpf.drops import DROPS
from gpustrobe.proto import otlp

MIB = 1 << 20


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Store:
    """A sender's twin: takes what `answers` (a status name, bytes, or an exception) says, by default everything."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, bytes]] = []
        self.answers: list = []
        self.away = ""
        self.timeouts: list[float | None] = []
        self.closed = False

    def send(self, kind: str, request: bytes, timeout: float | None = None) -> bytes:
        self.timeouts.append(timeout)
        answer = self.answers.pop(0) if self.answers else (self.away or b"")
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, str):
            code, _, message = answer.partition(": ")
            raise SendFailure(code, message)
        self.taken.append((kind, request))
        return answer

    def close(self) -> None:
        self.closed = True


class Rig:
    def __init__(self, spool=None, queue_bytes=MIB, spool_bytes=MIB, jitter=0.0) -> None:
        self.clock, self.store = Clock(), Store()
        options = ExporterOptions(Endpoint("store:4317"), queue_bytes, spool, spool_bytes)
        self.exporter = Exporter(options, self.store, self.clock, lambda: jitter)

    def submit(self, *numbers: int, size: int = 4) -> None:
        for number in numbers:
            self.exporter.submit("profiles", number.to_bytes(4, "little") * (size // 4), 10)

    def run(self) -> float | None:
        """Steps until there is something to wait for."""
        while (wait := self.exporter.step()) == 0:
            pass
        return wait

    @property
    def taken(self) -> list[int]:
        return [int.from_bytes(request[:4], "little") for _, request in self.store.taken]

    def counts(self, *names: str):
        counters = self.exporter.counters()
        return [counters[name] for name in names]


def test_batches_are_sent_in_order_and_then_there_is_nothing_to_do():
    rig = Rig()
    rig.submit(1, 2, 3)
    assert rig.run() is None and rig.taken == [1, 2, 3]
    names = ("sent_batches", "sent_bytes", "sent_samples", "queue_bytes", "connected")
    assert rig.counts(*names) == [3, 12, 30, 0, 1]


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED"])
def test_a_store_that_is_away_gets_the_same_bytes_later(code):
    rig = Rig()
    rig.store.away = code
    rig.submit(1, 2)
    assert rig.run() == 0.5 and rig.counts("connected", "retries", "queue_batches") == [0, 1, 2]
    rig.store.away = ""
    assert rig.run() == 0.5 and rig.taken == [], "waits for its time"
    rig.clock.now += 0.5
    assert rig.run() is None and rig.taken == [1, 2]
    assert rig.counts("sent_samples", *LOSSES) == [20, 0, 0, 0, 0]


def test_waits_double_up_to_a_bound_and_start_anew_after_success():
    rig = Rig()
    rig.store.away = "UNAVAILABLE"
    rig.submit(1)
    waits = []
    for _ in range(9):
        waits.append(rig.run())
        rig.clock.now += waits[-1]
    assert waits == [0.5, 1, 2, 4, 8, 16, LONGEST_WAIT, LONGEST_WAIT, LONGEST_WAIT]
    rig.store.away = ""
    rig.run()
    rig.store.away = "UNAVAILABLE"
    rig.submit(2)
    assert rig.run() == 0.5


def test_chance_shortens_a_wait_by_at_most_half():
    rig = Rig(jitter=0.999)
    rig.store.away = "UNAVAILABLE"
    rig.submit(1)
    assert 0.25 <= rig.run() < 0.26


@pytest.mark.parametrize(
    "code", ["INVALID_ARGUMENT", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED: Received message larger than max (9 vs. 4)"]
)
def test_what_is_refused_for_good_is_counted_and_the_next_one_goes(code, caplog):
    rig = Rig()
    rig.store.answers = [code]
    rig.submit(1, 2)
    assert rig.run() is None and rig.taken == [2]
    assert rig.counts("export_refused", "refused_batches", "sent_samples", "retries") == [10, 1, 10, 0]
    assert "store:4317 refused profiles for good" in caplog.text


def test_a_fault_that_one_batch_provokes_does_not_block_the_others():
    rig = Rig()
    rig.store.answers = ["INTERNAL: Exception"] * DOUBTFUL_TRIES
    rig.submit(1, 2)
    for _ in range(DOUBTFUL_TRIES - 1):
        rig.clock.now += rig.run()
    assert rig.run() is None and rig.taken == [2] and rig.counts("export_refused") == [10]


def test_a_full_queue_drops_the_oldest_and_counts_them():
    rig = Rig(queue_bytes=4000)
    rig.store.away = "UNAVAILABLE"
    rig.submit(*range(10), size=1000)
    rig.run()
    assert rig.counts("export_queue_full", "dropped_batches", "queue_batches", "queue_bytes") == [60, 6, 4, 4000]
    rig.store.away, rig.clock.now = "", rig.clock.now + 60
    rig.run()
    assert rig.taken == [6, 7, 8, 9]
    assert rig.counts("sent_samples", "export_queue_full") == [40, 60]


def test_past_a_bound_batches_go_to_disk_and_come_back_in_order(tmp_path):
    rig = Rig(spool=tmp_path, queue_bytes=8000)
    rig.store.away = "UNAVAILABLE"
    for number in range(20):
        rig.submit(number, size=1000)
        rig.run()
    assert rig.counts("queue_batches", "spool_batches", "spooled_batches", "export_queue_full") == [2, 18, 18, 0]
    rig.store.away, rig.clock.now = "", rig.clock.now + 60
    assert rig.run() is None and rig.taken == list(range(20))
    assert rig.counts("spool_batches", "spool_bytes", "sent_samples") == [0, 0, 200]


def test_what_the_spool_cannot_hold_is_counted(tmp_path):
    rig = Rig(spool=tmp_path, queue_bytes=4000, spool_bytes=10_000)
    rig.store.away = "UNAVAILABLE"
    for number in range(30):
        rig.submit(number, size=1000)
        rig.run()
    rig.store.away, rig.clock.now = "", rig.clock.now + 60
    rig.run()
    sent, lost = rig.counts("sent_samples", "export_queue_full")
    assert sent + lost == 300 and lost > 0 and rig.taken == list(range(30 - len(rig.taken), 30))


def test_a_full_disk_keeps_batches_in_memory_as_long_as_it_can(tmp_path):
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    rig = Rig(spool=tmp_path, queue_bytes=4000)
    rig.exporter._spool._sync = full
    rig.store.away = "UNAVAILABLE"
    for number in range(6):
        rig.submit(number, size=1000)
        rig.run()
    assert rig.counts("queue_batches", "spool_batches", "export_queue_full") == [4, 0, 20]
    assert rig.counts("spool_failures")[0] > 0
    rig.store.away, rig.clock.now = "", rig.clock.now + 60
    rig.run()
    assert rig.taken == [2, 3, 4, 5]


def test_the_end_sends_the_rest():
    rig = Rig()
    rig.exporter.start()
    rig.submit(*range(20))
    rig.exporter.close(5.0)
    assert rig.taken == list(range(20)) and rig.store.closed
    assert all(timeout is None or timeout <= 5.0 for timeout in rig.store.timeouts)


def test_the_end_without_store_and_spool_is_a_named_loss():
    rig = Rig()
    rig.store.away = "UNAVAILABLE"
    rig.submit(1, 2)
    rig.run()
    rig.exporter.close(0.0)
    assert rig.counts("export_unsent", "queue_batches") == [20, 0]


def test_the_end_without_store_leaves_all_on_disk_for_the_next_agent(tmp_path):
    rig = Rig(spool=tmp_path)
    rig.store.away = "UNAVAILABLE"
    rig.exporter.start()
    rig.submit(1, 2, 3)
    began = time.monotonic()
    rig.exporter.close(10.0)
    assert time.monotonic() - began < 5, "the disk keeps it: no need to wait for the store"
    assert rig.counts("export_unsent") == [0]
    later = Rig(spool=tmp_path)
    later.submit(4)
    assert later.run() is None and later.taken == [1, 2, 3, 4] and later.counts("spool_damaged") == [0]


def test_a_fault_of_our_own_is_counted_and_nothing_is_lost(caplog):
    rig = Rig()
    rig.store.answers = [ZeroDivisionError("boom")]
    rig.submit(1)
    with pytest.raises(ZeroDivisionError):
        rig.exporter.step()
    assert rig.run() is None and rig.taken == [1]
    rig.store.answers = [ZeroDivisionError("boom")]
    rig.exporter.start()
    rig.submit(2)
    deadline = time.monotonic() + 5
    while rig.counts("faults") != [1] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert rig.counts("faults") == [1] and "boom" in caplog.text
    rig.exporter.close(5.0)
    assert rig.taken == [1, 2]


def test_partial_success_is_counted(caplog):
    rig = Rig()
    profiles, metrics = otlp.ExportProfilesServiceResponse(), otlp.ExportMetricsServiceResponse()
    profiles.partial_success.rejected_profiles, profiles.partial_success.error_message = 3, "too old"
    metrics.partial_success.rejected_data_points = 2
    rig.store.answers = [profiles.SerializeToString(), metrics.SerializeToString(), b"\x0a\x00", b"\xff"]
    for kind in ("profiles", "metrics", "profiles", "profiles"):
        rig.exporter.submit(kind, b"", 0)
    assert rig.run() is None
    assert rig.counts("rejected_profiles", "rejected_points", "sent_batches") == [3, 2, 4] and "too old" in caplog.text


def test_trouble_is_said_once_and_so_is_its_end(caplog):
    caplog.set_level(logging.INFO)
    rig = Rig()
    rig.store.away = "UNAVAILABLE: connection refused"
    rig.submit(1)
    for _ in range(5):
        rig.clock.now += rig.run()
    rig.store.away = ""
    rig.run()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "connection refused" in caplog.text and "is back after" in caplog.text


def test_every_loss_is_in_the_list_of_drops():
    assert set(LOSSES) <= set(DROPS)
    assert set(LOSSES) <= set(Rig().exporter.counters())


# A real server.


class Server:
    """An OTLP receiver. `status` is raised where set; keeps each request and its metadata."""

    def __init__(self, credentials=None, address="127.0.0.1:0") -> None:
        self.requests: list[tuple[str, bytes]] = []
        self.metadata: list[dict] = []
        self.status: grpc.StatusCode | None = None
        self.hold = 0.0
        self._server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
        for kind, method in otlp.METHODS.items():
            _, service, name = method.split("/")
            handler = grpc.unary_unary_rpc_method_handler(
                lambda request, context, kind=kind: self._take(kind, request, context)
            )
            self._server.add_registered_method_handlers(service, {name: handler})
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {name: handler})])
        self.port = (
            self._server.add_secure_port(address, credentials)
            if credentials
            else self._server.add_insecure_port(address)
        )
        self._server.start()

    def _take(self, kind: str, request: bytes, context) -> bytes:
        time.sleep(self.hold)
        if self.status:
            context.abort(self.status, "as asked")
        self.requests.append((kind, request))
        self.metadata.append(dict(context.invocation_metadata()))
        return b""

    def stop(self) -> None:
        self._server.stop(0).wait()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.stop()


def wait_for(condition, seconds=10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_both_kinds_reach_a_real_server_with_headers_and_token(server, tmp_path):
    token = tmp_path / "token"
    token.write_text("one\n")
    endpoint = Endpoint(f"127.0.0.1:{server.port}", token_file=token, headers=(("X-Scope-OrgID", "team-a"),), gzip=True)
    channel = Channel(endpoint)
    assert channel.send("profiles", b"\x01" * 1000) == b""
    token.write_text("second\n")
    channel.send("metrics", b"\x02")
    channel.close()
    assert server.requests == [("profiles", b"\x01" * 1000), ("metrics", b"\x02")]
    assert [m["authorization"] for m in server.metadata] == ["Bearer one", "Bearer second"]
    assert {m["x-scope-orgid"] for m in server.metadata} == {"team-a"}


def test_status_and_silence_become_failures(server):
    channel = Channel(Endpoint(f"127.0.0.1:{server.port}", timeout=0.2))
    server.status = grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(SendFailure, match="INVALID_ARGUMENT: as asked"):
        channel.send("profiles", b"")
    server.status, server.hold = None, 1.0
    with pytest.raises(SendFailure) as failure:
        channel.send("profiles", b"")
    assert failure.value.code == "DEADLINE_EXCEEDED"
    channel.close()


def test_a_missing_token_is_a_failure_that_is_tried_again(server, tmp_path):
    channel = Channel(Endpoint(f"127.0.0.1:{server.port}", token_file=tmp_path / "later"))
    with pytest.raises(SendFailure, match=r"UNAUTHENTICATED: .*later cannot be read"):
        channel.send("profiles", b"")
    (tmp_path / "later").write_text("t")
    channel.send("profiles", b"")
    assert server.metadata[0]["authorization"] == "Bearer t"
    channel.close()


def test_a_store_that_comes_back_gets_everything(tmp_path):
    first = Server()
    address = f"127.0.0.1:{first.port}"
    exporter = Exporter(ExporterOptions(Endpoint(address), queue_bytes=40_000, spool_folder=tmp_path))
    exporter.start()
    sent = [bytes([number]) * 5000 for number in range(20)]
    exporter.submit("profiles", sent[0], 1)
    wait_for(lambda: len(first.requests) == 1)
    first.stop()
    for request in sent[1:]:
        began = time.monotonic()
        exporter.submit("profiles", request, 1)
        assert time.monotonic() - began < 0.1
        wait_for(lambda: exporter.counters()["queue_bytes"] <= 10_000)
    assert exporter.counters()["spool_batches"] >= 16
    second = Server(address=address)
    wait_for(lambda: len(second.requests) == 19, 20)
    assert [request for _, request in second.requests] == sent[1:]
    exporter.close(5.0)
    counters = exporter.counters()
    assert counters["sent_samples"] == 20 and not any(counters[name] for name in LOSSES)
    second.stop()


def test_the_end_does_not_wait_for_a_silent_store(server):
    server.hold = 3.0
    exporter = Exporter(ExporterOptions(Endpoint(f"127.0.0.1:{server.port}")))
    exporter.start()
    exporter.submit("profiles", b"x", 7)
    began = time.monotonic()
    exporter.close(0.5)
    assert time.monotonic() - began < 2.5 and exporter.counters()["export_unsent"] == 7


def certificate(folder, name, issuer=None):
    """(certificate, key) files for 127.0.0.1, signed by `issuer` or by itself."""
    import subprocess

    key, request, out = folder / f"{name}.key", folder / f"{name}.csr", folder / f"{name}.pem"
    subject = ["-subj", f"/CN={name}"]
    extension = folder / f"{name}.ext"
    extension.write_text("subjectAltName=IP:127.0.0.1\n" if issuer else "basicConstraints=critical,CA:TRUE\n")

    def openssl(*words):
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)

    openssl(
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-keyout",
        key,
        "-out",
        request,
        *subject,
    )
    signer = ["-CA", issuer[0], "-CAkey", issuer[1], "-CAcreateserial"] if issuer else ["-signkey", key]
    openssl("x509", "-req", "-in", request, "-out", out, "-days", "2", "-extfile", extension, *signer)
    return out, key


def test_tls_and_mutual_tls(tmp_path):
    authority = certificate(tmp_path, "authority")
    own, client = certificate(tmp_path, "server", authority), certificate(tmp_path, "client", authority)
    credentials = grpc.ssl_server_credentials(
        [(own[1].read_bytes(), own[0].read_bytes())], authority[0].read_bytes(), require_client_auth=True
    )
    server = Server(credentials)
    target = f"127.0.0.1:{server.port}"
    channel = Channel(Endpoint(target, ca_file=authority[0], cert_file=client[0], key_file=client[1]))
    channel.send("profiles", b"secret")
    channel.close()
    for refused in (Endpoint(target, ca_file=authority[0]), Endpoint(target, tls=True), Endpoint(target)):
        channel = Channel(refused)
        with pytest.raises(SendFailure, match="UNAVAILABLE"):
            channel.send("profiles", b"no")
        channel.close()
    assert server.requests == [("profiles", b"secret")]
    server.stop()


def test_settings_that_make_no_sense(tmp_path):
    with pytest.raises(UsageError, match="needs its key"):
        Endpoint("a:1", cert_file=tmp_path / "x")
    with pytest.raises(UsageError, match="no header name"):
        Endpoint("a:1", headers=(("bad header", "x"),))


def test_a_token_in_the_clear_is_warned_of(tmp_path, caplog):
    Channel(Endpoint("127.0.0.1:1", token_file=tmp_path / "t"))
    assert caplog.text == ""
    Channel(Endpoint("store.example:4317", token_file=tmp_path / "t"))
    assert "travels without TLS" in caplog.text


def test_loopback_targets():
    assert all(map(is_loopback, ("127.0.0.1:4317", "[::1]:4317", "localhost:1")))
    assert not any(map(is_loopback, ("10.0.0.1:4317", "store:4317")))


def test_submit_from_many_threads_loses_nothing(server):
    exporter = Exporter(ExporterOptions(Endpoint(f"127.0.0.1:{server.port}")))
    exporter.start()
    threads = [
        threading.Thread(target=lambda: [exporter.submit("metrics", b"m", 1) for _ in range(25)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    exporter.close(10.0)
    assert len(server.requests) == 100 and exporter.counters()["sent_samples"] == 100
