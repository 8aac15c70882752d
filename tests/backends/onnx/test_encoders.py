"""Cloning on ONNX Runtime equals cloning in PyTorch: mel front ends, voice encoder and speech tokenizer."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

pytest.importorskip("onnxruntime")
from synthetic_clip import voice_like

from nightingale import wren
from nightingale.backends.base import ModelInfo, ModelSource
from nightingale.backends.onnx.encoding import mel_fronts
from nightingale.backends.onnx.encoding.encoders import OnnxEncoders
from nightingale.backends.torch.encoders import TorchEncoders
from nightingale.backends.torch.weights import load_voice_encoders
from nightingale.errors import BadReference
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.models.layers import mel


@cache
def encoders() -> tuple[OnnxEncoders, TorchEncoders]:
    info = ModelInfo(name="wren", preset=PRESETS["wren"], defaults=MODEL_DEFAULTS["wren"])
    files = {role: wren.folder() / wren.FILES[role] for role in ("s3gen", "voice_encoder")}
    # The second source is apart: PyTorch's networks would be shared as weights in memory.
    mine, theirs = (ModelSource(info, files, packed=True) for _ in range(2))
    return OnnxEncoders(mine), TorchEncoders(load_voice_encoders(theirs))


def test_mel_front_ends_equal_pytorch() -> None:
    at_24k, at_16k = voice_like(1.3, 24_000), voice_like(1.3, 16_000)
    expected = mel.FlowMel()(torch.from_numpy(at_24k)[None])[0].T.numpy()
    np.testing.assert_allclose(mel_fronts.flow_mel(at_24k, 80), expected, atol=2e-4)
    expected = mel.TokenMel()(torch.from_numpy(at_16k)[None])[0].T.numpy()
    np.testing.assert_allclose(mel_fronts.token_mel(at_16k, 128), expected, atol=2e-4)
    expected = mel.VoiceMel()(torch.from_numpy(at_16k)[None])[0].numpy()
    np.testing.assert_allclose(mel_fronts.voice_mel(at_16k, 40), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("seconds", [0.5, 2.0, 6.3])
def test_speaker_vectors_equal_pytorch(seconds: float) -> None:
    mine, theirs = encoders()
    wav = voice_like(seconds, 16_000)
    np.testing.assert_allclose(mine.speaker(wav), theirs.speaker(wav), atol=1e-5)
    assert mine.flow_speaker(wav) is None


@pytest.mark.parametrize("seconds", [0.33, 5.0, 36.5])
def test_speech_tokens_equal_pytorch(seconds: float) -> None:
    mine, theirs = encoders()
    wav = voice_like(seconds, 16_000)
    got, expected = mine.tokenize(wav), theirs.tokenize(wav)
    assert len(got) == len(expected)
    assert (got != expected).mean() < 0.01  # a digit between two values may be rounded otherwise
    assert len(mine.tokenize(wav, max_tokens=5)) == 5


def test_a_clip_that_is_too_short_is_refused() -> None:
    with pytest.raises(BadReference, match="too short"):
        mel_fronts.flow_mel(np.zeros(100, np.float32), 80)
