"""Targets of a measurement: our engine in this process, and any server with OpenAI's API."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from nightingale.errors import ConfigError, EngineFault
from nightingale_lab.bench.speed.request import Chunks, Details, Target

PCM_BYTES_PER_SECOND = 48_000
"""`response_format: pcm` is 24 kHz, 16 bits, mono, by OpenAI's definition."""
READ_BYTES = 65_536
TIMEOUT_S = 600.0
KEY_VARIABLE = "OPENAI_API_KEY"


def engine_target(tts: Any, voice: Any = None) -> Target:
    """tts: a `nightingale.TTS`."""

    def target(text: str, seed: int) -> tuple[Chunks, Callable[[], Details]]:
        stream = tts.stream(text, voice=voice, seed=seed)

        def details() -> Details:
            return Details(tokens=stream.metrics.tokens, stage_ms=dict(stream.metrics.stage_ms))

        return (chunk.seconds for chunk in stream), details

    return target


def server_target(url: str, *, model: str | None = None, voice: str | None = None) -> Target:
    """Return a server by its address, with or without /v1. Uses the standard library only.

    Raises:
        ConfigError: this is not an HTTP address.
    """
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            "not the address of a server", got=repr(url), allowed="http://HOST:PORT, with or without /v1"
        )
    path = parts.path.rstrip("/")
    path = (path if path.endswith("/v1") else f"{path}/v1") + "/audio/speech"
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(KEY_VARIABLE):
        headers["Authorization"] = f"Bearer {key}"

    def target(text: str, seed: int) -> tuple[Chunks, Callable[[], Details]]:
        body = {
            "model": model or "tts-1",
            "input": text,
            "voice": voice or "alloy",
            "response_format": "pcm",
            "seed": seed,
        }
        connection = kind(str(parts.hostname), parts.port, timeout=TIMEOUT_S)
        return _stream(connection, path, headers, json.dumps(body).encode()), Details

    return target


def _stream(
    connection: http.client.HTTPConnection, path: str, headers: dict[str, str], body: bytes
) -> Iterator[float]:
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise _failed(f"{answer.status} {answer.reason}: {answer.read(300)!r}")
        while part := answer.read1(READ_BYTES):
            yield len(part) / PCM_BYTES_PER_SECOND
    except (OSError, http.client.HTTPException) as error:
        raise _failed(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()


def _failed(got: str) -> EngineFault:
    return EngineFault(
        "the server sent no audio",
        got=got,
        allowed="200 and PCM from POST /v1/audio/speech",
        fix="Check the address, and --model and --voice for a server that knows others than tts-1 and alloy.",
    )
