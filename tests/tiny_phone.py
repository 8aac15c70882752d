"""A small model like wren for the exports for phones, its references, and checks that every format passes."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from tiny_torch import load_tiny, s3gen_of, t3_of
from tiny_wren import TINY
from torch import Tensor

from nightingale.engine.load import Model
from nightingale.export.phone.phone_card import ExportSizes, speaker_inputs
from nightingale.export.phone.phone_check import (
    error_db,
    reference_mel,
    reference_samples,
    reference_tokens,
)
from nightingale.export.phone.phone_model import PhoneModel, Voices
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.config import STOP_SPEECH
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.models.frame_vocoder.network import FrameVocoder
from nightingale.voices.voice import Voice

# A left context that is full after a few blocks, so that old positions leave the caches.
PRESET = replace(TINY, flow=replace(TINY.flow, left_context=24))
SIZES = ExportSizes(capacity=192, prefill_tokens=8, block_tokens=5)


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
    return model


@cache
def tiny_networks() -> tuple[T3, Flow, FrameVocoder]:
    """Return copies: the engine changes the layout of its own, which then round differently."""
    flow, vocoder = s3gen_of(tiny_model())
    assert isinstance(vocoder, FrameVocoder)
    return copy.deepcopy((t3_of(tiny_model()), flow, vocoder))


def tiny_voices() -> Voices:
    t3, flow, _ = tiny_networks()
    voice = tiny_model().default_voice
    assert voice is not None
    speaker, flow_speaker = speaker_inputs(voice, t3, flow)
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
    exported: PhoneModel, frames: int, limit_db: float, vocoder: FrameVocoder | None = None
) -> None:
    """Compare the samples of an utterance with the reference's, which renders the same mel in other blocks."""
    vocoder = vocoder or tiny_networks()[2]
    mel = torch.randn(frames, 80, generator=torch.Generator().manual_seed(frames)) * 2 - 5
    samples = np.concatenate(list(exported.vocode(torch.tensor_split(mel, [4]), seed=3)))
    assert len(samples) == 480 * frames
    assert np.abs(samples).max() > 1e-3
    found_db = error_db(samples, reference_samples(vocoder, torch.split(mel, 7), seed=3))
    assert found_db < limit_db


def voiced_vocoder() -> FrameVocoder:
    """Return a vocoder whose pitch is that of speech, of song, and of unvoiced frames."""
    vocoder = copy.deepcopy(tiny_networks()[2])
    vocoder.pitch_predictor.classifier.bias.data.fill_(-150.0)
    vocoder.pitch_predictor.classifier.weight.data.mul_(500.0)
    mel = torch.randn(33, 80, generator=torch.Generator().manual_seed(33)) * 2 - 5
    f0_hz = vocoder.pitch_hz(mel.T[None])
    assert f0_hz.min() < 10
    assert f0_hz.max() > 700
    return vocoder
