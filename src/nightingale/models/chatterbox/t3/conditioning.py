"""The conditioning before T3's text: the speaker, a speech prompt and the emotion, as embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nightingale.models.chatterbox.t3.config import PERCEIVER_HEADS, PERCEIVER_QUERIES, T3Config
from nightingale.models.layers.attention import attention


class PerceiverAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-5)
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(width, width)
        self.to_v = nn.Linear(width, width)
        self.proj_out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        queries, keys = self.norm(x), self.norm(context)
        q, k, v = (
            y.unflatten(-1, (PERCEIVER_HEADS, -1)).transpose(1, 2)
            for y in (self.to_q(queries), self.to_k(keys), self.to_v(keys))
        )
        out = attention(q, k, v)
        return x + self.proj_out(out.transpose(1, 2).flatten(2))


class Perceiver(nn.Module):
    """Compresses an embedded prompt of any length to 32 vectors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        bound = width**-0.5
        query = torch.empty(1, PERCEIVER_QUERIES, width).uniform_(-bound, bound)
        self.pre_attention_query = nn.Parameter(query)
        self.attn = PerceiverAttention(width)

    def forward(self, prompt: Tensor) -> Tensor:
        # PARITY: the one block is applied twice, first to the prompt, then to its own output.
        #         tests/models/test_t3.py::test_the_perceiver_uses_its_block_twice
        x = self.attn(self.pre_attention_query.expand(len(prompt), -1, -1), prompt)
        return self.attn(x, x)


class Conditioning(nn.Module):
    """Returns speaker ‖ prompt ‖ emotion as embeddings (rows, vectors, width)."""

    def __init__(self, config: T3Config) -> None:
        super().__init__()
        width = config.backbone.width
        self.spkr_enc = nn.Linear(config.speaker_width, width)
        self.expressive = config.perceiver
        if config.perceiver:
            self.perceiver = Perceiver(width)
            self.emotion_adv_fc = nn.Linear(1, width, bias=False)

    def forward(self, speaker: Tensor, prompt: Tensor, exaggeration: Tensor) -> Tensor:
        """Embed speaker (rows, speaker_width), embedded prompt (rows, n, width), exaggeration (rows,)."""
        speaker = self.spkr_enc(speaker)[:, None]
        if not self.expressive:
            return torch.cat([speaker, prompt], dim=1)
        emotion = self.emotion_adv_fc(exaggeration[:, None, None])
        return torch.cat([speaker, self.perceiver(prompt), emotion], dim=1)
