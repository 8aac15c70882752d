"""Find the speech tokens of silence, for the engine's guards (nightingale.decoding.guards).

A token depends on its neighbours, so silence between words has other ids than silence alone. Both are measured,
as digital silence and with quiet noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from nightingale.clocks import ANALYSIS_RATE_HZ, CLOCKS
from nightingale.models.chatterbox.encoders.speech_tokenizer import SpeechTokenizer

NOISE_DB: Final = (None, -90.0, -75.0)
"""Level of the noise relative to full scale; None is digital silence. Louder noise has ids of speech."""
SECONDS: Final = 4
EDGE_TOKENS: Final = 5
"""Tokens at the borders of silence and speech, which depend on both and are left out."""
SAMPLES_PER_TOKEN: Final = ANALYSIS_RATE_HZ // CLOCKS.token_rate_hz


def silence_ids(tokenizer: SpeechTokenizer, speech: Sequence[Tensor] = ()) -> list[int]:
    """Return all ids of silence, sorted. speech: clips to put before and after it, (samples,) at 16 kHz."""
    rng = torch.Generator().manual_seed(0)
    found: set[int] = set()
    for clip in [torch.zeros(0), *speech]:
        speech_clip = clip[: len(clip) // SAMPLES_PER_TOKEN * SAMPLES_PER_TOKEN]
        first = len(speech_clip) // SAMPLES_PER_TOKEN
        for noise_db in NOISE_DB:
            gain = 0.0 if noise_db is None else 10 ** (noise_db / 20)
            quiet = gain * torch.randn(SECONDS * ANALYSIS_RATE_HZ, generator=rng)
            ids = tokenizer.tokenize(torch.cat([speech_clip, quiet, speech_clip])).tolist()
            last = first + SECONDS * CLOCKS.token_rate_hz
            found.update(ids[first + EDGE_TOKENS : last - EDGE_TOKENS])
    return sorted(found)


def read_clips(paths: Sequence[Path]) -> list[Tensor]:
    """Return recordings at the tokenizer's sample rate."""
    # Imported here, because the training machine need not be able to read recordings.
    from nightingale.audio.read import read_audio
    from nightingale.audio.resample import resample

    return [torch.from_numpy(resample(*read_audio(path), ANALYSIS_RATE_HZ)) for path in paths]
