# SPDX-License-Identifier: Apache-2.0
"""`gpustrobe run -- CMD`, and asking a running agent for full detail."""

from __future__ import annotations

import subprocess
import sys

import pytest
from gpustrobe.agent import control, injection
from gpustrobe.agent.errors import EnvironmentProblem

GPUSTROBE = [sys.executable, "-m", "gpustrobe.agent"]
PRINT = [sys.executable, "-c", "import os; print(os.environ.get('CUDA_INJECTION64_PATH', ''))"]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess:
    code = "from gpustrobe.agent.cli import main; raise SystemExit(main())"
    import os

    return subprocess.run(
        [sys.executable, "-c", code, "run", *words], env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_run_sets_the_library_and_becomes_cmd():
    done = run("--", *PRINT)
    assert done.returncode == 0 and done.stdout.strip().endswith("libgpustrobe_cupti.so") and done.stderr == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--", "sh", "-c", "exit 7"), 7), (("--", "sh", "-c", "kill -TERM $$"), -15), (("--", "no-such-command"), 127),
        (("--", "/etc/passwd"), 126), ((), 2),
    ],
)  # fmt: skip
def test_exit_codes_are_cmds_own_or_say_why_it_did_not_start(words, code):
    assert run(*words).returncode == code


def test_another_tools_library_stays():
    done = run("--", *PRINT, CUDA_INJECTION64_PATH="/opt/other.so")
    assert done.stdout.strip() == "/opt/other.so" and "not recorded" in done.stderr
    assert injection.variables({injection.VARIABLE: "/opt/other.so"}) == {}


def test_detail_is_asked_of_the_agent():
    asked = []
    name = "\0gpustrobe-test-control"
    ear = control.Control(lambda seconds: asked.append(seconds) or {"processes": 2, "costs": ["a"]}, name)
    ear.start()
    second = control.Control(lambda seconds: {}, name)
    assert second.trouble  # one agent a node
    assert control.ask(12.5, name) == {"processes": 2, "costs": ["a"]} and asked == [12.5]
    with pytest.raises(EnvironmentProblem, match="between"):
        control.ask(1e6, name)
    ear.stop()
    with pytest.raises(EnvironmentProblem, match="No agent"):
        control.ask(1, name)
