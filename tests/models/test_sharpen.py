"""Sharpening of the mel in the vocoder's first layer."""

from __future__ import annotations

import torch

from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.hift.sharpen import sharpen_weights, sharpening_matrix

BANDS, AMOUNT = 80, 0.35


def test_the_matrix_raises_contrast_and_keeps_a_flat_mel() -> None:
    operator = sharpening_matrix(BANDS, AMOUNT)
    flat = torch.full((BANDS, 3), -4.0)
    assert torch.allclose(operator @ flat, flat)
    peak = flat.clone()
    peak[40] += 1.0
    given = operator @ peak - flat
    assert torch.allclose(given[40], torch.tensor(1 + AMOUNT * 4 / 5))
    for band in (38, 39, 41, 42):
        assert torch.allclose(given[band], torch.tensor(-AMOUNT / 5))
    assert torch.allclose(given[[37, 43]], torch.tensor(0.0), atol=1e-6)


def test_the_first_layer_sees_the_sharpened_mel_and_nothing_else_changes() -> None:
    torch.manual_seed(0)
    before = Hift(HiftConfig(base_channels=16, f0_channels=16, causal=True))
    mel = torch.randn(1, BANDS, 12)
    state = sharpen_weights(before.state_dict(), AMOUNT)
    assert [name for name, tensor in before.state_dict().items() if not torch.equal(state[name], tensor)] == [
        "conv_pre.weight"
    ]
    after = Hift(HiftConfig(base_channels=16, f0_channels=16, causal=True))
    after.load_state_dict(state)
    wanted = before.conv_pre(sharpening_matrix(BANDS, AMOUNT) @ mel)
    assert torch.allclose(after.conv_pre(mel), wanted, atol=1e-5)
    assert torch.equal(after.f0_predictor(mel), before.f0_predictor(mel))


def test_the_default_is_no_sharpening() -> None:
    tensors = Hift(HiftConfig(base_channels=16, f0_channels=16)).state_dict()
    kept = sharpen_weights(tensors, 0.0)
    assert kept.keys() == tensors.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in kept.items())
    assert HiftConfig().sharpening == 0.0
