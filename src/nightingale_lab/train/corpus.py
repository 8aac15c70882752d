"""A corpus: the audio bank and what is known of each clip, as flat arrays in a folder.

    audio, offsets, f0_hz, frame_offsets   the AudioBank
    phones                                 one phoneme id per 50 Hz frame (the teacher's own alignment)
    text_ids, text_offsets                 wren's text ids per clip
    line, voice, speed                     which line of the text, spoken by whom, how fast; per clip
    speaker                                (clips, 256) the speaker vector, float16

A corpus may be made of parts (`part00`, `part01`, …), which appear one after the other while the teacher
speaks; each part is a corpus, and all of them joined are one. A folder is there when it holds `ready`.

Every clip is a whole number of tokens long, so all clocks agree. Everything lies on the GPU during training,
and batches are cut out by arithmetic: no loader, no host in the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.clocks import CLOCKS
from nightingale.errors import ConfigError
from nightingale_lab.train.bank import FULL_SCALE, AudioBank, chain_offsets

LABELS = {
    "phones": np.uint8,
    "text_ids": np.int16,
    "text_offsets": np.int64,
    "line": np.int32,
    "voice": np.int16,
    "speed": np.float16,
    "speaker": np.float16,
}
READY = "ready"
HELD_OUT = 50
"""One line in so many is kept from training, to be measured with."""
LENGTH_STEP = 16
"""Whole clips are read in lengths of so many tokens: every new shape costs the GPU's libraries a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Arrays on the host; see the module's docstring."""

    bank: AudioBank
    phones: NDArray[np.uint8]
    text_ids: NDArray[np.int16]
    text_offsets: NDArray[np.int64]
    line: NDArray[np.int32]
    voice: NDArray[np.int16]
    speed: NDArray[np.float16]
    speaker: NDArray[np.float16]

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """Clips that no stage trains on, (clips,): a line is out for every voice that speaks it."""
        return held_out(self.line)

    @property
    def token_offsets(self) -> NDArray[np.int64]:
        return self.bank.frame_offsets // CLOCKS.frames_per_token

    def save(self, folder: Path) -> None:
        self.bank.save(folder)
        for name in LABELS:
            np.save(folder / f"{name}.npy", getattr(self, name))
        (folder / READY).touch()

    @classmethod
    def load(cls, folder: Path) -> Corpus:
        """The folder's corpus, or its parts that are ready, joined."""
        if not (folder / "line.npy").is_file():
            return cls.join([cls.load(part) for part in ready_parts(folder)])
        arrays = {name: np.load(folder / f"{name}.npy") for name in LABELS}
        return cls(bank=AudioBank.load(folder), **arrays)

    @classmethod
    def join(cls, parts: Sequence[Corpus]) -> Corpus:
        """One corpus of all clips, in order."""
        if len(parts) == 1:
            return parts[0]
        flat = [n for n in LABELS if n != "text_offsets"]
        return cls(
            bank=AudioBank.chain([part.bank for part in parts]),
            text_offsets=chain_offsets([part.text_offsets for part in parts]),
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in flat},
        )


def held_out(line: NDArray[np.int32]) -> NDArray[np.bool_]:
    return np.asarray(line % HELD_OUT == HELD_OUT - 1)


def ready_parts(folder: Path) -> list[Path]:
    parts = sorted(path.parent for path in folder.glob(f"part*/{READY}"))
    if not parts:
        raise ConfigError(
            "there is no corpus yet",
            got=f"nothing that is ready in {folder}",
            allowed="a folder that the stage data wrote",
            fix="Run the stage data first.",
        )
    return parts


def whole_clips(counts: Tensor, *, batch_tokens: int) -> Iterator[tuple[Tensor, int]]:
    """All clips, those of like length together: (rows,) clip numbers, and the length to pad them to.

    Rows of one length are always equally many (the last ones repeat a clip), so that shapes are few.
    """
    padded = (counts + LENGTH_STEP - 1) // LENGTH_STEP * LENGTH_STEP
    for length in padded.unique().tolist():
        mine = torch.nonzero(padded == length).flatten()
        size = max(1, batch_tokens // length)
        for rows in mine.split(size):
            yield torch.cat([rows, rows[-1:].expand(min(size, len(mine)) - len(rows))]), length


def clip_audio(audio: Tensor, first: Tensor, count: Tensor, length: int) -> Tensor:
    """Whole clips, (rows, samples) in [-1, 1), silent after their ends. first, count: (rows,) in tokens."""
    size = CLOCKS.samples_per_token
    steps = torch.arange(length * size, device=audio.device)
    inside = steps[None] < count[:, None] * size
    return audio[(first[:, None] * size + steps).clamp(max=len(audio) - 1)].float() / FULL_SCALE * inside


class Windows:
    """Random windows of fixed length, one per drawn clip, starting on a token; short clips are padded.

    Shapes are fixed and nothing synchronises with the host, so a CUDA graph can hold the drawing too.
    """

    def __init__(
        self, corpus: Corpus, device: torch.device, *, tokens: int, chosen: NDArray[np.bool_] | None = None
    ) -> None:
        """chosen: (clips,) which clips to draw from; all, if left out."""
        keep = np.flatnonzero(chosen) if chosen is not None else np.arange(len(corpus.voice))
        offsets = corpus.token_offsets
        self.first = torch.from_numpy(offsets[:-1][keep]).to(device)
        self.count = torch.from_numpy(np.diff(offsets)[keep]).to(device)
        self.speaker = torch.from_numpy(corpus.speaker[keep]).to(device)
        self.tokens = tokens
        self.device = device
        # A long clip has more windows, so it is drawn more often.
        self.ends = self.count.clamp(min=tokens // 2).cumsum(0)

    def draw(self, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Chosen clips, the first token of each window, how many tokens of it are real: each (batch,)."""
        place = (torch.rand(batch, device=self.device, dtype=torch.float64) * self.ends[-1]).long()
        clip = torch.searchsorted(self.ends, place, right=True)
        count = self.count[clip]
        start = (torch.rand(batch, device=self.device) * ((count - self.tokens).clamp(min=0) + 1)).long()
        return clip, self.first[clip] + start, (count - start).clamp(max=self.tokens)

    def gather(self, flat: Tensor, start: Tensor, real: Tensor, *, per_token: int) -> Tensor:
        """A flat array's entries of each window: (batch, tokens·per_token, …), zero after the clip's end."""
        steps = torch.arange(self.tokens * per_token, device=self.device)
        inside = steps[None] < real[:, None] * per_token
        index = (start[:, None] * per_token + steps).clamp(max=len(flat) - 1)
        values = flat[index]
        return values * inside.view(*inside.shape, *[1] * (values.dim() - 2)).to(values.dtype)


def audio_of(windows: Windows, audio: Tensor, start: Tensor, real: Tensor) -> Tensor:
    """(batch, samples) in [-1, 1)."""
    return windows.gather(audio, start, real, per_token=CLOCKS.samples_per_token).float() / FULL_SCALE
