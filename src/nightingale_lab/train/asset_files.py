"""The input files of training, found by name anywhere under one folder.

`python -m nightingale_lab.train assets` builds them on a CPU machine. They may be in several folders, because a
transfer to a GPU machine may be limited in size.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nightingale.errors import ConfigError

if TYPE_CHECKING:
    from nightingale_lab.train.bpe import BpeEncoder
    from nightingale_lab.train.prepare import Lines

OPTIONAL_MARKS = "."


@dataclass(frozen=True)
class Assets:
    """A folder of input files."""

    folder: Path

    def file(self, name: str) -> Path:
        found = sorted(self.folder.rglob(name))
        if not found:
            raise ConfigError(
                "a file that training needs is missing",
                got=f"no {name} under {self.folder}",
                allowed="a folder that `python -m nightingale_lab.train assets` wrote",
                fix="Build it, or transfer the part of it that holds this file.",
            )
        return found[0]

    @property
    def kokoro_parts(self) -> list[Path]:
        """All parts of the teacher's weights."""
        self.file("part0.bin")
        return sorted(self.folder.rglob("part?.bin"), key=lambda path: path.name)

    @cached_property
    def lines(self) -> Lines:
        from nightingale_lab.train.prepare import Lines

        return Lines.read(self.file("lines.npz"))

    @cached_property
    def lines_digest(self) -> str:
        """Return the digest of the text, which tells whose line numbers a token bank has."""
        return hashlib.sha256(self.file("lines.npz").read_bytes()).hexdigest()[:16]

    @cached_property
    def bpe(self) -> BpeEncoder:
        from nightingale_lab.train.bpe import BpeEncoder

        return BpeEncoder(self.file("wren_tokenizer.json"))

    def encode(self, line: int) -> list[int]:
        """Return the text ids of a line, computed as at inference."""
        return self.bpe.encode(self.lines.texts[line])

    def encode_with_dropout(self, line: int) -> list[int]:
        """Return other text ids of the same line, by BPE-dropout."""
        return self.bpe.encode(self.lines.texts[line], random.Random(line))

    def marks(self) -> frozenset[int]:
        """Return the ids of the final marks without which a text is spoken in the same way."""
        return frozenset(number for mark in OPTIONAL_MARKS for number in self.bpe.encode_word(mark))

    def teacher_voice_encoder(self) -> Any:
        """Return the teacher of the voice encoder."""
        from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder
        from nightingale.models.chatterbox.presets import PRESETS
        from nightingale.models.checkpoint import load, read_tensors

        path = self.file("resemblyzer.safetensors")
        tensors = {name: tensor.float() for name, tensor in read_tensors(path).items()}
        return load(lambda: VoiceEncoder(PRESETS["wren"].voice_encoder), tensors, source=path)
