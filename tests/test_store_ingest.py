# SPDX-License-Identifier: Apache-2.0
"""OTLP in, over real gRPC on loopback: what is stored, what is refused and how it is counted."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import threading
import time

import grpc
import pytest
from gpustrobe.proto.otlp import METHODS, ExportMetricsServiceResponse, ExportProfilesServiceRequest
from gpustrobe.store import ingest
from gpustrobe.store.decode import decode_profiles
from gpustrobe.store.decode_metrics import decode_metrics
from gpustrobe.store.engine import MAX_REQUEST, Engine
from gpustrobe.store.errors import DiskFull, Invalid, Refused

from tests.otlp_batches import SECOND, F, MetricsBuilder, ProfilesBuilder

NOW = int(time.time())
STACK = (F("leaf", "python", "", "a.py", 3), F("main", "python", "", "a.py", 1))


def profiles(second: int = NOW - 5, value: int = 7, **labels: str) -> ProfilesBuilder:
    return ProfilesBuilder({"host.name": "n"}).window(second, [({"process.pid": "5", **labels}, STACK, value)])


class Service:
    """A gRPC server on a loop of its own thread, and a blocking client of it."""

    def __init__(self, engine: Engine) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server, port = asyncio.run_coroutine_threadsafe(ingest.start(engine, "127.0.0.1:0"), self.loop).result()
        options = [("grpc.max_send_message_length", -1)]
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=options)

    def send(self, kind: str, data: bytes) -> bytes:
        return self.channel.unary_unary(METHODS[kind])(data, timeout=30)

    def close(self) -> None:
        self.channel.close()
        asyncio.run_coroutine_threadsafe(self.server.stop(0), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def engine(tmp_path):
    engine = Engine(tmp_path / "data", reserve=0)
    yield engine
    engine.close()


@pytest.fixture
def service(engine):
    service = Service(engine)
    yield service
    service.close()


def count(engine: Engine, table: str = "samples") -> int:
    return engine.call(lambda: engine._connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]).result()


def refused(service: Service, data: bytes, kind: str = "profiles") -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        service.send(kind, data)
    return caught.value


def test_accepted_means_committed_and_again_changes_nothing(service, engine):
    data = profiles().bytes()
    for _ in range(3):
        assert service.send("profiles", data) == b""
    assert count(engine) == 1
    assert count(engine, "windows") == 1
    assert engine.counters.duplicates == 2
    engine.call(engine.writer.restart).result()  # as after a restart of the store: known from disk
    service.send("profiles", data)
    assert count(engine) == 1


def test_metrics_points_that_are_not_kept_are_reported(service, engine):
    builder = MetricsBuilder({"host.name": "n"}).gauge("gpu.power", NOW, 300.0, "W")
    builder.scope.metrics.add(name="latency").histogram.data_points.add(time_unix_nano=NOW * SECOND, count=3)
    answer = ExportMetricsServiceResponse.FromString(service.send("metrics", builder.bytes()))
    assert answer.partial_success.rejected_data_points == 1
    assert count(engine, "readings") == 1
    assert engine.counters.ignored == 1


def broken(change) -> bytes:
    message = profiles().request()
    change(message)
    return message.SerializeToString()


def sample(message: ExportProfilesServiceRequest):
    return message.resource_profiles[0].scope_profiles[0].profiles[0].samples[0]


def profile(message: ExportProfilesServiceRequest):
    return message.resource_profiles[0].scope_profiles[0].profiles[0]


BROKEN = {
    "malformed": lambda m: None,
    "stack index": lambda m: setattr(sample(m), "stack_index", 9),
    "negative stack index": lambda m: setattr(sample(m), "stack_index", -1),
    "attribute index": lambda m: sample(m).attribute_indices.append(99),
    "location index": lambda m: m.dictionary.stack_table[1].location_indices.append(99),
    "negative location index": lambda m: m.dictionary.stack_table[1].location_indices.append(-2),
    "function index": lambda m: setattr(m.dictionary.location_table[1].lines[0], "function_index", 99),
    "mapping index": lambda m: setattr(m.dictionary.location_table[1], "mapping_index", 99),
    "string index": lambda m: setattr(m.dictionary.function_table[1], "name_strindex", 99),
    "type index": lambda m: setattr(profile(m).sample_type, "type_strindex", 99),
    "key index": lambda m: setattr(m.dictionary.attribute_table[1], "key_strindex", -1),
    "zero stack": lambda m: m.dictionary.stack_table[0].location_indices.append(1),
    "zero string": lambda m: m.dictionary.string_table.__setitem__(0, "x"),
    "1970": lambda m: setattr(profile(m), "time_unix_nano", 5),
    "tomorrow": lambda m: setattr(profile(m), "time_unix_nano", (NOW + 90_000) * SECOND),
    "event in 2100": lambda m: sample(m).timestamps_unix_nano.append(4_100_000_000 * SECOND),
    "no value": lambda m: sample(m).ClearField("values"),
    "negative value": lambda m: sample(m).values.__setitem__(0, -3),
    "overflow": lambda m: sample(m).values.__setitem__(0, (1 << 63) - 1),
    "values and timestamps": lambda m: sample(m).timestamps_unix_nano.extend([NOW * SECOND] * 2),
    "no type": lambda m: profile(m).ClearField("sample_type"),
    "deep": lambda m: m.dictionary.stack_table[1].location_indices.extend([1] * 5000),
}
REASON = {
    "malformed": "malformed",
    "zero stack": "bad_zero",
    "zero string": "bad_zero",
    "1970": "bad_time",
    "tomorrow": "bad_time",
    "event in 2100": "bad_time",
    "no value": "bad_value",
    "negative value": "bad_value",
    "overflow": "bad_value",
    "values and timestamps": "bad_value",
    "no type": "bad_type",
    "deep": "too_deep",
}


@pytest.mark.parametrize("name", BROKEN)
def test_bad_content_is_invalid_counted_and_harms_nothing(service, engine, name):
    data = b"\x0a\xff\xff\xff" if name == "malformed" else broken(BROKEN[name])
    error = refused(service, data)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error.details()
    assert engine.counters.refused == {REASON.get(name, "bad_index"): 1}
    service.send("profiles", profiles().bytes())
    assert count(engine) == 1


def test_not_utf8_is_invalid(service, engine):
    data = profiles(**{"thread.name": "worker"}).bytes().replace(b"worker", b"wor\xff\xfer")
    assert refused(service, data).code() == grpc.StatusCode.INVALID_ARGUMENT
    assert engine.counters.refused == {"malformed": 1}


def test_a_request_without_zero_elements_or_dictionary_is_taken(service, engine):
    """An empty table has no element 0, and index 0 means "not set": nothing is ambiguous."""
    message = ExportProfilesServiceRequest()
    message.dictionary.string_table.extend(["", "samples", "count"])
    profile_ = (
        message.resource_profiles.add()
        .scope_profiles.add()
        .profiles.add(time_unix_nano=(NOW - 3) * SECOND, duration_nano=SECOND)
    )
    profile_.sample_type.type_strindex, profile_.sample_type.unit_strindex = 1, 2
    profile_.samples.add(values=[4])
    service.send("profiles", message.SerializeToString())
    assert count(engine) == 1


def test_oversized_is_resource_exhausted(service, engine):
    error = refused(service, b"\x12\x00" * (MAX_REQUEST // 2 + 1))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert engine.counters.refused == {"oversized": 1}
    assert refused(service, bytes(2 * MAX_REQUEST + 100)).code() == grpc.StatusCode.RESOURCE_EXHAUSTED  # by gRPC itself


def test_one_bad_request_in_a_group_does_not_touch_the_others(engine):
    hold = threading.Event()
    engine.call(hold.wait)  # the writer waits, so that all of these are committed together
    futures = [engine.submit("profiles", profiles(NOW - n).bytes()) for n in range(1, 6)]
    bad = engine.submit("profiles", broken(BROKEN["stack index"]))
    futures += [engine.submit("metrics", MetricsBuilder({"host.name": "n"}).gauge("x", NOW, 1.0).bytes())]
    before = engine.counters.commits
    hold.set()
    assert [future.result().duplicate for future in futures] == [False] * 6
    with pytest.raises(Invalid):
        bad.result()
    assert engine.counters.commits == before + 1
    assert count(engine) == 5


def test_same_batch_twice_in_one_group_is_stored_once(engine):
    hold = threading.Event()
    engine.call(hold.wait)
    futures = [engine.submit("profiles", profiles().bytes()) for _ in range(2)]
    hold.set()
    assert [future.result().duplicate for future in futures] == [False, True]
    assert count(engine) == 1


def test_too_many_waiting_bytes_are_told_to_come_again(engine):
    hold = threading.Event()
    engine.call(hold.wait)
    data = profiles().bytes() + b"\x12\x00" * (5 << 20)  # padded with empty dictionaries
    futures = [engine.submit("profiles", data) for _ in range(8)]
    hold.set()
    codes = [ingest.status_of(future.exception()) for future in futures if future.exception()]
    assert codes
    assert set(codes) == {grpc.StatusCode.UNAVAILABLE}
    assert engine.counters.refused["busy"] == len(codes)
    assert engine.counters.waiting_bytes == 0


def test_events_with_timestamps_fall_into_their_seconds(service, engine):
    message = profiles().request()
    sample(message).ClearField("values")
    first = NOW - 60
    sample(message).timestamps_unix_nano.extend([first * SECOND + 1, first * SECOND + 999, (first + 2) * SECOND])
    service.send("profiles", message.SerializeToString())
    rows = engine.call(
        lambda: engine._connection.execute("SELECT second, value FROM samples ORDER BY second").fetchall()
    ).result()
    assert rows == [(first, 2), (first + 2, 1)]


def test_labels_of_other_senders(service, engine):
    message = profiles().request()
    attributes = message.resource_profiles[0].resource.attributes
    del attributes[:]
    for name, value in (
        ("service.name", "shop"),
        ("container.id", "a" * 64),
        ("k8s.pod.name", "shop-1"),
        ("telemetry.sdk.name", "x"),
    ):
        attributes.add(key=name).value.string_value = value
    attributes.add(key="process.pid").value.int_value = 77
    attributes.add(key="tags").value.array_value.values.add().string_value = "red"
    service.send("profiles", message.SerializeToString())
    row = engine.call(
        lambda: engine._connection.execute("SELECT service, container, pod, pid, labels FROM series").fetchall()
    ).result()
    assert row == [("shop", "a" * 12, "shop-1", 5, {"tags": '["red"]'})]


def test_mutated_requests_are_stored_or_refused_never_more():
    """Every byte of a request replaced, cut and doubled at random: Batch or Refused, whatever comes."""
    dice = random.Random(11)
    seeds = (
        (decode_profiles, profiles().window(NOW - 4, [({}, STACK[:1], 2)]).bytes()),
        (
            decode_metrics,
            MetricsBuilder({"host.name": "n"}).books(NOW, 9, 5, 4).gauge("x", NOW, 1.5, gpu__uuid="G").bytes(),
        ),
    )
    kept = 0
    for decode, seed in seeds:
        for _ in range(1500):
            data = bytearray(seed)
            for _ in range(dice.randint(1, 4)):
                where = dice.randrange(len(data))
                choice = dice.random()
                if choice < 0.7:
                    data[where] = dice.randrange(256)
                elif choice < 0.85:
                    del data[where : where + dice.randrange(1, 9)]
                else:
                    data[where:where] = data[where : where + dice.randrange(1, 30)]
            try:
                decode(bytes(data), NOW * SECOND)
                kept += 1
            except Refused:
                pass
    assert 0 < kept < 3000


def small_disk(path, size: str) -> bool:
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=False, capture_output=True
    )
    return done.returncode == 0


def fill(path, left: int) -> None:
    disk = os.statvfs(path.parent)
    with open(path, "wb") as out:
        out.write(bytes(disk.f_bavail * disk.f_frsize - left))


def test_full_disk_refuses_serves_and_recovers(tmp_path):
    disk = tmp_path / "disk"
    if not small_disk(disk, "24m"):
        pytest.skip("needs the right to mount a tmpfs")
    try:
        engine = Engine(disk / "data", reserve=1 << 20)
        accepted = 0
        ballast = disk / "ballast"
        for number in range(40):
            engine.submit("profiles", profiles(NOW - number).bytes()).result()
            accepted += 1
        fill(ballast, 500_000)  # less than the reserve is left
        with pytest.raises(DiskFull):
            engine.submit("profiles", profiles(NOW - 500).bytes()).result()
        assert count(engine) == accepted
        ballast.unlink()
        engine.submit("profiles", profiles(NOW - 500).bytes()).result()
        accepted += 1

        engine.reserve = 0  # now into the wall itself: the write fails half-way
        fill(ballast, 0)
        wide = (
            ProfilesBuilder({"host.name": "n"})
            .window(
                NOW - 600,
                [({"thread.id": str(n)}, (F(f"function {n} {random.random()}" * 20),), 1) for n in range(4000)],
            )
            .bytes()
        )
        errors = [engine.submit("profiles", wide).exception() for _ in range(3)]
        assert any(isinstance(error, DiskFull) for error in errors)
        assert count(engine) == accepted, "a refused batch left rows behind, or an accepted one is gone"
        ballast.unlink()
        engine.submit("profiles", wide).result()
        engine.close()
        again = Engine(disk / "data", reserve=0)
        assert count(again) == accepted + 4000
        again.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_disk_full_carries_retry_info(engine, service):
    engine.reserve = 1 << 60
    error = refused(service, profiles().bytes())
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    assert b"google.rpc.RetryInfo" in details
    assert details.startswith(b"\x08\x08")  # google.rpc.Status.code = RESOURCE_EXHAUSTED
    engine.reserve = 0
    service.send("profiles", profiles().bytes())
    assert count(engine) == 1
