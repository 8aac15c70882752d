"""The solver steps of the flow, arranged for graphs.

What the reference (models/chatterbox/s3gen/flow.py) computes again in each step is computed once: the time
embeddings, which depend only on the number of steps, and the estimator's inputs besides x. Times are tensors
that exist beforehand, so the loop copies nothing from the host.

Nearly all work is in the estimator, which may run in bfloat16; the encoder, the time embeddings and the sum
over the steps stay in float32.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.s3gen.estimator import Estimator
from nightingale.models.chatterbox.s3gen.flow import GUIDANCE, Flow, cosine_times, linear_times
from nightingale.models.layers.streaming_state import SavedState, StreamingState

FRAMES = CLOCKS.frames_per_token


class FlowSteps:
    """The solver steps of one flow, whose own number and precision are the defaults."""

    @torch.no_grad()
    def __init__(self, flow: Flow, *, steps: int | None = None, precision: torch.dtype | None = None) -> None:
        weight = flow.encoder_proj.weight
        self.device, self.dtype = weight.device, weight.dtype
        self.flow, self.precision = flow, precision or self.dtype
        self.guided = not flow.config.meanflow
        self.count = steps or flow.steps
        times = (cosine_times if self.guided else linear_times)(self.count)
        grid = torch.tensor(times, dtype=self.dtype, device=self.device)
        self.widths = grid.diff()
        estimator = flow.decoder["estimator"]
        assert isinstance(estimator, Estimator)
        embedded = estimator.time_mlp(grid)
        self.times = embedded[:-1]
        if not self.guided:
            self.times = estimator.time_embed_mixer(torch.cat([embedded[:-1], embedded[1:]], dim=1))
        self.times = self.times.to(self.precision)[:, None]  # (steps, 1, width)
        # A copy, if it is converted: the reference keeps its own.
        self.estimator = (
            estimator if self.precision == self.dtype else copy.deepcopy(estimator).to(self.precision)
        )

    def solve(
        self,
        noise: Tensor,
        *,
        mu: Tensor,
        speaker: Tensor,
        cond: Tensor,
        mask: Tensor | None = None,
        states: Sequence[StreamingState | None] | None = None,
    ) -> Tensor:
        """Move noise (batch, mel, frames) to normalized mel, as `Flow.solve` does."""
        given = torch.cat([mu, speaker[..., None].expand_as(mu), cond], dim=1)
        if self.guided:
            given = torch.cat([given, torch.zeros_like(given)])
            if mask is not None and len(mask) > 1:
                mask = torch.cat([mask, mask])
        given = given.to(self.precision)
        x = noise * self.flow.config.noise_scale
        for step, state in enumerate(states or [None] * self.count):
            x = x + self.widths[step] * self._velocity(x, given, self.times[step], mask, state)
        return x

    def _velocity(
        self, x: Tensor, given: Tensor, time: Tensor, mask: Tensor | None, state: StreamingState | None
    ) -> Tensor:
        net = self.estimator
        both = torch.cat([x, x]) if self.guided else x
        h = torch.cat([both.to(self.precision), given], dim=1)
        down, up = net.down_blocks[0], net.up_blocks[0]
        skip = down(h, time, mask, state)
        h = down[2](skip, state)  # type: ignore[index]
        for stage in net.mid_blocks:
            h = stage(h, time, mask, state)
        h = up[2](up(torch.cat([h, skip], dim=1), time, mask, state), state)  # type: ignore[index]
        velocity: Tensor = net.final_proj(net.final_block(h, state)).to(x.dtype)
        if not self.guided:
            return velocity
        conditional, unconditional = velocity.chunk(2)
        return (1 + GUIDANCE) * conditional - GUIDANCE * unconditional


def start_stream(
    steps: FlowSteps, ids: Tensor, cond: Tensor, noise: Tensor, speaker: Tensor
) -> list[SavedState]:
    """Render the first block of a stream; return the saved states: the encoder's, then each step's.

    ids: (1, tokens + LOOKAHEAD_TOKENS); cond: normalized mel (1, bands, 2 · tokens), like noise.
    """
    states = [StreamingState(advance=Fraction(1)) for _ in range(steps.count + 1)]
    mu = steps.flow.encode(ids, lookahead=LOOKAHEAD_TOKENS, state=states[0])
    steps.solve(noise, mu=mu, speaker=steps.flow.speaker(speaker), cond=cond, states=states[1:])
    return [state.saved() for state in states]
