"""The loop of docs/export.md in Python, for exports of every format: text ids to tokens, to mel, to samples.

    model = ExecutorchModel.open(folder)        or CoremlModel.open(folder)
    tokens = model.generate(text_ids, "heart")
    for samples in model.vocode(model.render(tokens, "heart"), seed=0): ...

A format's class runs its programs, in `open_t3`, `open_flow` and `open_vocoder`.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nightingale.backends.shared.vocoder_blocks import VocoderBlocks
from nightingale.errors import CheckpointError
from nightingale.models.frame_vocoder.config import SILENT_LOG_MEL
from nightingale.types import Samples

CARD: Final = "export.json"
Choose = Callable[[Tensor], int]
"""Logits (1, vocab) -> the next token."""
Voices = Mapping[str, tuple[Tensor, Tensor]]
"""Name -> T3's speaker (1, width) and the flow's (1, 1, mel)."""


class ReadTokens(Protocol):
    """T3 for one utterance. Its KV cache is inside."""

    def __call__(self, ids: Sequence[int], position: int) -> Tensor:
        """Return the logits after the last of these ids: one, or as many as a prefill takes at most."""


class RenderMel(Protocol):
    """The flow for one utterance. Its caches are inside."""

    def __call__(self, ids: Sequence[int], known: int, position: int) -> Tensor:
        """Return the mel (frames, bands) of a block: a block's tokens and its lookahead, `known` of them real."""


class RenderSamples(Protocol):
    """The vocoder for one utterance. Its caches are inside."""

    def __call__(self, mel: Tensor, noise: Tensor) -> Tensor:
        """Return the samples of a block; fixed_vocoder.py describes the arguments."""


def greedy(logits: Tensor) -> int:
    return int(logits.argmax())


class PhoneModel(ABC):
    """An export for phones, with its voices."""

    def __init__(self, card: Mapping[str, Any], voices: Voices) -> None:
        self.card, self.voices = card, voices

    @abstractmethod
    def open_t3(self, voice: str) -> ReadTokens:
        """Start an utterance."""

    @abstractmethod
    def open_flow(self, voice: str) -> RenderMel:
        """Start an utterance."""

    @abstractmethod
    def open_vocoder(self) -> RenderSamples:
        """Start an utterance."""

    def generate(self, text_ids: Sequence[int], voice: str, choose: Choose = greedy) -> Iterator[int]:
        """Yield speech tokens up to the stop token, the limit for so much text, or a full KV cache."""
        t3, limits, read = self.card["t3"], self.card["limits"], self.open_t3(voice)
        offset, size = t3["speech_offset"], t3["prefill_tokens"]
        prompt = [t3["speaker_id"], t3["start_text"], *text_ids, t3["stop_text"], offset + t3["start_speech"]]
        expected = limits["tokens"] + math.ceil(limits["tokens_per_text_id"] * len(text_ids))
        budget = min(expected, limits["max_tokens"], t3["capacity"] - len(prompt) + 1)
        logits = torch.empty(0)
        for first in range(0, len(prompt), size):
            logits = read(prompt[first : first + size], first)
        for number in range(budget):
            if (token := choose(logits)) == t3["stop_speech"]:
                return
            yield token
            if number < budget - 1:
                logits = read([offset + token], len(prompt) + number)

    def render(self, tokens: Iterable[int], voice: str) -> Iterator[Tensor]:
        """Yield the mel (frames, bands) of blocks of tokens, each as soon as its lookahead is known."""
        flow, render = self.card["flow"], self.open_flow(voice)
        block, size = flow["block_tokens"], flow["block_tokens"] + flow["lookahead_tokens"]
        waiting: list[int] = []
        position = 0

        def next_block() -> Tensor:
            nonlocal position, waiting
            count, known = min(block, len(waiting)), min(size, len(waiting))
            mel = render([*waiting[:known], *[0] * (size - known)], known, position)
            position, waiting = position + count, waiting[count:]
            return mel[: self.card["frames_per_token"] * count].clone()

        for token in tokens:
            waiting.append(token)
            if len(waiting) == size:
                yield next_block()
        while waiting:
            yield next_block()

    def vocode(self, mels: Iterable[Tensor], *, seed: int) -> Iterator[Samples]:
        """Yield the samples of mel frames (frames, bands), in blocks."""
        frames, render = self.card["vocoder"]["block_frames"], self.open_vocoder()
        blocks = VocoderBlocks(seed=seed)
        waiting = torch.zeros(0, self.card["mel_bands"])

        def next_block() -> Samples:
            nonlocal waiting
            mel, waiting = waiting[:frames], waiting[frames:]
            padded = F.pad(mel, (0, 0, 0, frames - len(mel)), value=SILENT_LOG_MEL)
            noise = torch.from_numpy(blocks.noise(frames))
            return blocks.emit(render(padded[None], noise[None]).numpy())

        for mel in mels:
            waiting = torch.cat([waiting, mel])
            blocks.frames(len(mel), final=False)
            while len(waiting) >= frames:
                yield next_block()
        flush = blocks.frames(0, final=True)
        waiting = F.pad(waiting, (0, 0, 0, flush), value=SILENT_LOG_MEL)
        while len(waiting):
            yield next_block()


def read_card(folder: Path, kind: str, version: int) -> dict[str, Any]:
    """Return the card of an export.

    Raises:
        CheckpointError: The folder has no export of this kind and version.
    """
    try:
        card: dict[str, Any] = json.loads((folder / CARD).read_text(encoding="utf-8"))
        found = card.get("format"), card.get("version")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError("the export cannot be read", got=f"{folder / CARD}: {error}") from error
    if found != (kind, version):
        raise CheckpointError("this is another kind of export", got=str(found), allowed=str((kind, version)))
    return card


def read_voices(folder: Path, card: Mapping[str, Any]) -> Voices:
    """Return the voices of an export."""
    voices, mel = {}, card["mel_bands"]
    for name, file in card["voices"].items():
        values = torch.from_numpy(np.fromfile(folder / file, "<f4"))
        voices[name] = values[None, :-mel], values[None, None, -mel:]
    return voices
