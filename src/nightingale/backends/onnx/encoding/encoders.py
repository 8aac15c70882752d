"""A reference clip to the arrays of a voice, without PyTorch. `backends/torch/encoders.py` is the reference.

The sessions are created when they are first needed: speaking needs none of them, and cloning for wren only the
voice encoder.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nightingale.audio.reference_check import sound_span
from nightingale.backends.base import ModelSource
from nightingale.backends.onnx.encoding.encoder_graphs import (
    SpeechTokenizerGraph,
    VoiceEncoderGraph,
    rotary_tables,
)
from nightingale.backends.onnx.encoding.mel_fronts import flow_mel, token_mel, voice_mel
from nightingale.backends.onnx.numpy_weights import Floats, encoder_weights
from nightingale.backends.onnx.streaming_session import MASKED, create_session
from nightingale.backends.shared.capability_checks import available_cores
from nightingale.models.chatterbox.encoders.config import (
    FSQ_LEVELS,
    SpeechTokenizerConfig,
    VoiceEncoderConfig,
)
from nightingale.types import Samples

FSQ_SCALE: Final = 0.9990000128746033
"""Keeps tanh below 1, so that rounding gives only -1, 0 and 1."""
FRAMES_PER_TOKEN: Final = 4
WINDOW_FRAMES: Final = 3000
OVERLAP_FRAMES: Final = 400
"""Clips over 30 s are read in windows of 30 s that overlap by 4 s."""


class OnnxEncoders:
    def __init__(self, source: ModelSource) -> None:
        self._source, self._preset = source, source.info.preset

    def tokenize(self, samples_16k: Samples, max_tokens: int | None = None) -> NDArray[np.int64]:
        mel = token_mel(samples_16k, self._preset.speech_tokenizer.mel_bands)
        return self._tokenizer.tokenize(mel if max_tokens is None else mel[: max_tokens * FRAMES_PER_TOKEN])

    def speaker(self, samples_16k: Samples) -> NDArray[np.float32]:
        start, end = sound_span(samples_16k)
        mel = voice_mel(samples_16k[start:end], self._preset.voice_encoder.mel_bands)
        return self._voice_encoder.embed(mel)

    def flow_speaker(self, samples_16k: Samples) -> NDArray[np.float32] | None:  # noqa: ARG002, a protocol
        return None  # the flow shares T3's

    def flow_mel(self, samples_24k: Samples) -> NDArray[np.float32]:
        return flow_mel(samples_24k, self._preset.flow.mel_bands)

    @cached_property
    def _tokenizer(self) -> TokenizerSession:
        weights = encoder_weights(self._source, "speech_tokenizer")
        return TokenizerSession(self._preset.speech_tokenizer, weights)

    @cached_property
    def _voice_encoder(self) -> SpeakerSession:
        return SpeakerSession(self._preset.voice_encoder, encoder_weights(self._source, "voice_encoder"))


class SpeakerSession:
    """A speaker vector from windows of mel power."""

    def __init__(self, config: VoiceEncoderConfig, weights: dict[str, Floats]) -> None:
        self.config = config
        self._session = create_session(VoiceEncoderGraph(config, weights), available_cores())

    def embed(self, mel: Floats) -> Floats:
        """Embed (frames, bands) as (embedding,) of length one."""
        windows = np.ascontiguousarray(self.windows(mel).transpose(1, 0, 2))
        (embeddings,) = self._session.run(None, {"windows": windows})
        return unit(unit(embeddings).mean(axis=0))

    def windows(self, mel: Floats) -> Floats:
        """Cut (frames, bands) into overlapping (windows, window_frames, bands), zero-padded at the end."""
        size, step = self.config.window_frames, self.config.step_frames
        count, rest = divmod(max(len(mel) - size + step, 0), step)
        if count == 0 or (rest + size - step) / size >= self.config.min_coverage:
            count += 1
        padded = np.zeros((size + step * (count - 1), mel.shape[1]), np.float32)
        known = mel[: len(padded)]
        padded[: len(known)] = known
        return np.stack([padded[step * n : step * n + size] for n in range(count)])


class TokenizerSession:
    """25 speech tokens a second from mel frames."""

    def __init__(self, config: SpeechTokenizerConfig, weights: dict[str, Floats]) -> None:
        self.config = config
        self._session = create_session(SpeechTokenizerGraph(config, weights), available_cores())

    def tokenize(self, mel: Floats) -> NDArray[np.int64]:
        """Tokenize (frames, bands); where two windows of a long clip overlap, each gives its half."""
        if len(mel) <= WINDOW_FRAMES:
            return self._window(mel)
        starts = range(0, len(mel), WINDOW_FRAMES - OVERLAP_FRAMES)
        windows = [self._window(mel[start : start + WINDOW_FRAMES]) for start in starts]
        half, last = OVERLAP_FRAMES // FRAMES_PER_TOKEN // 2, len(windows) - 1
        # PARITY: when the last window is shorter than the overlap, both it and its predecessor are cut there.
        # tests/models/encoders/test_speech_tokenizer.py::test_long_clips_are_tokenized_as_upstream_does
        kept = [
            ids[(half if number else 0) : (len(ids) - half if number < last else len(ids))]
            for number, ids in enumerate(windows)
        ]
        return np.concatenate(kept)

    def _window(self, mel: Floats) -> NDArray[np.int64]:
        if not len(mel):
            return np.zeros(0, np.int64)
        tokens = -(-len(mel) // 2)
        tokens = -(-tokens // 2)
        place = np.arange(tokens)
        distance = np.abs(place[:, None] - place)
        reach = tokens if self.config.attention_reach is None else self.config.attention_reach
        mask = np.where(distance <= reach, np.float32(0), MASKED)[None, None]
        inputs = {"mel": np.ascontiguousarray(mel.T[None]), "mask": mask}
        (raw,) = self._session.run(None, inputs | rotary_tables(self.config, tokens))
        digits = np.rint(np.tanh(raw[0]) * np.float32(FSQ_SCALE)).astype(np.int64) + 1
        ids: NDArray[np.int64] = digits @ FSQ_LEVELS ** np.arange(digits.shape[1])
        return ids


def unit(vectors: Floats) -> Floats:
    """Scale each row to length one; a row of zeros stays zero."""
    length = np.sqrt(np.square(vectors).sum(axis=-1, keepdims=True))
    scaled: Floats = vectors / np.maximum(length, np.float32(1e-12))
    return scaled
