# SPDX-License-Identifier: Apache-2.0
"""From this kernel to the API, as people run it: programs of known shape, real signals, kill -9 of either half."""

import ctypes
import errno
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

GPUSTROBE = Path(sys.executable).with_name("gpustrobe")
TARGETS = Path(__file__).parent / "targets"
ENOUGH = 400  # samples
MARGIN = 0.08  # of a share: more than three standard deviations of a binomial share of 0.7 in 400 samples
pytestmark = pytest.mark.bpf

# Interpreted code spends its time in loops of its own here, so that lines, not a C function, hold the shares.
PYTHON_TARGET = """\
import sys, time
def burn(n):
    total = 0
    for i in range(n):
        total += i
    return total
def python_seventy(): return burn(70000)
def python_thirty(): return burn(30000)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    python_seventy()
    python_thirty()
"""


def environment(**more):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GPUSTROBE_")}
    return clean | {"XDG_CONFIG_HOME": "/nonexistent"} | more


def start(*words, **options):
    return subprocess.Popen(
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
        **options,
    )


def end(process, number=signal.SIGTERM, seconds=60):
    """(exit status, standard output, standard error) after a signal."""
    if process.poll() is None and number:
        process.send_signal(number)
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def wait_for(condition, seconds=30, pause=0.1):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(pause)
    return found


def settle(value, pause=2.5):
    """Until a value stays the same for longer than a window and a batch take."""
    before = None
    while (now := value()) != before:
        before = now
        time.sleep(pause)


def ask(address, path):
    with urllib.request.urlopen(f"http://{address}/api/v1/{path}", timeout=20) as answer:
        return json.load(answer)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def delivered(text):
    """What the agent's last line says it delivered."""
    return int(re.search(r"([\d,]+) samples delivered", text)[1].replace(",", ""))


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    if not shutil.which("cc"):
        pytest.skip("needs a C compiler")
    path = tmp_path_factory.mktemp("target") / "seventy_thirty"
    flags = ["-O1", "-g", "-fno-omit-frame-pointer"]
    subprocess.run(["cc", *flags, "-o", path, TARGETS / "seventy_thirty.c"], check=True)
    return path


class Up:
    """`gpustrobe up` at free ports."""

    def __init__(self, data, *more):
        words = ("up", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--data", data, "--export-interval", "1s")
        self.process = start(GPUSTROBE, *words, *more)
        self.banner = []
        while "stop" not in "".join(self.banner[-1:]):
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            self.banner.append(line)
        self.http = re.search(r"http://(\S+)", "".join(self.banner))[1]


class Store:
    """`gpustrobe store` at given ports."""

    def __init__(self, data, http, grpc):
        words = ("store", "--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}", "--data", data)
        self.process = start(GPUSTROBE, *words)
        line = self.process.stdout.readline()
        assert line.startswith("ready "), line + self.process.stderr.read()
        self.http = json.loads(line[6:])["http"]

    def samples(self):
        return ask(self.http, "status")["data"]["samples"]


def function_shares(answer, names):
    """Share of the total below each function of that name, recursion counted once."""
    frames, nodes = answer["frames"], answer["nodes"]
    sums = dict.fromkeys(names, 0)
    for place, frame in enumerate(nodes["frame"]):
        if frames["name"][frame] in sums:
            sums[frames["name"][frame]] += nodes["total"][place]
    return {name: value / answer["total"] for name, value in sums.items()}


@pytest.fixture(scope="module")
def profiled(target, tmp_path_factory):
    """`up` over a C and a Python program, both of known shape, and what it said when it ended by SIGINT."""
    folder = tmp_path_factory.mktemp("up")
    script = folder / "python_target.py"
    script.write_text(PYTHON_TARGET)
    up = Up(folder / "data", "--metrics", "127.0.0.1:0")
    programs = [subprocess.Popen([target]), subprocess.Popen([sys.executable, script, "1e9"])]
    matches = {"c": "match=comm%3D%22seventy_thirty%22", "python": "match=script%3D%22python_target.py%22"}
    flames = {name: f"flamegraph?type=cpu&from=-5m&to=now&{match}" for name, match in matches.items()}
    for path in flames.values():
        wait_for(lambda path=path: ask(up.http, path)["total"] > ENOUGH, 90, 1)
    for program in programs:
        program.kill()
        program.wait()
    for path in flames.values():
        settle(lambda path=path: ask(up.http, path)["total"])
    answers = {name: ask(up.http, path) for name, path in flames.items()} | {
        "all": ask(up.http, "flamegraph?type=cpu&from=-5m&to=now"),
        "status": ask(up.http, "status"),
        "losses": ask(up.http, "losses?from=-5m&to=now"),
        "cost": ask(up.http, "series?name=gpustrobe.agent.cpu&from=-5m&to=now"),
    }
    query = [str(GPUSTROBE), "query", "flamegraph", "--store", up.http, "--match", 'comm="seventy_thirty"']
    for form in ("collapsed", "text", "pprof"):
        done = subprocess.run([*query, "--format", form], capture_output=True, env=environment(), timeout=60)
        answers[form] = (done.returncode, done.stdout, done.stderr)
    address = re.search(r"metrics +(http\S+)", "".join(up.banner))[1]
    with urllib.request.urlopen(address, timeout=20) as scrape:
        answers["metrics"] = scrape.read().decode()
    code, out, err = end(up.process, signal.SIGINT)
    return answers | {"data": folder / "data", "ended": (code, "".join(up.banner) + out, err)}


def margin(total: float) -> float:
    """Four standard deviations of a share of 0.7: a starved machine gives a hundred samples, not a thousand."""
    return max(MARGIN, 4 * (0.21 / max(total, 1)) ** 0.5)


def test_a_c_program_has_the_shape_it_was_built_with(profiled):
    answer = profiled["c"]
    shares = function_shares(answer, ("seventy", "thirty", "main"))
    assert answer["total"] >= ENOUGH
    bound = margin(answer["total"])
    assert abs(shares["seventy"] - 0.7) < bound and abs(shares["thirty"] - 0.3) < bound
    assert shares["main"] > 0.97


def test_a_python_program_has_the_shape_it_was_written_with(profiled):
    answer = profiled["python"]
    shares = function_shares(answer, ("python_seventy", "python_thirty"))
    assert answer["total"] >= ENOUGH
    bound = margin(answer["total"])
    assert abs(shares["python_seventy"] - 0.7) < bound and abs(shares["python_thirty"] - 0.3) < bound


def test_the_books_are_closed_and_little_is_lost(profiled):
    books = profiled["all"]["books"]
    drops = sum(books["drops"].values())
    assert books["produced"] == books["idle"] + books["filtered"] + books["delivered"] + drops
    assert profiled["all"]["total"] == books["delivered"] > 600
    assert profiled["losses"]["share"] < 0.05


def test_the_store_knows_node_and_cost(profiled):
    (node,) = profiled["status"]["nodes"]
    assert node["cores"] == os.cpu_count() and node["live"] and "cpu" in node["types"]
    assert node["gpu_state"] != ""
    assert any(value and value > 0 for row in profiled["cost"]["series"] for value in row["mean"])


def test_prometheus_tells_books_and_cost(profiled):
    rows = dict(line.rsplit(" ", 1) for line in profiled["metrics"].splitlines() if not line.startswith("#"))
    books = {
        name: float(rows[f"gpustrobe_samples_{name}_total"]) for name in ("produced", "idle", "filtered", "delivered")
    }
    drops = sum(float(value) for name, value in rows.items() if name.startswith("gpustrobe_samples_dropped_total"))
    assert books["produced"] == books["idle"] + books["filtered"] + books["delivered"] + drops > 0
    assert float(rows["gpustrobe_agent_cpu_seconds_total"]) > 0 and float(rows["gpustrobe_bpf_seconds_total"]) > 0


def test_query_formats(profiled):
    code, out, err = profiled["collapsed"]
    rows = [line.rsplit(" ", 1) for line in out.decode().splitlines()]
    assert code == 0 and err == b""
    assert {row[0].split(";")[0] for row in rows} == {"seventy_thirty"}
    total = sum(int(count) for _, count in rows)
    assert total == profiled["c"]["total"]
    share = sum(int(count) for stack, count in rows if ";work;seventy" in stack) / total
    assert abs(share - 0.7) < margin(total)
    code, out, err = profiled["text"]
    shown = re.search(r" (\d+\.\d) % .*seventy ", out.decode())
    assert code == 0 and abs(float(shown.group(1)) - 70) < 100 * margin(total)
    assert profiled["pprof"][1][:2] == b"\x1f\x8b"


def test_ctrl_c_loses_nothing(profiled):
    code, _out, err = profiled["ended"]
    assert code == 0 and "Traceback" not in err
    store = Store(profiled["data"], 0, 0)
    try:
        assert store.samples() == delivered(err) > 600
    finally:
        assert end(store.process)[0] == 0


def test_up_says_where_and_what(profiled):
    banner = profiled["ended"][1]
    for words in (
        "page       http://127.0.0.1:",
        "ssh -L ",
        "CPU stacks of all processes, 100 a second",
        "data       /",
    ):
        assert words in banner
    assert re.search(r"not +GPUs?: |\d GPUs: ", banner)


def test_kill_9_of_the_store_loses_nothing_acknowledged(target, tmp_path):
    http, grpc = free_port(), free_port()
    store = Store(tmp_path / "data", http, grpc)
    agent = start(
        GPUSTROBE, "agent", "--store", f"127.0.0.1:{grpc}", "--export-interval", "1s", "--data", tmp_path / "a"
    )
    program = subprocess.Popen([target])
    try:
        for _ in range(2):
            before = wait_for(store.samples)
            wait_for(lambda store=store, before=before: store.samples() > before + 100)
            acknowledged = store.samples()
            store.process.kill()
            end(store.process)
            time.sleep(1.5)
            store = Store(tmp_path / "data", http, grpc)
            assert store.samples() >= acknowledged
        again = store.samples()
        wait_for(lambda store=store: store.samples() > again, 60)  # the agent has found it again
        code, _, err = end(agent)
        assert code == 0
        assert store.samples() == delivered(err), err
    finally:
        program.kill()
        program.wait()
        for process in (agent, store.process):
            if process.poll() is None:
                end(process, signal.SIGKILL)


def test_what_an_agent_could_not_send_the_next_one_sends(tmp_path):
    http, grpc = free_port(), free_port()
    words = (GPUSTROBE, "agent", "--store", f"127.0.0.1:{grpc}", "--export-interval", "1s", "--data", tmp_path / "a")
    first = start(*words)
    wait_for_sampling(first)
    time.sleep(3)
    code, _, err = end(first)
    assert code == 0 and "wait on disk" in err
    store, second = Store(tmp_path / "data", http, grpc), start(*words)
    try:
        wait_for(lambda: store.samples() > delivered(err), 60)
        code, _, more = end(second)
        assert code == 0 and store.samples() == delivered(err) + delivered(more), more
    finally:
        for process in (second, store.process):
            if process.poll() is None:
                end(process, signal.SIGKILL)


def test_an_agent_starts_without_its_store_and_finds_it_later(tmp_path):
    http, grpc = free_port(), free_port()
    agent = start(
        GPUSTROBE, "agent", "--store", f"127.0.0.1:{grpc}", "--export-interval", "1s", "--data", tmp_path / "a"
    )
    wait_for_sampling(agent)
    time.sleep(4)
    assert agent.poll() is None
    since = time.time()
    store = Store(tmp_path / "data", http, grpc)
    try:
        status = wait_for(lambda: (s := ask(store.http, "status"))["data"]["samples"] and s)
        assert status["data"]["oldest_ms"] / 1000 < since - 2  # what was sampled while it was away is there
        code, _, err = end(agent)
        assert code == 0 and store.samples() == delivered(err), err
    finally:
        for process in (agent, store.process):
            if process.poll() is None:
                end(process, signal.SIGKILL)


def bpf_programs_of(pid):
    """Ids of BPF programs a process holds, by its descriptors' fdinfo."""
    found = set()
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            found |= {int(number) for number in re.findall(r"^prog_id:\s*(\d+)", path.read_text(), re.MULTILINE)}
        except OSError:
            continue
    return found


def bpf_program_exists(number):
    """bpf(BPF_PROG_GET_FD_BY_ID), command 13."""
    attributes = ctypes.create_string_buffer(struct.pack("<II", number, 0).ljust(72, b"\0"), 72)
    libc = ctypes.CDLL(None, use_errno=True)
    call = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    handle = libc.syscall(ctypes.c_long(call), ctypes.c_int(13), attributes, ctypes.c_uint(72))
    if handle >= 0:
        os.close(handle)
        return True
    assert ctypes.get_errno() == errno.ENOENT
    return False


def wait_for_sampling(process):
    """Until a process has BPF programs loaded, and a moment more: its signal handlers come next."""
    wait_for(lambda: bpf_programs_of(process.pid))
    time.sleep(0.5)


def test_kill_9_of_the_agent_leaves_nothing_behind(tmp_path):
    up = Up(tmp_path / "data")
    children = Path(f"/proc/{up.process.pid}/task/{up.process.pid}/children").read_text().split()
    programs = wait_for(lambda: bpf_programs_of(up.process.pid))
    assert all(bpf_program_exists(number) for number in programs)
    up.process.kill()
    up.process.communicate(timeout=30)
    wait_for(lambda: not any(bpf_program_exists(number) for number in programs))
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))  # store and its ports
    Store(tmp_path / "data", 0, 0).process.terminate()  # the database is free again


def test_a_store_that_is_killed_under_up_comes_back(tmp_path):
    up = Up(tmp_path / "data")
    try:
        wait_for(lambda: ask(up.http, "status")["data"]["samples"])
        pids = Path(f"/proc/{up.process.pid}/task/{up.process.pid}/children").read_text().split()
        (store,) = [pid for pid in pids if b"gpustrobe.store" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(int(store), signal.SIGKILL)

        def answers():
            try:
                return ask(up.http, "status")["data"]["samples"]
            except OSError:
                return 0

        time.sleep(1)
        wait_for(answers)
        code, _, err = end(up.process, signal.SIGINT)
        assert code == 0 and "the store died (signal SIGKILL); starting it again" in err
    finally:
        if up.process.poll() is None:
            end(up.process, signal.SIGKILL)
    store = Store(tmp_path / "data", 0, 0)
    assert store.samples() == delivered(err)
    end(store.process)


@pytest.mark.parametrize("which", ["--http", "--grpc"])
def test_a_taken_port_is_3_before_anything_is_sampled(tmp_path, which):
    other = {"--http": "--grpc", "--grpc": "--http"}[which]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = end(start(GPUSTROBE, "up", which, address, other, "127.0.0.1:0", "--data", tmp_path), None)
    assert done[0] == 3 and address in done[2] and "Traceback" not in done[2]
    assert "measured" not in done[1]


def test_a_data_folder_that_cannot_be_written_is_3(tmp_path):
    (tmp_path / "file").write_text("")
    words = ("up", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--data", tmp_path / "file/data")
    code, _out, err = end(start(GPUSTROBE, *words), None)
    assert code == 3 and "file/data" in err and "Traceback" not in err


def test_a_database_that_is_in_use_is_3(tmp_path):
    store = Store(tmp_path, 0, 0)
    try:
        words = ("up", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--data", tmp_path)
        code, _out, err = end(start(GPUSTROBE, *words), None)
        assert code == 3 and "Traceback" not in err and str(tmp_path) in err
    finally:
        end(store.process)


# A program that forbids itself one system call, then becomes another: a sandbox without perf events or BPF.
SANDBOX = """\
import ctypes, os, struct, sys
number, error = int(sys.argv[1]), int(sys.argv[2])
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | error), (0x06, 0, 0, 0x7FFF0000)]
code = b"".join(struct.pack("<HBBI", *rule) for rule in rules)
buffer = ctypes.create_string_buffer(code, len(code))
program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(rules), ctypes.addressof(buffer)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[3], sys.argv[3:])
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="system call numbers of x86-64")
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (298, errno.ENOSYS, "Perf events are not available"),
        (298, errno.EACCES, "perf"),
        (321, errno.EPERM, "BPF"),
    ],
)
def test_a_sandbox_that_forbids_it_is_3_and_a_sentence(tmp_path, call, error, words):
    sandboxed = (sys.executable, "-c", SANDBOX, call, error, GPUSTROBE)
    code, _out, err = end(start(*sandboxed, "record", "-d", "1", "-o", tmp_path / "x.collapsed"), None)
    assert code == 3 and words in err and "Traceback" not in err and not list(tmp_path.iterdir())
    doctor = end(start(*sandboxed, "doctor", "--data", tmp_path), None)
    assert doctor[0] == 3 and "✗" in doctor[1]


# record


def collapsed(text):
    return [(stack.split(";"), int(count)) for stack, count in (line.rsplit(" ", 1) for line in text.splitlines())]


def test_record_of_a_command_keeps_its_shape_and_status(target, tmp_path):
    file = tmp_path / "x.collapsed"
    burn = "import time\nwhile time.process_time() < 3: pass"
    words = ("sh", "-c", f"echo from CMD; {target} & {sys.executable} -c '{burn}'; kill $!; exit 7")
    code, out, err = end(start(GPUSTROBE, "record", "-o", file, "--", *words), None)
    assert (code, out) == (7, "from CMD\n")
    rows = [(stack, count) for stack, count in collapsed(file.read_text()) if "work" in stack]
    total = sum(count for _, count in rows)
    assert total > 150
    assert abs(sum(count for stack, count in rows if "seventy" in stack) / total - 0.7) < margin(total)
    assert {stack[0] for stack, _ in collapsed(file.read_text())} <= {"sh", "seventy_thirty", "python", "gpustrobe"}
    assert f"written to {file}" in err and "samples in" in err and "seventy" in err and "\r" not in err


@pytest.mark.parametrize(
    ("words", "code"), [(["sh", "-c", "kill -15 $$"], 143), (["/no/such/command"], 127), (["/etc/passwd"], 126)]
)
def test_record_ends_as_its_command_would(tmp_path, words, code):
    done = end(start(GPUSTROBE, "record", "-o", tmp_path / "x.collapsed", "--", *words), None)
    assert done[0] == code and "Traceback" not in done[2]
    assert (tmp_path / "x.collapsed").exists() == (code < 126 or code > 128)


def test_record_until_ctrl_c_with_a_snapshot_on_the_way(target, tmp_path):
    file = tmp_path / "x.collapsed"
    program = subprocess.Popen([target])
    try:
        record = start(GPUSTROBE, "record", "-p", program.pid, "-o", file)
        wait_for_sampling(record)
        time.sleep(3)
        record.send_signal(signal.SIGUSR1)
        wait_for(file.exists)
        early = sum(count for _, count in collapsed(file.read_text()))
        time.sleep(2)
        code, _, _err = end(record, signal.SIGINT)
    finally:
        program.kill()
        program.wait()
    rows = collapsed(file.read_text())
    assert code == 0 and {stack[0] for stack, _ in rows} == {"seventy_thirty"}
    assert sum(count for _, count in rows) > early > 10


def test_record_to_standard_output_is_data_alone(target):
    program = subprocess.Popen([target])
    try:
        words = ("record", "-p", program.pid, "-d", "1.5", "-F", "400", "-f", "collapsed", "-o", "-")
        code, out, err = end(start(GPUSTROBE, *words), None)
    finally:
        program.kill()
        program.wait()
    assert code == 0 and sum(count for _, count in collapsed(out)) > 30 and "written to" not in err


def test_record_names_its_file_by_date(target, tmp_path):
    code, _, _err = end(start(GPUSTROBE, "record", "-d", "0.5", cwd=tmp_path), None)
    (file,) = tmp_path.iterdir()
    assert code == 0 and re.fullmatch(r"gpustrobe-\d{8}-\d{6}\.html", file.name)
    assert file.read_text().lstrip().lower().startswith("<!doctype html>")


def test_a_command_longer_than_the_recording_runs_on(tmp_path):
    file, mark = tmp_path / "x.collapsed", tmp_path / "done"
    begun = time.monotonic()
    record = start(GPUSTROBE, "record", "-d", "1", "-o", file, "--", "sh", "-c", f"sleep 3; touch {mark}; exit 5")
    wait_for(file.exists)
    assert not mark.exists()
    assert end(record, None)[0] == 5 and mark.exists() and time.monotonic() - begun > 3


# dump


def test_dump_names_threads_that_sleep_and_that_run(tmp_path):
    code = (
        "import threading, time\n"
        "def sleeper(): time.sleep(60)\n"
        "def waiter(): threading.Event().wait()\n"
        "def runner():\n    while True: pass\n"
        "for work in (sleeper, waiter, runner): threading.Thread(target=work, daemon=True).start()\n"
        "print('on', flush=True)\ntime.sleep(60)\n"
    )
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        program.stdout.readline()
        time.sleep(0.3)
        code, out, _err = end(start(GPUSTROBE, "dump", "-p", program.pid, "--json"), None)
        text = end(start(GPUSTROBE, "dump", "-p", program.pid), None)
    finally:
        program.kill()
        program.wait()
    threads = json.loads(out)["threads"]
    assert code == 0 and len(threads) == 4
    names = [[frame["name"] for frame in thread["frames"]] for thread in threads]
    assert sum("start_thread" in "".join(some) for some in names) >= 2
    assert sum(any("nanosleep" in name for name in some) for some in names) == 2
    assert sum(any("futex" in name for name in some) for some in names) >= 1
    sleeping = [thread for thread in threads if thread["state"] == "sleeping"]
    assert len(sleeping) >= 3 and all(thread["complete"] for thread in sleeping)
    assert [thread["tid"] for thread in threads] == sorted(thread["tid"] for thread in threads)
    assert text[0] == 0 and text[1].count("(") >= 4 and "nanosleep" in text[1]


def test_dump_disturbs_no_system_call(tmp_path):
    """epoll_wait returns EINTR after any stop of its thread, ptrace's too (signal(7))."""
    if not shutil.which("cc"):
        pytest.skip("needs a C compiler")
    source = tmp_path / "wait.c"
    source.write_text(
        '#include <sys/epoll.h>\n#include <stdio.h>\nint main(void) { struct epoll_event e; puts("on"); fflush(stdout);'
        " return epoll_wait(epoll_create1(0), &e, 1, 5000) < 0 ? 1 : 0; }\n"
    )
    subprocess.run(["cc", "-o", tmp_path / "wait", source], check=True)
    program = subprocess.Popen([tmp_path / "wait"], stdout=subprocess.PIPE, text=True)
    program.stdout.readline()
    code, out, _err = end(start(GPUSTROBE, "dump", "-p", program.pid, "--json"), None)
    (thread,) = json.loads(out)["threads"]
    assert code == 0 and "main" in [frame["name"] for frame in thread["frames"]] and thread["complete"]
    assert program.wait(20) == 0
