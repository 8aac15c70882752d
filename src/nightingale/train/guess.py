"""Stage `guess`: the few layers that guess T3's next thought (docs/speculative.md).

The target thinks about clips it was trained on, and is not changed. A guess is judged by what the target's
own head makes of it: how far its likelihoods are from those of what the target really thought next. From its
own guesses it must also guess those after.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.models.chatterbox.t3.config import STOP_SPEECH, T3Config
from nightingale.models.chatterbox.t3.guess import GuessHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.compact import unpack
from nightingale.nn.memory import NoMemory
from nightingale.train.t3 import T3Recipe, T3Training, train_t3
from nightingale.train.t3_rows import Bucket
from nightingale.train.token_bank import TokenBank

RECIPE = T3Recipe(peak_lr=2e-3, warmup_steps=200, dropout=0.0, smoothing=0.0, weight_decay=0.02)
DEPTH_WEIGHTS = (1.0, 0.6, 0.35)
"""Of the guess, and of those after it: as many as are guessed in a row (engine/speculate_load.py)."""
TEMPERATURE = 0.8
"""At which likelihoods are compared: colder, only the likeliest would count; warmer, ids nobody draws."""
LOOKED_AT = 4
"""One in so many places of a batch is looked at: the head's scores are most of the work."""


class GuessTraining(T3Training):
    """T3's training, of another net: `net` is a GuessHead, and the target is the T3."""

    net: GuessHead

    def __init__(self, target: T3, *given: Any, **named: Any) -> None:
        self.target = target
        super().__init__(*given, **named)
        self.target.to(self.device).eval().requires_grad_(False)

    def make_net(self, config: T3Config) -> GuessHead:
        net = GuessHead(config.backbone.width)
        nn.init.zeros_(net.outset.weight)
        for block in net.blocks:  # begins as nearly nothing beside what it is added to
            nn.init.normal_(block.mlp.down_proj.weight, std=0.01)  # type: ignore[union-attr, arg-type]
        return net

    def loss(
        self, bucket: Bucket, pick: Tensor, *, slip: float, smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Kullback and Leibler's distance, how often the likeliest id is the same, and that of the stop."""
        del smoothing
        given, counts = self.shown(bucket, pick, slip=slip)
        depth = len(DEPTH_WEIGHTS)
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16):
            memory = [NoMemory()] * self.target.config.backbone.layers
            parts = self.target.think(self.inputs(self.target, *given), memory)
            thoughts = parts[0].float()
            said = self.target.speech_emb(torch.where(given[0], 0, given[1]))
        # Of the places where something was said, and something follows, as many as fit, any of them.
        fits = (counts[:, :-depth] & counts[:, 1 : 1 - depth]).flatten()
        lot = torch.rand(fits.shape, device=self.device) + fits
        places = lot.topk(len(lot) // LOOKED_AT).indices
        rows, at = places // (counts.shape[1] - depth), places % (counts.shape[1] - depth)
        total = torch.zeros((), device=self.device)
        hits, stops, stop_hits = [], [], []
        with torch.autocast(self.device.type, torch.bfloat16):
            guess = self.net.begin(torch.cat([part[rows, at] for part in parts], dim=-1).float())
            for ahead, share in enumerate(DEPTH_WEIGHTS, 1):
                guess = self.net(guess, said[rows, at + ahead - 1].to(guess.dtype))
                weight = (fits[places] & counts[rows, at + ahead]).float()
                with torch.no_grad():
                    wanted = self._likelihoods(thoughts[rows, at + ahead])
                got = self._likelihoods(guess)
                each = F.kl_div(got, wanted, reduction="none", log_target=True).sum(-1)
                total = total + share * (each * weight).sum() / weight.sum().clamp(min=1)
                same = (got.detach().argmax(-1) == wanted.argmax(-1)).float()
                is_stop = weight * (wanted.argmax(-1) == STOP_SPEECH)
                hits.append((same * weight).sum() / weight.sum().clamp(min=1))
                stops.append(is_stop.sum())
                stop_hits.append((same * is_stop).sum())
        return total, hits[0], stop_hits[0] / stops[0].clamp(min=1)

    def _likelihoods(self, thoughts: Tensor) -> Tensor:
        return (self.target.speech_head(thoughts).float() / TEMPERATURE).log_softmax(-1)


def train_guess(bank: TokenBank, out: Path, config: T3Config, *, target: Path, **given: Any) -> None:
    """Train a guess for the T3 of `config` in the file `target`; `guess.safetensors` is the best average."""
    large = T3(config)
    large.load_state_dict({name: value.float() for name, value in unpack(load_file(target)).items()})
    make = partial(GuessTraining, large)
    train_t3(bank, out, config, **{"recipe": RECIPE, **given}, make=make, name="guess")
