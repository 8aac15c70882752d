"""The training data of T3: speech tokens, line and speaker of every clip, without audio.

A bank is small (0.4 MB per hour of speech) and easy to transfer, so speech that was synthesized and tokenized
once serves every later training of T3 with the same tokenizer. Text is stored as line numbers; its ids are
computed on loading, by the code that computes them at inference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from nightingale_lab.train.bank import chain_offsets, offsets_of
from nightingale_lab.train.corpus import Corpus, held_out
from nightingale_lab.train.speakers import BLENDED_SPEAKERS, SPEAKER_SHARES


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBank:
    """Flat arrays on the host; clip i owns tokens[token_offsets[i]:token_offsets[i + 1]]."""

    tokens: NDArray[np.int16]
    token_offsets: NDArray[np.int64]
    text_ids: NDArray[np.int16]
    text_offsets: NDArray[np.int64]
    line: NDArray[np.int32]
    voice: NDArray[np.int16]
    speed: NDArray[np.float16]
    speaker: NDArray[np.float16]
    """(clips, 256)"""

    @property
    def clips(self) -> int:
        return len(self.line)

    @property
    def held_out(self) -> NDArray[np.bool_]:
        return held_out(self.line)

    @classmethod
    def of(cls, corpus: Corpus, tokens: NDArray[np.int16]) -> TokenBank:
        names = ("token_offsets", "text_ids", "text_offsets", "line", "voice", "speed", "speaker")
        return cls(tokens=tokens, **{name: getattr(corpus, name) for name in names})

    @classmethod
    def join(cls, banks: Sequence[TokenBank]) -> TokenBank:
        """Return one bank of all clips, in order. Blended speakers of different banks get different numbers."""
        voices = [
            np.where(bank.voice < len(SPEAKER_SHARES), bank.voice, bank.voice + i * BLENDED_SPEAKERS).astype(
                np.int16
            )
            for i, bank in enumerate(banks)
        ]
        flat = ("tokens", "text_ids", "line", "speed", "speaker")
        return cls(
            token_offsets=chain_offsets([bank.token_offsets for bank in banks]),
            text_offsets=chain_offsets([bank.text_offsets for bank in banks]),
            voice=np.concatenate(voices),
            **{name: np.concatenate([getattr(bank, name) for bank in banks]) for name in flat},
        )

    def reencoded(self, encode: Callable[[int], Sequence[int]]) -> TokenBank:
        """Return the training clips with other text ids, without the stored-out ones."""
        chosen = np.flatnonzero(~self.held_out)
        spans = [self.tokens[self.token_offsets[i] : self.token_offsets[i + 1]] for i in chosen]
        texts = [np.asarray(encode(int(self.line[i])), dtype=np.int16) for i in chosen]
        return replace(
            self,
            tokens=np.concatenate([np.zeros(0, np.int16), *spans]),
            token_offsets=offsets_of(spans),
            text_ids=np.concatenate([np.zeros(0, np.int16), *texts]),
            text_offsets=offsets_of(texts),
            **{name: getattr(self, name)[chosen] for name in ("line", "voice", "speed", "speaker")},
        )

    def save(self, path: Path) -> None:
        """Write the bank, with speaker vectors as int8 and text as line numbers."""
        scale = max(float(np.abs(self.speaker.astype(np.float32)).max(initial=0)), 1e-6) / 127
        vectors = np.round(self.speaker.astype(np.float32) / scale).astype(np.int8)
        arrays = {
            "tokens": self.tokens,
            "counts": np.diff(self.token_offsets).astype(np.int32),
            "line": self.line,
            "voice": self.voice,
            "speed": self.speed,
            "speaker": vectors,
            "scale": np.array([scale], dtype=np.float32),
        }
        partial = path.with_name(path.name + ".partial")
        save_file({name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}, partial)
        partial.replace(path)

    @classmethod
    def load(cls, path: Path, encode: Callable[[int], Sequence[int]]) -> TokenBank:
        """Read a bank. encode: maps the number of a line to its text ids."""
        stored: Mapping[str, Tensor] = load_file(path)
        line = stored["line"].numpy()
        texts = [np.asarray(encode(int(number)), dtype=np.int16) for number in line]
        return cls(
            tokens=stored["tokens"].numpy(),
            token_offsets=np.cumsum([0, *stored["counts"].tolist()]).astype(np.int64),
            text_ids=np.concatenate([np.zeros(0, np.int16), *texts]),
            text_offsets=offsets_of(texts),
            line=line,
            voice=stored["voice"].numpy(),
            speed=stored["speed"].numpy(),
            speaker=(stored["speaker"].float() * stored["scale"]).half().numpy(),
        )
