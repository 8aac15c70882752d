"""The tiny wren with a constant pitch, so that PyTorch and MLX agree on the phase of each harmonic.

A predicted pitch is rounded as its sums are ordered. The vocoder adds its phases up, and 70 harmonics multiply them.
"""

from __future__ import annotations

import copy
from functools import cache

from backends.conformance import source_of

from nightingale.backends.base import ModelSource
from nightingale.backends.torch.weights import in_memory


@cache
def steady_wren() -> ModelSource:
    source = source_of("wren")
    flow, vocoder = source.loaded("s3gen")
    vocoder = copy.deepcopy(vocoder)
    vocoder.pitch_predictor.classifier.weight.zero_()
    vocoder.pitch_predictor.classifier.bias.fill_(151.3)
    return in_memory(source.info, t3=source.loaded("t3"), flow=flow, vocoder=vocoder)
