"""All training audio as one array, which a GPU can hold and cut random crops from by arithmetic.

A bank is four arrays in a folder. Clip i owns audio[offsets[i]:offsets[i + 1]] and, at 50 frames a second,
f0_hz[frame_offsets[i]:frame_offsets[i + 1]]; frame t is centred on sample 480·t + 240, like a frame of the
24 kHz mel. A clip is a whole number of frames long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.clocks import CLOCKS
from nightingale.errors import ConfigError

FIELDS = {"audio": np.int16, "offsets": np.int64, "f0_hz": np.float16, "frame_offsets": np.int64}
HOP = CLOCKS.samples_per_frame
FULL_SCALE = 32768.0
UNKNOWN_HZ = -1.0
"""The pitch of frames whose pitch is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioBank:
    """Clips of 24 kHz audio, back to back, with one f0 per mel frame (0 where unvoiced, UNKNOWN_HZ where not known)."""

    audio: NDArray[np.int16]
    offsets: NDArray[np.int64]
    f0_hz: NDArray[np.float16]
    frame_offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name, dtype in FIELDS.items():
            array = getattr(self, name)
            if array.ndim != 1 or array.dtype != dtype:
                raise _bad(
                    f"{name} is {array.dtype} of shape {array.shape}", f"a flat array of {np.dtype(dtype)}"
                )
        if not np.array_equal(np.diff(self.offsets), np.diff(self.frame_offsets) * HOP):
            raise _bad("clips whose samples and frames disagree", f"{HOP} samples per frame in every clip")
        if self.offsets[-1] != len(self.audio) or self.frame_offsets[-1] != len(self.f0_hz):
            raise _bad(
                "offsets that do not end where the arrays end",
                "offsets[-1] == len(audio), likewise for frames",
            )

    @property
    def clips(self) -> int:
        return len(self.offsets) - 1

    @property
    def seconds(self) -> float:
        return len(self.audio) / CLOCKS.sample_rate_hz

    @classmethod
    def join(cls, clips: Iterable[tuple[NDArray[np.int16], NDArray[np.floating]]]) -> AudioBank:
        """Return a bank of (samples, f0 in Hz per frame) pairs; each clip is cut to the frames that both have."""
        audio, f0_hz, frames = [], [], [0]
        for samples, f0 in clips:
            count = min(len(samples) // HOP, len(f0))
            audio.append(np.asarray(samples[: count * HOP], dtype=np.int16))
            f0_hz.append(np.asarray(f0[:count], dtype=np.float16))
            frames.append(count)
        frame_offsets = np.cumsum(frames, dtype=np.int64)
        return cls(
            audio=np.concatenate(audio),
            offsets=frame_offsets * HOP,
            f0_hz=np.concatenate(f0_hz),
            frame_offsets=frame_offsets,
        )

    @classmethod
    def chain(cls, banks: Sequence[AudioBank]) -> AudioBank:
        """Return one bank of all clips, in order."""
        return cls(
            audio=np.concatenate([bank.audio for bank in banks]),
            offsets=chain_offsets([bank.offsets for bank in banks]),
            f0_hz=np.concatenate([bank.f0_hz for bank in banks]),
            frame_offsets=chain_offsets([bank.frame_offsets for bank in banks]),
        )

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FIELDS:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def load(cls, folder: Path) -> AudioBank:
        missing = [name for name in FIELDS if not (folder / f"{name}.npy").is_file()]
        if missing:
            raise _bad(
                f"no {', '.join(missing)} in {folder}",
                "a folder holding " + ", ".join(f"{n}.npy" for n in FIELDS),
            )
        return cls(**{name: np.load(folder / f"{name}.npy") for name in FIELDS})


def chain_offsets(offsets: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the offsets into the concatenation of several flat arrays, given the offsets into each."""
    return np.cumsum(np.concatenate([[0], *(np.diff(each) for each in offsets)]), dtype=np.int64)


def offsets_of(clips: Iterable[Sized]) -> NDArray[np.int64]:
    """Return the offsets of clips that are stored back to back."""
    return np.cumsum([0, *map(len, clips)], dtype=np.int64)


def _bad(got: str, allowed: str) -> ConfigError:
    return ConfigError(
        "the audio bank is malformed", got=got, allowed=allowed, fix="Build it again with AudioBank.join."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Crops:
    """One batch. Losses use the window; the frames around it are context of the causal network."""

    audio: Tensor
    """(batch, window samples) in [-1, 1)."""
    wide_audio: Tensor
    """(batch, margin + crop samples + margin), as the mel of every frame of the crop needs them."""
    frame_index: Tensor
    """(batch, crop frames): index of each frame in the bank."""
    f0_hz: Tensor
    """(batch, crop frames)."""
    start_frame: Tensor
    """(batch, 1): first frame of the window within the crop."""
    limited: Tensor
    """(batch, 1): whether the clip is band-limited."""


class BankSampler:
    """Random windows of a bank on one device: every window of every clip is equally likely.

    The crop around a window reaches `before` and `after` frames further where the clip has them. At a clip's
    ends it is shifted inwards instead, so a window at the very start has no history, as in a fresh rendering.
    No step synchronises with the host, and all shapes are fixed, so a CUDA graph can hold it.
    """

    def __init__(
        self,
        bank: AudioBank,
        device: torch.device,
        *,
        window_frames: int,
        before: int,
        after: int,
        margin_samples: int,
        limited: NDArray[np.bool_] | None = None,
    ) -> None:
        """limited: (clips,) mask of band-limited clips; default: none."""
        self.window_frames = window_frames
        self.before = before
        self.crop_frames = before + window_frames + after
        frames = np.diff(bank.frame_offsets)
        keep = np.flatnonzero(frames >= max(self.crop_frames, margin_samples // HOP + 1))
        if not len(keep):
            raise ConfigError(
                "no clip of the bank is long enough",
                got=f"{int(frames.max(initial=0))} frames at most",
                allowed=f"clips of at least {self.crop_frames} frames",
                fix="Use longer clips or a smaller window.",
            )
        windows = np.cumsum(frames[keep] - window_frames + 1)
        self.total_windows = int(windows[-1])

        def to_device(values: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device)

        self.audio, self.f0_hz = to_device(bank.audio), to_device(bank.f0_hz)
        self.clip_frames = to_device(frames[keep])
        self.limited = to_device((np.zeros(bank.clips, np.bool_) if limited is None else limited)[keep])
        self.clip_frame_offset = to_device(bank.frame_offsets[:-1][keep])
        self.window_ends = to_device(windows)
        self.crop_range = torch.arange(self.crop_frames, device=device)
        self.window_range = torch.arange(window_frames * HOP, device=device)
        self.wide_range = torch.arange(
            -margin_samples, self.crop_frames * HOP + margin_samples, device=device
        )

    def crops(self, pick: Tensor) -> Crops:
        """Return the crops of the windows with these numbers, (batch,) in [0, total_windows)."""
        clip = torch.searchsorted(self.window_ends, pick, right=True)
        frames, frame_offset = self.clip_frames[clip], self.clip_frame_offset[clip]
        window = pick - self.window_ends[clip] + frames - self.window_frames + 1  # frame within the clip
        crop = (window - self.before).clamp(min=0).minimum(frames - self.crop_frames)
        frame_index = (frame_offset + crop)[:, None] + self.crop_range
        base, last = (frame_offset * HOP)[:, None], (frames * HOP - 1)[:, None]
        wide = (crop * HOP)[:, None] + self.wide_range
        wide = last - (last - wide.abs()).abs()  # mirrored at the clip's ends, as the mel pads
        return Crops(
            audio=self._samples(base + (window * HOP)[:, None] + self.window_range),
            wide_audio=self._samples(base + wide),
            frame_index=frame_index,
            f0_hz=self.f0_hz[frame_index].float(),
            start_frame=(window - crop)[:, None],
            limited=self.limited[clip][:, None],
        )

    def _samples(self, index: Tensor) -> Tensor:
        return self.audio[index].float() / FULL_SCALE
