"""Int8 transformer blocks of the flow: alone, in one call of the kernels, and called again with other rows."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("llvmlite")
from backends.cpu.rendered import noise, rms_error

from nightingale.backends.cpu import int8_layers, int8_networks
from nightingale.backends.cpu.int8_networks import Int8TransformerBlock
from nightingale.backends.cpu.kernels.target import detect_target
from nightingale.models.chatterbox.s3gen.estimator import TransformerBlock
from nightingale.models.layers.streaming_state import StreamingState

if isinstance(found := detect_target(), str):
    pytest.skip(found, allow_module_level=True)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("frames", [5, 70])
def test_a_transformer_block_is_close_to_float32(frames: int, state: bool) -> None:
    torch.manual_seed(0)
    plain = TransformerBlock(256, 2)
    rounded, x = Int8TransformerBlock(plain), noise(2, frames, 256)
    states = [
        StreamingState((noise(2, 2, 40, 64), noise(2, 2, 40, 64, seed=1))) if state else None for _ in "ab"
    ]
    expected, got = plain(x, None, states[0]), rounded(x.clone(), None, states[1])
    assert 0 < rms_error(got - x, expected - x) < 0.02
    transposed = x.transpose(1, 2).contiguous().transpose(1, 2)
    if not state:
        assert torch.equal(rounded(transposed, None), got), "whatever its strides are"


@pytest.mark.parametrize("frames", [16, 64, 150])
def test_a_block_in_one_call_has_the_bits_of_its_operations(
    frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = Int8TransformerBlock(TransformerBlock(256, 4).requires_grad_(False))
    x = noise(2, frames, 256)
    whole = block(x.clone(), None)
    monkeypatch.setattr(block, "_fits_whole", lambda _: False)
    assert torch.equal(whole, block(x.clone(), None))


def test_kept_arguments_of_a_block_follow_its_rows_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_networks, "CONTEXT", int8_layers.KernelContext())
    plain = TransformerBlock(256, 4).requires_grad_(False)
    block, other = Int8TransformerBlock(plain), Int8TransformerBlock(TransformerBlock(256, 8))
    given = [noise(2, frames, 256, seed=frames) for frames in (70, 16, 150, 70)]
    first = block(given[0].clone(), None)
    other(noise(1, 900, 256), None)  # needs more memory, so that of the first call is replaced
    before, found = torch.get_num_threads(), []
    try:
        for threads in (before, 1, 3):
            torch.set_num_threads(threads)
            found.append([block(x.clone(), None) for x in given])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0][0], first)
    wanted = [Int8TransformerBlock(copy.deepcopy(plain))(x.clone(), None) for x in given]
    assert all(torch.equal(a, b) for own in found for a, b in zip(own, wanted, strict=True))
