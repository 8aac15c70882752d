"""Run a Core ML export with the interpreter of coreml_interpreter.py: the loop of docs/export.md in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from nightingale.export.phone.coreml_interpreter import CoremlFunction, load_package
from nightingale.export.phone.coreml_modules import CACHE, NEXT
from nightingale.export.phone.phone_model import (
    PhoneModel,
    ReadTokens,
    RenderMel,
    RenderSamples,
    Voices,
    read_card,
    read_voices,
)

FORMAT: Final = "nightingale-coreml"
FORMAT_VERSION: Final = 2
Packages = Mapping[str, Mapping[str, CoremlFunction]]
"""{file: {function}}."""


class CoremlModel(PhoneModel):
    """The functions of an export, with its embedding tables and voices."""

    def __init__(
        self, card: Mapping[str, Any], packages: Packages, tables: Mapping[str, Tensor], voices: Voices
    ) -> None:
        """tables: embeddings of T3 and of the flow, (ids, width) in float16."""
        super().__init__(card, voices)
        self.packages, self.tables = packages, tables

    @classmethod
    def open(cls, folder: Path) -> CoremlModel:
        """Load an export.

        Raises:
            CheckpointError: The folder has no export of this version.
        """
        card = read_card(folder, FORMAT, FORMAT_VERSION)
        packages = {file: load_package(folder / f"{file}.mlpackage") for file in card["programs"]}
        tables = {
            name: torch.from_numpy(np.fromfile(folder / one["file"], "<f2").reshape(one["shape"]))
            for name, one in card["tables"].items()
        }
        return cls(card, packages, tables, read_voices(folder, card))

    def open_t3(self, voice: str) -> ReadTokens:
        functions, size = self.packages["t3"], self.card["t3"]["prefill_tokens"]
        table = torch.cat([self.tables["t3"], self.voices[voice][0].half()])
        state = functions["step"].new_state()

        def read(ids: Sequence[int], position: int) -> Tensor:
            count = len(ids)
            at = torch.tensor([position], dtype=torch.int32)
            if count == 1:
                return functions["step"]({"x": table[ids][None], "position": at}, state)["logits"]
            x = table[[*ids, *[0] * (size - count)]][None]
            last = torch.tensor([count - 1], dtype=torch.int32)
            return functions["prefill"]({"x": x, "position": at, "last": last}, state)["logits"]

        return read

    def open_flow(self, voice: str) -> RenderMel:
        function, caches = self.packages["flow"]["main"], self._start("flow")
        table, speaker = self.tables["flow"], self.voices[voice][1]

        def render(ids: Sequence[int], known: int, position: int) -> Tensor:
            numbers = {
                name: torch.tensor([value], dtype=torch.int32)
                for name, value in (("known", known), ("position", position))
            }
            x = table[list(ids)][None]
            outputs = function({"x": x, "speaker": speaker, **numbers, **caches})
            caches.update(_next(outputs))
            return outputs["mel"][0]

        return render

    def open_vocoder(self) -> RenderSamples:
        function, caches = self.packages["vocoder"]["main"], self._start("vocoder")

        def render(mel: Tensor, noise: Tensor) -> Tensor:
            outputs = function({"mel": mel, "noise": noise, **caches})
            caches.update(_next(outputs))
            return outputs["samples"]

        return render

    def _start(self, file: str) -> dict[str, Tensor]:
        """Return the caches of an utterance's start: the inputs that have a start value."""
        return {
            one["name"]: torch.full(one["shape"], one["start"], dtype=getattr(torch, one["dtype"]))
            for one in self.card["programs"][file]["main"]["inputs"]
            if "start" in one
        }


def _next(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.replace(NEXT, CACHE): value for name, value in outputs.items() if name.startswith(NEXT)}
