# SPDX-License-Identifier: Apache-2.0
"""What CMD's environment needs so that CUDA loads the library that records its kernels."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gpustrobe.agent.errors import EnvironmentProblem

VARIABLE = "CUDA_INJECTION64_PATH"  # read by cuInit of every CUDA driver since 9.0


def variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What to add. Another tool's library stays: CUDA loads one only, and the user chose that one. EnvironmentProblem
    where this installation has none."""
    from gpustrobe.cupti import library

    try:
        path = str(library.path())
    except FileNotFoundError as error:
        raise EnvironmentProblem("This installation has no library to inject.", "Install gpustrobe again.") from error
    return {} if environment.get(VARIABLE, path) != path else {VARIABLE: path}


def taken_by(environment: Mapping[str, str] = os.environ) -> str:
    """The other library that stands there; "" if there is none."""
    path = environment.get(VARIABLE, "")
    return "" if not path or variables(environment) else path
