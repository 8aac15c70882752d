"""Models and voices with random weights, for benchmarks, parity checks and tests without official weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.presets import Preset
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES, FlowConfig
from nightingale.models.chatterbox.t3.config import Gpt2Config, LlamaConfig, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.voices.voice import Voice

PROMPT_TOKENS = 250
"""Ten seconds, the flow's longest reference."""


def tiny_preset(preset: Preset) -> Preset:
    """Return the same architecture with networks so small that a CPU runs them in milliseconds."""
    small = {"layers": 2, "width": 64, "heads": 4}
    backbone: Any = (
        Gpt2Config(**small) if isinstance(preset.t3.backbone, Gpt2Config) else LlamaConfig(**small, ffn=96)
    )
    flow = FlowConfig(
        speaker_width=preset.flow.speaker_width, meanflow=preset.flow.meanflow,
        encoder_width=32, encoder_heads=2, encoder_blocks=1, encoder_up_blocks=1, encoder_ffn=32,
        estimator_width=32, estimator_heads=1, estimator_mid_stages=1, estimator_stage_blocks=1,
    )  # fmt: skip
    hift = HiftConfig(base_channels=16, resblock_kernels=(3,), source_kernels=(3, 3, 3), f0_channels=16)
    return replace(preset, t3=replace(preset.t3, backbone=backbone, prompt_tokens=10), flow=flow, hift=hift)


def random_voice(preset: Preset, *, prompt_tokens: int = PROMPT_TOKENS, seed: int = 0) -> Voice:
    """Return a voice of the preset's family whose flow prompt has that many tokens."""
    rng = torch.Generator().manual_seed(seed)
    family = "turbo" if isinstance(preset.t3.backbone, Gpt2Config) else "chatterbox"
    if not preset.t3.prompt_tokens:
        family = "wren"

    def ids(count: int) -> torch.Tensor:
        return torch.randint(SPEECH_CODES, (count,), generator=rng)

    return Voice.checked(
        name="random",
        family=family,
        speaker=torch.nn.functional.normalize(torch.rand(preset.t3.speaker_width, generator=rng), dim=0),
        prompt_ids=ids(min(preset.t3.prompt_tokens, prompt_tokens)),
        flow_prompt_ids=ids(prompt_tokens),
        flow_prompt_mel=torch.randn(2 * prompt_tokens, 80, generator=rng),
        flow_speaker=torch.randn(preset.flow.speaker_width, generator=rng),
    )


def random_t3(
    config: T3Config, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> T3:
    """Return T3 with uniform random weights, made on the device in its precision."""
    with torch.device("meta"):
        t3 = T3(config)
    t3.to_empty(device=device)
    for weight in t3.parameters():
        weight.data.uniform_(-0.02, 0.02)
    t3.to(dtype)
    t3.tfmr.inverse = t3.tfmr._frequencies().to(device)  # type: ignore[operator]
    return t3.eval().requires_grad_(False)
