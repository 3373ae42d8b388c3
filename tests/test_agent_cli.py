# SPDX-License-Identifier: Apache-2.0
"""The command as people type it: a process of its own, its exit status and its two streams."""

import gzip
import json
import os
import pty
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

GPUSTROBE = Path(sys.executable).with_name("gpustrobe")


def run(*arguments, environment=None, **options):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GPUSTROBE_")}
    return subprocess.run(
        [GPUSTROBE, *map(str, arguments)],
        capture_output=True,
        text=options.pop("text", True),
        timeout=60,
        env=clean | {"HOME": "/nonexistent"} | (environment or {}),
        **options,
    )


def as_nobody(*arguments):
    """As a user without rights, who may only read files: the tree may lie in a home that is closed to others."""
    capabilities = "-all,+dac_read_search"
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    drop += [f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GPUSTROBE_")}
    words = [*drop, str(GPUSTROBE), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, env=clean | {"HOME": "/nonexistent"})


needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, and setpriv, to become nobody"
)


class Answers(BaseHTTPRequestHandler):
    """A store that gives prepared answers by path, and keeps what was asked."""

    def do_GET(self):
        url = urlsplit(self.path)
        self.server.asked.append((url.path, parse_qsl(url.query)))
        status, body = self.server.answers.get(url.path, (404, {"error": {"message": "no such page", "hint": ""}}))
        content = gzip.compress(json.dumps(body).encode())
        self.send_response(status)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def store():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.answers, server.asked = {}, []
    server.address = f"127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


FLAME = {
    "type": "cpu",
    "unit": "samples",
    "period_ns": 10_000_000,
    "from_ms": 0,
    "to_ms": 10_000,
    "seconds": 10,
    "cores": 2,
    "total": 1000,
    "samples": 1000,
    "all_total": 1000,
    "frames": {
        "name": ["all", "demo", "demo", "main", "seventy", "thirty", "rare"],
        "kind": ["root", "process", "thread", "native", "native", "native", "native"],
        "module": ["", "", "", "demo", "demo", "demo", "demo"],
        "file": ["", "pid 7", "tid 7", "demo.c", "demo.c", "demo.c", "demo.c"],
        "line": [0, 0, 0, 0, 0, 0, 0],
        "reason": [""] * 7,
    },
    "nodes": {
        "parent": [-1, 0, 1, 2, 3, 3, 3],
        "frame": [0, 1, 2, 3, 4, 5, 6],
        "self": [0, 0, 0, 0, 700, 295, 5],
        "total": [1000, 1000, 1000, 1000, 700, 295, 5],
    },
    "merged": {"nodes": 0, "below": 0.0},
    "books": {"produced": 2000, "idle": 990, "filtered": 0, "delivered": 1000, "drops": {"ring_full": 10}},
}


def test_help_is_quick_and_names_every_command():
    from gpustrobe.agent.cli import COMMANDS

    times = []
    for _ in range(5):
        start = time.perf_counter()
        result = run("--help")
        times.append(time.perf_counter() - start)
    assert result.returncode == 0 and result.stderr == ""
    assert all(f"  {name} " in result.stdout for name in COMMANDS)
    assert min(times) < 0.15


def test_help_imports_no_command():
    code = "import sys; from gpustrobe.agent import cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass\n"
    code += "print([m for m in sys.modules if m.startswith(('gpustrobe.agent.commands.', 'numpy', 'grpc', 'yaml'))])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["up", "record", "dump", "doctor", "agent", "store", "query"])
def test_help_of_each_command_has_examples(command):
    result = run(command, "--help")
    assert result.returncode == 0 and "Examples:" in result.stdout and f"gpustrobe {command}" in result.stdout


def test_version_and_completion():
    from importlib.metadata import version

    assert run("--version").stdout == f"gpustrobe {version('gpustrobe')}\n"
    assert "_gpustrobe_completion" in run(environment={"_GPUSTROBE_COMPLETE": "bash_source"}).stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rekord"], "there is no command 'rekord'; did you mean record?"),
        (["record", "--frequency", "1"], "No such option"),
        (["record", "-F", "0"], "'0' is not a whole number from 1 to"),
        (["record", "-d", "soon"], "is no duration"),
        (["record", "-d", "0"], "must be more than nothing"),
        (["record", "-o", "x.svg"], "its suffix names no format"),
        (["record", "-p", "1", "--", "true"], "not both"),
        (["record", "-p", "1", "-a"], "not both"),
        (["record", "-p", "4194305"], "There is no process 4194305"),
        (["dump"], "Missing option"),
        (["dump", "-p", "4194305"], "There is no process 4194305"),
        (["agent", "--store", "http://x:1"], "is no address"),
        (["up", "--config", "/nonexistent.yaml"], "/nonexistent.yaml: No such file"),
        (["query", "flamegraph", "--format", "svg"], "is not one of"),
    ],
)
def test_usage_errors_are_2_and_a_sentence(arguments, sentence):
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert sentence in result.stderr and "Traceback" not in result.stderr


@needs_root
@pytest.mark.parametrize("arguments", [["up"], ["agent", "--store", "x:1"], ["record", "-d", "5"], ["dump", "-p", "1"]])
def test_without_root_the_exact_line_is_given(arguments, tmp_path):
    tmp_path.chmod(0o777)
    result = as_nobody(*arguments, *(["-o", str(tmp_path / "x.html")] if arguments[0] == "record" else []))
    assert (result.returncode, result.stdout) == (3, "")
    assert f"Run: sudo {GPUSTROBE} {' '.join(arguments)}" in result.stderr
    assert "Traceback" not in result.stderr


@needs_root
def test_without_root_a_command_is_not_started(tmp_path):
    result = as_nobody("record", "-o", tmp_path / "x.html", "--", "touch", tmp_path / "ran")
    assert result.returncode == 125 and not (tmp_path / "ran").exists()


def test_the_sudo_line_keeps_variables_and_quotes():
    from gpustrobe.agent.rights import sudo_line

    line = sudo_line(["/opt/g/gpustrobe", "record", "-o", "a b"], {"GPUSTROBE_RATE": "50", "HOME": "/h"})
    assert line == "sudo GPUSTROBE_RATE=50 /opt/g/gpustrobe record -o 'a b'"
    assert (
        sudo_line(["agent/cli.py", "up"], {}, "/usr/bin/python3") == "sudo /usr/bin/python3 -m gpustrobe.agent.cli up"
    )


def test_config_check_tells_values_and_sources(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("rate: 25\nqueue_size: 1GiB\n")
    result = run("config", "check", file, environment={"GPUSTROBE_RETENTION": "1h"})
    assert result.returncode == 0 and result.stderr == ""
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert rows["rate"] == ["25", str(file)]
    assert rows["queue_size"] == ["1GiB", str(file)]
    assert rows["retention"] == ["1h", "GPUSTROBE_RETENTION"]
    assert rows["export_interval"] == ["5s", "default"]


def test_config_check_ends_2_on_any_fault(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("raet: 25\nrate: fast\n")
    result = run("config", "check", file)
    assert result.returncode == 2
    assert (
        "unknown setting raet; did you mean rate?" in result.stderr and "'fast' is not a whole number" in result.stderr
    )
    assert run("config", "check", tmp_path / "none.yaml").returncode == 2


def test_unknown_settings_warn_where_they_do_not_end(tmp_path, store):
    store.answers["/api/v1/labels"] = (200, {"labels": {}})
    result = run("query", "labels", "--store", store.address, environment={"GPUSTROBE_RAET": "1"})
    assert result.returncode == 0 and "unknown variable GPUSTROBE_RAET; did you mean GPUSTROBE_RATE?" in result.stderr


def test_query_sends_what_was_asked(store):
    store.answers["/api/v1/flamegraph"] = (200, FLAME)
    run(
        *("query", "flamegraph", "--store", store.address, "--type", "off_cpu", "--from", "-1h30m", "--to", "now"),
        *("--match", 'comm="python3"', "--match", "pid=~'1.*'", "--node", "n", "--focus", "main", "--lines"),
    )
    path, asked = store.asked[0]
    assert path == "/api/v1/flamegraph"
    assert asked == [
        ("type", "off_cpu"),
        ("from", "-1h30m"),
        ("to", "now"),
        ("match", 'comm="python3"'),
        ("match", "pid=~'1.*'"),
        ("node", "n"),
        ("focus", "main"),
        ("lines", "1"),
    ]


def test_flamegraph_as_text(store):
    store.answers["/api/v1/flamegraph"] = (200, FLAME)
    result = run("query", "flamegraph", "--store", store.address, environment={"COLUMNS": "80"})
    lines = result.stdout.splitlines()
    assert (result.returncode, result.stderr) == (0, "")
    assert lines[0] == "cpu  1970-01-01 00:00:00 to 00:00:10 UTC  1,000 samples  1.000 of 2 cores  10 samples lost"
    shares = {line.split()[-2]: line.split()[:3] for line in lines if "demo.c" in line}
    assert shares["seventy"] == ["70.0", "%", "0.700"] and shares["thirty"] == ["29.5", "%", "0.295"]
    assert not any("rare" in line for line in lines) and lines[-1].startswith("1 branches below 1 %")
    assert all(len(line) <= 80 for line in lines[1:]) and "\x1b" not in result.stdout


def test_json_is_the_answer_unchanged(store):
    store.answers["/api/v1/flamegraph"] = (200, FLAME)
    result = run("query", "flamegraph", "--store", store.address, "--format", "json")
    assert json.loads(result.stdout) == FLAME and result.stderr == ""


def test_an_empty_query_is_0_with_a_note(store):
    store.answers["/api/v1/top"] = (200, {"type": "cpu", "total": 0, "rows": []})
    result = run("query", "top", "--store", store.address)
    assert (result.returncode, result.stdout) == (0, "")
    assert "no cpu samples in this range" in result.stderr


@pytest.mark.parametrize(("status", "code"), [(400, 2), (404, 2), (413, 2), (503, 3), (504, 3), (500, 3)])
def test_a_stores_refusal_is_its_sentence(store, status, code):
    error = {"error": {"code": "x", "message": "That is too much.", "hint": "Ask for less."}}
    store.answers["/api/v1/top"] = (status, error)
    result = run("query", "top", "--store", store.address)
    assert (result.returncode, result.stdout) == (code, "")
    assert "That is too much.\n  Ask for less.\n" in result.stderr


def test_no_store_is_3():
    result = run("query", "top", "--store", "127.0.0.1:1")
    assert result.returncode == 3 and "No store answers at 127.0.0.1:1: Connection refused." in result.stderr


def test_debug_shows_where_an_expected_fault_came_from():
    result = run("query", "top", "--store", "127.0.0.1:1", environment={"GPUSTROBE_DEBUG": "1"})
    assert "Traceback" in result.stderr and "StoreProblem" in result.stderr


def test_something_else_at_that_address(store):
    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello")

        def log_message(self, *_):
            pass

    store.RequestHandlerClass = Page
    result = run("query", "top", "--store", store.address)
    assert result.returncode == 3 and "is no gpustrobe store" in result.stderr


def test_series_and_labels_as_text(store):
    series = {
        "name": "cpu",
        "unit": "cores",
        "step_ms": 1000,
        "t_ms": [0, 1000, 2000],
        "series": [
            {"labels": {"comm": "a"}, "mean": [1.0, None, 3.0], "min": [0.5, None, 3.0], "max": [1.0, None, 4.0]}
        ],
        "other": None,
    }
    store.answers["/api/v1/series"] = (200, series)
    lines = run("query", "series", "--store", store.address, "--by", "comm").stdout.splitlines()
    assert lines[1].split() == ["comm=a", "2", "0.5", "4", "▃", "█"]
    store.answers["/api/v1/labels"] = (
        200,
        {"labels": {"tid": [{"value": "7", "samples": 4}]}, "truncated": {"tid": 4012}},
    )
    lines = run("query", "labels", "--store", store.address).stdout.splitlines()
    assert lines[0].split() == ["tid", "4", "7"] and "4,012 values in all" in lines[1]


def test_a_reader_that_leaves_early_is_no_fault(store):
    store.answers["/api/v1/labels"] = (
        200,
        {"labels": {"x": [{"value": "v" * 50, "samples": n} for n in range(20000)]}},
    )
    line = f"{GPUSTROBE} query labels --store {store.address} | head -1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30)
    assert result.stdout.splitlines()[-1] == "0" and result.stderr == ""


def test_names_are_cut_in_the_middle():
    from gpustrobe.agent.tree_text import Look, cut

    assert cut("abcdefghij", 7, Look()) == "abc…hij"
    assert cut("abcdefghij", 7, Look(unicode=False)) == "abc~hij"
    assert cut("abc", 7, Look()) == "abc"
    assert cut("abcdef", 1, Look()) == "a"


def test_runs_of_one_kind_take_one_line():
    from gpustrobe.agent.tree_text import Look, flame_lines

    names = ["all", "a", *["f"] * 4, "x+0x1", "x+0x2", "x+0x3", "leaf"]
    answer = FLAME | {
        "frames": {
            "name": names,
            "kind": ["root", "process", *["native"] * 8],
            "module": ["", "", *["m"] * 4, *["x"] * 3, "m"],
            "file": [""] * 10,
            "line": [0] * 10,
            "reason": [*[""] * 6, *["no symbols"] * 3, ""],
        },
        "nodes": {"parent": list(range(-1, 9)), "frame": list(range(10)), "self": [0] * 10, "total": [1000] * 10},
    }
    shown = [line.split("█  ")[-1] for line in list(flame_lines(answer, Look(120)))[2:]]
    assert shown == ["all", "a", "f (recursive, 4 deep)  m", "3 frames of x  no symbols", "leaf  m"]


def test_pprof_does_not_go_to_a_terminal():
    main, other = pty.openpty()
    result = subprocess.run(
        [GPUSTROBE, "record", "-f", "pprof", "-o", "-"], stdout=other, stderr=subprocess.PIPE, text=True, timeout=30
    )
    os.close(main)
    os.close(other)
    assert result.returncode == 2 and "pprof is binary" in result.stderr
