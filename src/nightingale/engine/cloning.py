"""A reference clip to a Voice, as upstream prepares its conditionals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from nightingale.audio.reference_check import check_reference
from nightingale.audio.loudness import normalize_loudness
from nightingale.audio.read import MAX_SECONDS, read_audio
from nightingale.audio.resample import resample, resample_sinc
from nightingale.clocks import ANALYSIS_RATE_HZ, CLOCKS
from nightingale.models.defaults import ModelDefaults
from nightingale.models.chatterbox.build import VoiceEncoders
from nightingale.models.layers.mel import FLOW_MEL, FlowMel
from nightingale.types import Samples
from nightingale.voices.voice import Voice


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolled:
    """A new voice, and what the clip's quality calls for saying."""

    voice: Voice
    warnings: tuple[str, ...]


def enroll_file(
    source: Path | bytes,
    *,
    name: str,
    family: str,
    encoders: VoiceEncoders,
    defaults: ModelDefaults,
    prompt_tokens: int,
    max_seconds: float = MAX_SECONDS,
) -> Enrolled:
    """The voice of a wav, flac, ogg or mp3 file, or of its bytes."""
    samples, rate_hz = read_audio(source, max_seconds=max_seconds)
    report = check_reference(samples, rate_hz, longer_than_s=defaults.reference_longer_than_s)
    label = source.name if isinstance(source, Path) else name
    voice = enroll(
        resample(samples, rate_hz, CLOCKS.sample_rate_hz),
        name=name,
        family=family,
        encoders=encoders,
        defaults=defaults,
        prompt_tokens=prompt_tokens,
        provenance=f"reference clip {label}, {report.seconds:.1f} s",
    )
    return Enrolled(voice=voice, warnings=report.warnings)


@torch.inference_mode()
def enroll(
    clip: Samples,
    *,
    name: str,
    family: str,
    encoders: VoiceEncoders,
    defaults: ModelDefaults,
    prompt_tokens: int,
    provenance: str,
) -> Voice:
    """The voice of a clip at 24 kHz."""
    if defaults.reference_loudness_lufs is not None:
        clip = normalize_loudness(clip, CLOCKS.sample_rate_hz, defaults.reference_loudness_lufs)
    heard = torch.from_numpy(resample(clip, CLOCKS.sample_rate_hz, ANALYSIS_RATE_HZ))
    shown = clip[: int(defaults.flow_prompt_seconds * CLOCKS.sample_rate_hz)]
    # PARITY: the flow's side is brought to 16 kHz by another resampler than T3's.
    #         tests/engine/test_enroll.py::test_the_two_sides_use_their_own_resamplers
    shown_16k = torch.from_numpy(resample_sinc(shown, CLOCKS.sample_rate_hz, ANALYSIS_RATE_HZ))
    mel, ids = torch.zeros(0, FLOW_MEL.bands), torch.zeros(0, dtype=torch.int64)
    if len(shown):
        mel = FlowMel()(torch.from_numpy(shown)[None])[0].T  # (frames, mel)
        ids = encoders.speech_tokenizer.tokenize(shown_16k)[: len(mel) // CLOCKS.frames_per_token]
    speaker = encoders.voice_encoder.embed(heard)
    return Voice.checked(
        name=name,
        family=family,
        speaker=speaker,
        prompt_ids=encoders.speech_tokenizer.tokenize(
            heard[: int(defaults.prompt_seconds * ANALYSIS_RATE_HZ)], max_tokens=prompt_tokens
        )
        if prompt_tokens
        else torch.zeros(0, dtype=torch.int64),
        flow_prompt_ids=ids,
        # A clip of odd length leaves half a token of mel; upstream keeps it and shifts everything by a frame.
        flow_prompt_mel=mel[: CLOCKS.frames_per_token * len(ids)],
        flow_speaker=speaker if encoders.xvector is None else encoders.xvector.embed(shown_16k),
        provenance=provenance,
    )
