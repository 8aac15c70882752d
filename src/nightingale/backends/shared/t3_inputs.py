"""What every runner of T3 on a CPU shares: who asks, how ids become inputs, and prompts read before."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.errors import MemoryFull
from nightingale.models.chatterbox.t3.backbone_llama import LlamaBackbone
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.rope import rotations

Floats = NDArray[np.float32]


class Turn(Protocol):
    """As in backends/torch/runner.py."""

    @property
    def slot(self) -> int: ...
    @property
    def token(self) -> int: ...
    @property
    def position(self) -> int: ...


class Tables:
    """Speech ids as T3 reads them, by numpy: a call of torch costs more."""

    def __init__(self, t3: T3) -> None:
        learned = None if t3.config.learned_positions is None else t3.speech_pos_emb.emb
        self._t3, counted = t3, None if isinstance(t3.tfmr, LlamaBackbone) else t3.tfmr.wpe
        speech, self._learned, self._counted = (
            None if table is None else table.weight.detach().float().numpy()
            for table in (t3.speech_emb, learned, counted)
        )
        assert speech is not None
        self._speech: Floats = speech

    def embed(self, x: Floats, ids: Sequence[int], places: Sequence[int], at: Sequence[int]) -> None:
        """Write speech ids (n) into x (n, width): at their places after the start token, and at their
        positions of the whole. As `T3.embed_speech_at`."""
        np.take(self._speech, ids, axis=0, out=x)
        if self._learned is not None:
            x += self._learned[list(places)]
        if self._counted is not None:
            x += self._counted[list(at)]

    def positioned(self, x: Tensor) -> Tensor:
        """A whole prompt (rows, time, width). GPT-2's backbone begins by adding a learned position; a graph
        begins after it."""
        tfmr = self._t3.tfmr
        return x if isinstance(tfmr, LlamaBackbone) else x + tfmr.wpe(torch.arange(x.shape[1]))


class Heard:
    """The latest prompts, and what was remembered of them.

    What a voice puts before the text is the same in every prompt of it, and in both rows of a guided one; and
    the row that is not told the text differs between two prompts only in length.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: list[tuple[Tensor, dict[str, NDArray[Any]]]] = []

    def longest_beginning(self, x: Tensor) -> tuple[int, dict[str, NDArray[Any]] | None]:
        """How many positions of x (time, width) a kept row begins with, and what that row remembers of them.

        At least one position is left to compute: it gives the scores.
        """
        best, found = 0, None
        for other, kept in self.kept:
            shared = min(len(x) - 1, len(other))
            differs = (x[:shared] != other[:shared]).any(-1).nonzero()
            shared = int(differs[0]) if len(differs) else shared
            if shared > best:
                best, found = shared, kept
        return best, found

    def recall(self, x: Tensor, own: Callable[[int], Mapping[str, NDArray[Any]]]) -> int:
        """How many positions of x (time, width) need not be read, since they were remembered. own: a row's
        memory of so many positions, into which they are written."""
        known, kept = self.longest_beginning(x)
        if kept is not None:
            for name, view in own(known).items():
                view[:] = kept[name][tuple(map(slice, view.shape))]
        return known

    def keep(self, x: Tensor, own: Mapping[str, NDArray[Any]]) -> None:
        """own: a row's memory of x, which is copied."""
        memory = {name: view.copy() for name, view in own.items()}
        self.kept = [*self.kept, (x.clone(), memory)][-self.most :]


def check_room(positions: int, capacity: int) -> None:
    if positions > capacity:
        raise MemoryFull(
            "the utterance is longer than its KV cache",
            got=f"{positions} positions",
            allowed=f"at most {capacity}",
            fix="Speak a shorter sentence, or open the session with a larger capacity.",
        )


def zeros(shape: tuple[int, ...], kind: type[np.generic] = np.float32) -> NDArray[Any]:
    """Zeros that take no memory until they are written, and then only what is written.

    An utterance fills the beginning of each head's stretch of its row. In huge pages, which numpy asks for in
    large arrays, the stretches would take their whole capacity at once: half a gigabyte for two rows.
    """
    memory = mmap.mmap(-1, np.dtype(kind).itemsize * math.prod(shape))
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, kind).reshape(shape)


def turned(t3: T3, positions: int) -> tuple[Floats, Floats] | None:
    """Rotary angles of all positions, cosines and sines (positions, head width); None where T3 has none."""
    if not isinstance(t3.tfmr, LlamaBackbone):
        return None
    cos, sin = rotations(t3.tfmr.inverse, torch.arange(positions), torch.float32)
    return cos.numpy(), sin.numpy()
