"""Clients of other projects with a real server. `make contract` installs them and runs these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_server import LiveServer, live_server

from nightingale import TTS

LONG = "This is one of very many sentences that are only here to make the text long. " * 40


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import these modules only where they are asked for: elsewhere the clients are not installed."""
    asked = "contract" in config.option.markexpr and "not contract" not in config.option.markexpr
    return True if collection_path.name.startswith("test_") and not asked else None


@pytest.fixture(scope="session")
def server(tts_with: Callable[..., TTS]) -> Iterator[LiveServer]:
    with live_server(tts_with(defaults={"max_new_tokens": 25})) as running:
        yield running


@pytest.fixture(autouse=True)
def _engine_is_idle_afterwards(server: LiveServer) -> Iterator[None]:
    yield
    server.wait_until_idle()
