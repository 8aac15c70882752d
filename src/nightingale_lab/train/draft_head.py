"""Stage `draft`: train the draft head, small layers that predict T3's next hidden state (docs/speculative.md).

T3 is the frozen target. The loss is the KL divergence between the target's token probabilities and those that
its output head computes from the predicted hidden state. The head is unrolled for as many steps as are drafted
in a row, each from its own prediction.
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
from nightingale_lab.train.t3 import T3Recipe, T3Training, embed_rows, train_t3
from nightingale_lab.train.t3_rows import Bucket
from nightingale_lab.train.token_bank import TokenBank

RECIPE = T3Recipe(peak_lr=2e-3, warmup_steps=200, dropout=0.0, smoothing=0.0, weight_decay=0.02)
DEPTH_WEIGHTS = (1.0, 0.6, 0.35)
"""Loss weight of each step of the unrolled head: as many as are drafted in a row (backends/torch/drafts.py)."""
TEMPERATURE = 0.8
"""Temperature at which probabilities are compared. A lower one counts only the most likely token, a higher one
tokens that are never sampled."""
POSITION_STRIDE = 4
"""One in so many positions of a batch is used: computing logits is most of the work."""


class DraftHeadTraining(T3Training):
    """T3's training loop for a DraftHead, with the frozen T3 as the target."""

    net: DraftHead

    def __init__(self, target: T3, *args: Any, **options: Any) -> None:
        self.target = target
        super().__init__(*args, **options)
        self.target.to(self.device).eval().requires_grad_(False)

    def make_net(self, config: T3Config) -> DraftHead:
        return new_head(config.backbone.width)

    def loss(
        self, bucket: Bucket, pick: Tensor, *, corruption: float, smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the KL divergence, the accuracy of the argmax, and that accuracy at stop tokens."""
        del smoothing
        inputs, counts = self.batch(bucket, pick, corruption=corruption)
        depth = len(DEPTH_WEIGHTS)
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16):
            caches = [NoKVCache()] * self.target.config.backbone.layers
            parts = self.target.hidden_states(embed_rows(self.target, *inputs), caches)
            states = parts[0].float()
            tokens = self.target.speech_emb(torch.where(inputs[0], 0, inputs[1]))
        # Choose positions at random among those with a speech token that is followed by another.
        usable = (counts[:, :-depth] & counts[:, 1 : 1 - depth]).flatten()
        priority = torch.rand(usable.shape, device=self.device) + usable
        positions = priority.topk(len(priority) // POSITION_STRIDE).indices
        rows, at = positions // (counts.shape[1] - depth), positions % (counts.shape[1] - depth)
        ahead = range(1, depth + 1)
        with torch.autocast(self.device.type, torch.bfloat16):
            steps = draft_ahead(
                self.net,
                self.target.speech_head,
                torch.cat([part[rows, at] for part in parts], dim=-1).float(),
                tokens=[tokens[rows, at + n - 1] for n in ahead],
                targets=[states[rows, at + n] for n in ahead],
            )
        weights = [(usable[positions] & counts[rows, at + n]).float() for n in ahead]
        total = torch.zeros((), device=self.device)
        for share, step, weight in zip(DEPTH_WEIGHTS, steps, weights, strict=True):
            total = total + share * _mean(step.divergence, weight)
        first, weight = steps[0], weights[0]
        return total, _mean(first.correct, weight), _mean(first.correct, weight * first.stop)


@dataclass(frozen=True)
class DraftStep:
    """One step of the unrolled head at each position; every tensor is (positions,)."""

    divergence: Tensor
    """KL divergence of the drafted probabilities from the target's."""
    correct: Tensor
    """1 where the most likely token is the target's."""
    stop: Tensor
    """1 where the target's most likely token is the stop token."""


def draft_ahead(
    net: DraftHead,
    output_head: Callable[[Tensor], Tensor],
    states: Tensor,
    *,
    tokens: Sequence[Tensor],
    targets: Sequence[Tensor],
) -> list[DraftStep]:
    """Unroll the head from (positions, …) hidden states of a T3 with this output head.

    tokens, targets: for each step, the embedding of the token before it and T3's hidden state after it,
    (positions, width).
    """

    def log_probabilities(state: Tensor) -> Tensor:
        return (output_head(state).float() / TEMPERATURE).log_softmax(-1)

    state, steps = net.start(states), []
    for token, target_state in zip(tokens, targets, strict=True):
        state = net(state, token.to(state.dtype))
        with torch.no_grad():
            target = log_probabilities(target_state)
        drafted, best = log_probabilities(state), target.argmax(-1)
        divergence = F.kl_div(drafted, target, reduction="none", log_target=True).sum(-1)
        correct, stop = drafted.detach().argmax(-1) == best, best == STOP_SPEECH
        steps.append(DraftStep(divergence, correct.float(), stop.float()))
    return steps


def new_head(width: int) -> DraftHead:
    """Return a head that starts near the identity: it predicts that the hidden state does not change."""
    net = DraftHead(width)
    nn.init.zeros_(net.taps_proj.weight)
    for block in net.blocks:
        nn.init.normal_(block.mlp.down_proj.weight, std=0.01)  # type: ignore[union-attr, arg-type]
    return net


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    return (values * weights).sum() / weights.sum().clamp(min=1)


def train_draft_head(bank: TokenBank, out: Path, config: T3Config, *, target: Path, **options: Any) -> None:
    """Train a head for the T3 of `config` in the file `target`; `draft_head.safetensors` is the best average."""
    t3 = T3(config)
    t3.load_state_dict({name: value.float() for name, value in unpack(load_file(target)).items()})
    make = partial(DraftHeadTraining, t3)
    train_t3(bank, out, config, **{"recipe": RECIPE, **options}, make=make, name="draft_head")
