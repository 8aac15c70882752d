"""Sizes, the card, voices, and the models that fit: parts that all exports for phones share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nightingale.backends.onnx.embeddings import torch_reason
from nightingale.clocks import CLOCKS
from nightingale.decoding.decoding import MIN_BUDGET_TOKENS
from nightingale.engine.load import Model
from nightingale.errors import ConfigError
from nightingale.export.phone.phone_model import CARD
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.s3gen.flow import MEANFLOW_STEPS, Flow
from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.frame_vocoder.config import (
    DELAY_SAMPLES,
    FLUSH_FRAMES,
    SILENT_LOG_MEL,
    FrameVocoderConfig,
)
from nightingale.voices.voice import Voice

TOKENIZER, VOICES = "tokenizer.json", "voices"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSizes:
    """The fixed shapes of an export."""

    capacity: int = 512
    """Positions of T3's KV cache: the text and about 16 s of speech."""
    prefill_tokens: int = 32
    block_tokens: int = 12
    """Speech tokens of a flow block: 0.48 s."""

    @property
    def block_frames(self) -> int:
        """Mel frames of a vocoder block: those that a flow block returns."""
        return CLOCKS.frames_per_token * self.block_tokens


def check_supported(model: Model, runtime: str) -> None:
    """Refuse models with parts that the static networks lack."""
    preset = model.info.preset
    reason = "it has no weights" if model.info.synthetic else torch_reason(preset.t3)
    flow = preset.flow
    like_wren = flow.block_causal and flow.left_context and flow.meanflow and not flow.noise_scale
    if reason is None and not (like_wren and isinstance(preset.vocoder, FrameVocoderConfig)):
        reason = "its flow and vocoder are not those of wren"
    if reason is not None:
        raise ConfigError(
            f"{model.name} cannot be exported to {runtime}",
            got=reason,
            allowed="wren, or a folder with a model like it",
        )


def write_voices(model: Model, folder: Path, t3: T3, flow: Flow) -> dict[str, str]:
    """Write the model's voices, as the programs take them; return their files by name."""
    assert model.voices is not None
    (folder / VOICES).mkdir()
    files = {}
    for path in sorted(model.voices.glob("*.safetensors")):
        files[path.stem] = f"{VOICES}/{path.stem}.f32"
        speakers = torch.cat(speaker_inputs(Voice.load(path), t3, flow), dim=-1)
        (folder / files[path.stem]).write_bytes(speakers.numpy().astype("<f4").tobytes())
    return files


@torch.inference_mode()
def speaker_inputs(voice: Voice, t3: T3, flow: Flow) -> tuple[Tensor, Tensor]:
    """Return the inputs `speaker` of T3, (1, width), and of the flow, (1, mel)."""
    speaker: Tensor = t3.cond_enc.spkr_enc(torch.tensor(voice.speaker[None]))
    return speaker, flow.speaker(torch.tensor(voice.flow_speaker[None]))


def make_card(
    model: Model, sizes: ExportSizes, voices: dict[str, str], *, kind: str, version: int
) -> dict[str, Any]:
    """Return the card, without what only one format has."""
    defaults, preset = model.defaults, model.info.preset
    config = preset.t3
    assert model.default_voice is not None
    return {
        "format": kind,
        "version": version,
        "model": model.name,
        "sample_rate_hz": CLOCKS.sample_rate_hz,
        "samples_per_frame": CLOCKS.samples_per_frame,
        "frames_per_token": CLOCKS.frames_per_token,
        "limits": {
            "tokens": MIN_BUDGET_TOKENS,
            "tokens_per_text_id": defaults.tokens_per_text_id,
            "max_tokens": defaults.max_new_tokens,
        },
        "sampling": asdict(defaults.sampling),
        "silence_ids": sorted(defaults.silence_ids),
        "tokenizer": TOKENIZER,
        "voices": voices,
        "default_voice": model.default_voice.name,
        "mel_bands": preset.flow.mel_bands,
        "t3": {
            "capacity": sizes.capacity,
            "prefill_tokens": sizes.prefill_tokens,
            "speech_offset": config.text_vocab,
            "speaker_id": config.text_vocab + config.speech_vocab,
            "start_text": config.start_text,
            "stop_text": config.stop_text,
            "start_speech": START_SPEECH,
            "stop_speech": STOP_SPEECH,
        },
        "flow": {
            "block_tokens": sizes.block_tokens,
            "lookahead_tokens": LOOKAHEAD_TOKENS,
            "solver_steps": MEANFLOW_STEPS,
        },
        "vocoder": {
            "block_frames": sizes.block_frames,
            "delay_samples": DELAY_SAMPLES,
            "flush_frames": FLUSH_FRAMES,
            "silent_log_mel": SILENT_LOG_MEL,
        },
    }


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    (folder / CARD).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
