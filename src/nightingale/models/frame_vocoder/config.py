"""Sizes and constants of the frame-rate vocoder. This file is free of torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from nightingale.clocks import CLOCKS

FRAME_SAMPLES: Final = CLOCKS.samples_per_frame
WINDOW_SAMPLES: Final = 480
HOP_SAMPLES: Final = 120
BINS: Final = WINDOW_SAMPLES // 2 + 1
STEPS_PER_FRAME: Final = 2
"""Steps of the trunk, which works at 100 Hz."""
COLUMNS_PER_STEP: Final = 2
"""Spectra that the head predicts in one step."""
COLUMNS_PER_FRAME: Final = STEPS_PER_FRAME * COLUMNS_PER_STEP
MARGIN_SAMPLES: Final = (WINDOW_SAMPLES - HOP_SAMPLES) // 2
"""A frame's first window begins so many samples before the frame, and its last one ends so many after it."""
LOOKAHEAD_FRAMES: Final = 3
"""Frames of mel that are needed after the one that is rendered."""
DELAY_SAMPLES: Final = LOOKAHEAD_FRAMES * FRAME_SAMPLES + MARGIN_SAMPLES
"""The samples of a block lie so far behind its mel."""
FLUSH_FRAMES: Final = -(-DELAY_SAMPLES // FRAME_SAMPLES)
"""Silent frames after the last one, which push out the samples that are still inside."""
SILENT_LOG_MEL: Final = math.log(1e-5)
"""The log-mel of silence: what is before the first frame and after the last one."""
MEL_TAPS: Final = 2 * LOOKAHEAD_FRAMES + 1
PITCH_TAPS: Final = LOOKAHEAD_FRAMES + 1
PITCH_LAYERS: Final = 5
PITCH_LAYER_TAPS: Final = 3
BLOCK_TAPS: Final = 7
VOICED_ABOVE_HZ: Final = 10.0
MAX_HARMONIC_HZ: Final = 11_000.0
"""Harmonics above it are left out; they would alias."""
LOWEST_PITCH_HZ: Final = 40.0
"""The number of harmonics does not grow below it."""
PITCH_UNIT_HZ: Final = 50.0
"""The first layer sees the logarithm of 1 + pitch / this."""
SMALL_SINE: Final = 1e-5
"""Below it the closed form of the harmonics is replaced by its limit."""
PHASE_UNITS: Final = 1 << 20
"""The phase at the start of a frame is a multiple of a cycle over this, so that sums of phases are exact."""
HEAD_PARTS: Final = 5
"""Numbers that the head predicts for each bin: log A, φ, log B, and the two parts of c."""
MAX_LOG_MAGNITUDE: Final = 5.5
SAMPLE_LIMIT: Final = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameVocoderConfig:
    """Sizes of the vocoder."""

    mel_bands: int = 80
    width: int = 384
    hidden: int = 768
    blocks: int = 7
    pitch_width: int = 256


SILENT_STATES: Final = ("pitch0", "past_mel")
"""The parts of the state that begin as `SILENT_LOG_MEL`; the others begin as zeros."""


def state_shapes(config: FrameVocoderConfig) -> list[tuple[str, tuple[int, ...]]]:
    """Return the name and the shape of one row of each tensor of the state, in the order of the forward pass."""
    pitch_widths = [config.mel_bands] + [config.pitch_width] * (PITCH_LAYERS - 1)
    return [
        *((f"pitch{i}", (width, PITCH_LAYER_TAPS - 1)) for i, width in enumerate(pitch_widths)),
        ("past_mel", (config.mel_bands, MEL_TAPS - 1)),
        ("voicing", (2, PITCH_TAPS - 1)),
        ("tone", (2,)),
        ("past_noise", (WINDOW_SAMPLES - HOP_SAMPLES,)),
        *((f"block{i}", (BLOCK_TAPS - 1, config.width)) for i in range(config.blocks)),
        ("overlap", (WINDOW_SAMPLES - HOP_SAMPLES,)),
    ]
