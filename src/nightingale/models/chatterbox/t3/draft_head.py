"""The draft head of speculative decoding: predicts T3's next hidden state from its latest one.

The hidden state that T3's speech head reads holds much of what T3 knows, so a few small layers over it and the
sampled token draft far better than a small T3 that reads everything again (docs/speculative.md). The last
layers of T3 drop what later tokens need, so the head also reads the inputs of three earlier layers. T3's own
speech head turns a predicted hidden state into logits; the prediction and its token then predict the next one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nightingale.models.chatterbox.t3.backbone import LlamaMlp, RmsNorm
from nightingale.models.chatterbox.t3.config import TAPS, LlamaConfig

BLOCKS, INNER_OVER_WIDTH = 3, 3


class DraftBlock(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = RmsNorm(width)
        self.mlp = LlamaMlp(LlamaConfig(layers=1, width=width, heads=1, ffn=inner))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class DraftHead(nn.Module):
    """(…, width) hidden state and (…, width) embedding of its sampled token -> (…, width) next hidden state.

    The first hidden state comes from `start`; later ones are the head's own predictions.
    """

    def __init__(self, width: int, *, blocks: int = BLOCKS, inner: int | None = None) -> None:
        super().__init__()
        self.width = width
        self.taps_norm = RmsNorm(TAPS * width)
        self.taps_proj = nn.Linear(TAPS * width, width, bias=False)
        self.in_proj = nn.Linear(2 * width, width, bias=False)
        self.blocks = nn.ModuleList(
            DraftBlock(width, inner or INNER_OVER_WIDTH * width) for _ in range(blocks)
        )
        self.norm = RmsNorm(width)

    @classmethod
    def shaped_like(cls, weights: Mapping[str, Tensor]) -> DraftHead:
        """Return an untrained head of the size of these weights."""
        width, _ = weights["in_proj.weight"].shape
        blocks = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
        return cls(width, blocks=blocks, inner=len(weights["blocks.0.mlp.gate_proj.weight"]))

    def start(self, hidden_states: Tensor) -> Tensor:
        """Combine (…, width + TAPS * width), T3's hidden state and the tapped inputs, into (…, width)."""
        final, taps = hidden_states[..., : self.width], hidden_states[..., self.width :]
        return final + self.taps_proj(self.taps_norm(taps))

    def forward(self, hidden_state: Tensor, token_embedding: Tensor) -> Tensor:
        x = self.in_proj(torch.cat([hidden_state, token_embedding], dim=-1))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)
