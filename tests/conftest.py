"""What every test shares: a home of its own, and the stand-in model, loaded once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from nightingale import TTS
    from nightingale.engine.model import Model

BRIEF_TOKENS = 6


@pytest.fixture(autouse=True)
def _a_home_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the voices of the user or fills the cache of the user."""
    monkeypatch.setenv("NIGHTINGALE_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    """A shell that starts the tests in the background has them ignore Ctrl-C, which some of them press."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def noise_model() -> Model:
    from nightingale.engine.standin import load_noise

    return load_noise()


@pytest.fixture(scope="session")
def tts_with(noise_model: Model) -> Callable[..., TTS]:
    """A TTS around the stand-in: `tts_with(default_voice=None, defaults={"drop_last_token": True})`."""
    from nightingale import TTS

    def make(*, defaults: dict[str, Any] | None = None, **changes: Any) -> TTS:
        short = replace(noise_model.defaults, **{"max_new_tokens": BRIEF_TOKENS, **(defaults or {})})
        return TTS.over(replace(noise_model, defaults=short, **changes))

    return make


@pytest.fixture(scope="session")
def brief(tts_with: Callable[..., TTS]) -> TTS:
    """The stand-in, stopped after a quarter of a second."""
    return tts_with()
