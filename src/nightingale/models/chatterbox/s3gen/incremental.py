"""The flow block by block: a block costs its own frames and continues the previous block.

Only attention, whose reach is the caller's choice, and one layer that sees three more tokens look ahead. So a
block needs, of all that came before it, the last inputs of each convolution and the keys and values of each
attention layer: once in the encoder, and once for each solver step in the estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch.nn.functional as F
from torch import Tensor

from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.layers.streaming_state import SavedState, StreamingState


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

    Args:
        flow: The network.
        ids: (batch, tokens + lookahead).
        lookahead: Tokens at the end of `ids` that are not rendered.
        prompt_mel: (batch, mel, frames) of the block's first frames that belong to the prompt.
        speaker: (batch, speaker_width).
        noise: (batch, mel, 2·tokens).
        past: The state after the previous block; None at the start.
        advance: See `StreamingState`, like `store`. All of a block attends to all of it and to the past.
        store: Save the keys and values of this block.
    """

    def state(saved: SavedState | None) -> StreamingState:
        return StreamingState(saved, advance=advance, store=store, max_positions=flow.config.left_context)

    encoder = state(past.encoder if past else None)
    steps = [state(step) for step in (past.steps if past else (None,) * flow.steps)]
    mu = flow.encode(ids, lookahead=lookahead, state=encoder)
    cond = F.pad(flow.normalize_mel(prompt_mel), (0, mu.shape[2] - prompt_mel.shape[2]))
    mel = flow.solve(noise, mu=mu, speaker=flow.speaker(speaker), cond=cond, states=steps)
    return flow.denormalize_mel(mel), FlowState(encoder.saved(), tuple(step.saved() for step in steps))
