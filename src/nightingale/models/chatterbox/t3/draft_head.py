"""What T3 will think next, guessed from what it has just thought and from what was drawn of it.

A thought is what T3's head reads: the normed output of its last layer. Much of what T3 knows of the text, the
voice and the tokens so far is in it, so a few small layers that see one thought and one token guess far
better than a small T3 would that reads everything anew (docs/speculative.md). The last layers keep what the
next token needs and drop what those after it will; so T3's stream halfway through is looked at too. T3's own
head then makes scores of the guessed thought; from it and its token the one after can be guessed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nightingale.models.chatterbox.t3.backbone_llama import Mlp, RmsNorm
from nightingale.models.chatterbox.t3.config import LlamaConfig

BLOCKS, INNER_OVER_WIDTH = 3, 3
HALVES = 3
"""Places on the way through T3's layers that are looked at."""


def halfway(layers: int) -> tuple[int, ...]:
    """Before which of T3's layers: when a third is done, two thirds, and all but the last."""
    return layers // 3, 2 * layers // 3, layers - 1


class GuessBlock(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = RmsNorm(width)
        self.mlp = Mlp(LlamaConfig(layers=1, width=width, heads=1, ffn=inner))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class DraftHead(nn.Module):
    """(…, width) thought and (…, width) embedding of the token drawn of it -> (…, width) the next thought.

    The first thought is one that `begin` gives; those after it are its own.
    """

    def __init__(self, width: int, *, blocks: int = BLOCKS, inner: int | None = None) -> None:
        super().__init__()
        self.width = width
        self.halves = RmsNorm(HALVES * width)
        self.outset = nn.Linear(HALVES * width, width, bias=False)
        self.inward = nn.Linear(2 * width, width, bias=False)
        self.blocks = nn.ModuleList(
            GuessBlock(width, inner or INNER_OVER_WIDTH * width) for _ in range(blocks)
        )
        self.norm = RmsNorm(width)

    @classmethod
    def shaped_like(cls, weights: Mapping[str, Tensor]) -> DraftHead:
        """An empty one of the size of these weights."""
        width, _ = weights["inward.weight"].shape
        blocks = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
        return cls(width, blocks=blocks, inner=len(weights["blocks.0.mlp.gate_proj.weight"]))

    def begin(self, thoughts: Tensor) -> Tensor:
        """(…, width + HALVES * width), a thought of T3's and its stream on the way there -> (…, width)."""
        thought, halves = thoughts[..., : self.width], thoughts[..., self.width :]
        return thought + self.outset(self.halves(halves))

    def forward(self, thought: Tensor, said: Tensor) -> Tensor:
        x = self.inward(torch.cat([thought, said], dim=-1))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)
