"""A reference clip to the arrays of a voice, without PyTorch. `backends/torch/encoders.py` is the reference.

The sessions are created when they are first needed: speaking needs none of them, and cloning for wren only the
voice encoder.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightingale.audio.reference_check import sound_span
from nightingale.backends.base import ModelSource
from nightingale.backends.onnx.embeddings import rotary_tables
from nightingale.backends.onnx.encoding.encoder_graphs import SpeechTokenizerGraph, VoiceEncoderGraph
from nightingale.backends.onnx.encoding.mel_fronts import flow_mel, token_mel, voice_mel
from nightingale.backends.onnx.numpy_weights import Floats, encoder_weights
from nightingale.backends.onnx.streaming_session import MASKED, create_session
from nightingale.backends.shared.capability_checks import available_cores
from nightingale.models.chatterbox.encoders.config import (
    FRAMES_PER_TOKEN,
    FSQ_LEVELS,
    FSQ_SCALE,
    OVERLAP_FRAMES,
    ROPE_THETA,
    WINDOW_FRAMES,
)
from nightingale.types import Samples


class OnnxEncoders:
    def __init__(self, source: ModelSource) -> None:
        self._source, preset = source, source.info.preset
        self._tokenizer, self._voice_encoder = preset.speech_tokenizer, preset.voice_encoder
        self._flow_bands = preset.flow.mel_bands

    def tokenize(self, samples_16k: Samples, max_tokens: int | None = None) -> NDArray[np.int64]:
        """Return 25 speech tokens a second; where two windows of a long clip overlap, each gives its half."""
        mel = token_mel(samples_16k, self._tokenizer.mel_bands)
        mel = mel if max_tokens is None else mel[: max_tokens * FRAMES_PER_TOKEN]
        if len(mel) <= WINDOW_FRAMES:
            return self._tokenize_window(mel)
        starts = range(0, len(mel), WINDOW_FRAMES - OVERLAP_FRAMES)
        windows = [self._tokenize_window(mel[start : start + WINDOW_FRAMES]) for start in starts]
        half, last = OVERLAP_FRAMES // FRAMES_PER_TOKEN // 2, len(windows) - 1
        # PARITY: when the last window is shorter than the overlap, both it and its predecessor are cut there.
        # tests/models/encoders/test_speech_tokenizer.py::test_long_clips_are_tokenized_as_upstream_does
        kept = [
            ids[(half if number else 0) : (len(ids) - half if number < last else len(ids))]
            for number, ids in enumerate(windows)
        ]
        return np.concatenate(kept)

    def speaker(self, samples_16k: Samples) -> NDArray[np.float32]:
        """Return a vector of length one."""
        start, end = sound_span(samples_16k)
        mel = voice_mel(samples_16k[start:end], self._voice_encoder.mel_bands)
        windows = np.ascontiguousarray(self._speaker_windows(mel).transpose(1, 0, 2))
        (embeddings,) = self._speaker_session.run(None, {"windows": windows})
        return unit(unit(embeddings).mean(axis=0))

    def flow_speaker(self, samples_16k: Samples) -> NDArray[np.float32] | None:  # noqa: ARG002, a protocol
        return None  # the flow shares T3's

    def flow_mel(self, samples_24k: Samples) -> NDArray[np.float32]:
        return flow_mel(samples_24k, self._flow_bands)

    @cached_property
    def _tokenizer_session(self) -> Any:
        weights = encoder_weights(self._source, "speech_tokenizer")
        return create_session(SpeechTokenizerGraph(self._tokenizer, weights), available_cores())

    @cached_property
    def _speaker_session(self) -> Any:
        weights = encoder_weights(self._source, "voice_encoder")
        return create_session(VoiceEncoderGraph(self._voice_encoder, weights), available_cores())

    def _speaker_windows(self, mel: Floats) -> Floats:
        """Cut (frames, bands) into overlapping (windows, window_frames, bands), zero-padded at the end."""
        size, step = self._voice_encoder.window_frames, self._voice_encoder.step_frames
        count, rest = divmod(max(len(mel) - size + step, 0), step)
        if count == 0 or (rest + size - step) / size >= self._voice_encoder.min_coverage:
            count += 1
        padded = np.zeros((size + step * (count - 1), mel.shape[1]), np.float32)
        known = mel[: len(padded)]
        padded[: len(known)] = known
        return np.stack([padded[step * n : step * n + size] for n in range(count)])

    def _tokenize_window(self, mel: Floats) -> NDArray[np.int64]:
        """Tokenize (frames, bands)."""
        if not len(mel):
            return np.zeros(0, np.int64)
        config = self._tokenizer
        tokens = -(-len(mel) // 2)
        tokens = -(-tokens // 2)
        place = np.arange(tokens)
        distance = np.abs(place[:, None] - place)
        reach = tokens if config.attention_reach is None else config.attention_reach
        mask = np.where(distance <= reach, np.float32(0), MASKED)[None, None]
        inputs = {"mel": np.ascontiguousarray(mel.T[None]), "mask": mask}
        inputs |= rotary_tables(config.width // config.heads, tokens, theta=ROPE_THETA)
        (raw,) = self._tokenizer_session.run(None, inputs)
        digits = np.rint(np.tanh(raw[0]) * np.float32(FSQ_SCALE)).astype(np.int64) + 1
        ids: NDArray[np.int64] = digits @ FSQ_LEVELS ** np.arange(digits.shape[1])
        return ids


def unit(vectors: Floats) -> Floats:
    """Scale each row to length one; a row of zeros stays zero."""
    length = np.sqrt(np.square(vectors).sum(axis=-1, keepdims=True))
    scaled: Floats = vectors / np.maximum(length, np.float32(1e-12))
    return scaled
