"""The flow's state after a voice's prompt: rendered once per voice and shared by all its utterances."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nightingale.backends.cuda.flow.flow_steps import FRAMES, FlowSteps, start_stream
from nightingale.backends.cuda.graphs import copy_async
from nightingale.backends.cuda.random import normal
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class VoicePromptCache:
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

    Args:
        steps: The flow.
        ids: (tokens,).
        mel: (2 · tokens, bands).
        speaker: (width,).
        key: Of the noise.
    """
    tokens, device = len(ids) - LOOKAHEAD_TOKENS, steps.device
    speaker = copy_async(speaker.to(steps.dtype), device)
    normalized = steps.flow.normalize_mel(copy_async(mel.to(steps.dtype), device).T)
    first, keys = (torch.full((1,), value, device=device) for value in (0, key))
    noise = normal(keys, first, FRAMES * tokens, len(normalized)).to(steps.dtype)
    cond = normalized[None, :, : FRAMES * tokens]
    states = start_stream(steps, copy_async(ids, device)[None], cond, noise, speaker[None])
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
