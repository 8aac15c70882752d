"""Small T3s for the tests of the CPU runners, with prompts and a measure of error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from nightingale.models.chatterbox.t3.config import MULTILINGUAL, NANO, Gpt2Config, LlamaConfig, T3Config
from nightingale.models.chatterbox.t3.model import T3

WIDTH, ATTENTION_GAIN = 128, 3.0
LLAMA = replace(
    MULTILINGUAL,
    speech_vocab=6563,
    text_vocab=40,
    backbone=LlamaConfig(layers=2, width=WIDTH, heads=2, ffn=384),
)
GPT2 = replace(NANO, speech_vocab=6563, text_vocab=40, backbone=Gpt2Config(layers=2, width=WIDTH, heads=2))
MAX_ERROR = 0.03
"""The largest `relative_error` of int8 in two layers; a missing position changes ten times as much."""


def small_t3(config: T3Config, seed: int = 0) -> T3:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        t3 = T3(config).eval().requires_grad_(False)
    # As initialized, attention weighs all positions alike, and a wrong one would pass for rounding.
    for name, weight in t3.named_parameters():
        if any(part in name for part in ("q_proj.w", "k_proj.w", "o_proj.w", "c_attn.w", "attn.c_proj.w")):
            weight.mul_(ATTENTION_GAIN)
    return t3


def prompt(rows: int, time: int, seed: int) -> Tensor:
    return torch.randn(rows, time, WIDTH, generator=torch.Generator().manual_seed(seed))


def relative_error(got: ArrayLike, exact: ArrayLike) -> float:
    got, exact = np.asarray(got), np.asarray(exact)
    return float(np.sqrt(np.square(got - exact).mean()) / exact.std())
