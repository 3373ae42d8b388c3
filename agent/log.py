# SPDX-License-Identifier: Apache-2.0
"""Log lines on standard error, as text or JSON. A state is said when it changes, not while it lasts."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO

LOGGER = "gpustrobe"


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        mark = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        line = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {mark}{record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        row = {"time": when, "level": record.levelname.lower(), "part": record.name, "message": record.getMessage()}
        if record.exc_info:
            row["exception"] = self.formatException(record.exc_info)
        return json.dumps(row, ensure_ascii=False)


def set_up(form: str, stream: TextIO | None = None) -> logging.Logger:
    """The logger all parts share, writing in `form` (text or json)."""
    logger = logging.getLogger(LOGGER)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return logger


class States:
    """What each part last said about itself; logs a sentence only when it differs from the one before."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._said: dict[str, str] = {}

    def say(self, part: str, sentence: str, level: int = logging.INFO) -> bool:
        """True if it was new. An empty sentence resets the part without a word."""
        if self._said.get(part, "") == sentence:
            return False
        self._said[part] = sentence
        if sentence:
            self._logger.log(level, "%s", sentence)
        return True
