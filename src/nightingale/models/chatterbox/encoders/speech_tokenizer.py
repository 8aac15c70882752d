"""Speech to speech tokens: 25 a second, 6561 different ones (S3 tokenizer, version 2).

A small transformer reads mel frames four at a time. Its attention has a second path, a memory: a depthwise
convolution over the values, which sees 31 neighbours and needs no softmax. The last state is squeezed to
eight numbers, each rounded to -1, 0 or 1, and the eight digits are read as one number in base three.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.models.chatterbox.encoders.config import FSQ_LEVELS, SpeechTokenizerConfig
from nightingale.models.layers.mel import MelConfig, TokenMel
from nightingale.models.layers.rope import inverse_frequencies, rotate, rotations

FSQ_SCALE = 0.9990000128746033
"""Keeps tanh off ±1 so that rounding can reach only -1, 0 and 1."""
ROPE_THETA = 10_000.0
FRAMES_PER_TOKEN = 4
WINDOW_FRAMES = 3000
OVERLAP_FRAMES = 400
"""Clips over 30 s are read in windows of 30 s that share 4 s."""


class SpeechTokenizer(nn.Module):
    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        self.config = config
        self.mel = TokenMel(
            MelConfig(sample_rate_hz=16_000, fft_samples=400, hop_samples=160, bands=config.mel_bands)
        )
        self.encoder = Encoder(config)
        self.quantizer = Quantizer(config)

    @torch.no_grad()
    def tokenize(self, wav16k: Tensor, max_tokens: int | None = None) -> Tensor:
        """(samples,) at 16 kHz -> (tokens,) int64, at most `max_tokens` of them."""
        mel = self.mel(wav16k.unsqueeze(0))
        if max_tokens is not None:
            mel = mel[..., : max_tokens * FRAMES_PER_TOKEN]
        ids: Tensor = self(mel)[0]
        return ids[0]

    @torch.no_grad()
    def forward(self, mel: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(batch, bands, frames) and lengths -> (batch, tokens) int64 and lengths; zeros after an end."""
        if mel.shape[-1] <= WINDOW_FRAMES:
            ids, id_lengths = self._read(mel, lengths)
            return ids * (positions(ids) < id_lengths[:, None]), id_lengths
        ends = [mel.shape[-1]] * mel.shape[0] if lengths is None else lengths.tolist()
        rows = [self._read_long(clip[:, :end]) for clip, end in zip(mel, ends, strict=True)]
        counts = torch.tensor([len(row) for row in rows], device=mel.device)
        return nn.utils.rnn.pad_sequence(rows, batch_first=True), counts

    def encode(self, mel: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(batch, bands, frames) -> hidden states (batch, tokens, width) before rounding, and token counts.

        Differentiable, one window: what training uses.
        """
        hidden, counts = self.encoder(mel, lengths)
        return hidden, counts

    def _read(self, mel: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        hidden, id_lengths = self.encode(mel, lengths)
        return fsq_ids(self.quantizer(hidden)), id_lengths

    def _read_long(self, mel: Tensor) -> Tensor:
        """(bands, frames) -> (tokens,): windows, each cut back by half an overlap where two meet."""
        frames = mel.shape[-1]
        starts = range(0, frames, WINDOW_FRAMES - OVERLAP_FRAMES) if frames > WINDOW_FRAMES else range(1)
        windows = [mel[:, start : start + WINDOW_FRAMES] for start in starts]
        lengths = torch.tensor([window.shape[-1] for window in windows], device=mel.device)
        batch = torch.stack([F.pad(window, (0, WINDOW_FRAMES - window.shape[-1])) for window in windows])
        ids, counts = self._read(batch, lengths)
        half = OVERLAP_FRAMES // FRAMES_PER_TOKEN // 2
        last = len(windows) - 1
        # PARITY: when the last window is shorter than the overlap, both it and its predecessor are cut back
        #         over the same sound, and up to 2 s near the end have no tokens.
        # tests/models/encoders/test_speech_tokenizer.py::test_long_clips_are_read_as_upstream_reads_them
        kept = [
            row[(half if index else 0) : (count - half if index < last else count)]
            for index, (row, count) in enumerate(zip(ids, counts.tolist(), strict=True))
        ]
        return torch.cat(kept)


class Encoder(nn.Module):
    """Two strided convolutions, then transformer blocks."""

    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.reach = config.attention_reach
        self.conv1 = nn.Conv1d(config.mel_bands, config.width, 3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))

    def forward(self, mel: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(batch, bands, frames) -> (batch, tokens, width) and token counts."""
        x, mask = mel, None
        if lengths is None:
            counts = torch.full((mel.shape[0],), mel.shape[-1], device=mel.device)
        else:
            counts = lengths.long()
        for conv in (self.conv1, self.conv2):
            if lengths is not None:
                x = x * (positions(x) < counts[:, None]).unsqueeze(1)
            x = F.gelu(conv(x))
            counts = (counts - 1) // 2 + 1
        if lengths is not None:
            mask = positions(x) < counts[:, None]  # (batch, tokens)
        x = x.transpose(1, 2)
        may_see = None if mask is None else mask[:, None, None, :]
        if self.reach is not None:
            may_see = within_reach(x.shape[1], self.reach, mask, x.device)
        inverse = inverse_frequencies(self.head_width, theta=ROPE_THETA, scaling=None).to(x.device)
        rope = rotations(inverse, torch.arange(x.shape[1], device=x.device), x.dtype)
        for block in self.blocks:
            x = block(x, rope, mask, may_see)
        return x, counts


class Block(nn.Module):
    """Pre-norm attention with memory, then a two-layer perceptron."""

    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        width = config.width
        self.attn = MemoryAttention(width, config.heads, config.memory_taps)
        self.attn_ln = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp_ln = nn.LayerNorm(width)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, may_see: Tensor | None
    ) -> Tensor:
        x = x + self.attn(self.attn_ln(x), rope, mask, may_see)
        x = x + self.mlp(self.mlp_ln(x))
        return x


class MemoryAttention(nn.Module):
    """Full attention plus a depthwise convolution over the values (FSMN)."""

    def __init__(self, width: int, heads: int, taps: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.fsmn_block = nn.Conv1d(width, width, taps, padding=taps // 2, groups=width, bias=False)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, may_see: Tensor | None
    ) -> Tensor:
        """mask: (batch, tokens), false after an end. may_see: what the attention may look at."""
        q, k, v = self.query(x), self.key(x), self.value(x)
        memory = self.remember(v, mask)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        heard = F.scaled_dot_product_attention(rotate(q, *rope), rotate(k, *rope), v, attn_mask=may_see)
        out: Tensor = self.out(heard.transpose(1, 2).flatten(2))
        return out + memory

    def remember(self, v: Tensor, mask: Tensor | None) -> Tensor:
        """(batch, tokens, width): each value plus a weighted sum of its neighbours; nothing from padding."""
        if mask is not None:
            v = v * mask[..., None]
        memory: Tensor = v + self.fsmn_block(v.transpose(1, 2)).transpose(1, 2)
        return memory if mask is None else memory * mask[..., None]


class Quantizer(nn.Module):
    """(…, width) -> (…, code_digits), unrounded. The nesting is that of the official tensor names."""

    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        self._codebook = nn.ModuleDict({"project_down": nn.Linear(config.width, config.code_digits)})

    def forward(self, hidden: Tensor) -> Tensor:
        down: Tensor = self._codebook["project_down"](hidden)
        return down


def fsq(raw: Tensor, *, straight_through: bool = False) -> Tensor:
    """Finite scalar quantisation: every number becomes -1, 0 or 1.

    With `straight_through` the rounding is invisible to the gradient, so a network can be trained through it.
    """
    bounded = raw.float().tanh() * FSQ_SCALE
    digits = bounded.round()
    return bounded + (digits - bounded).detach() if straight_through else digits


def fsq_ids(raw: Tensor) -> Tensor:
    """(…, digits) unrounded -> (…) int64: the digits read in base three, the first the least."""
    digits = fsq(raw).long() + 1
    powers = FSQ_LEVELS ** torch.arange(raw.shape[-1], device=raw.device)
    return (digits * powers).sum(-1)


def within_reach(tokens: int, reach: int, mask: Tensor | None, device: torch.device) -> Tensor:
    """(batch or 1, 1, tokens, tokens): true where a token may look. Everyone sees at least itself."""
    place = torch.arange(tokens, device=device)
    distance = (place[:, None] - place).abs()
    near = (distance <= reach)[None, None]
    return near if mask is None else near & mask[:, None, None, :] | (distance == 0)


def positions(x: Tensor) -> Tensor:
    """0, 1, 2, … along the last axis of `x`, on its device."""
    return torch.arange(x.shape[-1], device=x.device)
