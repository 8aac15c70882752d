"""The training data of T3: speech tokens, line and speaker of every clip, without audio.

A bank is small (0.4 MB per hour of speech) and easy to transfer, so speech that was synthesized and tokenized
once serves every later training of T3 with the same tokenizer. Text is stored as line numbers; its ids are
computed on loading, by the code that computes them at inference. A compact file (compact_bank.py) carries the digest of
the text, because line numbers are valid for one text only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from nightingale.errors import ConfigError
from nightingale_lab.train.alignment import UNKNOWN, words_of_tokens
from nightingale_lab.train.bank import chain_offsets, offsets_of
from nightingale_lab.train.compact_bank import pack_speakers, pack_words, split_tokens, unpack_bank
from nightingale_lab.train.corpus import Corpus, held_out
from nightingale_lab.train.parallel import map_spans
from nightingale_lab.train.speakers import BLENDED_SPEAKERS, SPEAKER_SHARES

LINES = "lines"
"""The key of the text's digest in the metadata of a compact file."""


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
    word: NDArray[np.int16]
    """The word of its line that each token belongs to, or UNKNOWN (alignment.py)."""

    @property
    def clips(self) -> int:
        return len(self.line)

    @property
    def held_out(self) -> NDArray[np.bool_]:
        return held_out(self.line)

    @classmethod
    def of(cls, corpus: Corpus, tokens: NDArray[np.int16]) -> TokenBank:
        names = ("token_offsets", "text_ids", "text_offsets", "line", "voice", "speed", "speaker")
        word = words_of_tokens(corpus.phones, corpus.bank.frame_offsets)
        return cls(tokens=tokens, word=word, **{name: getattr(corpus, name) for name in names})

    @classmethod
    def join(cls, banks: Sequence[TokenBank]) -> TokenBank:
        """Return one bank of all clips, in order. Blended speakers of different banks get different numbers."""
        voices = [
            np.where(bank.voice < len(SPEAKER_SHARES), bank.voice, bank.voice + i * BLENDED_SPEAKERS).astype(
                np.int16
            )
            for i, bank in enumerate(banks)
        ]
        flat = ("tokens", "word", "text_ids", "line", "speed", "speaker")
        return cls(
            token_offsets=chain_offsets([bank.token_offsets for bank in banks]),
            text_offsets=chain_offsets([bank.text_offsets for bank in banks]),
            voice=np.concatenate(voices),
            **{name: np.concatenate([getattr(bank, name) for bank in banks]) for name in flat},
        )

    def reencoded(self, encode: Callable[[int], Sequence[int]]) -> TokenBank:
        """Return the training clips with other text ids, without the held-out ones."""
        chosen = np.flatnonzero(~self.held_out)
        spans = [self.tokens[self.token_offsets[i] : self.token_offsets[i + 1]] for i in chosen]
        words = [self.word[self.token_offsets[i] : self.token_offsets[i + 1]] for i in chosen]
        texts = _encode_lines(encode, self.line[chosen])
        return replace(
            self,
            tokens=np.concatenate([np.zeros(0, np.int16), *spans]),
            word=np.concatenate([np.zeros(0, np.int16), *words]),
            token_offsets=offsets_of(spans),
            text_ids=np.concatenate([np.zeros(0, np.int16), *texts]),
            text_offsets=offsets_of(texts),
            **{name: getattr(self, name)[chosen] for name in ("line", "voice", "speed", "speaker")},
        )

    def save(self, path: Path) -> None:
        """Write the bank, with speaker vectors as int8 and text as line numbers."""
        scale = max(float(np.abs(self.speaker.astype(np.float32)).max(initial=0)), 1e-6) / 127
        vectors = np.round(self.speaker.astype(np.float32) / scale).astype(np.int8)
        arrays: dict[str, NDArray[Any]] = {
            "tokens": self.tokens,
            "word": self.word,
            "counts": np.diff(self.token_offsets).astype(np.int32),
            "line": self.line,
            "voice": self.voice,
            "speed": self.speed,
            "speaker": vectors,
            "scale": np.array([scale], dtype=np.float32),
        }
        _write(arrays, path)

    def save_compact(self, path: Path, *, lines_digest: str) -> None:
        """Write the compact form. lines_digest: the digest of the text whose line numbers it has."""
        arrays: dict[str, NDArray[Any]] = {
            **split_tokens(self.tokens),
            **pack_words(self.word, self.token_offsets),
            **pack_speakers(self.speaker, self.voice),
            "counts": np.diff(self.token_offsets).astype(np.int32),
            "line": self.line,
            "voice": self.voice,
            "speed": self.speed,
        }
        _write(arrays, path, metadata={LINES: lines_digest})

    @classmethod
    def load(cls, path: Path, encode: Callable[[int], Sequence[int]], *, lines_digest: str = "") -> TokenBank:
        """Read a bank of either form.

        encode: maps the number of a line to its text ids. lines_digest: the digest of the text, which a compact
        file must have been made of.
        """
        with safe_open(path, framework="pt") as file:
            made_of = (file.metadata() or {}).get(LINES, "")
        if lines_digest and made_of and made_of != lines_digest:
            raise ConfigError(
                "the bank has line numbers of another text",
                got=f"{path} of the text {made_of}",
                allowed=f"a bank of the text {lines_digest}",
                fix="Use the lines.npz of the session that wrote the bank.",
            )
        stored: Mapping[str, Tensor] = load_file(path)
        stored = unpack_bank(stored) if "steps" in stored else stored
        line = stored["line"].numpy()
        texts = _encode_lines(encode, line)
        unknown = torch.full(stored["tokens"].shape, UNKNOWN, dtype=torch.int16)
        return cls(
            tokens=stored["tokens"].numpy(),
            word=stored.get("word", unknown).numpy(),
            token_offsets=np.cumsum([0, *stored["counts"].tolist()]).astype(np.int64),
            text_ids=np.concatenate([np.zeros(0, np.int16), *texts]),
            text_offsets=offsets_of(texts),
            line=line,
            voice=stored["voice"].numpy(),
            speed=stored["speed"].numpy(),
            speaker=(stored["speaker"].float() * stored["scale"]).half().numpy(),
        )


def _encode_lines(encode: Callable[[int], Sequence[int]], line: NDArray[np.int32]) -> list[NDArray[np.int16]]:
    if len(line):
        encode(int(line[0]))  # reads the files that it needs before processes are forked

    def work(first: int, end: int) -> list[NDArray[np.int16]]:
        return [np.asarray(encode(int(number)), dtype=np.int16) for number in line[first:end]]

    return [text for texts in map_spans(work, len(line)) for text in texts]


def _write(arrays: Mapping[str, NDArray[Any]], path: Path, *, metadata: dict[str, str] | None = None) -> None:
    partial = path.with_name(path.name + ".partial")
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    save_file(tensors, partial, metadata=metadata)
    partial.replace(path)
