"""The speech tokenizer: audio to 25 speech tokens a second from 6561 codes (S3 tokenizer, version 2).

A small transformer reads mel frames four at a time. Its attention has a second path (FSMN), a depthwise
convolution over the values of 31 neighbours. The last hidden state is projected to eight numbers, each
quantized to -1, 0 or 1, and the eight digits are read as one number in base three.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.models.chatterbox.encoders.config import (
    FRAMES_PER_TOKEN,
    FSQ_LEVELS,
    FSQ_SCALE,
    OVERLAP_FRAMES,
    ROPE_THETA,
    WINDOW_FRAMES,
    SpeechTokenizerConfig,
)
from nightingale.models.layers.mel import TokenMel
from nightingale.models.layers.mel_config import TOKEN_MEL
from nightingale.models.layers.rope import inverse_frequencies, rotate, rotations


class SpeechTokenizer(nn.Module):
    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        self.config = config
        self.mel = TokenMel(replace(TOKEN_MEL, bands=config.mel_bands))
        self.encoder = TokenizerEncoder(config)
        self.quantizer = FsqProjection(config)

    @torch.no_grad()
    def tokenize(self, wav16k: Tensor, max_tokens: int | None = None) -> Tensor:
        """Tokenize (samples,) at 16 kHz to (tokens,) int64, at most `max_tokens`."""
        mel = self.mel(wav16k.unsqueeze(0))[0]
        if max_tokens is not None:
            mel = mel[..., : max_tokens * FRAMES_PER_TOKEN]
        return self(mel)

    @torch.no_grad()
    def forward(self, mel: Tensor) -> Tensor:
        """Tokenize (bands, frames) to (tokens,); where two windows overlap, each gives its half of the tokens."""
        if mel.shape[-1] <= WINDOW_FRAMES:
            return fsq_ids(self.quantizer(self.encoder(mel[None])[0]))[0]
        starts = range(0, mel.shape[-1], WINDOW_FRAMES - OVERLAP_FRAMES)
        windows = [mel[:, start : start + WINDOW_FRAMES] for start in starts]
        lengths = torch.tensor([window.shape[-1] for window in windows], device=mel.device)
        batch = torch.stack([F.pad(window, (0, WINDOW_FRAMES - window.shape[-1])) for window in windows])
        hidden, counts = self.encoder(batch, lengths)
        half = OVERLAP_FRAMES // FRAMES_PER_TOKEN // 2
        last = len(windows) - 1
        # PARITY: when the last window is shorter than the overlap, both it and its predecessor are cut there,
        #         and up to 2 s near the end have no tokens.
        # tests/models/encoders/test_speech_tokenizer.py::test_long_clips_are_tokenized_as_upstream_does
        kept = [
            row[(half if index else 0) : (count - half if index < last else count)]
            for index, (row, count) in enumerate(
                zip(fsq_ids(self.quantizer(hidden)), counts.tolist(), strict=True)
            )
        ]
        return torch.cat(kept)


class TokenizerEncoder(nn.Module):
    """Two strided convolutions, then transformer blocks."""

    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.reach = config.attention_reach
        self.conv1 = nn.Conv1d(config.mel_bands, config.width, 3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(TokenizerBlock(config) for _ in range(config.blocks))

    def forward(self, mel: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Encode (batch, bands, frames) to (batch, tokens, width) and token counts."""
        x, mask = mel, None
        counts = (
            torch.full((len(mel),), mel.shape[-1], device=mel.device) if lengths is None else lengths.long()
        )
        for conv in (self.conv1, self.conv2):
            if lengths is not None:
                x = x * (positions(x) < counts[:, None]).unsqueeze(1)
            x = F.gelu(conv(x))
            counts = (counts - 1) // 2 + 1
        if lengths is not None:
            mask = positions(x) < counts[:, None]  # (batch, tokens)
        x = x.transpose(1, 2)
        attn_mask = None if mask is None else mask[:, None, None, :]
        if self.reach is not None:
            place = torch.arange(x.shape[1], device=x.device)
            distance = (place[:, None] - place).abs()[None, None]
            near = distance <= self.reach
            # Each token attends at least to itself.
            attn_mask = near if attn_mask is None else near & attn_mask | (distance == 0)
        inverse = inverse_frequencies(self.head_width, theta=ROPE_THETA, scaling=False).to(x.device)
        rope = rotations(inverse, torch.arange(x.shape[1], device=x.device), x.dtype)
        for block in self.blocks:
            x = block(x, rope, mask, attn_mask)
        return x, counts


class TokenizerBlock(nn.Module):
    """Pre-norm attention, then a two-layer perceptron."""

    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        width = config.width
        self.attn = FsmnAttention(width, config.heads, config.memory_taps)
        self.attn_ln = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp_ln = nn.LayerNorm(width)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, attn_mask: Tensor | None
    ) -> Tensor:
        x = x + self.attn(self.attn_ln(x), rope, mask, attn_mask)
        return x + self.mlp(self.mlp_ln(x))


class FsmnAttention(nn.Module):
    """Attention plus a depthwise convolution over the values (FSMN)."""

    def __init__(self, width: int, heads: int, taps: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.fsmn_block = nn.Conv1d(width, width, taps, padding=taps // 2, groups=width, bias=False)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, attn_mask: Tensor | None
    ) -> Tensor:
        """Apply both paths; `mask` (batch, tokens) is false on padding, `attn_mask` limits the attention."""
        q, k, v = self.query(x), self.key(x), self.value(x)
        values = v if mask is None else v * mask[..., None]
        fsmn = values + self.fsmn_block(values.transpose(1, 2)).transpose(1, 2)
        if mask is not None:
            fsmn = fsmn * mask[..., None]
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        out = F.scaled_dot_product_attention(rotate(q, *rope), rotate(k, *rope), v, attn_mask=attn_mask)
        return self.out(out.transpose(1, 2).flatten(2)) + fsmn


class FsqProjection(nn.Module):
    """(…, width) -> (…, code_digits) before quantization, nested as the official tensor names are."""

    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        self._codebook = nn.ModuleDict({"project_down": nn.Linear(config.width, config.code_digits)})

    def forward(self, hidden: Tensor) -> Tensor:
        return self._codebook["project_down"](hidden)


def fsq_ids(raw: Tensor) -> Tensor:
    """Quantize (…, digits) to -1, 0 or 1 each and read them in base three, the first least: (…) int64."""
    digits = (raw.float().tanh() * FSQ_SCALE).round().long() + 1
    powers = FSQ_LEVELS ** torch.arange(raw.shape[-1], device=raw.device)
    return (digits * powers).sum(-1)


def positions(x: Tensor) -> Tensor:
    """Return 0, 1, 2, … along the last axis of `x`, on its device."""
    return torch.arange(x.shape[-1], device=x.device)
