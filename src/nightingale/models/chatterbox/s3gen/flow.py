"""The flow encodes speech tokens once, then integrates noise to mel: whole, or in blocks (`render_block`).

A block costs its own frames and continues the previous block. Only attention, whose reach is the caller's
choice, and one layer that sees three more tokens look ahead. So a block needs, of all that came before it, the
last inputs of each convolution and the keys and values of each attention layer: once in the encoder, and once
for each solver step in the estimator.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES, FlowConfig
from nightingale.models.chatterbox.s3gen.estimator import Estimator
from nightingale.models.chatterbox.s3gen.token_encoder import TokenEncoder, attention_mask
from nightingale.models.layers.streaming_state import SavedState, StreamingState

GUIDANCE = 0.7
GUIDED_STEPS = 10
MEANFLOW_STEPS = 2


class Flow(nn.Module):
    """Speech tokens and noise to mel. It keeps no state between calls."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.steps = MEANFLOW_STEPS if config.meanflow else GUIDED_STEPS
        self.input_embedding = nn.Embedding(SPEECH_CODES, config.encoder_width)
        self.spk_embed_affine_layer = nn.Linear(config.speaker_width, config.mel_bands)
        self.encoder = TokenEncoder(config)
        self.encoder_proj = nn.Linear(config.encoder_width, config.mel_bands)
        self.decoder = nn.ModuleDict({"estimator": Estimator(config)})

    def with_steps(self, steps: int | None) -> Flow:
        """Return a flow with the same weights whose solver takes so many steps; None leaves them as they are."""
        if steps in (None, self.steps):
            return self
        other = copy.copy(self)
        other.steps = steps
        return other

    def encode(
        self,
        ids: Tensor,
        valid: Tensor | None = None,
        blocks: Tensor | None = None,
        *,
        lookahead: int = 0,
        state: StreamingState | None = None,
    ) -> Tensor:
        """Encode ids (batch, tokens) to mu (batch, mel, 2·tokens), without the last `lookahead` tokens."""
        x = self.input_embedding(ids)
        if valid is not None:
            x = x * valid[..., None]
        x = self.encoder(x, valid, blocks, lookahead=lookahead, state=state)
        return self.encoder_proj(x).transpose(1, 2)

    def speaker(self, vector: Tensor) -> Tensor:
        """Project a speaker vector: (batch, speaker_width) -> (batch, mel)."""
        return self.spk_embed_affine_layer(F.normalize(vector, dim=1))

    def forward(
        self,
        ids: Tensor,
        *,
        prompt_mel: Tensor,
        speaker: Tensor,
        noise: Tensor,
        steps: int | None = None,
        valid: Tensor | None = None,
        blocks: Tensor | None = None,
    ) -> Tensor:
        """Render everything after the prompt: (batch, mel, 2·tokens - prompt frames).

        `ids` are (batch, tokens), the prompt's first; `prompt_mel` and `noise` (batch, mel, frames); `speaker`
        is (batch, speaker_width). `valid` and `blocks` are those of `attention_mask`.
        """
        mu = self.encode(ids, valid, blocks)
        mask = attention_mask(valid, blocks, self.config.left_context, repeats=2)
        mel = self.solve(mu, prompt_mel, speaker, noise, [None] * (steps or self.steps), mask)
        return mel[:, :, prompt_mel.shape[2] :]

    def solve(
        self,
        mu: Tensor,
        prompt_mel: Tensor,
        speaker: Tensor,
        noise: Tensor,
        states: Sequence[StreamingState | None],
        mask: Tensor | None = None,
    ) -> Tensor:
        """Integrate noise to mel, the prompt's frames included, with one state for each step."""
        cond = F.pad(self.normalize_mel(prompt_mel), (0, mu.shape[2] - prompt_mel.shape[2]))
        inputs = {"mu": mu, "speaker": self.speaker(speaker), "cond": cond}
        times = (linear_times if self.config.meanflow else cosine_times)(len(states))
        state = iter(states)
        mel = integrate(
            lambda x, t, r: self._velocity(x, t, r, inputs, mask, next(state)),
            noise * self.config.noise_scale,
            times,
        )
        return self.denormalize_mel(mel)

    def _velocity(
        self,
        x: Tensor,
        t: Tensor,
        r: Tensor,
        inputs: dict[str, Tensor],
        mask: Tensor | None,
        state: StreamingState | None,
    ) -> Tensor:
        """Return the velocity: averaged over the step for a meanflow, with guidance otherwise."""
        estimator = self.decoder["estimator"]
        rows = len(x)
        if self.config.meanflow:
            return estimator(x, t=t.expand(rows), r=r.expand(rows), mask=mask, state=state, **inputs)
        inputs = {name: torch.cat([y, torch.zeros_like(y)]) for name, y in inputs.items()}
        if mask is not None and len(mask) > 1:
            mask = torch.cat([mask, mask])
        both = estimator(torch.cat([x, x]), t=t.expand(2 * rows), mask=mask, state=state, **inputs)
        guided, free = both.chunk(2)
        return (1 + GUIDANCE) * guided - GUIDANCE * free

    def normalize_mel(self, mel: Tensor) -> Tensor:
        return (mel - self.config.mel_mean) / self.config.mel_std

    def denormalize_mel(self, mel: Tensor) -> Tensor:
        return mel * self.config.mel_std + self.config.mel_mean


def cosine_times(steps: int) -> list[float]:
    """Return times with fine steps early, where the guided flow changes direction most."""
    return [1 - math.cos(0.5 * math.pi * i / steps) for i in range(steps + 1)]


def linear_times(steps: int) -> list[float]:
    return [i / steps for i in range(steps + 1)]


def integrate(velocity: Callable[[Tensor, Tensor, Tensor], Tensor], x: Tensor, times: list[float]) -> Tensor:
    """Integrate x along `times` with Euler's method; the velocity (x, t, r) is that of the step from t to r."""
    for t, r in pairwise(torch.tensor(times, dtype=x.dtype, device=x.device)):
        x = x + (r - t) * velocity(x, t, r)
    return x


@dataclass(frozen=True, slots=True)
class FlowState:
    """The saved state of a flow. It is never written to: many streams may continue one."""

    encoder: SavedState
    steps: tuple[SavedState, ...]

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for saved in (self.encoder, *self.steps) for t in saved)


def render_block(
    flow: Flow,
    ids: Tensor,
    *,
    lookahead: int,
    prompt_mel: Tensor,
    speaker: Tensor,
    noise: Tensor,
    past: FlowState | None,
    advance: Fraction = Fraction(1),
    store: bool = True,
) -> tuple[Tensor, FlowState]:
    """Render one block; return its mel (batch, mel, 2·tokens) and the past of the next block.

    `ids` (batch, tokens + lookahead) end with `lookahead` tokens that are not rendered; `prompt_mel` has those
    of the block's first frames that belong to the prompt. `past` is the state after the previous block, None at
    the start. `advance` and `store` are those of `StreamingState`. All of a block attends to all of it and to
    the past.
    """

    def state(saved: SavedState | None) -> StreamingState:
        return StreamingState(saved, advance=advance, store=store, max_positions=flow.config.left_context)

    encoder = state(past.encoder if past else None)
    steps = [state(step) for step in (past.steps if past else (None,) * flow.steps)]
    mu = flow.encode(ids, lookahead=lookahead, state=encoder)
    mel = flow.solve(mu, prompt_mel, speaker, noise, steps)
    return mel, FlowState(encoder.saved(), tuple(step.saved() for step in steps))
