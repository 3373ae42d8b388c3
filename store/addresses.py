# SPDX-License-Identifier: Apache-2.0
"""HOST:PORT as text, and sockets bound to it, or the reason why not."""

from __future__ import annotations

import socket

from gpustrobe.store.errors import StoreError


def split_address(address: str) -> tuple[str, int]:
    """HOST:PORT, [::1]:PORT or :PORT (all addresses). Raises StoreError."""
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise StoreError(f"{address!r} is no address.", "Write HOST:PORT, such as 127.0.0.1:7070.")
    return host.strip("[]"), int(port)


def listen(address: str, what: str, option: str) -> socket.socket:
    """A bound TCP socket. Raises StoreError, which names `what` and the `option` to change."""
    host, port = split_address(address)
    try:
        family, _, _, _, bound = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(bound)
    except OSError as error:
        raise StoreError(
            f"The {what} address {address} cannot be used: {error.strerror or error}.",
            f"Choose another with {option} HOST:PORT, or stop what listens there (ss -ltnp).",
        ) from None
    return sock
