"""What T3 is told before the text: who speaks, how a clip of them sounded, how expressive to be."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.models.chatterbox.t3.config import PERCEIVER_QUERIES, T3Config

PERCEIVER_HEADS = 4


class PerceiverAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-5)
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(width, width)
        self.to_v = nn.Linear(width, width)
        self.proj_out = nn.Linear(width, width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        asked, shown = self.norm(x), self.norm(seen)
        q, k, v = (
            y.unflatten(-1, (PERCEIVER_HEADS, -1)).transpose(1, 2)
            for y in (self.to_q(asked), self.to_k(shown), self.to_v(shown))
        )
        out = F.scaled_dot_product_attention(q, k, v)
        return x + self.proj_out(out.transpose(1, 2).flatten(2))


class Perceiver(nn.Module):
    """A prompt of any length -> 32 vectors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        reach = width**-0.5
        self.pre_attention_query = nn.Parameter(
            torch.empty(1, PERCEIVER_QUERIES, width).uniform_(-reach, reach)
        )
        self.attn = PerceiverAttention(width)

    def forward(self, prompt: Tensor) -> Tensor:
        # PARITY: the one block serves twice, first on the prompt, then on its own answer.
        #         tests/models/test_t3.py::test_the_perceiver_uses_its_block_twice
        heard = self.attn(self.pre_attention_query.expand(len(prompt), -1, -1), prompt)
        return self.attn(heard, heard)


class Conditioning(nn.Module):
    """speaker ‖ prompt ‖ emotion, as embeddings: (rows, vectors, width)."""

    def __init__(self, config: T3Config) -> None:
        super().__init__()
        width = config.backbone.width
        self.spkr_enc = nn.Linear(config.speaker_width, width)
        self.expressive = config.perceiver
        if config.perceiver:
            self.perceiver = Perceiver(width)
            self.emotion_adv_fc = nn.Linear(1, width, bias=False)

    def forward(self, speaker: Tensor, prompt: Tensor, exaggeration: Tensor) -> Tensor:
        """speaker: (rows, speaker_width); prompt: (rows, tokens, width), embedded; exaggeration: (rows,)."""
        who = self.spkr_enc(speaker)[:, None]
        if not self.expressive:
            return torch.cat([who, prompt], dim=1)
        return torch.cat(
            [who, self.perceiver(prompt), self.emotion_adv_fc(exaggeration[:, None, None])], dim=1
        )
