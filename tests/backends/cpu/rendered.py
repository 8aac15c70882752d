"""Streams of a flow and of a vocoder, for comparisons of low precision with float32."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nightingale.backends.torch.mel_stream import MelStream
from nightingale.backends.torch.sample_stream import CrossfadedStream
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.voices.voice import Voice

IDS = [5, 800, 17, 6000, 42, 42, 9, 1]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rms_error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).square().mean().sqrt() / expected.square().mean().sqrt())


def voice_for(flow: Flow, prompt_tokens: int = 6) -> Voice:
    """Return a random voice whose flow prompt has that many tokens."""
    rng = np.random.default_rng(2)
    return Voice.checked(
        name="random",
        family="wren",
        speaker=rng.random(256),
        prompt_ids=np.zeros(0, np.int64),
        flow_prompt_ids=np.arange(prompt_tokens),
        flow_prompt_mel=rng.standard_normal((2 * prompt_tokens, 80)),
        flow_speaker=rng.standard_normal(flow.config.speaker_width),
    )


def mel_of(flow: Flow) -> Tensor:
    """Return the mel of some tokens in a random voice, streamed in two blocks."""
    stream = MelStream(flow, voice_for(flow), seed=1, streaming=True)
    return torch.cat([stream.push(IDS[:5], final=False), stream.push(IDS[5:], final=True)], dim=1)


def samples_of(hift: Hift) -> Tensor:
    """Return the samples of a random mel, streamed in two blocks."""
    stream, mel = CrossfadedStream(hift, seed=1), noise(80, 24)
    parts = [stream.push(mel[:, :10], final=False), stream.push(mel[:, 10:], final=True)]
    return torch.cat([torch.from_numpy(part) for part in parts])
