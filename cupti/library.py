# SPDX-License-Identifier: Apache-2.0
"""Where the injected library lies, for CUDA_INJECTION64_PATH."""

from __future__ import annotations

from pathlib import Path

import gpustrobe.cupti

NAME = "libgpustrobe_cupti.so"


def path() -> Path:
    """The built library. An editable install keeps built files apart from sources; __path__ has both."""
    for folder in gpustrobe.cupti.__path__:
        if (found := Path(folder) / NAME).exists():
            return found
    raise FileNotFoundError(f"{NAME} is in none of {list(gpustrobe.cupti.__path__)}: the native part was not built")
