"""A small model like wren for the exports for phones, its references, and checks that every format passes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from tiny_torch import load_tiny, s3gen_of, t3_of
from tiny_wren import TINY
from torch import Tensor

from nightingale.backends.torch.sample_stream import render_samples
from nightingale.engine.load import Model
from nightingale.export.phone.phone_card import ExportSizes, speaker_inputs
from nightingale.export.phone.phone_check import error_db, program_noise, reference_mel, reference_tokens
from nightingale.export.phone.phone_model import PhoneModel, Voices
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.config import STOP_SPEECH
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.voices.voice import Voice

# A left context that is full after a few blocks, so that old positions leave the caches.
PRESET = replace(TINY, flow=replace(TINY.flow, left_context=24))
SIZES = ExportSizes(capacity=192, prefill_tokens=8, block_tokens=5, block_frames=6)


@cache
def tiny_model() -> Model:
    """Return a small model with a random voice."""
    model = load_tiny(PRESET)
    rng = np.random.default_rng(0)
    voice = Voice.checked(
        name="test",
        family="wren",
        speaker=rng.normal(size=256).astype(np.float32),
        prompt_ids=np.zeros(0, np.int64),
        flow_prompt_ids=np.zeros(0, np.int64),
        flow_prompt_mel=np.zeros((0, 80), np.float32),
        flow_speaker=rng.normal(size=256).astype(np.float32),
    )
    info = replace(model.info, name="tiny", defaults=replace(MODEL_DEFAULTS["wren"], max_new_tokens=200))
    model = replace(model, source=model.source.with_info(info), default_voice=voice)
    # Random weights would make the magnitudes of the spectrum so large that all samples are clipped.
    s3gen_of(model)[1].conv_post.weight.data.mul_(0.05)
    return model


@cache
def tiny_networks() -> tuple[T3, Flow, Hift]:
    """Return copies: the engine changes the layout of its own, which then round differently."""
    return copy.deepcopy((t3_of(tiny_model()), *s3gen_of(tiny_model())))


def tiny_voices() -> Voices:
    t3, flow, _ = tiny_networks()
    assert tiny_model().default_voice is not None
    speaker, flow_speaker = speaker_inputs(tiny_model().default_voice, t3, flow)
    return {"test": (speaker, flow_speaker[:, None])}


@torch.inference_mode()
def check_tokens(exported: PhoneModel, text_ids: int, atol: float) -> None:
    """Compare the logits of a whole utterance with the reference's, given the same tokens."""
    model = tiny_model()
    assert model.default_voice is not None
    ids = torch.randint(1, 250, (text_ids,), generator=torch.Generator().manual_seed(text_ids)).tolist()
    tokens, logits = reference_tokens(model, tiny_networks()[0], model.default_voice, ids)
    seen: list[Tensor] = []

    def choose(values: Tensor) -> int:
        seen.append(values)
        return tokens[len(seen) - 1] if len(seen) <= len(tokens) else STOP_SPEECH

    assert list(exported.generate(ids, "test", choose)) == tokens
    assert len(tokens) > 20
    for own, other in zip(seen, logits, strict=False):
        torch.testing.assert_close(own, other, rtol=0, atol=atol)


@torch.inference_mode()
def check_mel(exported: PhoneModel, tokens: int, atol: float) -> None:
    """Compare the mel of an utterance with the reference's, rendered in the same blocks."""
    voice = tiny_model().default_voice
    assert voice is not None
    ids = torch.randint(0, 6561, (tokens,), generator=torch.Generator().manual_seed(tokens)).tolist()
    blocks = list(exported.render(ids, "test"))
    assert sum(len(block) for block in blocks) == 2 * tokens
    assert [len(block) for block in blocks[:-1]] == [10] * (len(blocks) - 1)
    mel = reference_mel(tiny_networks()[1], voice, ids, [len(block) // 2 for block in blocks])
    torch.testing.assert_close(torch.cat(blocks), mel, rtol=0, atol=atol)


@torch.inference_mode()
def check_samples(
    exported: PhoneModel, frames: int, limit_db: float, hift: Hift | None = None, parts: Sequence[int] = (4,)
) -> None:
    """Compare the samples of an utterance with the reference's."""
    hift = hift or tiny_networks()[2]
    mel = torch.randn(frames, 80, generator=torch.Generator().manual_seed(frames)) * 2 - 5
    split = torch.tensor_split(mel, list(parts))
    samples = np.concatenate(list(exported.vocode(split, program_noise(hift, 3))))
    assert len(samples) == 480 * frames - 12
    assert np.abs(samples).max() > 1e-3
    found_db = error_db(samples, render_samples(hift, mel.T, seed=3))
    assert found_db < limit_db


def voiced_hift() -> Hift:
    """Return a vocoder whose pitch is between 50 and 3000 Hz: some harmonics are above the limit."""
    hift = copy.deepcopy(tiny_networks()[2])
    hift.f0_predictor.classifier.bias.data.fill_(500.0)
    hift.f0_predictor.classifier.weight.data.mul_(600.0)
    mel = torch.randn(33, 80, generator=torch.Generator().manual_seed(33)) * 2 - 5
    f0 = hift.f0_predictor(mel.T[None])
    assert 50 < f0.min() < 350
    assert 920 < f0.max() < 3000
    return hift
