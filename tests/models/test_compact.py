"""Compact weights: half a scale of error at most, and nothing lost or mixed up."""

from __future__ import annotations

import pytest
import torch
from cpu_time import cpu_seconds
from hypothesis import given, settings
from hypothesis import strategies as st

from nightingale.errors import CheckpointError
from nightingale.models.compact import SCALE, unpack
from nightingale_lab.train.pack_weights import LEVELS, MIN_PACKED_VALUES, pack, quantize_rows


def weights(*shape: int, seed: int = 0, size: float = 0.05) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * size


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(-9, 4), st.sampled_from([(8, 64), (5, 7, 3), (3, 4, 2, 2)]))
def test_no_weight_is_off_by_more_than_half_a_scale(seed: int, exponent: int, shape: tuple[int, ...]) -> None:
    weight = weights(*shape, seed=seed, size=10.0**exponent)
    q, scale = quantize_rows(weight)
    wide = scale.float().view(-1, *[1] * (len(shape) - 1))
    assert ((q.float() * wide - weight).abs() <= wide * (0.5 + 1e-5)).all()
    assert q.abs().max() <= LEVELS
    # The scale is the row's largest weight over 127, rounded up by one float16 step at most.
    exact = weight.flatten(1).abs().amax(1) / LEVELS
    assert (scale.float() >= exact).all()
    assert (scale.float() <= exact * (1 + 2**-10) + 2**-24).all()


def test_the_error_of_normal_weights_is_below_one_percent() -> None:
    """Measured: 0.7 % of the weights' own size for rows of 256 normal values (about 43 dB)."""
    weight = weights(512, 256)
    back = unpack(pack({"w": weight}))["w"]
    assert 0.004 < float((back - weight).norm() / weight.norm()) < 0.01


def test_each_row_has_its_own_scale() -> None:
    weight = weights(64, 128)
    weight[0] *= 1000
    back = unpack(pack({"emb.weight": weight}))["emb.weight"]
    quiet = (back[1:] - weight[1:]).norm() / weight[1:].norm()
    assert quiet < 0.01, "a large row must not cost the others precision"


def test_only_large_matrices_become_int8() -> None:
    tensors = {
        "linear.weight": weights(64, 64),
        "conv.weight": weights(32, 32, 5),
        "linear.bias": weights(8192),
        "small.weight": weights(8, MIN_PACKED_VALUES // 8 - 1),
        "mel2wav.conv_pre.weight": weights(64, 64),
        "steps": torch.tensor(7),
    }
    packed = pack(tensors, keep_float16=["mel2wav.*"])
    int8 = {name for name, value in packed.items() if value.dtype == torch.int8}
    assert int8 == {"linear.weight", "conv.weight"}
    assert packed.keys() == tensors.keys() | {name + SCALE for name in int8}
    assert packed["mel2wav.conv_pre.weight"].dtype == packed["linear.bias"].dtype == torch.float16
    back = unpack(packed)
    assert back.keys() == tensors.keys()
    assert all(back[name].shape == value.shape for name, value in tensors.items())
    assert all(value.dtype == torch.float32 for name, value in back.items() if name != "steps")
    assert back["steps"] == 7
    assert back["steps"].dtype == torch.int64


def test_a_row_of_zeros_stays_zero() -> None:
    weight = weights(64, 64)
    weight[3] = 0
    assert (unpack(pack({"w": weight}))["w"][3] == 0).all()


def test_packing_what_was_unpacked_changes_nothing() -> None:
    once = pack({"w": weights(64, 64), "b": weights(9)})
    twice = pack(unpack(once))
    assert once.keys() == twice.keys()
    assert torch.equal(unpack(once)["w"], unpack(twice)["w"])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("shape", [(64, 64), (9,)])
def test_broken_weights_are_not_packed(value: float, shape: tuple[int, ...]) -> None:
    weight = weights(*shape)
    weight.view(-1)[5] = value
    with pytest.raises(CheckpointError, match="cannot be packed"):
        pack({"w": weight})


def test_weights_beyond_float16_are_refused() -> None:
    with pytest.raises(CheckpointError, match="too large"):
        pack({"w": weights(64, 64, size=1e9)})
    with pytest.raises(CheckpointError, match="too large"):
        pack({"b": torch.full((4,), 1e6)})


def test_an_int8_tensor_without_its_scale_is_refused() -> None:
    packed = pack({"w": weights(64, 64)})
    del packed["w" + SCALE]
    with pytest.raises(CheckpointError, match=r"w\.scale"):
        unpack(packed)


def test_a_parameter_that_happens_to_be_called_scale_is_a_parameter() -> None:
    assert unpack(pack({"norm.scale": weights(4), "norm": weights(4)})).keys() == {"norm.scale", "norm"}


def test_unpacking_is_fast() -> None:
    """Wren's 38 million weights take 0.15 s on two cores; processor time, because tests share the machine."""
    packed = pack({f"{i}": weights(1024, 1024, seed=i) for i in range(2)})
    many = {f"{i}{end}": packed[f"{i % 2}{end}"] for i in range(10) for end in ("", SCALE)}
    assert cpu_seconds(lambda: unpack(many), rounds=3) < 4 * 0.15 / 4
