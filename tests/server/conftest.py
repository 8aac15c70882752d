"""A server over the stand-in, shared by the tests of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

pytest.importorskip("fastapi")

from live_server import LiveServer, live_server

from nightingale import TTS
from nightingale.backends.profiles import BALANCED

if TYPE_CHECKING:
    from nightingale.engine.model import Model


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny networks are quicker on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="package")
def small(noise_model: Model) -> Callable[..., TTS]:
    """An engine that streams, by the number of its slots, of places in line, and of tokens it says."""

    def make(*, slots: int = 4, queue: int = 64, tokens: int = 8) -> TTS:
        defaults = replace(noise_model.defaults, max_new_tokens=tokens)
        return TTS.over(
            replace(noise_model, defaults=defaults), replace(BALANCED, slots=slots, queue_limit=queue)
        )

    return make


@pytest.fixture(scope="module")
def server(small: Callable[..., TTS]) -> Iterator[LiveServer]:
    with small() as tts, live_server(tts) as running:
        yield running
