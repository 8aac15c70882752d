"""Models and voices with random weights, for benchmarks, parity checks and tests without official weights."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from nightingale.backends.base import ModelInfo, ModelSource
from nightingale.backends.torch.weights import in_memory
from nightingale.engine.load import Model
from nightingale.models.chatterbox.build import Vocoder, new_vocoder
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.presets import PRESETS, Preset
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES, FlowConfig
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.config import Gpt2Config, LlamaConfig, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.models.frame_vocoder.config import FrameVocoderConfig
from nightingale.text.frontend import Frontend
from nightingale.voices.voice import Voice

Net = TypeVar("Net", bound=torch.nn.Module)
PROMPT_TOKENS, TINY_PROMPT_TOKENS = 250, 20
"""Tokens of a voice's flow prompt. Ten seconds is the longest that clips give."""
TEXT_IDS, TINY_TEXT_IDS = 60, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks:
    """The networks of synthesis."""

    t3: T3
    flow: Flow
    vocoder: Vocoder


def tiny_preset(preset: Preset) -> Preset:
    """Return the same architecture with networks so small that a CPU runs them in milliseconds."""
    small: dict[str, Any] = {"layers": 2, "width": 64, "heads": 4}
    backbone: Any = (
        Gpt2Config(**small) if isinstance(preset.t3.backbone, Gpt2Config) else LlamaConfig(**small, ffn=96)
    )
    flow = FlowConfig(
        speaker_width=preset.flow.speaker_width, meanflow=preset.flow.meanflow,
        encoder_width=32, encoder_heads=2, encoder_blocks=1, encoder_up_blocks=1, encoder_ffn=32,
        estimator_width=32, estimator_heads=1, estimator_mid_stages=1, estimator_stage_blocks=1,
    )  # fmt: skip
    vocoder: Any = (
        FrameVocoderConfig(width=16, hidden=24, blocks=2, pitch_width=16)
        if isinstance(preset.vocoder, FrameVocoderConfig)
        else HiftConfig(base_channels=16, resblock_kernels=(3,), source_kernels=(3, 3, 3), f0_channels=16)
    )
    t3 = replace(preset.t3, backbone=backbone, prompt_tokens=10)
    return replace(preset, t3=t3, flow=flow, vocoder=vocoder)


def random_voice(preset: Preset, *, prompt_tokens: int = PROMPT_TOKENS, seed: int = 0) -> Voice:
    """Return a voice of the preset's family whose flow prompt has that many tokens."""
    rng, bits = np.random.default_rng(seed), np.random.PCG64(seed)
    family = "turbo" if isinstance(preset.t3.backbone, Gpt2Config) else "chatterbox"
    speaker = rng.random(preset.t3.speaker_width)
    return Voice.checked(
        name="random",
        family=family if preset.t3.prompt_tokens else "wren",
        speaker=speaker / math.sqrt(math.fsum(speaker**2)),  # summed in the same way on every machine
        prompt_ids=rng.integers(SPEECH_CODES, size=min(preset.t3.prompt_tokens, prompt_tokens)),
        flow_prompt_ids=rng.integers(SPEECH_CODES, size=prompt_tokens),
        flow_prompt_mel=_uniform(bits, 2 * prompt_tokens * 80).reshape(-1, 80),
        flow_speaker=_uniform(bits, preset.flow.speaker_width),
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


def random_networks(preset: Preset, device: torch.device | str = "cpu") -> Networks:
    """Return networks with random weights, made on the device. Control ids are never the most likely."""
    with torch.device(device):
        t3, flow, vocoder = T3(preset.t3), Flow(preset.flow), new_vocoder(preset.vocoder)
    with torch.no_grad():
        t3.speech_head.weight[:SPEECH_CODES] *= 10
        t3.speech_head.weight[SPEECH_CODES:] = 0
    for network in (t3, flow, vocoder):
        network.to(device).eval().requires_grad_(False)
    return Networks(t3=t3, flow=flow, vocoder=vocoder)


def seeded_model(
    name: str, *, tokens: int, seed: int = 0, tiny: bool = True, device: torch.device | str = "cpu"
) -> Model:
    """Return a model of a family whose weights are the same on every machine."""
    preset = tiny_preset(PRESETS[name]) if tiny else PRESETS[name]
    t3, flow, vocoder = T3(preset.t3), Flow(preset.flow), new_vocoder(preset.vocoder)
    networks = Networks(t3=seeded(t3, seed), flow=seeded(flow, seed + 1), vocoder=seeded(vocoder, seed + 2))
    with torch.no_grad():
        t3.speech_head.weight[SPEECH_CODES:] = 0
    digest = hashlib.sha256()
    for weight in (*t3.parameters(), *flow.parameters(), *vocoder.parameters()):
        digest.update(weight.numpy().tobytes())
    for network in (t3, flow, vocoder):
        network.to(device)
    model = random_model(name, tokens=tokens, tiny=tiny, networks=networks, device=device)
    return replace(model, fingerprint=digest.hexdigest())


def save_weights(networks: Networks, folder: Path, prefix: str = "") -> None:
    """Write `t3.safetensors` and `s3gen.safetensors` with the names that official files have."""
    s3gen = {f"flow.{key}": value for key, value in networks.flow.state_dict().items()}
    s3gen |= {f"mel2wav.{key}": value for key, value in networks.vocoder.state_dict().items()}
    save_file(networks.t3.state_dict(), folder / f"{prefix}t3.safetensors")
    save_file(s3gen, folder / f"{prefix}s3gen.safetensors")


def seeded(network: Net, seed: int) -> Net:
    """Draw every weight anew, scaled by its fan-in; biases are zero, gains stay as they were built."""
    bits = np.random.PCG64(seed)
    for name, weight in network.named_parameters():
        if weight.dim() > 1:
            drawn = torch.from_numpy(_uniform(bits, weight.numel())).view(weight.shape)
            weight.data.copy_(drawn / math.sqrt(weight[0].numel()))
        elif name.endswith("bias") or "bias_" in name:
            weight.data.zero_()
    return network.eval().requires_grad_(False)


def _uniform(bits: np.random.PCG64, count: int) -> NDArray[np.float32]:
    """Return uniform float32 numbers with a variance of one, the same on every machine.

    They are 16-bit integers of the raw stream, which every version of numpy keeps, times a constant. Normal
    numbers need logarithms, whose last bits depend on the processor.
    """
    raw: NDArray[np.uint64] = np.asarray(bits.random_raw(-(-count // 4)), dtype="<u8")
    return raw.view("<i2")[:count].astype(np.float32) * np.float32(math.sqrt(3) / 2**15)


class FixedLengthTokenizer:
    """Encodes every text to the same number of ids."""

    vocab_size = 256

    def __init__(self, ids: int) -> None:
        self._ids = ids

    def encode(self, text: str, language: str | None = None) -> list[int]:  # noqa: ARG002, a protocol
        return [1 + (7 * i + len(text)) % 200 for i in range(self._ids)]  # neither start nor stop of text

    def encode_words(self, text: str, language: str | None = None) -> list[tuple[str, int]]:  # noqa: ARG002
        return [(text, self._ids)]


def random_model(
    name: str,
    *,
    tokens: int,
    device: torch.device | str = "cpu",
    tiny: bool = False,
    preset: Preset | None = None,
    networks: Networks | None = None,
    source: ModelSource | None = None,
) -> Model:
    """Return a model of a family with random weights, or with the networks or files that are given.

    Every text has the same number of ids, and every utterance that many tokens. preset: other sizes than the
    family's.
    """
    preset = preset or (tiny_preset(PRESETS[name]) if tiny else PRESETS[name])
    defaults = replace(
        MODEL_DEFAULTS[name],
        max_new_tokens=tokens,
        guarded=False,
        tail_silence_tokens=0,
        tokens_per_text_id=None,
    )
    info = ModelInfo(name=name, preset=preset, defaults=defaults)
    if source is None:
        made = networks or random_networks(preset, device)
        source = in_memory(info, t3=made.t3, flow=made.flow, vocoder=made.vocoder)
    voice = random_voice(preset, prompt_tokens=TINY_PROMPT_TOKENS if tiny else PROMPT_TOKENS)
    return Model(
        voice_family=voice.family,
        frontend=Frontend(tokenizer=FixedLengthTokenizer(TINY_TEXT_IDS if tiny else TEXT_IDS)),
        source=source.with_info(info),
        default_voice=voice,
        fingerprint="random",
    )
