"""Stage `draft --kind layers`: distill a T3 into a draft model with fewer layers (docs/speculative.md).

The draft model gets the inputs of its target and learns the target's token probabilities instead of the
clips' ids, since a draft is accepted where the target agrees. It starts from the target's embeddings and output head
and from evenly spaced layers, the last one included.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from nightingale.models.chatterbox.t3.config import T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale_lab.train.t3 import T3Recipe, T3Training, train_t3
from nightingale_lab.train.token_bank import TokenBank

RECIPE = T3Recipe(peak_lr=1e-3, warmup_steps=100, dropout=0.0, smoothing=0.0)
"""The target's probabilities are soft already, and two layers do not overfit: no smoothing, no dropout."""


class DraftModelTraining(T3Training):
    """T3's training with the target's probabilities in place of the ids."""

    def __init__(
        self, target: T3, bank: TokenBank, config: T3Config, recipe: T3Recipe, **options: Any
    ) -> None:
        super().__init__(bank, config, recipe, **options)
        self.target = target.to(self.device).eval().requires_grad_(False)
        self.net.load_state_dict(prune_layers(target, config.backbone.layers))
        self.ema.reset()

    def token_loss(
        self, logits: Tensor, ids: Tensor, inputs: tuple[Tensor, Tensor, Tensor], smoothing: float
    ) -> Tensor:
        """Return the KL divergence from the target's probabilities at each position, (rows, time)."""
        del ids, smoothing
        with torch.no_grad():
            target = self.logits(self.target, *inputs).float().log_softmax(-1)
        return F.kl_div(logits.float().log_softmax(-1), target, reduction="none", log_target=True).sum(-1)


def prune_layers(target: T3, layers: int) -> dict[str, Tensor]:
    """Return the target's weights with so many of its layers, evenly spaced, the last one included."""
    depth = target.config.backbone.layers
    kept = [round((i + 1) * depth / layers) - 1 for i in range(layers)]
    weights = {}
    for name, value in target.state_dict().items():
        parts = name.split(".")
        if parts[:2] in (["tfmr", "layers"], ["tfmr", "h"]):
            if int(parts[2]) not in kept:
                continue
            parts[2] = str(kept.index(int(parts[2])))
        weights[".".join(parts)] = value
    return weights


def train_draft_model(
    bank: TokenBank, out: Path, config: T3Config, *, target: Path, layers: int, **options: Any
) -> None:
    """Train a draft for the T3 of `config` in the file `target`; `draft.safetensors` is the best average."""
    large = T3(config)
    large.load_state_dict({name: value.float() for name, value in load_file(target).items()})
    small = replace(config, backbone=replace(config.backbone, layers=layers))
    make = partial(DraftModelTraining, large)
    train_t3(bank, out, small, **{"recipe": RECIPE, **options}, make=make, name="draft")
