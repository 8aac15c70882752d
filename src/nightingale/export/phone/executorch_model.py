"""Run an ExecuTorch export with its runtime.

The programs may also be the modules that they were made from, which is how the loop is tested without ExecuTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from nightingale.export.phone.phone_model import (
    PhoneModel,
    ReadTokens,
    RenderMel,
    RenderSamples,
    Voices,
    read_card,
    read_voices,
)

FORMAT: Final = "nightingale-executorch"
FORMAT_VERSION: Final = 3
Program = Callable[..., Sequence[Tensor]]


class ExecutorchModel(PhoneModel):
    """The methods of an export, with its voices."""

    def __init__(
        self, card: Mapping[str, Any], programs: Mapping[str, Mapping[str, Program]], voices: Voices
    ) -> None:
        """programs: {file: {method: program}}."""
        super().__init__(card, voices)
        self.programs = programs

    @classmethod
    def open(cls, folder: Path) -> ExecutorchModel:
        """Load an export with ExecuTorch's runtime.

        Raises:
            CheckpointError: The folder has no export of this version.
        """
        from executorch.runtime import Runtime

        card = read_card(folder, FORMAT, FORMAT_VERSION)
        runtime = Runtime.get()
        programs: dict[str, dict[str, Program]] = {}
        for file, methods in card["programs"].items():
            program = runtime.load_program(folder / f"{file}.pte")
            programs[file] = {method: _runner(program.load_method(method)) for method in methods}
        return cls(card, programs, read_voices(folder, card))

    def open_t3(self, voice: str) -> ReadTokens:
        programs, size = self.programs["t3"], self.card["t3"]["prefill_tokens"]
        speaker, caches = self.voices[voice][0], self._start("t3", "step")

        def read(ids: Sequence[int], position: int) -> Tensor:
            count = len(ids)
            padded = ids if count == 1 else [*ids, *[0] * (size - count)]
            logits, *new = programs["step" if count == 1 else "prefill"](
                torch.tensor([padded]), torch.tensor([position]), torch.tensor([count - 1]), speaker, *caches
            )
            for cache, own in zip(caches, new, strict=True):  # (heads, positions, width)
                cache[:, position : position + count] = own[:, :count]
            return logits

        return read

    def open_flow(self, voice: str) -> RenderMel:
        programs, speaker = self.programs["flow"], self.voices[voice][1]
        encoder_caches = self._start("flow", "encode")
        caches = [self._start("flow", "step") for _ in range(self.card["flow"]["solver_steps"])]
        shape = self.card["programs"]["flow"]["step"]["inputs"][0]["shape"]

        def render(ids: Sequence[int], known: int, position: int) -> Tensor:
            nonlocal encoder_caches
            end, at = torch.tensor([known]), torch.tensor([position])
            conditioning, *encoder_caches = programs["encode"](
                torch.tensor([ids]), end, at, speaker, *encoder_caches
            )
            x = mel = torch.zeros(shape)
            for step, own in enumerate(caches):
                x, mel, *caches[step] = programs["step"](x, conditioning, end, at, torch.tensor([step]), *own)
            return mel[0]

        return render

    def open_vocoder(self) -> RenderSamples:
        program, caches = self.programs["vocoder"]["forward"], self._start("vocoder", "forward")

        def render(mel: Tensor, noise: Tensor) -> Tensor:
            nonlocal caches
            samples, *caches = program(mel, noise, *caches)
            return samples

        return render

    def _start(self, file: str, method: str) -> list[Tensor]:
        """Return the caches of an utterance's start: the inputs of a method that have a start value."""
        return [
            torch.full(one["shape"], one["start"], dtype=getattr(torch, one["dtype"]))
            for one in self.card["programs"][file][method]["inputs"]
            if "start" in one
        ]


def _runner(method: Any) -> Program:
    # `execute` returns copies of the outputs, which the next call overwrites.
    return lambda *inputs: method.execute(inputs)
