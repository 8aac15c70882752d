"""Tiny networks whose weights are a formula of the tensor's official name, so that no weight file is needed.

`python -m nightingale_lab.parity record` builds upstream's classes at these sizes, fills them by the same
formula and writes their outputs to `goldens.safetensors`; the tests compare ours with those. The formula is
integer arithmetic, so it gives the same numbers on every machine.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.s3gen.config import FlowConfig
from nightingale.models.chatterbox.t3.config import ENGLISH, START_SPEECH, TURBO, Gpt2Config, LlamaConfig
from nightingale.models.checkpoint import fold_weight_norm
from nightingale.voices.voice import Voice

if TYPE_CHECKING:
    from nightingale_lab.parity.stages.t3_stage import T3Case

Net = TypeVar("Net", bound=nn.Module)
GOLDENS = Path(__file__).parent / "goldens.safetensors"

TINY_LLAMA = replace(
    ENGLISH,
    backbone=LlamaConfig(layers=2, width=64, heads=4, ffn=128),
    text_vocab=300,
    speech_vocab=6600,
    prompt_tokens=20,
    learned_positions=(64, 64),
)
TINY_GPT2 = replace(
    TURBO,
    backbone=Gpt2Config(layers=2, width=64, heads=4, positions=128),
    text_vocab=300,
    prompt_tokens=20,
)
TINY_FLOW = FlowConfig(
    encoder_width=64,
    encoder_heads=4,
    encoder_blocks=2,
    encoder_up_blocks=1,
    encoder_ffn=96,
    estimator_width=32,
    estimator_heads=2,
    estimator_mid_stages=2,
    estimator_stage_blocks=1,
)
TINY_MEANFLOW = replace(TINY_FLOW, meanflow=True)
TINY_HIFT = HiftConfig(base_channels=32, resblock_kernels=(3, 7), source_kernels=(5, 7, 3), f0_channels=16)

SEEN_LOGITS = slice(0, None, 61)
"""The logits that are recorded, one in 61."""
SAMPLED_LOGITS = slice(0, 300)
"""The part of the vocabulary whose logits differ in `sampler_inputs`."""
TEXT = [17, 43, 5, 201, 88, 88, 9]
EXAGGERATION = 0.7
CFG_WEIGHT = 0.5
GREEDY_TOKENS = 12
FLOW_PROMPT_TOKENS, FLOW_TOKENS = 5, 7
FRAMES = 5


def scatter(shape: tuple[int, ...], seed: int) -> Tensor:
    """Numbers spread over [-1, 1) by an integer hash of their index."""
    limit = np.uint64(2**32)
    x = (np.arange(math.prod(shape), dtype=np.uint64) + np.uint64(seed)) * np.uint64(2654435761) % limit
    x ^= x >> np.uint64(15)
    x = x * np.uint64(2246822519) % limit
    x ^= x >> np.uint64(13)
    return torch.from_numpy((x.astype(np.float64) / 2**31 - 1).astype(np.float32)).reshape(shape)


def gaussian(shape: tuple[int, ...], seed: int) -> Tensor:
    """Roughly normal numbers: a sum of twelve even ones."""
    even = torch.stack([scatter(shape, seed + 7919 * i) for i in range(12)])
    return even.sum(0) / 2


def ids(count: int, seed: int) -> Tensor:
    """(1, count) speech ids."""
    return ((scatter((1, count), seed) + 1) / 2 * 6561).long()


def values(name: str, shape: tuple[int, ...]) -> Tensor:
    """The weight of this official name."""
    noise = scatter(shape, zlib.crc32(name.encode()))
    if "emb" in name and len(shape) == 2:
        return noise
    if "classifier" in name:  # pitch around the voiced threshold and far above
        return 10 + 5 * noise if name.endswith("bias") else 900 * noise
    if name.endswith("original0"):
        return 0.6 + 0.2 * noise
    if len(shape) > 1:
        return noise * math.sqrt(3 / math.prod(shape[1:]))
    return 1 + 0.4 * noise if name.endswith(("weight", "alpha")) else 0.1 * noise


def fill(net: Net) -> Net:
    """The network with every tensor set by its name, in evaluation mode."""
    state = net.state_dict()
    net.load_state_dict({name: values(name, tuple(t.shape)) for name, t in state.items()})
    return net.eval().requires_grad_(False)


def fill_weight_normed(net: Net, plain: tuple[str, ...]) -> Net:
    """The same for a vocoder whose checkpoint stores (g, v) for every convolution but the `plain` ones."""
    official: dict[str, Tensor] = {}
    for name, t in net.state_dict().items():
        shape = tuple(t.shape)
        if name.endswith(".weight") and t.dim() == 3 and not name.startswith(plain):
            stem = name.removesuffix("weight") + "parametrizations.weight.original"
            official[f"{stem}0"] = values(f"{stem}0", (shape[0], 1, 1))
            official[f"{stem}1"] = values(f"{stem}1", shape)
        else:
            official[name] = values(name, shape)
    net.load_state_dict(fold_weight_norm(official))
    return net.eval().requires_grad_(False)


def t3_case(kind: str) -> T3Case:
    """The input of the greedy decode that was recorded for "llama" and for "gpt2"."""
    from nightingale_lab.parity.stages.t3_stage import T3Case

    config = TINY_LLAMA if kind == "llama" else TINY_GPT2
    voice = Voice.checked(
        name="tiny",
        family="chatterbox" if kind == "llama" else "turbo",
        speaker=scatter((256,), 1),
        prompt_ids=ids(config.prompt_tokens, 2)[0],
        flow_prompt_ids=torch.zeros(1, dtype=torch.int64),
        flow_prompt_mel=torch.zeros(2, 80),
        flow_speaker=torch.ones(192),
    )
    return T3Case(text=TEXT, voice=voice, tokens=GREEDY_TOKENS)


def sampler_inputs(model: str) -> tuple[Tensor, Tensor]:
    """Logits (steps, rows, vocabulary) and the ids drawn from them, for the sampler that was recorded."""
    rows, vocabulary = 2 if model == "english" else 1, START_SPEECH + 2
    logits = torch.full((4, rows, vocabulary), -8.0)
    logits[..., SAMPLED_LOGITS] = gaussian((4, rows, 300), 21)
    return logits, logits[:, 0].argmax(-1)


def goldens() -> Mapping[str, Tensor]:
    return load_file(GOLDENS)
