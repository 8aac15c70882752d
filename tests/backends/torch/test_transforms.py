"""CUDA's library of Fourier transforms refuses to plan one of nothing, which a CPU's does without a word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from parity.tiny import fill, gaussian
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nightingale.backends.torch.sample_stream import CrossfadedStream
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift


class TransformWatch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if "fft" in str(function):
            self.sizes.append(min(a.numel() for a in args if isinstance(a, Tensor)))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("pieces", [[1, 2, 40, 3], [16, 0, 32, 1], [0, 6, 0, 0], [16, 32, 64, 0]])
def test_no_transform_of_nothing_is_asked_for(pieces: list[int]) -> None:
    config = HiftConfig(base_channels=16, resblock_kernels=(3,), source_kernels=(3, 3, 3), f0_channels=16)
    stream = CrossfadedStream(fill(Hift(config)), seed=1)
    with TransformWatch() as watch:
        samples = [
            stream.push(gaussian((80, frames), frames + 1), final=number + 1 == len(pieces))
            for number, frames in enumerate(pieces)
        ]
    assert sum(map(len, samples)) == 480 * sum(pieces)
    assert watch.sizes, "nothing was transformed at all"
    assert min(watch.sizes) > 0
