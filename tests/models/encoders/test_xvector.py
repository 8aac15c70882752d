"""The x-vector network equals upstream's class on a narrow size with shared weights."""

from __future__ import annotations

import pytest
import torch

from nightingale.errors import BadReference
from nightingale.models.chatterbox.encoders.config import XVectorConfig
from nightingale.models.chatterbox.encoders.xvector import XVector

NARROW = XVectorConfig(stem_channels=8, growth=4, bottleneck=16, embedding=6)
GOLDENS = [
    (2.5, [0.1139287, 0.1625043, -0.05708696, 0.1542771, 0.05961727, -0.02530533]),
    (1.0, [0.09762214, 0.1404633, -0.07042206, 0.151703, 0.05159531, -0.004655851]),
]


@pytest.fixture(scope="module")
def network(filled):
    return filled(XVector(NARROW))


@pytest.mark.parametrize(("seconds", "golden"), GOLDENS)
def test_embedding_equals_upstream(clip, network, seconds, golden):
    vector = network.embed(clip(seconds, 16_000))
    torch.testing.assert_close(vector, torch.tensor(golden), rtol=1e-4, atol=1e-5)


def test_official_tensor_names_load_without_a_map():
    with torch.device("meta"):
        state = XVector(XVectorConfig()).state_dict()
    assert len(state) == 937
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert shapes["head.layer1.0.shortcut.0.weight"] == (32, 32, 1, 1)
    assert shapes["xvector.tdnn.linear.weight"] == (128, 320, 5)
    assert shapes["xvector.block2.tdnnd24.cam_layer.linear_local.weight"] == (32, 128, 3)
    assert shapes["xvector.transit3.linear.weight"] == (512, 1024, 1)
    assert shapes["xvector.dense.linear.weight"] == (192, 1024, 1)
    assert "xvector.dense.nonlinear.batchnorm.weight" not in shapes


def test_a_louder_copy_has_the_same_voice(clip, network):
    # Loud enough that no band of either copy reaches the floor of the logarithm.
    wav = 50 * clip(2.5, 16_000)
    torch.testing.assert_close(network.embed(2 * wav), network.embed(wav), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("samples", [0, 399, 719])
def test_a_clip_that_is_too_short_is_refused(network, samples):
    with pytest.raises(BadReference, match="too short"):
        network.embed(torch.zeros(samples))


def test_the_shortest_clip_gives_finite_numbers(network):
    assert network.embed(torch.zeros(720)).isfinite().all()
