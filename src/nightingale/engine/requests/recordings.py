"""Recordings to convert: how they are read, and their speech tokens while they still arrive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nightingale.audio.loudness import integrated_loudness, normalize_loudness
from nightingale.audio.read import MAX_FILE_BYTES, check_clip, read_audio
from nightingale.audio.resample import resample
from nightingale.backends.base import Encoders, ModelInfo
from nightingale.clocks import ANALYSIS_RATE_HZ, CLOCKS
from nightingale.engine.requests.recorded_segments import TOKEN_SAMPLES
from nightingale.errors import BadReference, wrong_type
from nightingale.types import AudioChunk, Samples
from nightingale.voices.voice import Voice

Floats = NDArray[np.float32]
Recording = str | Path | bytes | BinaryIO | AudioChunk | tuple[ArrayLike, int]
"""The path, the contents or an open file of a wav, flac, ogg or mp3 recording, or its audio: an `Audio`, or
(samples, sample rate in hertz)."""

LEAST_SECONDS: Final = 0.1
NEAR_LU: Final = 4.0
"""Differences in loudness that are left as they are: those between voices."""
_KINDS: Final = (
    "the path, contents or file object of a wav, flac, ogg or mp3 file, an Audio, or (samples, sample rate)"
)


def read_recording(recording: Recording) -> tuple[Samples, int]:
    """Return the mono samples of a recording and its sample rate in hertz.

    Raises:
        BadReference: The recording cannot be read, or is shorter than a tenth of a second.
        ConfigError: It is no recording.
    """
    if isinstance(recording, str | Path):
        samples, rate_hz = read_audio(recording)
    elif isinstance(recording, AudioChunk):
        samples, rate_hz = check_clip(recording.samples, recording.sample_rate_hz)
    elif isinstance(recording, tuple) and len(recording) == 2:
        samples, rate_hz = check_clip(*recording)
    else:
        samples, rate_hz = read_audio(file_contents(recording, "audio", _KINDS))
    if len(samples) < LEAST_SECONDS * rate_hz:
        raise BadReference(
            "the recording is too short",
            got=f"{len(samples) / rate_hz:.3f} s",
            allowed=f"{LEAST_SECONDS:g} s or more",
        )
    return samples, rate_hz


def adjust_loudness(samples: Samples, rate_hz: int, target_lufs: float | None) -> Samples:
    """Return a recording at the loudness that a model expects, unless it is near that already."""
    if target_lufs is None or abs(integrated_loudness(samples, rate_hz) - target_lufs) <= NEAR_LU:
        return samples
    return normalize_loudness(samples, rate_hz, target_lufs)


def file_contents(given: Any, param: str, allowed: str) -> bytes:
    """Return bytes, or the contents of an open file; raise ConfigError for anything else."""
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    read = getattr(given, "read", None)
    data = read(MAX_FILE_BYTES + 1) if callable(read) else None
    if not isinstance(data, bytes):
        fix = "Say the sample rate too: (samples, 24000)." if hasattr(given, "shape") else None
        raise wrong_type(param, given, allowed, fix=fix)
    return data


def recorded_mel(samples: Samples, rate_hz: int, tokens: int, encoders: Encoders) -> Floats:
    """Return the mel (frames, bands) of a recording's tokens."""
    mel = encoders.flow_mel(resample(samples, rate_hz, CLOCKS.sample_rate_hz))
    frames = CLOCKS.frames_per_token * tokens
    return np.pad(mel, ((0, max(0, frames - len(mel))), (0, 0)), mode="edge")[:frames]


def recorded_voice(samples_16k: Samples, encoders: Encoders, info: ModelInfo, family: str) -> Voice:
    """Return the voice of a recording's speaker, without a prompt."""
    speaker, flow_speaker = encoders.speaker(samples_16k), encoders.flow_speaker(samples_16k)
    no_ids = np.zeros(0, np.int64)
    return Voice.checked(
        name="recording",
        family=family,
        speaker=speaker,
        prompt_ids=no_ids,
        flow_prompt_ids=no_ids,
        flow_prompt_mel=np.zeros((0, info.preset.flow.mel_bands), np.float32),
        flow_speaker=speaker if flow_speaker is None else flow_speaker,
        provenance="a recording that is converted",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerWindows:
    """The windows in which a recording that still arrives is read, in tokens of 40 ms."""

    context: int
    """Tokens before the new ones that are read again."""
    hop: int
    """New tokens of a window."""
    lookahead: int
    """Tokens after the new ones, which must be known."""


class ArrivedTokens(NamedTuple):
    """Speech tokens of a recording that arrives."""

    tokens: list[int]
    samples_16k: Samples
    """Their samples."""
    mel: Floats | None
    """Their mel (frames, bands), if it was asked for."""


class StreamTokenizer:
    """Return the speech tokens of a recording while it arrives.

    The result depends on the samples alone, not on the parts in which they arrive.
    """

    def __init__(self, encoders: Encoders, windows: TokenizerWindows, *, with_mel: bool = False) -> None:
        self._encoders = encoders
        self._windows = windows
        self._with_mel = with_mel
        self._samples: Samples = np.zeros(0, np.float32)
        """Samples from token `_start` on."""
        self._start = self._done = 0
        """The first token of `_samples`, and the first one that was not returned."""

    def push(self, samples_16k: Samples, *, final: bool = False) -> Iterator[ArrivedTokens]:
        """Add samples; yield tokens that are known now. final: no more samples follow."""
        self._samples = np.concatenate([self._samples, samples_16k])
        hop, lookahead = self._windows.hop, self._windows.lookahead
        while self._known - self._done >= hop + lookahead:
            yield self._read(self._done + hop, end=self._done + hop + lookahead)
        if final and len(self._samples) > (self._done - self._start) * TOKEN_SAMPLES:
            yield self._read(None, end=None)

    @property
    def _known(self) -> int:
        """Tokens whose samples are all known."""
        return self._start + len(self._samples) // TOKEN_SAMPLES

    def _read(self, stop: int | None, *, end: int | None) -> ArrivedTokens:
        """Tokenize up to the token `end`, and return the tokens up to `stop`."""
        window = self._samples if end is None else self._samples[: (end - self._start) * TOKEN_SAMPLES]
        first, last = self._done - self._start, None if stop is None else stop - self._start
        tokens = self._encoders.tokenize(padded(window))[first:last].tolist()
        samples = self._samples[first * TOKEN_SAMPLES : (first + len(tokens)) * TOKEN_SAMPLES]
        mel = None
        if self._with_mel:
            mel = recorded_mel(padded(window), ANALYSIS_RATE_HZ, first + len(tokens), self._encoders)
            mel = mel[CLOCKS.frames_per_token * first :]
        self._done += len(tokens)
        start = max(0, self._done - self._windows.context)
        self._samples = self._samples[(start - self._start) * TOKEN_SAMPLES :]
        self._start = start
        return ArrivedTokens(tokens, samples, mel)


def padded(samples_16k: Samples) -> Samples:
    """Return samples that are long enough for the tokenizer's frames."""
    least = int(LEAST_SECONDS * ANALYSIS_RATE_HZ)
    return samples_16k if len(samples_16k) >= least else np.pad(samples_16k, (0, least - len(samples_16k)))
