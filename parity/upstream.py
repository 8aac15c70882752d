"""Upstream's own networks at full size with seeded random weights, and the files they would ship in.

The wheel (PyPI 0.1.7) is older than the HEAD that is our reference. Three differences are bridged here, each
by giving the wheel what HEAD has: Nano's sizes are added to its table, the multilingual alignment analyzer is
left out, and attention maps are not asked for.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from chatterbox.models.s3gen import S3Gen
from chatterbox.models.t3 import T3
from chatterbox.models.t3.inference.t3_hf_backend import T3HuggingfaceBackend
from chatterbox.models.t3.llama_configs import LLAMA_CONFIGS
from chatterbox.models.t3.modules.t3_config import T3Config
from chatterbox.models.voice_encoder import VoiceEncoder
from families import Family
from safetensors.torch import save_file
from torch import nn
from weights import enliven, make_audible, spread_codes


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    t3: T3
    s3gen: S3Gen
    voice_encoder: VoiceEncoder


def become_head() -> None:
    """Give the wheel what HEAD 5de7a54 has."""
    small = {"n_embd": 768, "hidden_size": 768, "n_layer": 12, "n_head": 12}
    LLAMA_CONFIGS["GPT2_small"] = {**LLAMA_CONFIGS["GPT2_medium"], **small}
    T3Config.is_multilingual = property(lambda _self: False)
    wheel_forward = T3HuggingfaceBackend.forward

    def forward(self: T3HuggingfaceBackend, *args: Any, **keywords: Any) -> Any:
        return wheel_forward(self, *args, **{**keywords, "output_attentions": False})

    T3HuggingfaceBackend.forward = forward


def t3_config(family: Family) -> T3Config:
    """As upstream's wrappers set it up."""
    config = T3Config(text_tokens_dict_size=family.text_vocab)
    config.llama_config_name = family.llama_config
    if not family.guided:
        config.speech_tokens_dict_size = 6563
        config.input_pos_emb = None
        config.speech_cond_prompt_len = 375
        config.use_perceiver_resampler = False
        config.emotion_adv = False
    return config


def build(family: Family) -> Upstream:
    """Random weights, drawn by upstream's own initializers from the family's seed."""
    torch.manual_seed(family.seed)
    built = Upstream(
        t3=T3(t3_config(family)), s3gen=S3Gen(meanflow=not family.guided), voice_encoder=VoiceEncoder()
    )
    for seed, net in enumerate((built.t3, built.s3gen, built.voice_encoder)):
        enliven(net, seed)
        net.eval().requires_grad_(False)
    spread_codes(built.s3gen.tokenizer)
    make_audible(built.s3gen.mel2wav)
    return built


def save(family: Family, built: Upstream, folder: Path) -> dict[str, Path]:
    """Write the three files under their official names: paths by role."""
    files = {
        "t3": folder / family.t3_file,
        "s3gen": folder / family.s3gen_file,
        "voice_encoder": folder / family.voice_file,
    }
    nets: dict[str, nn.Module] = {
        "t3": built.t3,
        "s3gen": built.s3gen,
        "voice_encoder": built.voice_encoder,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for role, path in files.items():
        tensors = {name: t.contiguous() for name, t in nets[role].state_dict().items()}
        if path.suffix == ".pt":
            torch.save(tensors, path)
        else:
            save_file(tensors, path)
    return files


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Upstream prints and draws progress bars; the table must stay readable."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
