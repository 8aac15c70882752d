"""Addresses to listen on, and the listening socket, whose options hold for every connection that it accepts."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from nightingale.errors import ConfigError
from nightingale.install import install_command
from nightingale.server.settings import is_loopback

SEND_BUFFER_BYTES: Final = 1 << 17
WYOMING_PORT: Final = 10200
KEEPALIVE_S: Final = 60
"""Idle time before each TCP keepalive probe; three unanswered ones end the connection."""


def open_listen_socket(
    host: str, port: int, *, send_timeout_s: float = 60.0, flags: str = "--port or --host"
) -> socket.socket:
    """Bind a TCP socket whose connections the kernel ends if nothing is acknowledged for send_timeout_s.

    The send buffer is small on purpose. Linux would let it grow to megabytes (minutes of MP3) and report it
    as full until a third of it was read, so a client that plays in real time would look stalled.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        # asyncio sets TCP_NODELAY only if the protocol is given; without it the first audio waits 40 ms.
        listener = socket.socket(family, kind, protocol)
        try:
            # On Windows, SO_REUSEADDR would let two servers listen on the same port.
            sharing = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
            listener.setsockopt(socket.SOL_SOCKET, sharing, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            values = {"TCP_KEEPIDLE": KEEPALIVE_S, "TCP_KEEPINTVL": KEEPALIVE_S, "TCP_KEEPCNT": 3}
            values["TCP_USER_TIMEOUT"] = round(1000 * send_timeout_s)
            for name, value in values.items():
                if (option := getattr(socket, name, None)) is not None:  # not on every system
                    listener.setsockopt(socket.IPPROTO_TCP, option, value)
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


def check_wyoming(uri: str, *, insecure: bool = False) -> None:
    """Raise ConfigError if Wyoming cannot be served at this address."""
    open_listen_socket(*parse_wyoming(uri, insecure=insecure), flags="--wyoming").close()


def parse_wyoming(uri: str, *, insecure: bool = False) -> tuple[str, int]:
    """Return (host, port) of a URI such as tcp://127.0.0.1:10200, if Wyoming may be served there."""
    if find_spec("wyoming") is None:
        fix = install_command("wyoming")
        raise ConfigError("the package `wyoming` is not installed", fix=fix)
    parts = urlsplit(uri)
    try:
        host, port = parts.hostname, parts.port if parts.port is not None else WYOMING_PORT
    except ValueError:
        host, port = None, 0
    if parts.scheme != "tcp" or not host or parts.path not in ("", "/"):
        raise ConfigError(
            "not an address for Wyoming",
            got=repr(uri),
            allowed=f"tcp://HOST:PORT, such as tcp://127.0.0.1:{WYOMING_PORT}",
        )
    if not (is_loopback(host) or insecure):
        raise ConfigError(
            "Wyoming has no password, and other machines can reach this address",
            got=repr(uri),
            allowed="an address of this machine, such as 127.0.0.1",
            fix="Pass --insecure to allow everyone in that network.",
        )
    return host, port
