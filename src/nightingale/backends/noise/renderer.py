"""A tone per speech token under noise. Every sample depends on its absolute position, its token and the seed
only, so a stream equals the whole bit for bit."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future

import numpy as np

from nightingale.backends.base import Block, BlockCut
from nightingale.backends.shared.pipeline import CutStream
from nightingale.clocks import CLOCKS
from nightingale.decoding.philox import normal, stream_key
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.types import Samples
from nightingale.voices.voice import Voice

TONE, NOISE = np.float32(0.1), np.float32(0.02)
"""Amplitudes."""
SAMPLES = CLOCKS.samples_per_token


class NoiseStream(CutStream):
    def __init__(self, voice: Voice, seed: int) -> None:
        self._key = stream_key(seed, "source")
        self._base_hz = 100.0 + 50.0 * float(np.tanh(voice.flow_speaker).mean())
        self._waiting: list[int] = []
        self._done = 0
        """Tokens that were rendered."""

    def batch_key(self, cut: BlockCut) -> Hashable:  # noqa: ARG002, a protocol
        return id(self)

    def push(self, tokens: list[int], *, final: bool) -> Samples:
        """Render all tokens but the last few, which wait for their lookahead as in a real flow."""
        self.started = self.started or bool(tokens)
        self._waiting += tokens
        ready = len(self._waiting) if final else max(0, len(self._waiting) - LOOKAHEAD_TOKENS)
        now, self._waiting = self._waiting[:ready], self._waiting[ready:]
        first = self._done * SAMPLES
        self._done += ready
        at = np.arange(first, first + ready * SAMPLES, dtype=np.int64)
        hz = np.repeat(self._base_hz + np.array(now, np.float64) / 16.0, SAMPLES)
        tone = np.sin(2 * np.pi * np.mod(hz * at / CLOCKS.sample_rate_hz, 1.0)).astype(np.float32)
        return TONE * tone + NOISE * normal(self._key, first, len(at), 1)[:, 0]


class NoiseRenderer:
    max_batch = 1
    max_in_flight = 1
    decoder_threads: int | None = None

    def open(self, voice: Voice, *, seed: int) -> NoiseStream:
        return NoiseStream(voice, seed)

    def render(self, blocks: Sequence[Block]) -> Future[list[Samples]]:
        future: Future[list[Samples]] = Future()
        rendered = []
        for block in blocks:
            started = block.record("flow", time.perf_counter())
            rendered.append(block.stream.push(block.tokens, final=block.final))
            block.record("vocoder", started)
        future.set_result(rendered)
        return future

    def decoder_busy(self, busy: bool) -> None: ...

    def prepare(self) -> bool:
        return False

    def close(self) -> None: ...
