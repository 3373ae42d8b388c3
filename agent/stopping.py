# SPDX-License-Identifier: Apache-2.0
"""How agent and `up` end: the first SIGINT or SIGTERM asks for an orderly end, a second SIGINT forces it."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


class Stopping:
    """Called, says whether to stop. Handlers only set a flag."""

    def __init__(self) -> None:
        self._asked = False

    def __call__(self) -> bool:
        return self._asked

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked and number == signal.SIGINT:
            os.write(2, b"gpustrobe: forced to end; what was not sent yet is lost\n")
            os._exit(130)
        if not self._asked and number == signal.SIGINT and sys.stderr.isatty():
            os.write(2, b"\nstopping: sending what is left (Ctrl-C again to force)\n")
        self._asked = True
