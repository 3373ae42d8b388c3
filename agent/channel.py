# SPDX-License-Identifier: Apache-2.0
"""A receiver of OTLP over gRPC: its address, credentials, headers; connects when there is something to send, and again
when the connection or a certificate has changed.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import ssl
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpustrobe.agent.errors import EnvironmentProblem, UsageError
from gpustrobe.agent.units import parse_address
from gpustrobe.proto.methods import METHODS

if TYPE_CHECKING:
    from gpustrobe.agent.connection import Connection

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
    """A call that did not succeed: gRPC status name, and what the other side or the system said."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message


class Channel:
    """Used by one thread. The first `send` imports the h2 package (40 ms, 5 MB)."""

    def __init__(self, endpoint: Endpoint, logger: logging.Logger | None = None) -> None:
        self._endpoint = endpoint
        self._address = parse_address(endpoint.target, 4317)
        self._logger = logger or logging.getLogger("gpustrobe")
        self._connection: Connection | None = None
        self._stamp: object = None
        self._token = _Token(endpoint.token_file)
        if endpoint.token_file and not endpoint.secure and not is_loopback(endpoint.target):
            self._logger.warning("the token for %s travels without TLS: anyone on the way can read it", endpoint.target)

    def send(self, kind: str, request: bytes, timeout: float | None = None) -> bytes:
        """The serialized answer to a serialized request. Raises SendFailure."""
        from gpustrobe.agent.connection import Broken

        deadline = time.monotonic() + min(self._endpoint.timeout, timeout or self._endpoint.timeout)
        try:
            metadata = self._metadata()
            connection = self._open_connection(deadline)
            reused = connection.calls > 0
            try:
                return connection.call(METHODS[kind], request, metadata, self._endpoint.gzip, deadline)
            except Broken:
                if not reused:
                    raise
            # The other side may end a connection that rests, at any moment: once more on a new one.
            self.close()
            return self._open_connection(deadline).call(METHODS[kind], request, metadata, self._endpoint.gzip, deadline)
        except EnvironmentProblem as error:  # a file that cannot be read now may be there at the next try
            raise SendFailure("UNAUTHENTICATED", error.message) from None
        except Broken as error:
            self.close()
            raise SendFailure("UNAVAILABLE", str(error)) from None
        except SendFailure as failure:
            if failure.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED"):
                self.close()  # it may be half used
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _open_connection(self, deadline: float) -> Connection:
        from gpustrobe.agent.connection import Connection

        stamp = self._files_stamp()
        if self._connection is not None and (stamp != self._stamp or not self._connection.is_open()):
            self.close()
        if self._connection is None:
            host, port = self._address.host, self._address.port
            self._connection = Connection(host, port, self._tls(), self._proxy(), deadline)
            self._stamp = stamp
        return self._connection

    def _tls(self) -> ssl.SSLContext | None:
        endpoint = self._endpoint
        if not endpoint.secure:
            return None
        try:
            context = ssl.create_default_context(cafile=endpoint.ca_file)
            if endpoint.cert_file:
                context.load_cert_chain(endpoint.cert_file, endpoint.key_file)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(path) for path in (endpoint.ca_file, endpoint.cert_file, endpoint.key_file) if path)
            raise EnvironmentProblem(f"{files}: {error.strerror or error}.") from error
        context.set_alpn_protocols(["h2"])
        return context

    def _proxy(self) -> str:
        """As gRPC: grpc_proxy, https_proxy, http_proxy, unless no_proxy names the host.

        Never to this machine itself.
        """
        host = self._address.host
        if is_loopback(self._endpoint.target) or urllib.request.proxy_bypass_environment(host):
            return ""
        proxies = urllib.request.getproxies_environment()
        return next((proxies[name] for name in ("grpc", "https", "http") if name in proxies), "")

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
