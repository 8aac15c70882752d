"""A server with the noise model, shared by the tests of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("fastapi")

from live_server import LiveServer, live_server

from nightingale import TTS
from nightingale.backends.profiles import BALANCED

if TYPE_CHECKING:
    from nightingale.engine.load import Model


@pytest.fixture(scope="package")
def small(noise_model: Model) -> Callable[..., TTS]:
    """Return a function that makes a streaming engine."""

    def make(*, slots: int = 4, queue: int = 64, tokens: int = 8) -> TTS:
        model = noise_model.with_defaults(max_new_tokens=tokens)
        return TTS.over(model, replace(BALANCED, slots=slots, queue_limit=queue))

    return make


@pytest.fixture(scope="module")
def server(small: Callable[..., TTS]) -> Iterator[LiveServer]:
    with small() as tts, live_server(tts) as running:
        yield running
