"""Make a voice from a reference clip, with the steps upstream uses to prepare its conditionals."""

from __future__ import annotations

import logging

import numpy as np

from nightingale.audio.loudness import normalize_loudness
from nightingale.audio.reference_check import check_reference
from nightingale.audio.resample import resample, resample_sinc
from nightingale.backends.base import Encoders, ModelInfo
from nightingale.clocks import ANALYSIS_RATE_HZ, CLOCKS
from nightingale.engine.faults import raising_engine_faults
from nightingale.types import Samples
from nightingale.voices.voice import Voice

log = logging.getLogger("nightingale.engine")


@raising_engine_faults()
def clone(
    samples: Samples,
    rate_hz: int,
    *,
    name: str,
    source: str,
    family: str,
    encoders: Encoders,
    info: ModelInfo,
) -> Voice:
    """Return the voice of a mono clip. `source`, such as the name of its file, becomes part of the provenance.

    Raises:
        BadReference: The clip is too short or silent.
        EngineFault: An encoder failed.
    """
    for warning in check_reference(samples, rate_hz, longer_than_s=info.defaults.reference_longer_than_s):
        log.info("%s: %s", source, warning)
    clip = resample(samples, rate_hz, CLOCKS.sample_rate_hz)
    defaults, prompt_tokens = info.defaults, info.preset.t3.prompt_tokens
    if defaults.reference_loudness_lufs is not None:
        clip = normalize_loudness(clip, CLOCKS.sample_rate_hz, defaults.reference_loudness_lufs)
    clip_16k = resample(clip, CLOCKS.sample_rate_hz, ANALYSIS_RATE_HZ)
    prompt = clip[: int(defaults.flow_prompt_seconds * CLOCKS.sample_rate_hz)]
    # PARITY: the flow's side is brought to 16 kHz by another resampler than T3's.
    #         tests/engine/test_cloning.py::test_the_two_sides_use_their_own_resamplers
    prompt_16k = resample_sinc(prompt, CLOCKS.sample_rate_hz, ANALYSIS_RATE_HZ)
    mel, ids = np.zeros((0, info.preset.flow.mel_bands), np.float32), np.zeros(0, np.int64)
    if len(prompt):
        mel = encoders.flow_mel(prompt)
        ids = encoders.tokenize(prompt_16k)[: len(mel) // CLOCKS.frames_per_token]
    speaker = encoders.speaker(clip_16k)
    flow_speaker = encoders.flow_speaker(prompt_16k)
    prompt_ids = np.zeros(0, np.int64)
    if prompt_tokens:
        shown = clip_16k[: int(defaults.prompt_seconds * ANALYSIS_RATE_HZ)]
        prompt_ids = encoders.tokenize(shown, max_tokens=prompt_tokens)
    return Voice.checked(
        name=name,
        family=family,
        speaker=speaker,
        prompt_ids=prompt_ids,
        flow_prompt_ids=ids,
        # A clip of odd length leaves half a token of mel; upstream keeps it and shifts everything by a frame.
        flow_prompt_mel=mel[: CLOCKS.frames_per_token * len(ids)],
        flow_speaker=speaker if flow_speaker is None else flow_speaker,
        provenance=f"reference clip {source}, {len(samples) / rate_hz:.1f} s",
    )
