# SPDX-License-Identifier: Apache-2.0
"""One gRPC connection to a receiver of OTLP: credentials, headers, and a status for every way a call can fail.

grpcio is imported by the first `send`, in the exporter's thread: it costs 0.1 s and 14 MB that an agent without a store
should not pay. After that this process must not fork without exec (grpc's threads do not survive it); children are
started by exec.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpustrobe.agent.errors import EnvironmentProblem, UsageError
from gpustrobe.proto.methods import METHODS

if TYPE_CHECKING:
    import grpc

# gRPC tries a lost connection again after 1, 1.6, 2.6 ... seconds, up to two minutes by default; by then our queue is
# full.
RECONNECT = (("grpc.initial_reconnect_backoff_ms", 500), ("grpc.max_reconnect_backoff_ms", 5_000))
HEADER = re.compile(r"[a-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and how to send. TLS is on as soon as one of its files is named."""

    target: str  # HOST:PORT
    tls: bool = False
    ca_file: Path | None = None  # default: the system's
    cert_file: Path | None = None  # with key_file: mTLS
    key_file: Path | None = None
    token_file: Path | None = None  # bearer token, read again when it changes
    headers: tuple[tuple[str, str], ...] = ()
    gzip: bool = False
    timeout: float = 10.0  # seconds a call may take

    def __post_init__(self) -> None:
        if bool(self.cert_file) != bool(self.key_file):
            raise UsageError("A client certificate needs its key, and a key its certificate.", "Give both files.")
        for name, _ in self.headers:
            if not HEADER.fullmatch(name.lower()):
                raise UsageError(f"{name!r} is no header name.", "Use letters, digits, '-', '_' and '.'.")

    @property
    def secure(self) -> bool:
        return self.tls or any((self.ca_file, self.cert_file, self.key_file))


class SendFailure(Exception):
    """A call that did not succeed: gRPC status name, what the other side or gRPC said."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Channel:
    """Used by one thread."""

    def __init__(self, endpoint: Endpoint, logger: logging.Logger | None = None) -> None:
        self._endpoint = endpoint
        self._logger = logger or logging.getLogger("gpustrobe")
        self._grpc_channel: grpc.Channel | None = None
        self._stamp: object = None
        self._methods: dict[str, Callable] = {}
        self._token = _Token(endpoint.token_file)
        if endpoint.token_file and not endpoint.secure and not is_loopback(endpoint.target):
            self._logger.warning("the token for %s travels without TLS: anyone on the way can read it", endpoint.target)

    def send(self, kind: str, request: bytes, timeout: float | None = None) -> bytes:
        """The serialized answer to a serialized request. Raises SendFailure."""
        import grpc

        try:
            call = self._method(kind)
            return call(
                request,
                timeout=min(self._endpoint.timeout, timeout or self._endpoint.timeout),
                metadata=self._metadata(),
                compression=grpc.Compression.Gzip if self._endpoint.gzip else None,
            )
        except grpc.RpcError as error:
            raise SendFailure(error.code().name, error.details() or "") from None
        except EnvironmentProblem as error:  # a file that cannot be read now may be there at the next try
            raise SendFailure("UNAUTHENTICATED", error.message) from None

    def close(self) -> None:
        if self._grpc_channel is not None:
            self._grpc_channel.close()
        self._grpc_channel, self._methods = None, {}

    def _method(self, kind: str) -> Callable:
        stamp = self._files_stamp()
        if self._grpc_channel is None or stamp != self._stamp:
            self.close()
            self._grpc_channel, self._stamp = self._open(), stamp
            # Without serializers, requests and answers are bytes.
            self._methods = {name: self._grpc_channel.unary_unary(path) for name, path in METHODS.items()}
        return self._methods[kind]

    def _open(self) -> grpc.Channel:
        import grpc

        endpoint = self._endpoint
        options = [*RECONNECT, ("grpc.enable_http_proxy", 0 if is_loopback(endpoint.target) else 1)]
        if not endpoint.secure:
            return grpc.insecure_channel(endpoint.target, options)
        credentials = grpc.ssl_channel_credentials(
            _content(endpoint.ca_file), _content(endpoint.key_file), _content(endpoint.cert_file)
        )
        return grpc.secure_channel(endpoint.target, credentials, options)

    def _files_stamp(self) -> object:
        """Changes when a certificate is renewed."""
        endpoint = self._endpoint
        return [_stamp(path) for path in (endpoint.ca_file, endpoint.cert_file, endpoint.key_file) if path]

    def _metadata(self) -> list[tuple[str, str]]:
        token = self._token.read()
        headers = [(name.lower(), value) for name, value in self._endpoint.headers]
        return [*headers, *([("authorization", f"Bearer {token}")] if token else [])]


class _Token:
    """A token in a file that its issuer replaces, as Kubernetes does every hour."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: object = None
        self._token = ""

    def read(self) -> str:
        if self._path is None:
            return ""
        stamp = _stamp(self._path)
        if stamp != self._stamp or stamp is None:
            self._token = (_content(self._path) or b"").decode("ascii", "replace").strip()
            self._stamp = stamp
        return self._token


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _content(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read: {os.strerror(error.errno or 0)}.") from error


def is_loopback(target: str) -> bool:
    host = target.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
