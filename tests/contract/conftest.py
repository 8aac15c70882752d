"""Clients of other projects with a real server. `make contract` installs them and runs these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from live_server import LiveServer, live_server

from nightingale import TTS

LONG = "This is one of very many sentences that are only here to make the text long. " * 40


@pytest.fixture(scope="session")
def server(tts_with: Callable[..., TTS]) -> Iterator[LiveServer]:
    with live_server(tts_with(defaults={"max_new_tokens": 25})) as running:
        yield running


@pytest.fixture(autouse=True)
def _engine_is_idle_afterwards(server: LiveServer) -> Iterator[None]:
    yield
    server.wait_until_idle()
