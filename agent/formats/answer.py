# SPDX-License-Identifier: Apache-2.0
"""A store's answer to /api/v1/stacks as a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpustrobe.agent.formats import collapsed as _collapsed
from gpustrobe.agent.formats import pprof as _pprof
from gpustrobe.agent.formats.stacks import from_answer


def collapsed(answer: Mapping[str, Any]) -> bytes:
    return _collapsed.render(from_answer(answer))


def pprof(answer: Mapping[str, Any], sample_type: str = "") -> bytes:
    return _pprof.render(from_answer(answer, sample_type))
