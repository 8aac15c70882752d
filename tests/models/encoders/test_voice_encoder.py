"""The voice encoder equals upstream's class on a tiny size with shared weights."""

from __future__ import annotations

import pytest
import torch

from nightingale.errors import BadReference
from nightingale.models.chatterbox.encoders.config import VoiceEncoderConfig
from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder

TINY = VoiceEncoderConfig(width=16, embedding=12)
# fmt: off
TWO_WINDOWS = [0.2865734, 0.02711695, 0.1449087, 0.4616427, 0.2693284, 0.3861693,
               0.4451102, 0.4590243, 0.0, 0.2292094, 0.0, 0.0]
ONE_WINDOW = [0.0, 0.0, 0.4147606, 0.606863, 0.0, 0.1181336, 0.6614742, 0.09048413, 0.0, 0.0, 0.0, 0.0]
# fmt: on


@pytest.mark.parametrize(("seconds", "golden"), [(2.5, TWO_WINDOWS), (1.0, ONE_WINDOW)])
def test_embedding_equals_upstream(clip, filled, seconds, golden):
    encoder = filled(VoiceEncoder(TINY))
    torch.testing.assert_close(
        encoder.embed(clip(seconds, 16_000)), torch.tensor(golden), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("frames", "windows"), [(1, 1), (160, 1), (204, 1), (205, 2), (237, 2), (281, 2), (282, 3), (1001, 12)]
)
def test_a_last_window_counts_when_four_fifths_full(frames, windows):
    mel = torch.arange(1.0, frames + 1)[:, None].expand(frames, 40)
    cut = VoiceEncoder(TINY).windows(mel)
    assert cut.shape == (windows, 160, 40)
    last = cut[-1, :, 0]
    first_value = 77.0 * (windows - 1) + 1
    assert last[0] == first_value
    assert last[-1] == (first_value + 159 if first_value + 159 <= frames else 0)


def test_official_tensor_names_load_without_a_map():
    with torch.device("meta"):
        encoder = VoiceEncoder(VoiceEncoderConfig())
    shapes = {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}
    lstm = {
        f"lstm.{kind}_{part}_l{layer}"
        for kind in ("weight", "bias")
        for part in ("ih", "hh")
        for layer in range(3)
    }
    assert set(shapes) == lstm | {"proj.weight", "proj.bias", "similarity_weight", "similarity_bias"}
    assert shapes["lstm.weight_ih_l0"] == (1024, 40)
    assert shapes["lstm.weight_hh_l2"] == (1024, 256)
    assert shapes["proj.weight"] == (256, 256)


def test_embedding_has_length_one_and_ignores_quiet_ends(clip, filled):
    encoder = filled(VoiceEncoder(TINY))
    wav = clip(2.5, 16_000)
    longer = torch.cat((torch.zeros(5120), wav, torch.zeros(5120)))
    assert encoder.embed(wav).norm().item() == pytest.approx(1.0, abs=1e-5)
    torch.testing.assert_close(encoder.embed(longer), encoder.embed(wav), rtol=1e-3, atol=1e-4)


def test_silence_gives_a_finite_vector(filled):
    assert filled(VoiceEncoder(TINY)).embed(torch.zeros(16_000)).isfinite().all()


@pytest.mark.parametrize("samples", [0, 1, 200])
def test_a_clip_that_is_too_short_is_refused(filled, samples):
    with pytest.raises(BadReference, match="too short"):
        filled(VoiceEncoder(TINY)).embed(torch.zeros(samples))
