"""Wyoming's letters and addresses, and who we say we are.

Events are read with limits of our own: the library's reader believes any length a client announces.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from nightingale import __version__
from nightingale.errors import ConfigError
from nightingale.server.listening import listening
from nightingale.server.roster import VoiceCard

if TYPE_CHECKING:
    from wyoming.event import Event, Eventable

DEFAULT_PORT: Final = 10200
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
MAX_LINE_BYTES: Final = 1 << 16
MAX_EXTRA_BYTES: Final = 1 << 20
"""Of an event's data, or of its payload."""


def check_wyoming(uri: str, *, insecure: bool = False) -> None:
    """Refuse what cannot be served, before a server is started: in one that starts, it would be a fault."""
    host, port = wyoming_address(uri, insecure=insecure)
    try:
        listening(host, port).close()
    except ConfigError as error:
        raise ConfigError(
            "Wyoming cannot listen there",
            got=error.got,
            allowed=error.allowed,
            fix="Choose another address with --wyoming.",
        ) from error


def wyoming_address(uri: str, *, insecure: bool = False) -> tuple[str, int]:
    """(host, port) of `tcp://127.0.0.1:10200`, if there is what it takes to serve it."""
    try:
        import wyoming  # noqa: F401, an optional package: better missed now than by the first client
    except ImportError as error:
        raise ConfigError(
            "Wyoming needs a package that is not installed",
            got="no module 'wyoming'",
            allowed="wyoming 1.7 or newer",
            fix="pip install 'nightingale-tts[wyoming]'",
        ) from error
    parts = urlsplit(uri)
    try:
        host, port = parts.hostname, parts.port if parts.port is not None else DEFAULT_PORT
    except ValueError:
        host, port = None, 0
    if parts.scheme != "tcp" or not host or parts.path not in ("", "/"):
        raise ConfigError(
            "this is not an address for Wyoming",
            got=repr(uri),
            allowed=f"tcp://HOST:PORT, such as tcp://127.0.0.1:{DEFAULT_PORT}",
            fix="Write it so.",
        )
    if host not in LOOPBACK and not insecure:
        raise ConfigError(
            "Wyoming has no password, and this address can be reached by others",
            got=repr(uri),
            allowed="an address of this machine, such as 127.0.0.1",
            fix="Add --insecure if everyone in that network may speak with it.",
        )
    return host, port


async def read_event(reader: asyncio.StreamReader) -> Event | None:
    """The next event, or None when there is none or when it is not one."""
    from wyoming.event import Event

    try:
        head = json.loads(await reader.readline())
        kind, data = head["type"], head.get("data") or {}
        sizes = [head.get("data_length") or 0, head.get("payload_length") or 0]
        if not all(isinstance(size, int) and 0 <= size <= MAX_EXTRA_BYTES for size in sizes):
            return None
        if sizes[0]:
            data = {**data, **json.loads(await reader.readexactly(sizes[0]))}
        payload = await reader.readexactly(sizes[1]) if sizes[1] else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, EOFError):
        return None
    return Event(type=str(kind), data=data, payload=payload) if isinstance(data, dict) else None


def text_of(event: Event) -> str:
    text = event.data.get("text")
    if not isinstance(text, str):
        raise ConfigError(
            f"this {event.type} has no text", got=repr(text)[:80], allowed="a string", fix="Send `text`."
        )
    return text


def describe(voices: list[VoiceCard]) -> Eventable:
    """Who we are and whom we can sound like."""
    from wyoming.info import Attribution, Info, TtsProgram, TtsVoice

    us = Attribution(name="Nightingale", url="")
    known = [
        TtsVoice(
            name=voice.id,
            description=voice.name,
            attribution=us,
            installed=True,
            version=None,
            languages=list(voice.languages),
        )
        for voice in voices
    ]
    program = TtsProgram(
        name="nightingale",
        description="Nightingale text to speech",
        attribution=us,
        installed=True,
        version=__version__,
        voices=known,
        supports_synthesize_streaming=True,
    )
    return Info(tts=[program])
