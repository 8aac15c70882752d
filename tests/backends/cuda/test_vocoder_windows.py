"""A vocoder streamed in windows gives the samples of the reference in any batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from parity.tiny import TINY_HIFT, fill, gaussian
from torch import Tensor

from nightingale.audio.crossfade import HOLD_FRAMES, Crossfade
from nightingale.backends.cuda.bucketed_vocoder import (
    EMPTY_WINDOW,
    BucketedVocoder,
    VocoderWindows,
    context_frames,
)
from nightingale.backends.cuda.random import int64_key
from nightingale.backends.torch.sample_stream import CrossfadedStream, extrapolated_frames, harmonic_phase
from nightingale.models.chatterbox.hift.generator import Hift

BLOCKS = [9, 16, 32, 40, 7]
SEEDS = [3, 4, 5]
ROUNDING = 5e-6
"""Phases are float32: one sample of 49,920 differs by 2.5e-6 on x86, and fewer than 2e-6 on ARM."""


@pytest.fixture(scope="module")
def hift() -> Hift:
    return fill(Hift(TINY_HIFT)).double()


def mel_of(seed: int) -> Tensor:
    return gaussian((80, sum(BLOCKS)), seed).double()


def blocks(seed: int) -> list[Tensor]:
    return list(mel_of(seed).split(BLOCKS, dim=1))


def plain(hift: Hift, seed: int) -> list[np.ndarray]:
    stream = CrossfadedStream(hift, seed=seed)
    return [stream.push(mel, final=i == len(BLOCKS) - 1) for i, mel in enumerate(blocks(seed))]


def by_windows(hift: Hift, seeds: list[int]) -> list[list[np.ndarray]]:
    most = sum(context_frames(hift)) + max(BLOCKS) + HOLD_FRAMES + extrapolated_frames(hift)
    vocoder = BucketedVocoder(hift, batches=(1, 4), frames=(40, most))
    windows = VocoderWindows(vocoder)
    states, crossfades = [EMPTY_WINDOW] * len(seeds), [Crossfade() for _ in seeds]
    samples_by_row: list[list[np.ndarray]] = [[] for _ in seeds]
    for number in range(len(BLOCKS)):
        final = number == len(BLOCKS) - 1
        before = states
        samples, states = windows.push(
            before,
            [blocks(seed)[number] for seed in seeds],
            [final] * len(seeds),
            key=torch.tensor([int64_key(seed, "source") for seed in seeds]),
            phase=torch.cat([harmonic_phase(seed) for seed in seeds]),
        )
        for row, (window, after, crossfade) in enumerate(zip(before, states, crossfades, strict=True)):
            end = crossfade.end(480 * after.known, final=final)
            rendered = samples[row].float().numpy().copy()
            samples_by_row[row].append(crossfade.join(rendered, start=480 * window.first, end=end))
    return samples_by_row


def test_windows_give_the_samples_of_the_reference_in_the_same_chunks(hift: Hift) -> None:
    expected = plain(hift, 3)
    for one, other in zip(by_windows(hift, [3])[0], expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=0, atol=ROUNDING)
    whole = np.concatenate(expected)
    assert len(whole) == 480 * sum(BLOCKS)
    assert np.abs(whole[-960:]).max() > 0.02


def test_each_utterance_of_a_batch_is_rendered_as_alone(hift: Hift) -> None:
    for row, seed in zip(by_windows(hift, SEEDS), SEEDS, strict=True):
        np.testing.assert_allclose(
            np.concatenate(row), np.concatenate(plain(hift, seed)), rtol=0, atol=ROUNDING
        )
