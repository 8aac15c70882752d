"""The frame-rate vocoder: mel frames at 50 Hz to samples, by a trunk at 100 Hz and an inverse STFT.

It is a source-filter model. The excitation is known in closed form: all harmonics of the pitch up to 11 kHz with equal
strength, and white noise. For each bin of each spectrum (20 ms windows, every 5 ms) the trunk predicts five numbers:
the magnitude A and the phase φ of a filter of the harmonics, a complex correction c, and the level B of the noise:

    S = A · (e^{iφ} · tone + c) + B · noise

So the phase is predicted relative to that of the harmonics, which is smooth in frequency. A and B start from the mel,
interpolated to the bins.

The network is causal and runs in blocks of any length: `samples, state = net(mel, noise, state)`, from
`net.initial_state(rows)`. Its samples lie `DELAY_SAMPLES` behind the mel, since it looks three frames ahead. So the
caller drops the first ones, and pushes out the last ones by `FLUSH_FRAMES` of silence. Blocks equal the whole, training
runs this forward pass over windows of speech, and the exporters lower it.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.clocks import CLOCKS
from nightingale.models.frame_vocoder.config import (
    BINS,
    BLOCK_TAPS,
    COLUMNS_PER_FRAME,
    COLUMNS_PER_STEP,
    FRAME_SAMPLES,
    HEAD_PARTS,
    HOP_SAMPLES,
    LOOKAHEAD_FRAMES,
    LOWEST_PITCH_HZ,
    MARGIN_SAMPLES,
    MAX_HARMONIC_HZ,
    MAX_LOG_MAGNITUDE,
    MEL_TAPS,
    PHASE_UNITS,
    PITCH_LAYER_TAPS,
    PITCH_LAYERS,
    PITCH_TAPS,
    PITCH_UNIT_HZ,
    SAMPLE_LIMIT,
    SILENT_LOG_MEL,
    SILENT_STATES,
    SMALL_SINE,
    STEPS_PER_FRAME,
    VOICED_ABOVE_HZ,
    WINDOW_SAMPLES,
    FrameVocoderConfig,
    state_shapes,
)
from nightingale.models.frame_vocoder.transforms import matrices, noise_gain, tone_gain
from nightingale.models.layers.streaming_state import SavedState, StreamingState

WINDOWS = WINDOW_SAMPLES // HOP_SAMPLES
"""Windows that overlap at each sample."""


class PitchPredictor(nn.Module):
    """(batch, mel, frames) -> (batch, frames) in Hz, `LOOKAHEAD_FRAMES` behind the mel; near zero where unvoiced."""

    def __init__(self, config: FrameVocoderConfig) -> None:
        super().__init__()
        widths = [config.mel_bands] + [config.pitch_width] * PITCH_LAYERS
        self.convs = nn.ModuleList(
            nn.Conv1d(widths[i], widths[i + 1], PITCH_LAYER_TAPS) for i in range(PITCH_LAYERS)
        )
        self.classifier = nn.Linear(config.pitch_width, 1)

    def forward(self, mel: Tensor, state: StreamingState) -> Tensor:
        x = mel
        for conv in self.convs:
            x = F.elu(conv(state.prepend_inputs(x, PITCH_LAYER_TAPS - 1)))
        hz: Tensor = self.classifier(x.transpose(1, 2))
        return hz.squeeze(-1).abs()


class ConvNeXtBlock(nn.Module):
    """A causal ConvNeXt block on (batch, steps, width), in the precision of its input."""

    def __init__(self, width: int, hidden: int, blocks: int) -> None:
        super().__init__()
        self.taps = nn.Parameter(torch.randn(BLOCK_TAPS, width) * 0.3)
        self.taps_bias = nn.Parameter(torch.zeros(width))
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        for layer in (self.up, self.down):
            nn.init.trunc_normal_(layer.weight, std=0.02 * math.sqrt(2))
            nn.init.zeros_(layer.bias)
        self.scale = nn.Parameter(torch.full((width,), 1.0 / blocks))

    def forward(self, x: Tensor, state: StreamingState) -> Tensor:
        dtype, steps = x.dtype, x.shape[1]
        joined = state.prepend_inputs(x, BLOCK_TAPS - 1, dim=1)
        taps = self.taps.to(dtype)
        y = self.taps_bias.to(dtype)
        # One product per tap keeps the layout of the linear layers.
        for tap in range(BLOCK_TAPS):
            y = y + joined[:, tap : tap + steps] * taps[tap]
        y = self.norm(y.float()).to(dtype)
        y = F.gelu(F.linear(y, self.up.weight.to(dtype), self.up.bias.to(dtype)))
        y = F.linear(y, self.down.weight.to(dtype), self.down.bias.to(dtype))
        return x + y * self.scale.to(dtype)


class FrameVocoder(nn.Module):
    """(batch, mel, T) and (batch, 480·T) normal noise -> (batch, 480·T) samples, and the state of the next block."""

    analysis: Tensor
    synthesis: Tensor
    to_bins: Tensor

    def __init__(self, config: FrameVocoderConfig) -> None:
        super().__init__()
        self.config = config
        self.block_dtype = torch.float32
        """The precision of the blocks; training on a GPU sets bfloat16. All others compute in float32."""
        width = config.width
        self.pitch_predictor = PitchPredictor(config)
        self.mel_in = nn.Conv1d(config.mel_bands, width, MEL_TAPS)
        self.pitch_in = nn.Conv1d(2, width, PITCH_TAPS, bias=False)
        self.to_steps = nn.Linear(width, STEPS_PER_FRAME * width)
        self.tone_in = nn.Linear(COLUMNS_PER_STEP * 2 * BINS, width)
        self.norm_in = nn.LayerNorm(width)
        self.norm_out = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            ConvNeXtBlock(width, config.hidden, config.blocks) for _ in range(config.blocks)
        )
        self.head = nn.Linear(width, COLUMNS_PER_STEP * HEAD_PARTS * BINS)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)
        nn.init.normal_(self.tone_in.weight, std=0.05)
        self.tone_gain, self.noise_gain = tone_gain(), noise_gain()
        for name, matrix in matrices(config.mel_bands).items():
            self.register_buffer(name, torch.from_numpy(matrix.copy()), persistent=False)

    def state_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return what `config.state_shapes` returns."""
        return state_shapes(self.config)

    def initial_state(self, rows: int) -> SavedState:
        """Return the state before the first frame: silence."""
        device = self.analysis.device
        return tuple(
            torch.full(
                (rows, *shape),
                SILENT_LOG_MEL if name in SILENT_STATES else 0.0,
                device=device,
                dtype=self.block_dtype if name.startswith("block") else torch.float32,
            )
            for name, shape in self.state_shapes()
        )

    def forward(self, mel: Tensor, noise: Tensor, past: SavedState) -> tuple[Tensor, SavedState]:
        state = StreamingState(past)
        f0_hz = self.pitch_predictor(mel, state)
        return self.synthesize(mel, f0_hz, noise, state), state.saved()

    def pitch_hz(self, mel: Tensor) -> Tensor:
        """Return the predicted pitch (batch, T) of whole mels; near zero where unvoiced."""
        padded = F.pad(mel, (0, LOOKAHEAD_FRAMES), value=SILENT_LOG_MEL)
        state = StreamingState(self.initial_state(len(mel)))
        return self.pitch_predictor(padded, state)[:, LOOKAHEAD_FRAMES:]

    def synthesize(self, mel: Tensor, f0_hz: Tensor, noise: Tensor, state: StreamingState) -> Tensor:
        """Return the samples from the predicted pitch, or from another one (batch, T) of the delayed frames."""
        rows, _, frames = mel.shape
        known = state.prepend_inputs(mel, MEL_TAPS - 1)
        x = self.mel_in(known) + self.pitch_in(state.prepend_inputs(_voicing(f0_hz), PITCH_TAPS - 1))
        with torch.no_grad():
            tone = self._tone(f0_hz, state)
            hiss = self._windows(state.prepend_inputs(noise * self.noise_gain, WINDOW_SAMPLES - HOP_SAMPLES))
        steps = self.to_steps(x.transpose(1, 2)).reshape(rows, STEPS_PER_FRAME * frames, -1)
        steps = steps + self.tone_in(tone.reshape(rows, STEPS_PER_FRAME * frames, -1))
        x = self.norm_in(steps).to(self.block_dtype)
        for block in self.blocks:
            x = block(x, state)
        y = self.head(self.norm_out(x.float())).reshape(rows, COLUMNS_PER_FRAME * frames, HEAD_PARTS, BINS)
        spectrum = _filtered(y, self._prior(known, frames), tone, hiss)
        return self._overlap_add(spectrum @ self.synthesis, state).clamp(-SAMPLE_LIMIT, SAMPLE_LIMIT)

    def _windows(self, samples: Tensor) -> Tensor:
        """Return the spectra (batch, columns, 2·bins) of all windows of (batch, samples), real parts first."""
        hops = samples.unflatten(1, (-1, HOP_SAMPLES))
        count = hops.shape[1] - WINDOWS + 1
        return torch.cat([hops[:, i : i + count] for i in range(WINDOWS)], dim=-1) @ self.analysis

    def _tone(self, f0_hz: Tensor, state: StreamingState) -> Tensor:
        """Return the harmonics' spectra (batch, 4·T, 2·bins).

        A frame's windows reach beyond it: before it, the previous frame's pitch holds, and after it, its own.
        """
        phase, before_hz = state.take().unbind(1)
        units = (f0_hz * (FRAME_SAMPLES / CLOCKS.sample_rate_hz)).frac() * PHASE_UNITS
        first = (phase * PHASE_UNITS)[:, None]
        advances = torch.cat([first, units], dim=1).round().to(torch.int32)
        ends = torch.cumsum(advances, dim=1, dtype=torch.int32) % PHASE_UNITS
        turns = ends.to(f0_hz.dtype) / PHASE_UNITS  # (batch, 1 + T): before each frame, and after
        earlier_hz = torch.cat([before_hz[:, None], f0_hz[:, :-1]], dim=1)
        state.save(torch.stack([turns[:, -1], f0_hz[:, -1]], dim=1))
        place = torch.arange(1 - MARGIN_SAMPLES, FRAME_SAMPLES + MARGIN_SAMPLES + 1, device=f0_hz.device)
        place = place.to(f0_hz.dtype) / CLOCKS.sample_rate_hz
        starts = turns[:, :-1, None]
        samples = torch.cat(
            [
                self._harmonics(earlier_hz[..., None], starts, place[:MARGIN_SAMPLES]),
                self._harmonics(f0_hz[..., None], starts, place[MARGIN_SAMPLES:]),
            ],
            dim=-1,
        )  # (batch, T, 840)
        ends_at = [HOP_SAMPLES * i + WINDOW_SAMPLES for i in range(COLUMNS_PER_FRAME)]
        windows = torch.stack([samples[..., end - WINDOW_SAMPLES : end] for end in ends_at], dim=2)
        return (windows @ self.analysis).flatten(1, 2)

    def _harmonics(self, hz: Tensor, start: Tensor, place_s: Tensor) -> Tensor:
        """Return the sum of all harmonics up to 11 kHz at places around a frame's start, by the closed form.

        It is the Dirichlet kernel: Σ cos(n·x) for n from 1 to N is sin((N + ½)·x) / (2·sin(x/2)) - ½.
        """
        cycles = start + hz * place_s
        half = (cycles - cycles.round()) * math.pi
        count = (MAX_HARMONIC_HZ / hz.clamp(min=LOWEST_PITCH_HZ)).floor()
        sine = half.sin()
        is_small = sine.abs() < SMALL_SINE
        ratio = ((2 * count + 1) * half).sin() / torch.where(is_small, torch.ones_like(sine), sine)
        total = torch.where(is_small, count.expand_as(sine), 0.5 * ratio - 0.5)
        return total * (hz > VOICED_ABOVE_HZ) * self.tone_gain

    def _prior(self, known: Tensor, frames: int) -> Tensor:
        """Return the mel as log magnitudes (batch, 4·T, bins), linear in time between the centres of frames.

        known: the mel of this block and of `MEL_TAPS - 1` frames before it.
        """
        logs = known.transpose(1, 2) @ self.to_bins
        before, now, after = (
            logs[:, LOOKAHEAD_FRAMES + i : LOOKAHEAD_FRAMES + i + frames] for i in (-1, 0, 1)
        )
        columns = []
        for column in range(COLUMNS_PER_FRAME):
            offset = (column + 0.5) / COLUMNS_PER_FRAME - 0.5  # from the frame's centre, in frames
            other = after if offset > 0 else before
            columns.append(now + (other - now) * abs(offset))
        return torch.stack(columns, dim=2).flatten(1, 2)

    def _overlap_add(self, windows: Tensor, state: StreamingState) -> Tensor:
        """Add windows (batch, columns, 480) that are 120 samples apart, and keep what later ones add to."""
        parts = windows.unflatten(2, (WINDOWS, HOP_SAMPLES))
        later = WINDOWS - 1
        total = F.pad(state.take().unflatten(1, (later, HOP_SAMPLES)), (0, 0, 0, windows.shape[1]))
        for i in range(WINDOWS):
            total = total + F.pad(parts[:, :, i], (0, 0, i, later - i))
        state.save(total[:, -later:].flatten(1))
        return total[:, :-later].flatten(1)


def _voicing(f0_hz: Tensor) -> Tensor:
    """Return what the first layer sees of the pitch: (batch, 2, frames)."""
    voiced = (f0_hz > VOICED_ABOVE_HZ).to(f0_hz.dtype)
    return torch.stack([voiced, torch.log1p(f0_hz / PITCH_UNIT_HZ) * voiced], dim=1)


def _filtered(y: Tensor, prior: Tensor, tone: Tensor, hiss: Tensor) -> Tensor:
    """Return the spectra (batch, columns, 2·bins) from the head's numbers (batch, columns, HEAD_PARTS, bins)."""
    log_tone, phase, log_noise, real_part, imaginary_part = y.unbind(2)
    tone_level = (log_tone + prior).clamp(max=MAX_LOG_MAGNITUDE).exp()
    noise_level = (log_noise + prior).clamp(max=MAX_LOG_MAGNITUDE).exp()
    cos, sin = torch.cos(phase), torch.sin(phase)
    tone_real, tone_imaginary = tone.chunk(2, dim=-1)
    noise_real, noise_imaginary = hiss.chunk(2, dim=-1)
    real = tone_level * (cos * tone_real - sin * tone_imaginary + real_part) + noise_level * noise_real
    imaginary = tone_level * (sin * tone_real + cos * tone_imaginary + imaginary_part)
    return torch.cat([real, imaginary + noise_level * noise_imaginary], dim=-1)
