"""Whole audio: the joined chunks of a request, and reports of its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from nightingale.clocks import CLOCKS
from nightingale.engine.session import Session
from nightingale.engine.stream_capacity import CHARS_PER_S
from nightingale.errors import raising_memory_full
from nightingale.types import Audio, AudioChunk, SpeechProgress

OnProgress = Callable[[SpeechProgress], None]


class ProgressMeter:
    """Estimates how much of a text is spoken from the chunks of its audio."""

    def __init__(self, chars: int) -> None:
        self._chars = max(1, chars)
        self._samples = 0
        self._rate_hz = CLOCKS.sample_rate_hz
        self._before = 0
        self._segment = 0
        self._segment_start = 0
        """Characters of the finished segments and of the present one, and the sample that it begins with."""

    def add(self, chunk: AudioChunk) -> SpeechProgress:
        """Count a chunk and return the progress after it."""
        if chunk.begins is not None:
            self._before += self._segment
            self._segment = len(chunk.begins.text)
            self._segment_start = self._samples
        self._samples += len(chunk.samples)
        start_s = self._segment_start / self._rate_hz
        chars_per_s = self._before / start_s if self._before and start_s else CHARS_PER_S
        spoken = chars_per_s * (self._samples - self._segment_start) / self._rate_hz
        done = self._before + min(spoken, 0.95 * self._segment)
        return self._progress(min(done / self._chars, 0.99))

    def finish(self) -> SpeechProgress:
        """Return the progress after the last chunk."""
        return self._progress(1.0)

    def _progress(self, fraction: float) -> SpeechProgress:
        return SpeechProgress(fraction=fraction, audio_seconds=self._samples / self._rate_hz)


def audio_of(session: Session, chunks: Iterable[AudioChunk]) -> Audio:
    """Return the chunks of a session, joined."""
    chunks = list(chunks)
    samples = [chunk.samples for chunk in chunks]
    return Audio(
        samples=np.concatenate(samples) if samples else np.zeros(0, np.float32),
        sample_rate_hz=CLOCKS.sample_rate_hz,
        words=tuple(word for chunk in chunks for word in chunk.words),
        seed=session.request.seed,
        metrics=session.timing.metrics(),
        warnings=tuple(session.warnings),
    )


def progress_of(spoken: Sequence[Audio], texts: int) -> SpeechProgress:
    """Return the progress of a call for several texts after the first of them."""
    seconds, done = sum(audio.seconds for audio in spoken), len(spoken)
    return SpeechProgress(fraction=done / texts, audio_seconds=seconds, texts_done=done)


@raising_memory_full()
def join(session: Session, chars: int = 0, on_progress: OnProgress | None = None) -> Audio:
    """Return the whole audio of a session, and report progress through a text of `chars` characters."""
    try:
        if on_progress is None:
            return audio_of(session, session.chunks())
        meter, chunks = ProgressMeter(chars), []
        for chunk in session.chunks():
            chunks.append(chunk)
            on_progress(meter.add(chunk))
        on_progress(meter.finish())
        return audio_of(session, chunks)
    finally:
        session.cancel()  # frees the request if the caller was interrupted
