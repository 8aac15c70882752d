"""The listening socket. Its options hold for every connection that it accepts."""

from __future__ import annotations

import socket
from typing import Final

from nightingale.errors import ConfigError

SEND_BUFFER_BYTES: Final = 1 << 17
KEEPALIVE_S: Final = 60
"""Idle time before each TCP keepalive probe; three unanswered ones end the connection."""


def open_listen_socket(
    host: str, port: int, *, send_timeout_s: float = 60.0, flags: str = "--port or --host"
) -> socket.socket:
    """Bind a TCP socket.

    The send buffer is small on purpose. Linux would let it grow to megabytes (minutes of MP3) and report it
    as full until a third of it was read, so a client that plays in real time would look stalled.

    send_timeout_s: the kernel ends a connection whose peer acknowledges nothing for this long. The server
    drops such a client itself, but closing waits until all data was sent. flags: those for another address.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        # asyncio sets TCP_NODELAY only if the protocol is given; without it the first audio waits 40 ms.
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            _set_keepalive(listener, send_timeout_s)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(
            "cannot listen on this address",
            got=f"{host}:{port} ({error.strerror or error})",
            allowed="a free port at an address of this machine",
            fix=f"Choose another with {flags}; port 0 picks a free one.",
        ) from error
    return listener


def _set_keepalive(listener: socket.socket, send_timeout_s: float) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    values = {"TCP_KEEPIDLE": KEEPALIVE_S, "TCP_KEEPINTVL": KEEPALIVE_S, "TCP_KEEPCNT": 3}
    values["TCP_USER_TIMEOUT"] = round(1000 * send_timeout_s)
    for name, value in values.items():
        if (option := getattr(socket, name, None)) is not None:  # not on every system
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
