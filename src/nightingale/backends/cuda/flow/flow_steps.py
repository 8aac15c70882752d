"""The solver steps of the flow, arranged for graphs, and the flow's state after a voice's prompt.

What the reference (models/chatterbox/s3gen/flow.py) computes again in each step is computed once: the time
embeddings, which depend only on the number of steps, and the estimator's inputs besides x. Times are tensors
that exist beforehand, so the loop copies nothing from the host.

Nearly all work is in the estimator, which may run in bfloat16; the encoder, the time embeddings and the sum
over the steps stay in float32.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nightingale.backends.cuda.graphs import copy_async
from nightingale.backends.cuda.random import normal
from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.s3gen.estimator import Estimator
from nightingale.models.chatterbox.s3gen.flow import GUIDANCE, Flow, cosine_times, linear_times
from nightingale.models.layers.streaming_state import StreamingState

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

    def join_inputs(self, mu: Tensor, speaker: Tensor, cond: Tensor) -> Tensor:
        """Return the estimator's inputs besides x, (batch, 3 · mel, frames). speaker: (batch, width)."""
        return torch.cat([mu, self.flow.speaker(speaker)[..., None].expand_as(mu), cond], dim=1)

    def solve(
        self, noise: Tensor, given: Tensor, mask: Tensor | None = None, states: Sequence[StreamingState] = ()
    ) -> Tensor:
        """Move noise (batch, mel, frames) to normalized mel, as `Flow.solve` does. given: `join_inputs`."""
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
        both = torch.cat([x, x]) if self.guided else x
        h = torch.cat([both.to(self.precision), given], dim=1)
        velocity = self.estimator.velocity(h, time, mask, state).to(x.dtype)
        if not self.guided:
            return velocity
        conditional, unconditional = velocity.chunk(2)
        return (1 + GUIDANCE) * conditional - GUIDANCE * unconditional


@dataclass(frozen=True, slots=True, kw_only=True)
class VoicePromptCache:
    """The flow's state after a voice's prompt: rendered once per voice and shared by all its utterances."""

    tokens: int
    """Prompt tokens that were rendered: all but the last few, which look ahead to an utterance's first."""
    keys_values: tuple[Tensor, ...]
    """For each attention layer, in the order of the pass: (1 or 2, heads, positions, width)."""
    conv_state: Tensor
    """(1, values): the last inputs of all convolutions. Every utterance starts with them."""
    shapes: tuple[tuple[tuple[int, ...], ...], ...]
    """For the encoder and each solver step, the shapes of the saved state in the order of the pass: three
    numbers are a convolution's, four are keys or values."""
    pending_ids: tuple[int, ...]
    """The prompt tokens that were not rendered: every utterance starts with them."""
    pending_mel: Tensor
    """(bands, frames): their normalized mel."""
    speaker: Tensor
    """(width,)."""

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (*self.keys_values, self.conv_state))


@torch.inference_mode()
def cache_prompt(
    steps: FlowSteps, ids: Tensor, mel: Tensor, speaker: Tensor, *, key: int
) -> VoicePromptCache:
    """Render a voice's prompt, given as host tensors.

    ids: (tokens,); mel: (2 · tokens, bands); speaker: (width,); key: of the noise.
    """
    tokens, device = len(ids) - LOOKAHEAD_TOKENS, steps.device
    speaker = copy_async(speaker.to(steps.dtype), device)
    normalized = steps.flow.normalize_mel(copy_async(mel.to(steps.dtype), device).T)
    first, keys = (torch.full((1,), value, device=device) for value in (0, key))
    noise = normal(keys, first, FRAMES * tokens, len(normalized)).to(steps.dtype)
    cond = normalized[None, :, : FRAMES * tokens]
    streams = [StreamingState() for _ in range(steps.count + 1)]
    mu = steps.flow.encode(copy_async(ids, device)[None], lookahead=LOOKAHEAD_TOKENS, state=streams[0])
    steps.solve(noise, steps.join_inputs(mu, speaker[None], cond), states=streams[1:])
    states = [stream.saved() for stream in streams]
    saved = [tensor for state in states for tensor in state]
    return VoicePromptCache(
        tokens=tokens,
        keys_values=tuple(t for t in saved if t.dim() == 4),
        conv_state=torch.cat([t.to(steps.dtype).flatten() for t in saved if t.dim() == 3])[None],
        shapes=tuple(tuple(tuple(t.shape) for t in state) for state in states),
        pending_ids=tuple(ids[tokens:].tolist()),
        pending_mel=normalized[:, FRAMES * tokens :],
        speaker=speaker,
    )
