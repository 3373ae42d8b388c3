# SPDX-License-Identifier: Apache-2.0
"""A store's HTTP API (docs/api.md), asked with the standard library: `query` starts in a tenth of a second."""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from gpustrobe.agent.errors import StoreProblem, UsageError
from gpustrobe.agent.units import Address

MAX_ANSWER = 512 << 20  # bytes, unpacked; the store's own limits are far below


class Client:
    def __init__(self, address: Address, timeout: float = 60) -> None:
        self.address = address
        self.timeout = timeout

    def get(self, path: str, parameters: Sequence[tuple[str, Any]] = ()) -> dict[str, Any]:
        """The JSON answer to GET /api/v1/PATH; parameters that are None are left out.

        UsageError: the store says the question is wrong or too large. StoreProblem: no store, or one in trouble.
        """
        query = urlencode([(name, value) for name, value in parameters if value is not None])
        status, body = self._fetch(f"/api/v1/{path}" + (f"?{query}" if query else ""))
        try:
            answer = json.loads(body)
        except ValueError as error:
            raise StoreProblem(
                f"What listens at {self.address} is no gpustrobe store (HTTP {status}, no JSON).",
                "Give the store's HTTP address with --store HOST:PORT (7070, not the gRPC port 4317).",
            ) from error
        if status != 200:
            self._refuse(status, answer.get("error") or {} if isinstance(answer, dict) else {})
        return answer

    def _fetch(self, target: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.address.host, self.address.port, timeout=self.timeout)
        try:
            connection.request("GET", target, headers={"Accept": "application/json", "Accept-Encoding": "gzip"})
            response = connection.getresponse()
            body = response.read(MAX_ANSWER)
            if response.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            return response.status, body
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or error or type(error).__name__
            raise StoreProblem(
                f"No store answers at {self.address}: {why}.",
                "Start one (gpustrobe up, or gpustrobe store), or give its address with --store HOST:PORT.",
            ) from error
        finally:
            connection.close()

    def _refuse(self, status: int, error: dict[str, Any]) -> None:
        message, hint = error.get("message") or f"The store answered HTTP {status}.", error.get("hint") or ""
        if status in (400, 404, 413):
            raise UsageError(message, hint)
        raise StoreProblem(f"{self.address}: {message}", hint)
