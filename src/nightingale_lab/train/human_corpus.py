"""Stage `human`, on the training machine: a corpus of people's recordings, with copies at other speeds.

A copy at another speed has another pitch and other formants, so it is another speaker. Recordings at 16 kHz have
nothing above 8 kHz: these clips are marked (`Corpus.band_limited`), and losses leave out what is above
`LIMIT_HZ`, else clones would sound dull.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder
from nightingale_lab.train.bank import FULL_SCALE, HOP, UNKNOWN_HZ, AudioBank
from nightingale_lab.train.corpus import HUMAN_VOICE, Corpus
from nightingale_lab.train.voice_encoder import speaker_vectors

OTHER_RATES = (0.9, 0.95, 1.06, 1.13)
"""Speeds of the copies. Slower ones would have nothing just below LIMIT_HZ."""
FIRST_LINE = 10_000_000
"""Line numbers of the clips follow this one, a multiple of HELD_OUT: one speaker in fifty is held out, copies too."""
PEAK = 0.95
WHOLE_SAMPLES = 3200
"""Clips are cut to a multiple of 200 ms: the Fourier transform plans each new length anew."""


def human_corpus(
    clips: Sequence[NDArray[np.float32]],
    teacher: VoiceEncoder,
    *,
    device: torch.device,
    rates: Sequence[float] = (1.0,),
) -> Corpus:
    """Return a corpus of every clip at every speed, with the teacher's speaker vectors. Its pitch is unknown."""
    copies = [_copy(clip, rate, device) for rate in rates for clip in clips]
    bank = AudioBank.join(copies)
    count = bank.clips
    corpus = Corpus(
        bank=bank,
        phones=np.zeros(len(bank.f0_hz), dtype=np.uint8),
        text_ids=np.zeros(0, dtype=np.int16),
        text_offsets=np.zeros(count + 1, dtype=np.int64),
        line=np.tile(FIRST_LINE + np.arange(len(clips), dtype=np.int32), len(rates)),
        voice=np.full(count, HUMAN_VOICE, dtype=np.int16),
        speed=np.repeat(np.array(rates, dtype=np.float16), len(clips)),
        speaker=np.zeros((count, 256), dtype=np.float16),
    )
    return replace(corpus, speaker=speaker_vectors(teacher, corpus, device=device).numpy())


def _copy(
    samples: NDArray[np.float32], rate: float, device: torch.device
) -> tuple[NDArray[np.int16], NDArray[np.floating]]:
    """Return samples at 24 kHz, a whole number of tokens, and the pitch of each frame."""
    samples = samples[: max(1, len(samples) // WHOLE_SAMPLES) * WHOLE_SAMPLES]
    wide = stretch(torch.from_numpy(samples).to(device), round(len(samples) * 1.5 / rate))
    wide = wide * (PEAK / wide.abs().max().clamp(min=PEAK))
    tokens = len(wide) // CLOCKS.samples_per_token
    frames = tokens * CLOCKS.frames_per_token
    pcm = (wide[: frames * HOP] * (FULL_SCALE - 1)).round().to(torch.int16).cpu().numpy()
    return pcm, np.full(frames, UNKNOWN_HZ, dtype=np.float32)


def stretch(samples: Tensor, length: int) -> Tensor:
    """Resample (samples,) to another length by its Fourier transform."""
    spectrum = torch.fft.rfft(samples)
    bins = length // 2 + 1
    resized = torch.zeros(bins, dtype=spectrum.dtype, device=spectrum.device)
    kept = min(bins, len(spectrum))
    resized[:kept] = spectrum[:kept]
    return torch.fft.irfft(resized, n=length) * (length / len(samples))
