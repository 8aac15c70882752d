"""Addresses for Wyoming, checked before the server starts. Needs no package `wyoming`."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from nightingale.errors import ConfigError
from nightingale.server.listen_socket import open_listen_socket
from nightingale.server.settings import is_loopback

DEFAULT_PORT: Final = 10200


def check_wyoming(uri: str, *, insecure: bool = False) -> None:
    """Raise ConfigError if Wyoming cannot be served at this address."""
    open_listen_socket(*parse_address(uri, insecure=insecure), flags="--wyoming").close()


def parse_address(uri: str, *, insecure: bool = False) -> tuple[str, int]:
    """Return (host, port) of a URI such as tcp://127.0.0.1:10200, if Wyoming may be served there."""
    try:
        import wyoming  # noqa: F401, an optional package
    except ImportError as error:
        raise ConfigError(
            "the package `wyoming` is not installed", fix="pip install 'nightingale-tts[wyoming]'"
        ) from error
    parts = urlsplit(uri)
    try:
        host, port = parts.hostname, parts.port if parts.port is not None else DEFAULT_PORT
    except ValueError:
        host, port = None, 0
    if parts.scheme != "tcp" or not host or parts.path not in ("", "/"):
        raise ConfigError(
            "not an address for Wyoming",
            got=repr(uri),
            allowed=f"tcp://HOST:PORT, such as tcp://127.0.0.1:{DEFAULT_PORT}",
        )
    if not (is_loopback(host) or insecure):
        raise ConfigError(
            "Wyoming has no password, and other machines can reach this address",
            got=repr(uri),
            allowed="an address of this machine, such as 127.0.0.1",
            fix="Pass --insecure to allow everyone in that network.",
        )
    return host, port
