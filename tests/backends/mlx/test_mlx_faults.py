"""Errors of MLX in the middle of speech: the request is decoded again or ends, and other requests go on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core")

from backends.conformance import Case, Driver, open_decoder, setup_for, voice_of  # noqa: E402
from tiny_torch import load_tiny  # noqa: E402

from nightingale.backends.mlx.renderer import open_renderer  # noqa: E402
from nightingale.backends.mlx.rendering.waveform_stream import CrossfadedWaveform  # noqa: E402
from nightingale.backends.mlx.t3.static_decode import StaticDecodeLoop, TokenBlock  # noqa: E402
from nightingale.backends.profiles import PROFILES  # noqa: E402
from nightingale.engine.tts import TTS  # noqa: E402
from nightingale.errors import EngineFault, OutOfMemory  # noqa: E402

FLOAT32 = Case("mlx", "float32")
METAL = "[METAL] Command buffer execution failed: Caused GPU Hang Error"
NO_MEMORY = (
    "[metal::malloc] Attempting to allocate 9 GB which is greater than the maximum allowed buffer size"
)


def failing(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: set[int], message: str) -> None:
    """Let the calls of a method with these numbers raise an error of MLX, before they change anything."""
    original: Callable[..., Any] = getattr(owner, name)
    numbers: Iterator[int] = iter(range(10**6))

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(numbers) in calls:
            raise RuntimeError(message)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


@pytest.mark.thorough
@pytest.mark.parametrize(("batched", "call"), [(True, 2), (False, 5)])
@pytest.mark.parametrize("where", [(StaticDecodeLoop, "launch"), (TokenBlock, "take")])
def test_a_step_that_fails_once_changes_no_token(
    where: tuple[Any, str],
    call: int,
    batched: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = Driver(*open_decoder(FLOAT32, "english", batched=batched)).run([1, 2, 3])
    failing(monkeypatch, *where, {call}, METAL)
    with caplog.at_level(logging.WARNING):
        again = Driver(*open_decoder(FLOAT32, "english", batched=batched)).run([1, 2, 3])
    assert again == expected
    assert [METAL in record.message for record in caplog.records] == [True]


def test_a_step_that_fails_again_ends_the_utterances_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source, decoder = open_decoder(FLOAT32, "turbo")
    expected = Driver(source, decoder).run([7])
    with monkeypatch.context() as patch:
        failing(patch, StaticDecodeLoop, "launch", {2, 3}, METAL)
        driver = Driver(source, decoder)
        driver.run([1, 2])
    assert {seed: str(error) for seed, error in driver.errors.items()} == {1: METAL, 2: METAL}
    assert Driver(source, decoder).run([7]) == expected


@pytest.mark.parametrize(("message", "kind"), [(METAL, EngineFault), (NO_MEMORY, OutOfMemory)])
def test_a_request_ends_with_a_typed_error_and_the_next_one_is_spoken(
    message: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    with TTS.over(load_tiny(), PROFILES["balanced"], device="mlx", dtype="float32") as tts:
        expected = tts.say("One sentence.", seed=1).samples
        for owner, name in (
            (StaticDecodeLoop, "launch"),
            (StaticDecodeLoop, "prefill"),
            (CrossfadedWaveform, "push"),
        ):
            with monkeypatch.context() as patch:
                failing(patch, owner, name, set(range(100)), message)
                with pytest.raises(kind):
                    tts.say("Another sentence.", seed=1)
            assert np.array_equal(tts.say("One sentence.", seed=1).samples, expected)


def called_in_a_thread(call: Callable[[], object]) -> BaseException | None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except EngineFault as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="another")
    thread.start()
    thread.join()
    return raised[0] if raised else None


def test_a_second_thread_is_refused() -> None:
    source, decoder = open_decoder(FLOAT32, "turbo")
    driver = Driver(source, decoder)
    expected = Driver(source, decoder).run([1])
    driver.start(1)
    assert "second thread: got another" in str(called_in_a_thread(driver.step))
    while driver.running:
        driver.step()
    assert driver.tokens == expected
    renderer = open_renderer(*setup_for(FLOAT32, "turbo", PROFILES["balanced"]))
    renderer.open(voice_of(16), seed=1)
    assert "second thread" in str(called_in_a_thread(lambda: renderer.open(voice_of(16), seed=1)))
