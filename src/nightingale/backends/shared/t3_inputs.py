"""Inputs of T3 for the CPU runners: embeddings of speech tokens and rotary tables, in numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from nightingale.models.chatterbox.t3.backbone import LlamaBackbone
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.rope import rotations

Floats = NDArray[np.float32]


class InputEmbeddings:
    """Speech tokens and prompts as T3's first layer reads them; by numpy, since a torch call costs more."""

    def __init__(self, t3: T3) -> None:
        self._speech: Floats = t3.speech_emb.weight.detach().float().numpy()
        self._learned: Floats | None = None
        self.absolute: Floats | None = None
        """GPT-2's position embeddings."""
        if t3.config.learned_positions is not None:
            self._learned = t3.speech_pos_emb.emb.weight.detach().float().numpy()
        if not isinstance(t3.tfmr, LlamaBackbone):
            self.absolute = t3.tfmr.wpe.weight.detach().float().numpy()

    def embed(
        self, x: Floats, tokens: Sequence[int], speech_positions: Sequence[int], positions: Sequence[int]
    ) -> None:
        """Write what the first layer reads of speech tokens (n) into x (n, width).

        `speech_positions` count from the start token, `positions` from the beginning of the sequence.
        """
        x[:] = self.speech(tokens, speech_positions)
        if self.absolute is not None:
            x += self.absolute[list(positions)]

    def speech(self, tokens: Sequence[int], positions: Sequence[int]) -> Floats:
        """Return the embeddings (n, width) of speech tokens, as `T3.embed_speech_at` computes them."""
        x: Floats = self._speech[list(tokens)]
        if self._learned is not None:
            x += self._learned[list(positions)]
        return x


def rotary_tables(t3: T3, positions: int) -> tuple[Floats, Floats] | None:
    """Return cosines and sines (positions, head_dim) of all positions; None if T3 has no rotary ones."""
    if not isinstance(t3.tfmr, LlamaBackbone):
        return None
    cos, sin = rotations(t3.tfmr.inverse, torch.arange(positions), torch.float32)
    return cos.numpy(), sin.numpy()
