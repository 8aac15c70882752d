"""Run an ExecuTorch export: the loop of docs/phone.md in Python.

    model = ExecutorchModel.open(folder)
    tokens = model.generate(text_ids, "heart")
    for samples in model.vocode(model.render(tokens, "heart"), noise): ...

The programs may also be the modules that they were made from, which is how the loop is tested without ExecuTorch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from nightingale.audio.crossfade import apply_fade_in
from nightingale.errors import CheckpointError
from nightingale.types import Samples

CARD: Final = "export.json"
FORMAT: Final = "nightingale-executorch"
FORMAT_VERSION: Final = 1
Program = Callable[..., Sequence[Tensor]]
Choose = Callable[[Tensor], int]
"""Logits (1, vocab) -> the next token."""
Noise = Callable[[int, int], Tensor]
"""(first sample, count) -> standard normal numbers (1, count), the same for the same samples."""


def greedy(logits: Tensor) -> int:
    return int(logits.argmax())


class ExecutorchModel:
    """The methods of an export, with its voices."""

    def __init__(
        self,
        card: Mapping[str, Any],
        programs: Mapping[str, Mapping[str, Program]],
        voices: Mapping[str, tuple[Tensor, Tensor]],
    ) -> None:
        """programs: {file: {method: program}}. voices: T3's speaker (1, width) and the flow's (1, 1, mel)."""
        self.card, self._programs, self._voices = card, programs, voices

    @classmethod
    def open(cls, folder: Path) -> ExecutorchModel:
        """Load an export with ExecuTorch's runtime.

        Raises:
            CheckpointError: The folder has no export of this version.
        """
        from executorch.runtime import Runtime

        card = _read_card(folder)
        runtime = Runtime.get()
        programs: dict[str, dict[str, Program]] = {}
        for file, methods in card["programs"].items():
            program = runtime.load_program(folder / f"{file}.pte")
            programs[file] = {method: _runner(program.load_method(method)) for method in methods}
        mel = card["programs"]["flow"]["encode"]["inputs"][3]["shape"][-1]
        voices = {}
        for name, file in card["voices"].items():
            values = torch.from_numpy(np.fromfile(folder / file, "<f4"))
            voices[name] = values[None, :-mel], values[None, None, -mel:]
        return cls(card, programs, voices)

    def generate(self, text_ids: Sequence[int], voice: str, choose: Choose = greedy) -> Iterator[int]:
        """Yield speech tokens up to the stop token, the limit for so much text, or a full KV cache."""
        t3, programs = self.card["t3"], self._programs["t3"]
        speaker, offset, capacity = self._voices[voice][0], t3["speech_offset"], t3["capacity"]
        prompt = [t3["speaker_id"], t3["start_text"], *text_ids, t3["stop_text"], offset + t3["start_speech"]]
        caches = self._start("t3", "step")
        position, size = 0, t3["prefill_tokens"]
        limits = self.card["limits"]
        expected = limits["tokens"] + math.ceil(limits["tokens_per_text_id"] * len(text_ids))
        budget = min(expected, limits["max_tokens"], capacity - len(prompt) + 1)
        logits = torch.empty(0)
        for first in range(0, len(prompt), size):
            ids = prompt[first : first + size]
            padded = torch.tensor([[*ids, *[0] * (size - len(ids))]])
            logits, *new = programs["prefill"](
                padded, torch.tensor([position]), torch.tensor([len(ids) - 1]), speaker, *caches
            )
            _write(caches, new, position, len(ids))
            position += len(ids)
        zero = torch.tensor([0])
        for number in range(1, budget + 1):
            if (token := choose(logits)) == t3["stop_speech"]:
                return
            yield token
            if number == budget:
                return
            logits, *new = programs["step"](
                torch.tensor([[offset + token]]), torch.tensor([position]), zero, speaker, *caches
            )
            _write(caches, new, position, 1)
            position += 1

    def render(self, tokens: Iterable[int], voice: str) -> Iterator[Tensor]:
        """Yield the mel (frames, bands) of blocks of tokens, each as soon as its lookahead is known."""
        flow, programs = self.card["flow"], self._programs["flow"]
        block, size = flow["block_tokens"], flow["block_tokens"] + flow["lookahead_tokens"]
        speaker, encoder_caches = self._voices[voice][1], self._start("flow", "encode")
        caches = [self._start("flow", "step") for _ in range(flow["solver_steps"])]
        shape = self.card["programs"]["flow"]["step"]["inputs"][0]["shape"]
        waiting: list[int] = []
        position = 0

        def next_block() -> Tensor:
            nonlocal encoder_caches, position, waiting
            count, length = min(block, len(waiting)), min(size, len(waiting))
            ids = torch.tensor([[*waiting[:length], *[0] * (size - length)]])
            known, at = torch.tensor([length]), torch.tensor([position])
            conditioning, *encoder_caches = programs["encode"](ids, known, at, speaker, *encoder_caches)
            x = mel = torch.zeros(shape)
            for step, own in enumerate(caches):
                x, mel, *caches[step] = programs["step"](
                    x, conditioning, known, at, torch.tensor([step]), *own
                )
            position, waiting = position + count, waiting[count:]
            return mel[0, : self.card["frames_per_token"] * count].clone()

        for token in tokens:
            waiting.append(token)
            if len(waiting) == size:
                yield next_block()
        while waiting:
            yield next_block()

    def vocode(self, mels: Iterable[Tensor], noise: Noise) -> Iterator[Samples]:
        """Yield the samples of mel frames (frames, bands), in blocks."""
        sizes, program = self.card["vocoder"], self._programs["vocoder"]["forward"]
        frames, before, ahead = sizes["block_frames"], sizes["before_frames"], sizes["ahead_frames"]
        per_frame, delay = self.card["samples_per_frame"], sizes["delay_samples"]
        caches = self._start("vocoder", "forward")
        inputs = self.card["programs"]["vocoder"]["forward"]["inputs"]
        known = torch.zeros(before, inputs[0]["shape"][1])
        """The frames from `before` frames before the block on."""
        start = emitted = 0
        """Frames before the block, and samples that were returned."""

        def next_block(end: int | None) -> Samples:
            """end: The frames of the utterance, once they are known."""
            nonlocal caches, known, start, emitted
            window = torch.zeros(before + frames + ahead, known.shape[1])
            window[: len(known)] = known[: len(window)]
            at = torch.arange(start - before, start + frames + ahead)
            inside = (at >= 0) & (at < start + len(known) - before)
            samples, *caches = program(
                window.T[None].contiguous(),
                inside.to(torch.float32)[None, None],
                noise(per_frame * start, per_frame * frames + sizes["ahead_samples"]),
                torch.tensor([float(start == 0)]),
                *caches,
            )
            own = samples.numpy()[delay if start == 0 else 0 :].copy()
            if end is not None:
                own = own[: max(0, per_frame * end - sizes["lost_samples"] - emitted)]
            apply_fade_in(own, emitted)
            start, emitted, known = start + frames, emitted + len(own), known[frames:]
            return own

        for mel in mels:
            known = torch.cat([known, mel])
            while len(known) >= before + frames + ahead:
                yield next_block(None)
        end = start + len(known) - before
        while start < end:
            yield next_block(end)

    def _start(self, file: str, method: str) -> list[Tensor]:
        """Return the caches of an utterance's start: the inputs of a method that have a start value."""
        return [
            torch.full(one["shape"], one["start"], dtype=getattr(torch, one["dtype"]))
            for one in self.card["programs"][file][method]["inputs"]
            if "start" in one
        ]


def _write(caches: Sequence[Tensor], new: Sequence[Tensor], position: int, count: int) -> None:
    """Write keys and values (heads, tokens, width) into the caches (heads, capacity, width)."""
    for cache, own in zip(caches, new, strict=True):
        cache[:, position : position + count] = own[:, :count]


def _runner(method: Any) -> Program:
    # `execute` returns copies of the outputs, which the next call overwrites.
    return lambda *inputs: method.execute(inputs)


def _read_card(folder: Path) -> dict[str, Any]:
    try:
        card: dict[str, Any] = json.loads((folder / CARD).read_text(encoding="utf-8"))
        kind = card.get("format"), card.get("version")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError("the export cannot be read", got=f"{folder / CARD}: {error}") from error
    if kind != (FORMAT, FORMAT_VERSION):
        raise CheckpointError(
            "this is another kind of export", got=str(kind), allowed=str((FORMAT, FORMAT_VERSION))
        )
    return card
