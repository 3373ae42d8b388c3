# SPDX-License-Identifier: Apache-2.0
"""A test that cannot run here says why; GPUSTROBE_REQUIRE=bpf,browser turns such a skip into a failure."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

REQUIRED = set(filter(None, os.environ.get("GPUSTROBE_REQUIRE", "").split(",")))


def missing_for_bpf() -> str:
    if os.geteuid() != 0:
        return "needs root"
    if not Path("/sys/kernel/btf/vmlinux").exists():
        return "this kernel has no BTF"
    return ""


def missing_for_browser() -> str:
    return "" if shutil.which("chromium") else "needs Chromium (apt install chromium)"


MISSING = {"bpf": missing_for_bpf, "browser": missing_for_browser, "gpu": lambda: "make gpu-check runs these"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {name: check() for name, check in MISSING.items()}
    for item in items:
        for name, reason in reasons.items():
            if reason and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = (yield).get_result()
    if report.skipped and any(item.get_closest_marker(name) for name in REQUIRED):
        report.outcome = "failed"
        report.longrepr = f"skipped, but required here (GPUSTROBE_REQUIRE): {report.longrepr}"
