"""Mel frames to samples, block by block, over the graphs of hift_graph.py.

A causal vocoder looks ahead in its first layers only, so samples are three frames and a few columns behind the
mel, and the joined blocks equal the whole. A two-sided one, that of the official models, takes an utterance in
one block. `models/chatterbox/hift/hift_stream.py` is the reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nightingale.audio.crossfade import apply_fade_in
from nightingale.backends.onnx.numpy_weights import Floats, Weights
from nightingale.backends.onnx.rendering.excitation import excitation_stream
from nightingale.backends.onnx.rendering.hift_graph import (
    BINS,
    LAST_STAGE,
    STAGES,
    GeneratorGraph,
    PitchGraph,
    SourceGraph,
    window_energy,
)
from nightingale.backends.onnx.streaming_session import State, StreamingSession
from nightingale.models.chatterbox.hift.config import (
    CAUSAL_LOOKAHEAD_FRAMES,
    ISTFT_HOP,
    ISTFT_SIZE,
    HiftConfig,
)
from nightingale.types import Samples

SOURCE_WEIGHTS: Final = ("m_source.l_linear.weight", "m_source.l_linear.bias")
HALF_WINDOW: Final = ISTFT_SIZE // 2
SAMPLE_LIMIT: Final = 0.99
PASS_FRAMES: Final = 40
"""Longer blocks are rendered in several passes, which costs no time and keeps activations small."""
LAST_PASS_FRAMES: Final = 20
"""Passes of the last block, whose stages have nothing but its other passes to run beside."""
MIN_FIRST_FRAMES: Final = CAUSAL_LOOKAHEAD_FRAMES + 1
"""Fewer frames at the start of a stream wait for the next block."""


class ExcitedPass(NamedTuple):
    """A part of a block, with the features of its excitation."""

    mels: list[Floats]
    """(frames, mel) of each stream."""
    features: list[Floats]
    """One array for each stage, (rows, channels, 1, columns)."""
    final: bool


class UpsampledPass(NamedTuple):
    """A pass before the generator's last stage."""

    x: Floats
    feature: Floats
    """The excitation's features in the last stage."""
    final: bool


class VocoderStream:
    """The state of one utterance."""

    def __init__(self, hift: VocoderNetwork, *, seed: int) -> None:
        self.excitation = excitation_stream(hift.config, hift.source_weights, seed=seed)
        self.pitch, self.features, self.front, self.back = hift.start()
        self.excitation_started = self.samples_started = False
        self.kept_excitation: Floats = np.zeros(0, np.float32)
        self.emitted_samples = 0
        self._waiting: Floats = np.zeros((0, hift.config.mel_bands), np.float32)

    def next_mel(self, mel: Floats, *, final: bool) -> Floats | None:
        """Return the frames (frames, mel) to render now, with those that waited; None if they wait too."""
        mel, self._waiting = np.concatenate([self._waiting, mel]), self._waiting[:0]
        if len(mel) and (final or self.excitation_started or len(mel) >= MIN_FIRST_FRAMES):
            return mel
        self._waiting = mel
        return None


class VocoderNetwork:
    """The vocoder's sessions. Methods take blocks of several streams, of equal length and equal `final`.

    A batch has streams that all begin or that all have begun.
    """

    def __init__(self, config: HiftConfig, weights: Weights, *, threads: int, float16: bool = False) -> None:
        """float16: compute the convolutions of resblocks in float16, which takes ARM's instructions for it."""
        self.config = config
        self.source_weights = {name: weights[name] for name in SOURCE_WEIGHTS}
        self._pitch = StreamingSession(PitchGraph(config, weights), threads)
        self._features = StreamingSession(SourceGraph(config, weights, float16=float16), threads)
        # The last stage costs as much as the others, so that two threads can share the work.
        self._front, self._back = (
            StreamingSession(GeneratorGraph(config, weights, stages=stages, float16=float16), threads)
            for stages in (STAGES[:LAST_STAGE], STAGES[LAST_STAGE:])
        )

    def start(self) -> tuple[State, State, State, State]:
        return self._pitch.start(), self._features.start(), self._front.start(), self._back.start()

    def excite(
        self, streams: Sequence[VocoderStream], mels: Sequence[Floats], *, final: bool
    ) -> Iterator[ExcitedPass]:
        """Compute the features of a block's excitation, pass by pass.

        Each pass then goes through `upsample` and `synthesize`; other threads may do that meanwhile.
        """
        assert self.config.causal or final, "a two-sided vocoder takes an utterance in one block"
        count = -(-len(mels[0]) // (LAST_PASS_FRAMES if final else PASS_FRAMES)) if self.config.causal else 1
        passes = list(zip(*(np.array_split(mel, count) for mel in mels), strict=True))
        for number, rows in enumerate(passes):
            yield self._excite(streams, list(rows), final=final and number == count - 1)

    def render(
        self, streams: Sequence[VocoderStream], mels: Sequence[Floats], *, final: bool
    ) -> list[Samples]:
        """Return the samples of each stream's block, in this thread."""
        passes = self.excite(streams, mels, final=final)
        rendered = [self.synthesize(streams, self.upsample(streams, excited)) for excited in passes]
        return [np.concatenate(row) for row in zip(*rendered, strict=True)]

    def _excite(self, streams: Sequence[VocoderStream], mels: list[Floats], *, final: bool) -> ExcitedPass:
        excitation = np.stack(
            [
                self._padded_excitation(stream, f0, final=final)
                for stream, f0 in zip(streams, self._f0(streams, mels, final=final), strict=True)
            ]
        )
        states = [stream.features for stream in streams]
        features, states = self._features.run({"excitation": excitation[:, None, None]}, states)
        for stream, state in zip(streams, states, strict=True):
            stream.features = state
        return ExcitedPass(mels, features, final)

    def upsample(self, streams: Sequence[VocoderStream], excited: ExcitedPass) -> UpsampledPass:
        """Run all stages of the generator but the last one."""
        mel = _channels_first(excited.mels)
        if excited.final and self.config.causal:
            mel = np.concatenate(
                [mel, np.zeros((*mel.shape[:3], CAUSAL_LOOKAHEAD_FRAMES), np.float32)], axis=3
            )
        features = {f"source.{stage}": excited.features[stage] for stage in range(LAST_STAGE)}
        (x,), states = self._front.run({**features, "mel": mel}, [stream.front for stream in streams])
        for stream, state in zip(streams, states, strict=True):
            stream.front = state
        return UpsampledPass(x, excited.features[LAST_STAGE], excited.final)

    def synthesize(self, streams: Sequence[VocoderStream], upsampled: UpsampledPass) -> list[Samples]:
        """Return the samples of each stream's pass."""
        first, rows, final = not streams[0].samples_started, len(streams), upsampled.final
        inputs: dict[str, NDArray[Any]] = {
            "x": upsampled.x,
            f"source.{LAST_STAGE}": upsampled.feature,
            "reflect": np.ones(int(first), np.int64),
            "tail": np.zeros((rows, 2 * BINS, 1, int(final)), np.float32),
        }
        (hops,), states = self._back.run(inputs, [stream.back for stream in streams])
        samples = hops.transpose(0, 3, 1, 2).reshape(rows, -1)
        if final:  # the last hop is covered by one window less
            energy = window_energy()
            samples[:, -ISTFT_HOP:] *= energy.sum(axis=0) / energy[1:].sum(axis=0)
        samples = np.clip(samples[:, HALF_WINDOW if first else 0 :], -SAMPLE_LIMIT, SAMPLE_LIMIT)
        for stream, state, own in zip(streams, states, samples, strict=True):
            stream.back, stream.samples_started = state, True
            apply_fade_in(own, stream.emitted_samples)
            stream.emitted_samples += len(own)
        return list(samples)

    def _f0(self, streams: Sequence[VocoderStream], mels: Sequence[Floats], *, final: bool) -> Floats:
        """Return f0 (rows, frames) of the frames that no later frame can change, in Hz."""
        rows, inputs = len(streams), {"mel": _channels_first(mels)}
        if self.config.causal:
            for name, channels in (
                ("mel_tail", self.config.mel_bands),
                ("hidden_tail", self.config.f0_channels),
            ):
                inputs[name] = np.zeros((rows, channels, 1, int(final)), np.float32)
        (f0,), states = self._pitch.run(inputs, [stream.pitch for stream in streams])
        for stream, state in zip(streams, states, strict=True):
            stream.pitch = state
        return f0[:, 0, 0]

    def _padded_excitation(self, stream: VocoderStream, f0_hz: Floats, *, final: bool) -> Floats:
        """Return the excitation of the next frames after the samples that windows reach back to."""
        excitation = stream.excitation.next(f0_hz)
        if not stream.excitation_started:
            excitation = np.pad(excitation, (HALF_WINDOW, 0), mode="reflect")
        excitation = np.concatenate([stream.kept_excitation, excitation])
        if final:
            excitation = np.pad(excitation, (0, HALF_WINDOW), mode="reflect")
        stream.excitation_started = True
        stream.kept_excitation = excitation[len(excitation) - (ISTFT_SIZE - ISTFT_HOP) :].copy()
        return excitation


def _channels_first(mels: Sequence[Floats]) -> Floats:
    """Return (rows, mel, 1, frames) from (frames, mel) of each row."""
    return np.ascontiguousarray(np.stack(mels).transpose(0, 2, 1)[:, :, None])
