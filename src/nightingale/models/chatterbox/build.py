"""Building networks from a preset and weight files.

Synthesis needs T3, the flow and the vocoder. The three voice encoders, a fifth of the bytes, are needed only
to clone a voice, so they are loaded separately.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from nightingale.models.chatterbox.encoders.speech_tokenizer import SpeechTokenizer
from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder
from nightingale.models.chatterbox.encoders.xvector import XVector
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.presets import Preset
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.config import UNUSED_BY_T3, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.checkpoint import fold_weight_norm, load, part, read_tensors
from nightingale.models.frame_vocoder.config import FrameVocoderConfig
from nightingale.models.frame_vocoder.network import FrameVocoder

COMPUTED_BY_TOKENIZER = frozenset({"_mel_filters", "window"})
"""Buffers that some files contain; they are computed here."""


Vocoder = Hift | FrameVocoder
Unpack = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""Converts stored tensors to the networks' tensors; official files need no conversion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceEncoders:
    """The networks that turn a clip into a voice."""

    speech_tokenizer: SpeechTokenizer
    voice_encoder: VoiceEncoder
    xvector: XVector | None


def load_t3(config: T3Config, path: Path, unpack: Unpack = dict) -> T3:
    """Load T3 from its file."""
    return load(lambda: T3(config), unpack(read_tensors(path)), source=path, unused=UNUSED_BY_T3)


def new_vocoder(config: HiftConfig | FrameVocoderConfig) -> Vocoder:
    """Return the vocoder that a config describes, with fresh weights."""
    return Hift(config) if isinstance(config, HiftConfig) else FrameVocoder(config)


def load_s3gen(preset: Preset, path: Path, unpack: Unpack = dict) -> tuple[Flow, Vocoder]:
    """Load the flow and the vocoder, which share a file."""
    tensors = read_tensors(path)
    vocoder = fold_weight_norm(unpack(part(tensors, "mel2wav.")))
    return (
        load(lambda: Flow(preset.flow), unpack(part(tensors, "flow.")), source=path),
        load(lambda: new_vocoder(preset.vocoder), vocoder, source=path),
    )


def load_encoders(preset: Preset, files: Mapping[str, Path], unpack: Unpack = dict) -> VoiceEncoders:
    """Load the voice encoders; `files` has paths by role: "s3gen" and "voice_encoder"."""
    s3gen, voice = files["s3gen"], files["voice_encoder"]
    tensors = read_tensors(s3gen)
    tokenizer = load(
        lambda: SpeechTokenizer(preset.speech_tokenizer),
        unpack(part(tensors, "tokenizer.")),
        source=s3gen,
        unused=COMPUTED_BY_TOKENIZER,
    )
    encoder = load(lambda: VoiceEncoder(preset.voice_encoder), unpack(read_tensors(voice)), source=voice)
    xvector = None
    if (config := preset.xvector) is not None:
        xvector = load(lambda: XVector(config), unpack(part(tensors, "speaker_encoder.")), source=s3gen)
    return VoiceEncoders(speech_tokenizer=tokenizer, voice_encoder=encoder, xvector=xvector)
