"""The solver steps of the flow, arranged for graphs.

What the reference (models/chatterbox/s3gen/flow.py) computes again in each step is computed once: the time
embeddings, which depend only on the number of steps, and the estimator's inputs besides x. Times are tensors
that exist beforehand, so the loop copies nothing from the host.

Nearly all work is in the estimator and the encoder, whose products may be in bfloat16; the time embeddings and
the sum over the steps stay in float32.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.s3gen.estimator import Estimator
from nightingale.models.chatterbox.s3gen.flow import GUIDANCE, Flow, cosine_times, linear_times

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
        embedded = estimator.times(grid[:-1], None if self.guided else grid[1:])
        self.times = embedded.to(self.precision)[:, None]  # (steps, 1, width)
        # A copy, if it is converted: the reference keeps its own.
        self.estimator = (
            estimator if self.precision == self.dtype else copy.deepcopy(estimator).to(self.precision)
        )

    @property
    def rows(self) -> int:
        """Evaluations of the estimator per step: a guided flow has a conditional and an unconditional one."""
        return 2 if self.guided else 1

    def solve(self, noise: Tensor, given: Tensor) -> Tensor:
        """Move noise (1, mel, frames) to normalized mel, as `Flow.solve` does.

        given: (1, 3 · mel, frames), the estimator's inputs besides x.
        """
        if self.guided:
            given = torch.cat([given, torch.zeros_like(given)])
        given = given.to(self.precision)
        x = noise * self.flow.config.noise_scale
        for step in range(self.count):
            x = x + self.widths[step] * self._velocity(x, given, self.times[step])
        return x

    def _velocity(self, x: Tensor, given: Tensor, time: Tensor) -> Tensor:
        both = torch.cat([x, x]) if self.guided else x
        h = torch.cat([both.to(self.precision), given], dim=1)
        velocity = self.estimator.velocity(h, time, None).to(x.dtype)
        if not self.guided:
            return velocity
        conditional, unconditional = velocity.chunk(2)
        return (1 + GUIDANCE) * conditional - GUIDANCE * unconditional
