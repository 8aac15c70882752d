"""Stage `draft`: a T3 with fewer layers that guesses what its target would say (docs/speculative.md).

It is shown what its target was shown, and learns its target's likelihoods instead of the clips' ids: a guess
is right when the target says the same, whatever the clip says. It begins with the target's tables and head
and with layers taken evenly from it, the last one included, so that it speaks its language from the start.
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
"""A target's likelihoods are soft already, and two layers learn nothing by heart."""


class DraftTraining(T3Training):
    """T3's training, with the target's likelihoods in place of the ids."""

    def __init__(self, target: T3, bank: TokenBank, config: T3Config, recipe: T3Recipe, **given: Any) -> None:
        super().__init__(bank, config, recipe, **given)
        self.target = target.to(self.device).eval().requires_grad_(False)
        self.net.load_state_dict(thinned(target, config.backbone.layers))
        self.ema.reset()

    def error(
        self,
        scores: Tensor,
        ids: Tensor,
        given: tuple[Tensor, Tensor, Tensor],
        smoothing: float,
    ) -> Tensor:
        """How far the likelihoods are from the target's: Kullback and Leibler's distance, (rows, time)."""
        del ids, smoothing
        with torch.no_grad():
            wanted = self.scores(self.target, *given).float().log_softmax(-1)
        return F.kl_div(scores.float().log_softmax(-1), wanted, reduction="none", log_target=True).sum(-1)


def thinned(target: T3, layers: int) -> dict[str, Tensor]:
    """The target's weights with so many of its layers, taken evenly, the last one included."""
    deep = target.config.backbone.layers
    kept = [round((i + 1) * deep / layers) - 1 for i in range(layers)]
    weights = {}
    for name, value in target.state_dict().items():
        parts = name.split(".")
        if parts[:2] in (["tfmr", "layers"], ["tfmr", "h"]):
            if int(parts[2]) not in kept:
                continue
            parts[2] = str(kept.index(int(parts[2])))
        weights[".".join(parts)] = value
    return weights


def train_draft(
    bank: TokenBank, out: Path, config: T3Config, *, target: Path, layers: int, **given: Any
) -> None:
    """Train a draft for the T3 of `config` in the file `target`; `draft.safetensors` is the best average."""
    large = T3(config)
    large.load_state_dict({name: value.float() for name, value in load_file(target).items()})
    small = replace(config, backbone=replace(config.backbone, layers=layers))
    make = partial(DraftTraining, large)
    train_t3(bank, out, small, **{"recipe": RECIPE, **given}, make=make, name="draft")
