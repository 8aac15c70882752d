"""The flow, piece by piece: a piece costs its own frames, and continues what came before it.

Nothing in the flow looks ahead but attention, whose reach is the caller's choice, and one layer that sees
three tokens more. So a piece needs, of all that came before, only each convolution's last inputs and each
attention's keys and values: once in the encoder, and once for each solver step in the estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch.nn.functional as F
from torch import Tensor

from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.layers.streaming_state import Carry, Past


@dataclass(frozen=True, slots=True)
class FlowPast:
    """What a flow must know of what came before. Never written to: many streams may continue one."""

    encoder: Past
    steps: tuple[Past, ...]

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for past in (self.encoder, *self.steps) for t in past)


def render_piece(
    flow: Flow,
    ids: Tensor,
    *,
    ahead: int,
    prompt_mel: Tensor,
    speaker: Tensor,
    noise: Tensor,
    past: FlowPast | None,
    advance: Fraction = Fraction(1),
    remember: bool = True,
) -> tuple[Tensor, FlowPast]:
    """Mel of the piece, (batch, mel, 2·tokens), and the past of the next one.

    ids: (batch, tokens + ahead), of which the last `ahead` are only looked at; prompt_mel: (batch, mel,
    frames), of as many of the piece's first frames as belong to the prompt; noise: (batch, mel, 2·tokens).
    advance, remember: see `Carry`; everything in the piece sees the whole piece and what the past remembers.
    """

    def carry(of: Past | None) -> Carry:
        return Carry(of, advance=advance, remember=remember, at_most=flow.config.remembered)

    encoder = carry(past.encoder if past else None)
    steps = [carry(step) for step in (past.steps if past else (None,) * flow.steps)]
    mu = flow.encode(ids, ahead=ahead, carry=encoder)
    cond = F.pad(flow.scaled(prompt_mel), (0, mu.shape[2] - prompt_mel.shape[2]))
    mel = flow.solve(noise, mu=mu, speaker=flow.speaker(speaker), cond=cond, carries=steps)
    return flow.unscaled(mel), FlowPast(encoder.leave(), tuple(step.leave() for step in steps))
