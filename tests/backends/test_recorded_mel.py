"""Recordings are rendered with what their speech tokens do not keep: the arithmetic, and every backend of wren."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from backends.conformance import RENDERERS, Case, setup_for, source_of, streams, voice_of

from nightingale.backends.base import Block, Recorded, Renderer, RenderStream
from nightingale.backends.profiles import PROFILES
from nightingale.backends.shared.recorded_mel import MEAN_FRAMES, RecordedMel, band_average
from nightingale.backends.torch.mel_stream import MelStream
from nightingale.types import Samples

TOKENS = 40
BANDS = 80
TOLERANCE = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.1, "int8": 0.1}
OWN, TARGET = voice_of(16, 1), voice_of(16, 0)
RNG = np.random.default_rng(3)
DETAIL = RNG.normal(0.0, 1.0, (2 * TOKENS, BANDS)).astype(np.float32)


def block(mel: np.ndarray, *, final: bool) -> Block:
    return Block(
        stream=None,
        tokens=[0] * (len(mel) // 2),
        first=False,
        final=final,
        alone=True,
        recorded=Recorded(mel=mel, voice=OWN),
    )


def test_the_average_over_bands_keeps_the_level_and_reaches_two_bands() -> None:
    averages = band_average(BANDS)
    assert np.allclose(averages.sum(axis=1), 1.0)
    assert np.count_nonzero(averages[40]) == 5


def test_what_tokens_keep_adds_nothing_and_what_they_lose_comes_back() -> None:
    own = np.zeros((200, BANDS), np.float32)
    assert not RecordedMel().missing(block(own, final=True), own, len(own)).any()
    burst = own.copy()
    burst[100:102, 20:40] = 3.0
    missing = RecordedMel().missing(block(burst, final=True), own, len(own))
    assert missing[100, 25:35] == pytest.approx(3.0, abs=0.1)
    assert abs(missing[100, 50:]).max() < 0.1


def test_what_does_not_change_in_a_recording_is_left_out() -> None:
    own = RNG.normal(-4.0, 1.0, (20 * MEAN_FRAMES, BANDS)).astype(np.float32)
    microphone = np.linspace(-3.0, 1.0, BANDS, dtype=np.float32)
    missing = RecordedMel().missing(block(own + microphone, final=True), own, len(own))
    assert abs(missing[-1]).max() < 0.01
    silent = np.full_like(own, -11.5)
    missing = RecordedMel().missing(block(silent + 2.0, final=True), silent, len(silent))
    assert missing[-1] == pytest.approx(2.0), "bands without sound do not count"


def test_blocks_of_a_stream_equal_the_whole() -> None:
    own = RNG.normal(-4.0, 1.0, (2 * TOKENS, BANDS)).astype(np.float32)
    recorded = own + DETAIL
    whole = RecordedMel().missing(block(recorded, final=True), own, len(own))
    stream, parts = RecordedMel(), []
    for start, end, rendered in ((0, 20, 14), (20, 50, 44), (50, 80, 80)):
        done = sum(map(len, parts))
        parts.append(
            stream.missing(block(recorded[start:end], final=end == 80), own[done:rendered], rendered - done)
        )
    assert np.allclose(np.concatenate(parts), whole, atol=1e-5)


def test_frames_that_are_not_known_add_nothing() -> None:
    own = np.zeros((20, BANDS), np.float32)
    recorded = np.concatenate([np.full((10, BANDS), np.nan, np.float32), own[10:] + 1.0])
    missing = RecordedMel().missing(block(recorded, final=True), own, 26)
    assert missing.shape == (26, BANDS)
    assert not missing[:16].any(), "six frames before the own voice was known, and ten without a recording"
    assert missing[16:].min() > 0.8


def wren_renderer(case: Case, stream: str = "block") -> Renderer:
    profile = replace(PROFILES["balanced"], stream=stream, first_block_tokens=5, largest_block_tokens=20)
    source, setup = setup_for(case, "wren", profile)
    return case.object.open_renderer(source, setup)


def own_mel(tokens: list[int]) -> np.ndarray:
    """Return the mel of the recording's own voice, by the blocks of `converted`."""
    flow, _ = source_of("wren").loaded("s3gen")
    stream, left, parts, started = MelStream(flow, OWN, seed=3, streaming=True), list(tokens), [], False
    while True:
        size = min(len(left), 10 if started else 13)
        final, started = size == len(left), True
        parts.append(stream.push(left[:size], final=final))
        left = left[size:]
        if final:
            return torch.cat(parts, dim=1).numpy().T


def converted(
    renderer: Renderer, stream: RenderStream, tokens: list[int], mel: np.ndarray | None, known_from: int = 0
) -> Samples:
    left, done, chunks = list(tokens), 0, []
    while True:
        cut = stream.next_cut(len(left), finished=True, wanted=10)
        assert cut is not None
        taken = left[: cut.tokens]
        recorded = None
        if mel is not None and done >= known_from:
            recorded = Recorded(mel=mel, voice=OWN).part(done, done + cut.tokens)
        one = Block(
            stream=stream, tokens=taken, first=not done, final=cut.final, alone=True, recorded=recorded
        )
        chunks += renderer.render([one]).result()
        left, done = left[cut.tokens :], done + cut.tokens
        if cut.final:
            return np.concatenate(chunks)


@pytest.mark.parametrize("case", [c for c in RENDERERS if c.backend not in ("cuda", "noise")], ids=str)
def test_every_backend_of_wren_renders_the_recorded_mel(case: Case) -> None:
    (tokens,) = streams([TOKENS])
    own = own_mel(tokens)
    reference = wren_renderer(Case("torch", "float32"))
    expected = converted(reference, reference.open(TARGET, seed=3), tokens, own + DETAIL)
    renderer = wren_renderer(case)
    plain = converted(renderer, renderer.open(TARGET, seed=3), tokens, None)
    same = converted(renderer, renderer.open(TARGET, seed=3), tokens, own)
    other = converted(renderer, renderer.open(TARGET, seed=3), tokens, own + DETAIL)
    assert len(plain) == len(same) == len(other) == 960 * TOKENS
    error = {name: np.mean(np.abs(one - two)) for name, one, two in (
        ("tokens keep all", same, plain), ("reference", other, expected), ("detail", other, plain)
    )}  # fmt: skip
    assert error["tokens keep all"] < TOLERANCE[case.precision], error
    assert error["reference"] < TOLERANCE[case.precision], error
    assert error["detail"] > 2 * max(error["tokens keep all"], error["reference"]), error
    renderer.close()


def test_a_recording_may_be_known_from_a_later_block_on() -> None:
    (tokens,) = streams([TOKENS])
    mel = own_mel(tokens) + DETAIL
    renderer = wren_renderer(Case("torch", "float32"))
    plain, late, early = (
        converted(renderer, renderer.open(TARGET, seed=3), tokens, mel, known_from=first)
        for first in (TOKENS, 13, 0)
    )
    assert len(late) == 960 * TOKENS
    unlike = 960 * 8  # the vocoder looks ahead
    assert np.array_equal(late[:unlike], plain[:unlike])
    assert not np.array_equal(early[:unlike], plain[:unlike])
    assert not np.array_equal(late[960 * 20 :], plain[960 * 20 :])


def test_a_whole_segment_is_rendered_with_its_recording() -> None:
    (tokens,) = streams([TOKENS])
    renderer = wren_renderer(Case("torch", "float32"), stream="segment")
    plain, same, other = (
        converted(renderer, renderer.open(TARGET, seed=3), tokens, mel)
        for mel in (None, np.zeros((2 * TOKENS, BANDS), np.float32), DETAIL)
    )
    assert len(plain) == len(same) == 960 * TOKENS
    assert not np.array_equal(plain, other)
    assert not np.array_equal(same, other)
