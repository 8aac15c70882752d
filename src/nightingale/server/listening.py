"""The socket that a server listens on. What is set on it here holds for every connection it accepts."""

from __future__ import annotations

import socket
from typing import Final

from nightingale.errors import ConfigError

SEND_BUFFER_BYTES: Final = 1 << 17
IDLE_S: Final = 60
"""A silent connection is asked so often whether its other end is still there; three silences end it."""


def listening(host: str, port: int, *, patience_s: float = 60.0) -> socket.socket:
    """A socket at the address. patience_s: how long a client may leave in the kernel what it was sent.

    Linux lets a send buffer grow to megabytes, minutes of MP3, and calls it full until a third of it was
    read: a client that listens in real time would look like one that takes nothing. So it is small.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        # The protocol must be said: asyncio sends small packets at once (TCP_NODELAY) only on what it knows
        # to be TCP, and a first sound would otherwise wait 40 ms for an acknowledgement.
        door = socket.socket(family, kind, protocol)
        try:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            _watch_over(door, patience_s)
            door.bind(address)
        except OSError:
            door.close()
            raise
    except OSError as error:
        raise ConfigError(
            "the address cannot be listened on",
            got=f"{host}:{port} ({error.strerror or error})",
            allowed="a free port at an address of this machine",
            fix="Choose another with --port or --host; port 0 takes a free one.",
        ) from error
    return door


def _watch_over(door: socket.socket, patience_s: float) -> None:
    """Let the kernel end connections whose other end is gone or takes nothing, where it can.

    The server lets go of such a client itself, but closing waits until the rest was sent: without this, a
    client that never reads and never leaves would keep its socket for ever.
    """
    door.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    values = {"TCP_KEEPIDLE": IDLE_S, "TCP_KEEPINTVL": IDLE_S, "TCP_KEEPCNT": 3}
    values["TCP_USER_TIMEOUT"] = round(1000 * patience_s)
    for name, value in values.items():
        if (option := getattr(socket, name, None)) is not None:
            door.setsockopt(socket.IPPROTO_TCP, option, value)
