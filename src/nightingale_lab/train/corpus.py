"""A corpus: the audio bank and the labels of each clip, as flat arrays in a folder.

    audio, offsets, f0_hz, frame_offsets   the AudioBank
    phones                                 one phoneme id per 50 Hz frame (the teacher's own alignment)
    text_ids, text_offsets                 wren's text ids per clip
    line, voice, speed                     per clip: number of the text line, of the voice, and the speed
    speaker                                (clips, 256) the speaker vector, float16

A corpus may have parts (`part00`, `part01`, …), which are written one after the other while the teacher
synthesizes; each part is a corpus itself. A folder is complete when it holds `ready`.

Every clip is a whole number of tokens long, so frames and samples align with tokens. All of it is on the GPU
during training, and batches are cut by arithmetic: there is no data loader on the host.
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
HUMAN, HUMAN_COPIES = "human", "human_copies"
"""Folders of the clips of people, and of their copies at other speeds, beside the parts."""
HUMAN_VOICE = -1
LIMIT_HZ = 7000.0
"""Recordings of people are at 16 kHz, and some at a lower speed: losses leave out what is above."""
HELD_OUT = 50
"""One line in so many is held out for validation."""
LENGTH_STEP = 16
"""Lengths of whole clips are padded to a multiple of this many tokens: libraries plan each new shape anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Arrays on the host; the module docstring describes them."""

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
        """Mask of clips that no stage trains on, (clips,): a line is held out for all voices."""
        return held_out(self.line)

    @property
    def band_limited(self) -> NDArray[np.bool_]:
        """Mask of clips with nothing above LIMIT_HZ, (clips,): recordings of people."""
        return np.asarray(self.voice == HUMAN_VOICE)

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
        """Read the corpus of a folder, or join those of its parts that are ready."""
        if not (folder / "line.npy").is_file():
            return cls.join([cls.load(part) for part in ready_parts(folder)])
        arrays = {name: np.load(folder / f"{name}.npy") for name in LABELS}
        return cls(bank=AudioBank.load(folder), **arrays)

    @classmethod
    def join(cls, parts: Sequence[Corpus]) -> Corpus:
        """Return one corpus of all clips, in order."""
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
            got=f"no finished part in {folder}",
            fix="Run the stage data first.",
        )
    return parts


def parts_with_people(folder: Path, max_parts: int | None = None, *, copies: bool = False) -> list[Path]:
    """Return up to `max_parts` parts that are ready, then the recordings of people, with or without their copies."""
    names = (HUMAN, HUMAN_COPIES) if copies else (HUMAN,)
    return [*ready_parts(folder)[:max_parts], *(folder / n for n in names if (folder / n / READY).is_file())]


def whole_clips(counts: Tensor, *, batch_tokens: int) -> Iterator[tuple[Tensor, int]]:
    """Yield batches of clips of similar length: (rows,) clip numbers, and the length to pad them to.

    All batches of one length have the same number of rows (the last one repeats a clip), so there are few shapes.
    """
    padded = (counts + LENGTH_STEP - 1) // LENGTH_STEP * LENGTH_STEP
    for length in padded.unique().tolist():
        clips = torch.nonzero(padded == length).flatten()
        size = max(1, batch_tokens // length)
        for rows in clips.split(size):
            yield torch.cat([rows, rows[-1:].expand(min(size, len(clips)) - len(rows))]), length


def clip_audio(audio: Tensor, first: Tensor, count: Tensor, length: int) -> Tensor:
    """Return whole clips, (rows, samples) in [-1, 1), zero-padded. first, count: (rows,) in tokens."""
    size = CLOCKS.samples_per_token
    steps = torch.arange(length * size, device=audio.device)
    inside = steps[None] < count[:, None] * size
    return audio[(first[:, None] * size + steps).clamp(max=len(audio) - 1)].float() / FULL_SCALE * inside


class Windows:
    """Random windows of fixed length that start on a token; short clips are padded.

    Shapes are fixed and nothing synchronizes with the host, so a CUDA graph can capture the sampling too.
    """

    def __init__(
        self, corpus: Corpus, device: torch.device, *, tokens: int, chosen: NDArray[np.bool_] | None = None
    ) -> None:
        """chosen: (clips,) mask of the clips to sample from; default: all."""
        keep = np.flatnonzero(chosen) if chosen is not None else np.arange(len(corpus.voice))
        offsets = corpus.token_offsets
        self.first = torch.from_numpy(offsets[:-1][keep]).to(device)
        self.count = torch.from_numpy(np.diff(offsets)[keep]).to(device)
        self.speaker = torch.from_numpy(corpus.speaker[keep]).to(device)
        self.band_limited = torch.from_numpy(corpus.band_limited[keep]).to(device)
        self.tokens = tokens
        self.device = device
        # A long clip has more windows, so it is sampled more often.
        self.ends = self.count.clamp(min=tokens // 2).cumsum(0)

    def sample(self, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the clip, the first token and the number of real tokens of each window, all (batch,)."""
        place = (torch.rand(batch, device=self.device, dtype=torch.float64) * self.ends[-1]).long()
        clip = torch.searchsorted(self.ends, place, right=True)
        count = self.count[clip]
        start = (torch.rand(batch, device=self.device) * ((count - self.tokens).clamp(min=0) + 1)).long()
        return clip, self.first[clip] + start, (count - start).clamp(max=self.tokens)

    def gather(self, flat: Tensor, start: Tensor, real: Tensor, *, per_token: int) -> Tensor:
        """Return the entries of a flat array in each window, (batch, tokens·per_token, …), zero-padded."""
        steps = torch.arange(self.tokens * per_token, device=self.device)
        inside = steps[None] < real[:, None] * per_token
        index = (start[:, None] * per_token + steps).clamp(max=len(flat) - 1)
        values = flat[index]
        return values * inside.view(*inside.shape, *[1] * (values.dim() - 2)).to(values.dtype)


def audio_of(windows: Windows, audio: Tensor, start: Tensor, real: Tensor) -> Tensor:
    """Return the samples of windows, (batch, samples) in [-1, 1)."""
    return windows.gather(audio, start, real, per_token=CLOCKS.samples_per_token).float() / FULL_SCALE
