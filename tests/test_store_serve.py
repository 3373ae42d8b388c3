# SPDX-License-Identifier: Apache-2.0
"""The store as a real process: ready line, signals, kill -9, and every reason it cannot start (exit status 3, a
sentence, a fix)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import duckdb
import grpc
import pytest
from gpustrobe.proto.otlp import METHODS
from gpustrobe.store.__main__ import duration, parse, size
from gpustrobe.store.database import FILE

from tests.otlp_batches import F, ProfilesBuilder

NOW = int(time.time())


def command(data, *more: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "gpustrobe.store",
        "--data",
        str(data),
        "--grpc",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        *more,
    ]


class Store:
    def __init__(self, data, *more: str) -> None:
        self.process = subprocess.Popen(command(data, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("ready "), self.process.stderr.read()
        self.ready = json.loads(line.removeprefix("ready "))
        self.channel = grpc.insecure_channel(self.ready["grpc"])

    def send(self, number: int) -> None:
        data = (
            ProfilesBuilder({"host.name": "n"})
            .window(NOW - number, [({"process.pid": "5"}, (F(f"f{number % 7}"),), number)])
            .bytes()
        )
        self.channel.unary_unary(METHODS["profiles"])(data, timeout=30, wait_for_ready=True)

    def get(self, path: str) -> dict:
        return json.load(urllib.request.urlopen(f"http://{self.ready['http']}{path}", timeout=20))

    def total(self) -> int:
        return self.get(f"/api/v1/flamegraph?from={(NOW - 3000) * 1000}&to={(NOW + 5) * 1000}")["total"]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.channel.close()
        self.process.send_signal(number)
        status = self.process.wait(30)
        self.process.stdout.close()
        self.process.stderr.close()
        return status


@pytest.fixture
def started(tmp_path):
    """Starts stores; whatever still runs at the end is killed."""
    stores: list[Store] = []

    def start(*more: str, data=None) -> Store:
        stores.append(Store(data or tmp_path / "data", *more))
        return stores[-1]

    yield start
    for store in stores:
        if store.process.poll() is None:
            store.stop(signal.SIGKILL)


def refusal(*arguments: str, data) -> str:
    done = subprocess.run(command(data, *arguments), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 2  # the sentence, and what to do
    return done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stops_cleanly_and_keeps_everything(started, number):
    store = started()
    for value in (1, 2, 3):
        store.send(value)
    assert store.stop(number) == 0
    again = started()
    assert again.total() == 6
    assert again.get("/api/v1/status")["data"]["samples"] == 6


def test_kill_9_between_batches_loses_nothing_acknowledged(started):
    acknowledged = 0
    for life in range(3):
        store = started()
        assert store.total() == acknowledged
        for number in range(life * 10 + 1, life * 10 + 11):
            store.send(number)
            acknowledged += number
        store.stop(signal.SIGKILL)
    store = started()
    assert store.total() == acknowledged
    store.send(1)  # a batch of the first life, sent again: known from disk
    assert store.total() == acknowledged


def test_kill_9_under_load_keeps_what_was_acknowledged_and_at_most_what_was_sent(started):
    store = started()
    done = []
    call = store.channel.unary_unary(METHODS["profiles"])
    futures = []
    for number in range(1, 300):
        data = ProfilesBuilder({"host.name": "n"}).window(NOW - number, [({}, (F("f"),), 1)]).bytes()
        futures.append(call.future(data, timeout=30, wait_for_ready=True))
        futures[-1].add_done_callback(lambda future: done.append(1) if future.code() == grpc.StatusCode.OK else None)
    while len(done) < 40:
        time.sleep(0.002)
    store.process.send_signal(signal.SIGKILL)
    store.process.wait(10)
    for future in futures:
        future.exception()
    again = started()
    assert len(done) <= again.total() <= 299


def test_port_taken(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = refusal("--http", f"127.0.0.1:{port}", data=tmp_path / "a")
        assert f"127.0.0.1:{port} cannot be used" in text
        assert "--http" in text
        assert "--grpc" in refusal("--grpc", f"127.0.0.1:{port}", data=tmp_path / "b")
    assert (
        "is no address"
        in subprocess.run(
            command(tmp_path / "c", "--http", "nonsense"), capture_output=True, text=True, check=False
        ).stderr
    )


def test_another_process_holds_the_database(started, tmp_path):
    store = started()
    text = refusal(data=tmp_path / "data")
    assert "Another process uses the database" in text
    assert str(store.process.pid) in text


def test_data_directory_not_writable(tmp_path):
    (tmp_path / "file").write_text("")
    assert "is not writable" in refusal(data=tmp_path / "file" / "data")
    assert "is not writable" in refusal(data="/proc/gpustrobe")


def test_database_of_a_newer_version(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    with duckdb.connect(str(data / FILE)) as connection:
        connection.execute("CREATE TABLE meta (name VARCHAR, value VARCHAR)").execute(
            "INSERT INTO meta VALUES ('version', '999')"
        )
    assert "newer gpustrobe (schema 999" in refusal(data=data)


def test_not_our_database(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    with duckdb.connect(str(data / FILE)) as connection:
        connection.execute("CREATE TABLE other (x INTEGER)")
    assert "not one of gpustrobe" in refusal(data=data)
    (data / FILE).write_bytes(b"no database at all" * 1000)
    assert "cannot be opened" in refusal(data=data)


def alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_dies_with_its_parent(tmp_path):
    """The parent is a shell that is killed with SIGKILL, so it cannot stop anyone itself."""
    script = f"{' '.join(command(tmp_path / 'data', '--die-with-parent'))} & echo $!; wait"
    parent = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert parent.stdout.readline().startswith("ready ")
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)
    parent.stdout.close()


def test_idle_store_uses_next_to_no_cpu(started):
    store = started()
    store.send(1)

    def ticks() -> int:
        fields = Path(f"/proc/{store.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    time.sleep(1.5)  # past the first look at retention
    before = ticks()
    time.sleep(3)
    assert (ticks() - before) / os.sysconf("SC_CLK_TCK") / 3 < 0.02


def test_arguments():
    options = parse(["--data", "/x", "--retention-age", "36h", "--retention-size", "1.5GiB", "--die-with-parent"])
    assert (options.retention.age, options.retention.size) == (36 * 3600, 3 << 29)
    assert options.die_with_parent
    assert [duration(text) for text in ("0", "90", "2m", "1w")] == [0, 90, 120, 604_800]
    assert [size(text) for text in ("0", "10kb", "2M", "1GiB")] == [0, 10_000, 2_000_000, 1 << 30]
    for bad, read in (("x", duration), ("1y", duration), ("1XB", size), ("", size)):
        with pytest.raises(Exception, match=r"no (duration|size)"):
            read(bad)
