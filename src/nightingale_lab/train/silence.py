"""Measure which speech tokens are silence, for the engine's guards (nightingale.decoding.guards).

The tokenizer hears each token among its neighbours, so silence between words has other ids than silence by
itself: both are measured, digital and with quiet noise. What speech there is to measure it in, is given.
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
"""Against full scale; None is digital silence. Louder noise begins to have ids that speech has, too."""
SECONDS: Final = 4
EDGE_TOKENS: Final = 5
"""Where silence meets speech a token hears some of both: these are left out at either end."""
SAMPLES_PER_TOKEN: Final = ANALYSIS_RATE_HZ // CLOCKS.token_rate_hz


def silence_ids(tokenizer: SpeechTokenizer, speech: Sequence[Tensor] = ()) -> list[int]:
    """All ids of silence, sorted. speech: clips, (samples,) at 16 kHz, between which to be silent."""
    rng = torch.Generator().manual_seed(0)
    found: set[int] = set()
    for clip in [torch.zeros(0), *speech]:
        around = clip[: len(clip) // SAMPLES_PER_TOKEN * SAMPLES_PER_TOKEN]
        first = len(around) // SAMPLES_PER_TOKEN
        for noise_db in NOISE_DB:
            gain = 0.0 if noise_db is None else 10 ** (noise_db / 20)
            quiet = gain * torch.randn(SECONDS * ANALYSIS_RATE_HZ, generator=rng)
            ids = tokenizer.tokenize(torch.cat([around, quiet, around])).tolist()
            last = first + SECONDS * CLOCKS.token_rate_hz
            found.update(ids[first + EDGE_TOKENS : last - EDGE_TOKENS])
    return sorted(found)


def read_clips(paths: Sequence[Path]) -> list[Tensor]:
    """Recordings as the tokenizer hears them."""
    # Imported here: the machine that trains need not be able to read recordings.
    from nightingale.audio.read import read_audio
    from nightingale.audio.resample import resample

    return [torch.from_numpy(resample(*read_audio(path), ANALYSIS_RATE_HZ)) for path in paths]
