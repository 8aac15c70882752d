"""Stage `guess`: the few layers that guess T3's next thought (docs/speculative.md).

The target thinks about clips it was trained on, and is not changed. A guess is judged by what the target's
own head makes of it: how far its likelihoods are from those of what the target really thought next. From its
own guesses it must also guess those after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.models.chatterbox.t3.config import STOP_SPEECH, T3Config
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.compact import unpack
from nightingale_lab.no_kv_cache import NoKVCache
from nightingale_lab.train.t3 import T3Recipe, T3Training, train_t3
from nightingale_lab.train.t3_rows import Bucket
from nightingale_lab.train.token_bank import TokenBank

RECIPE = T3Recipe(peak_lr=2e-3, warmup_steps=200, dropout=0.0, smoothing=0.0, weight_decay=0.02)
DEPTH_WEIGHTS = (1.0, 0.6, 0.35)
"""Of the guess, and of those after it: as many as are guessed in a row (backends/torch/speculation.py)."""
TEMPERATURE = 0.8
"""At which likelihoods are compared: colder, only the likeliest would count; warmer, ids nobody draws."""
LOOKED_AT = 4
"""One in so many places of a batch is looked at: the head's scores are most of the work."""


class GuessTraining(T3Training):
    """T3's training, of another net: `net` is a DraftHead, and the target is the T3."""

    net: DraftHead

    def __init__(self, target: T3, *given: Any, **named: Any) -> None:
        self.target = target
        super().__init__(*given, **named)
        self.target.to(self.device).eval().requires_grad_(False)

    def make_net(self, config: T3Config) -> DraftHead:
        return new_head(config.backbone.width)

    def loss(
        self, bucket: Bucket, pick: Tensor, *, slip: float, smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Kullback and Leibler's distance, how often the likeliest id is the same, and that of the stop."""
        del smoothing
        given, counts = self.shown(bucket, pick, slip=slip)
        depth = len(DEPTH_WEIGHTS)
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16):
            memory = [NoKVCache()] * self.target.config.backbone.layers
            parts = self.target.hidden_states(self.inputs(self.target, *given), memory)
            thoughts = parts[0].float()
            said = self.target.speech_emb(torch.where(given[0], 0, given[1]))
        # Of the places where something was said, and something follows, as many as fit, any of them.
        fits = (counts[:, :-depth] & counts[:, 1 : 1 - depth]).flatten()
        lot = torch.rand(fits.shape, device=self.device) + fits
        places = lot.topk(len(lot) // LOOKED_AT).indices
        rows, at = places // (counts.shape[1] - depth), places % (counts.shape[1] - depth)
        ahead = range(1, depth + 1)
        with torch.autocast(self.device.type, torch.bfloat16):
            guesses = guess_ahead(
                self.net,
                self.target.speech_head,
                torch.cat([part[rows, at] for part in parts], dim=-1).float(),
                said=[said[rows, at + n - 1] for n in ahead],
                came=[thoughts[rows, at + n] for n in ahead],
            )
        weights = [(fits[places] & counts[rows, at + n]).float() for n in ahead]
        total = torch.zeros((), device=self.device)
        for share, guess, weight in zip(DEPTH_WEIGHTS, guesses, weights, strict=True):
            total = total + share * _mean(guess.distance, weight)
        first, weight = guesses[0], weights[0]
        return total, _mean(first.same, weight), _mean(first.same, weight * first.stop)


@dataclass(frozen=True)
class Guessed:
    """One guess ahead at each place: all (places,)."""

    distance: Tensor
    """Kullback and Leibler's, of its likelihoods from T3's."""
    same: Tensor
    """1 where the likeliest id is T3's."""
    stop: Tensor
    """1 where T3's is the end."""


def guess_ahead(
    net: DraftHead,
    head: Callable[[Tensor], Tensor],
    thoughts: Tensor,
    *,
    said: Sequence[Tensor],
    came: Sequence[Tensor],
) -> list[Guessed]:
    """Guesses in a row from (places, …) thoughts of a T3 with this head. said, came: for each of them the
    embedding of what was drawn before it, and the thought that came, (places, width)."""

    def likelihoods(thought: Tensor) -> Tensor:
        return (head(thought).float() / TEMPERATURE).log_softmax(-1)

    guess, made = net.start(thoughts), []
    for token, wanted_thought in zip(said, came, strict=True):
        guess = net(guess, token.to(guess.dtype))
        with torch.no_grad():
            wanted = likelihoods(wanted_thought)
        got, best = likelihoods(guess), wanted.argmax(-1)
        distance = F.kl_div(got, wanted, reduction="none", log_target=True).sum(-1)
        same, stop = got.detach().argmax(-1) == best, best == STOP_SPEECH
        made.append(Guessed(distance, same.float(), stop.float()))
    return made


def new_head(width: int) -> DraftHead:
    """It begins by guessing that nothing changes, nearly."""
    net = DraftHead(width)
    nn.init.zeros_(net.taps_proj.weight)
    for block in net.blocks:
        nn.init.normal_(block.mlp.down_proj.weight, std=0.01)  # type: ignore[union-attr, arg-type]
    return net


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    return (values * weights).sum() / weights.sum().clamp(min=1)


def train_guess(bank: TokenBank, out: Path, config: T3Config, *, target: Path, **given: Any) -> None:
    """Train a guess for the T3 of `config` in the file `target`; `draft_head.safetensors` is the best average."""
    large = T3(config)
    large.load_state_dict({name: value.float() for name, value in unpack(load_file(target)).items()})
    make = partial(GuessTraining, large)
    train_t3(bank, out, config, **{"recipe": RECIPE, **given}, make=make, name="draft_head")
