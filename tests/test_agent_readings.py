# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from pathlib import Path

from gpustrobe.agent.readings import METRICS

ARCHITECTURE = Path(__file__).parents[1] / "docs/architecture.md"
SUFFIXES = {
    "%": "_ratio",
    "By": "_bytes",
    "MHz": "_hertz",
    "W": "_watts",
    "Cel": "_celsius",
    "By/s": "_bytes_per_second",
}


def documented():
    """Metric name -> unit, from the table of docs/architecture.md."""
    found, full = {}, ""
    for line in ARCHITECTURE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[0].startswith("`gpu."):
            for name in re.findall(r"`([^`]+)`", cells[0]):
                full = (
                    name if name.startswith("gpu.") else f"{full.rpartition('.')[0]}{name}"
                )  # `.memory` after its first
                found[full] = cells[1].partition(",")[0]
    return found


def test_the_table_is_the_documented_one():
    """Besides NVML's: gpu.time.* come from kernel records, per second."""
    nvml = {name: unit for name, unit in documented().items() if not name.startswith("gpu.time.")}
    assert {metric.name: metric.unit for metric in METRICS} == nvml


def test_prometheus_names_end_in_their_base_unit_and_factors_lead_there():
    for metric in METRICS:
        assert metric.series.endswith(SUFFIXES[metric.unit]) and metric.series.startswith("gpustrobe_gpu_"), metric
        assert metric.factor == {"%": 0.01, "MHz": 1e6}.get(metric.unit, 1.0)
        assert metric.title and metric.help and not metric.help.endswith(".")


def test_names_are_unique_and_shared_series_differ_in_domain():
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert len({(metric.series, metric.domain) for metric in METRICS}) == len(METRICS)
