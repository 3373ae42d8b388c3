# SPDX-License-Identifier: Apache-2.0
"""The agent's loop with twins of its parts: what one loses, the others do not."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from gpustrobe.agent import launch, run
from gpustrobe.agent.commands.store import StoreProcess
from gpustrobe.agent.cost import BpfCost, Cost
from gpustrobe.agent.encode import Request
from gpustrobe.agent.errors import StoreProblem
from gpustrobe.agent.fold import Folder
from gpustrobe.agent.model import Books, Frame, Process, Profiles, ProfileWindow, RawFrame, RawKind, Thread, Window
from gpustrobe.agent.naming import Naming
from gpustrobe.agent.own import OwnReadings
from gpustrobe.agent.total import Total

SECOND = 10**9


def window(number, epoch=1, value=10, first=0, drops=None):
    """One thread, one stack; new in the epoch's first window."""
    new = number == first
    return Window(
        epoch=epoch,
        start_unix=(1_800_000_000 + number) * SECOND,
        duration=SECOND,
        period=10_000_000,
        sample_type="cpu",
        stack=np.array([0], np.uint32),
        thread=np.array([0], np.uint32),
        value=np.array([value], np.uint64),
        frames=[RawFrame(RawKind.NATIVE, 1, 0x10), RawFrame(RawKind.NATIVE, 1, 0x20)] if new else [],
        first_frame=0 if new else 2,
        stacks=[(0, 1)] if new else [],
        first_stack=0 if new else 1,
        processes=[Process(0, 7, 1, 1, "demo")] if new else [],
        threads=[Thread(0, 0, 7, "demo")] if new else [],
        files=[],
        books=Books(value + sum((drops or {}).values()), 0, 0, value, drops or {}),
    )


class Names:
    """A symbolizer that knows every address, and keeps what it was told."""

    def __init__(self, fail=0, seconds=0.0, clock=None):
        self.calls, self.fail, self.seconds, self.clock = [], fail, seconds, clock

    def learn(self, files, processes, codes=(), jits=()):
        self.calls.append(("learn", [process.pid for process in processes]))

    def forget(self, epoch):
        self.calls.append(("forget", epoch))

    def resolve(self, frames):
        self.calls.append(("resolve", len(frames)))
        if self.clock:
            self.clock.now += self.seconds
        if self.fail > 0:
            self.fail -= 1
            raise RuntimeError("the symbolizer broke")
        return [(Frame(f"f{frame.address:x}", "native", "demo"),) for frame in frames]

    def close(self):
        self.calls.append(("close",))


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Windows:
    """A sampler whose windows come from a list."""

    def __init__(self, windows, tail=()):
        self.windows, self.tail, self.taken, self.stopped = list(windows), list(tail), 0, False

    def start(self):
        pass

    def take(self, timeout):
        if not self.windows:
            time.sleep(0.005)
            return None
        self.taken += 1
        return self.windows.pop(0)

    def stop(self):
        self.stopped = True
        return self.windows + self.tail


class Sent:
    """An exporter and encoder that keep everything."""

    def __init__(self):
        self.profiles, self.requests, self.closed = [], [], None

    def encode(self, profiles):
        self.profiles.append(profiles)
        yield Request(b"p", sum(int(w.value.sum()) for w in profiles.windows))

    def submit(self, kind, request, samples):
        self.requests.append((kind, request, samples))

    def close(self, deadline):
        self.closed = deadline


class Broken:
    def __init__(self):
        self.calls = 0

    def take(self):
        self.calls += 1
        raise OSError("the driver is gone")


class Readings:
    def take(self):
        return [b"reading"]


def parts_of(sampler, names, sent, sources=None, close=()):
    return run.Parts(
        sampler, Naming(names, Folder()), sent, sent, sources or {}, lambda readings: readings, close=close
    )


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO)
    return logging.getLogger("test")


def loop_until(parts, log, done, interval=0.02):
    deadline = time.monotonic() + 10
    run.loop(parts, interval, lambda: done() or time.monotonic() > deadline, log)
    assert time.monotonic() < deadline


def test_every_window_is_sent_once_the_tail_too(log):
    sampler, sent = Windows([window(n) for n in range(5)], tail=[window(5), window(6)]), Sent()
    loop_until(parts_of(sampler, Names(), sent), log, lambda: not sampler.windows)
    sent_windows = [w for profiles in sent.profiles for w in profiles.windows]
    assert [w.start_unix // SECOND - 1_800_000_000 for w in sent_windows] == list(range(7))
    assert sum(samples for _, _, samples in sent.requests) == 70
    assert sampler.stopped and sent.closed == run.CLOSE_DEADLINE


def test_a_broken_source_stops_no_other_and_is_said_once(log, caplog):
    broken, sampler, sent = Broken(), Windows([window(0)]), Sent()
    parts = parts_of(sampler, Names(), sent, {"gpu": broken, "own": Readings()})
    loop_until(parts, log, lambda: broken.calls >= 3)
    assert ("metrics", b"reading", 0) in sent.requests and ("profiles", b"p", 10) in sent.requests
    said = [record.getMessage() for record in caplog.records if "gpu" in record.getMessage()]
    assert said[0] == "gpu: OSError: the driver is gone" and len(said) == 2


def test_a_broken_symbolizer_costs_time_not_windows(log):
    sampler, sent = Windows([window(0), window(1)]), Sent()
    loop_until(parts_of(sampler, Names(fail=2), sent), log, lambda: len(sent.profiles) > 0)
    assert [len(profiles.windows) for profiles in sent.profiles] == [2]


def test_a_slow_shipper_leaves_windows_in_the_core(log):
    sampler, sent = Windows([window(n) for n in range(40)]), Sent()
    started = time.monotonic()
    run.loop(parts_of(sampler, Names(), sent), 3600, lambda: time.monotonic() - started > 0.5, log)
    assert sampler.taken == run.MOST_WAITING  # bounded between the threads; the rest came from stop()
    assert sum(len(profiles.windows) for profiles in sent.profiles) == 40


def test_what_closes_badly_does_not_keep_others_from_closing(log, caplog):
    closed = []

    def bad():
        raise OSError("stuck")

    loop_until(
        parts_of(Windows([]), Names(), Sent(), close=(bad, lambda: closed.append(1))), log, lambda: True, interval=1
    )
    assert closed == [1] and "while stopping: OSError: stuck" in caplog.text


def test_a_new_epoch_is_learnt_only_after_the_old_one_has_its_names():
    names, naming = Names(), None
    naming = Naming(names, Folder())
    for one in (window(0, 1), window(1, 1), window(2, 2, first=2)):
        naming.add(one)
    profiles = list(naming.round())
    assert [len(p.windows) for p in profiles] == [2, 1]
    kinds = [call[0] for call in names.calls]
    assert kinds == ["forget", "learn", "learn", "resolve", "forget", "learn", "resolve"]
    assert [call for call in names.calls if call[0] == "forget"] == [("forget", 1), ("forget", 2)]


def test_a_window_waits_for_names_no_longer_than_its_patience(monkeypatch):
    from gpustrobe.agent import naming as module

    monkeypatch.setattr(module, "CHUNK", 1)
    clock = Clock()
    naming = Naming(Names(seconds=11, clock=clock), Folder(), clock, patience=10)
    naming.add(window(0))
    (profiles,) = naming.round()
    reasons = [frame.reason for frame in profiles.stacks[0]]
    assert reasons[0] == "" and reasons[1] != "" and profiles.windows[0].value.tolist() == [10]
    naming.add(window(1))
    (profiles,) = naming.round()
    assert [frame.name for frame in profiles.stacks[0]] == ["f10", "f20"]


class Costs:
    def take(self):
        return Cost(0, 1.0, BpfCost(0.5, 10, 1000), 0.004, 0.002, 5000, 2)


def test_own_readings_keep_the_books_closed():
    late = {"export_refused": 0, "sent_batches": 3}
    own = OwnReadings(Costs(), lambda: "no driver", lambda: late, cpus=2, clock=lambda: 99)
    books = (Books(15, 3, 0, 10, {"ring_full": 2, "scratch_busy": 0}), Books(10, 0, 0, 10, {"ring_full": 0}))
    empty = np.array([], np.uint32)
    windows = tuple(
        ProfileWindow("cpu", n * SECOND, SECOND, 1, empty, empty, empty, book) for n, book in enumerate(books)
    )
    own.observe(Profiles(windows, (), ()))
    late["export_refused"] = 4
    readings = own.take()
    sums = {}
    for reading in readings:
        if reading.name.startswith("gpustrobe.samples."):
            assert reading.delta and reading.unit == "{sample}"
            key = (reading.name.rsplit(".", 1)[1], reading.attributes.get("reason"))
            sums[key] = sums.get(key, 0) + reading.value
    assert sums == {
        ("produced", None): 25,
        ("idle", None): 3,
        ("filtered", None): 0,
        ("delivered", None): 20,
        ("dropped", "ring_full"): 2,
        ("dropped", "scratch_busy"): 0,
        ("dropped", "export_refused"): 4,
    }
    gauges = {reading.name: reading.value for reading in readings if not reading.delta}
    assert gauges["gpustrobe.agent.cpu"] == 0.004 and gauges["gpustrobe.agent.memory"] == 6000
    assert gauges["system.cpu.logical.count"] == 2
    total = own.books()
    assert total.produced == total.idle + total.filtered + total.delivered + sum(total.drops.values())
    assert [r.name for r in own.take() if r.delta] == []  # nothing twice


def test_a_total_sums_windows_by_stack_and_labels():
    total, naming = Total(), Naming(Names(), Folder())
    for number in range(3):
        naming.add(window(number, value=number + 1, drops={"ring_full": 1}))
        for profiles in naming.round():
            total.add(profiles)
    profiles = total.profiles()
    assert total.samples == 6 and total.lost == 3 and total.seconds == 3
    assert profiles.windows[0].value.tolist() == [6] and len(profiles.stacks) == 1
    assert profiles.windows[0].books == Books(9, 0, 0, 6, {"ring_full": 3})
    assert total.top(5) == [("f10", 6)]
    assert Total().profiles() == Profiles((), (), ())


# The command that `record -- CMD` starts


def test_a_command_waits_at_its_gate(tmp_path):
    mark = tmp_path / "ran"
    child = launch.prepare(["touch", str(mark)])
    time.sleep(0.05)
    assert not mark.exists() and child.poll() is None
    child.go()
    assert child.wait() == 0 and mark.exists()


@pytest.mark.parametrize(
    ("words", "code"), [(["false"], 1), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137)]
)
def test_a_commands_status_is_the_shells(words, code):
    child = launch.prepare(words)
    child.go()
    assert child.wait() == code == child.wait()


def test_a_command_that_cannot_start_says_why(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/nonexistent/interpreter\n")
    for words, code in ((["no-such-command"], 127), ([str(tmp_path)], 126), ([str(script)], 126)):
        with pytest.raises(launch.NotStarted) as caught:
            launch.prepare(words)
        assert caught.value.exit_code == code
    script.chmod(0o755)
    child = launch.prepare([str(script)])
    with pytest.raises(launch.NotStarted, match="not found") as caught:
        child.go()
    assert caught.value.exit_code == 127


def test_a_command_gets_pipes_as_a_shell_leaves_them():
    child = launch.prepare(
        [sys.executable, "-c", "import signal,sys; sys.exit(signal.getsignal(signal.SIGPIPE) is None)"]
    )
    child.go()
    assert child.wait() == 0
    child = launch.prepare(["sh", "-c", "grep SigIgn /proc/$$/status | grep -q '[13579bdf]...$'"])
    child.go()
    assert child.wait() == 1  # bit 12, SIGPIPE, is not ignored


def test_giving_up_leaves_no_child():
    child = launch.prepare(["sleep", "100"])
    child.give_up()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


# The store as a child

READY = 'print("ready", \'{"http": "127.0.0.1:5", "grpc": "127.0.0.1:6"}\', flush=True)\n'


def store_words(tmp_path, code):
    script = tmp_path / "store.py"
    script.write_text(
        f"import os, sys, time\nopen({str(tmp_path / 'starts')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n{code}"
    )
    return [sys.executable, str(script), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]


def starts(tmp_path):
    return (tmp_path / "starts").read_text().splitlines()


def test_a_store_that_dies_is_started_again_at_its_addresses(tmp_path, log, caplog):
    clock = Clock()
    store = StoreProcess(store_words(tmp_path, READY + "time.sleep(100)"), log, clock)
    assert store.start()["http"] == "127.0.0.1:5"
    for expected in (2, 3):
        os.kill(store.pid, signal.SIGKILL)
        os.waitid(os.P_PID, store.pid, os.WEXITED | os.WNOWAIT)
        store.watch()
        assert len(starts(tmp_path)) <= expected
        clock.now += 1
        store.watch()
        wait_for(lambda expected=expected: len(starts(tmp_path)) == expected)
    assert starts(tmp_path)[1:] == ["--http 127.0.0.1:5 --grpc 127.0.0.1:6 --die-with-parent"] * 2
    assert "the store died (signal SIGKILL); starting it again now" in caplog.text
    assert "starting it again in 1 s" in caplog.text
    assert store.stop() == -signal.SIGTERM and store.pid == 0


def test_a_store_that_cannot_start_ends_up_before_sampling(tmp_path, log):
    store = StoreProcess(store_words(tmp_path, "sys.exit(3)"), log)
    with pytest.raises(StoreProblem, match=r"did not start \(exit status 3\)"):
        store.start()


def test_a_store_that_prints_other_things_first(tmp_path, log):
    store = StoreProcess(store_words(tmp_path, 'print("hello")\n' + READY + "time.sleep(100)"), log)
    assert store.start()["grpc"] == "127.0.0.1:6"
    store.stop()


def wait_for(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Signals


def test_the_first_signal_asks_and_a_second_interrupt_forces(tmp_path):
    code = (
        "import time\nfrom gpustrobe.agent.stopping import Stopping\n"
        "stop = Stopping()\nstop.install()\nprint('on', flush=True)\n"
        "while not stop(): time.sleep(0.01)\nprint('asked', flush=True)\ntime.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "on\n"
    child.send_signal(signal.SIGTERM)
    assert child.stdout.readline() == "asked\n"
    child.send_signal(signal.SIGTERM)  # a second SIGTERM changes nothing
    time.sleep(0.1)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    assert child.wait(10) == 130 and "forced" in child.stderr.read()


def test_threads_of_the_loop_end_with_it(log):
    loop_until(parts_of(Windows([window(0)]), Names(), Sent()), log, lambda: True)
    assert not [thread for thread in threading.enumerate() if thread.name == "shipper"]


def test_log_lines_as_text_and_as_json(capsys):
    import io
    import json

    from gpustrobe.agent import log as logs

    for form, check in (
        ("text", lambda line: line.endswith(" warning: store away") and line[2] == ":"),
        ("json", lambda line: json.loads(line)["message"] == "store away" and json.loads(line)["level"] == "warning"),
    ):
        stream = io.StringIO()
        states = logs.States(logs.set_up(form, stream))
        assert states.say("store", "store away", logging.WARNING) and not states.say("store", "store away")
        assert check(stream.getvalue().rstrip("\n")) and stream.getvalue().count("\n") == 1
        assert states.say("store", "") and states.say("store", "store away")
    logging.getLogger(logs.LOGGER).handlers.clear()
    logging.getLogger(logs.LOGGER).propagate = True


def test_files_are_whole_or_as_before(tmp_path, monkeypatch):
    from datetime import datetime

    from gpustrobe.agent import output
    from gpustrobe.agent.errors import EnvironmentProblem

    target = tmp_path / "x.html"
    output.write(str(target), b"one")
    monkeypatch.setattr(os, "fdopen", lambda *a: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(EnvironmentProblem, match="No space left"):
        output.write(str(target), b"two")
    assert target.read_bytes() == b"one" and [path.name for path in tmp_path.iterdir()] == ["x.html"]
    monkeypatch.undo()
    now = datetime(2026, 1, 31, 12, 0, 5)
    names = []
    for _ in range(3):
        names.append(output.dated_name(now, "html", tmp_path))
        (tmp_path / names[-1]).touch()
    assert names == [f"gpustrobe-20260131-120005{n}.html" for n in ("", "-2", "-3")]
    assert output.form_of("a.pb.gz") == "pprof" and output.form_of("a.speedscope.json") == "speedscope"
    assert output.form_of("a.json") is None
    with pytest.raises(EnvironmentProblem, match="is no folder"):
        output.check_writable("/nonexistent/x.html")
    with pytest.raises(EnvironmentProblem, match="is a folder"):
        output.check_writable(str(tmp_path))
    output.write("/dev/null", b"x")
    assert not Path("/dev/null").is_file()
