"""Voice conversion: the speech tokens of a recording, rendered in another voice.

The speech tokenizer turns the recording into tokens, and flow and vocoder render these in the voice that is asked
for. Words, timing and intonation stay. T3 has no part in it, so a `VoiceConverter` of its own loads no T3; the one
of a `TTS` shares the engine's networks, and its requests are rendered with the engine's others.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from nightingale.audio.read import check_clip
from nightingale.audio.resample import resample
from nightingale.backends.base import Encoders, Recorded
from nightingale.backends.profiles import Profile
from nightingale.clocks import ANALYSIS_RATE_HZ, CLOCKS
from nightingale.engine.load import CONVERTER_WITHOUT, Model, default_model, load_model
from nightingale.engine.open_engine import open_engine
from nightingale.engine.requests.controls import RequestOptions
from nightingale.engine.requests.live import LiveRequest
from nightingale.engine.requests.recorded_segments import (
    LIVE_TOKENS,
    TOKEN_SAMPLES,
    Levels,
    PauseSplitter,
    RecordedSegment,
    token_levels,
    whole_segments,
)
from nightingale.engine.requests.recordings import (
    Floats,
    Recording,
    StreamTokenizer,
    TokenizerWindows,
    adjust_loudness,
    padded,
    read_recording,
    recorded_mel,
    recorded_voice,
)
from nightingale.engine.requests.segments import SegmentQueue
from nightingale.engine.requests.whole import join
from nightingale.engine.session import Session
from nightingale.engine.stream_capacity import CHARS_PER_S
from nightingale.engine.voice_lookup import VoiceReference, VoiceResolver
from nightingale.engine.worker import Worker
from nightingale.errors import ConfigError, raising_memory_full
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.types import Audio, AudioChunk, Samples
from nightingale.voices.voice import Voice

NEAR_WINDOWS: Final = TokenizerWindows(context=30, hop=5, lookahead=12)
"""For a tokenizer whose attention reaches a few tokens, as wren's does."""
WIDE_WINDOWS: Final = TokenizerWindows(context=150, hop=25, lookahead=25)
"""For a tokenizer that attends to the whole clip, as the official one does."""

HELD_TOKENS: Final = 3
"""Tokens that the resampler and the vocoder hold back, at most."""

VOICE_TOKENS: Final = 50
"""Two seconds, after which the speaker's voice is known. Until then, speech tokens are rendered alone."""

AnyVoice = Voice | VoiceReference | None


class VoiceConverter:
    """Converts recordings to other voices. It is safe to use from several threads."""

    def __init__(
        self,
        model: Model,
        profile: Profile,
        worker: Worker,
        voices: VoiceResolver,
        open_session: Callable[[RequestOptions], Session],
    ) -> None:
        """Convert with the worker of an engine; `load` opens networks of its own.

        open_session: returns the session of a request, whose voice it finds.
        """
        self._model = model
        self._profile = profile
        self._worker = worker
        self._voices = voices
        self._open_session = open_session
        self._close: Callable[[], None] | None = None
        """Closes the engine, if it is not that of a `TTS`."""

    @classmethod
    @raising_memory_full()
    def load(
        cls,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        profile: str | None = None,
        offline: bool = False,
        watermark: bool = False,
        **options: Any,
    ) -> VoiceConverter:
        """Load what conversion needs of a model: everything but T3. The arguments are those of `TTS`."""
        name = default_model() if model is None else model
        loaded = load_model(name, offline=offline, options=options, without=CONVERTER_WITHOUT)
        engine = open_engine(loaded, profile, device=device, watermark=watermark, speaks=False)
        converter = cls(loaded, engine.profile, engine.worker, engine.voices, engine.open_session)
        converter._close = engine.close
        # A converter that is garbage-collected must not leave its thread behind.
        weakref.finalize(converter, engine.close)
        return converter

    @property
    def sample_rate_hz(self) -> int:
        return CLOCKS.sample_rate_hz

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._model.name

    @raising_memory_full()
    def voice(self, reference: VoiceReference) -> Voice:
        """Return a voice by name, from a voice file, or from a clip, as `TTS.voice` does."""
        return self._voices.find(reference)

    @raising_memory_full()
    def convert(self, audio: Recording, *, voice: AnyVoice = None, seed: int | None = None) -> Audio:
        """Return the recording in another voice.

        Args:
            audio: The recording, up to ten minutes: the path, contents or file object of a wav, flac, ogg or mp3
                file, an `Audio`, or (samples, sample rate).
            voice: The target, as for `TTS.say`. None is the model's own voice.
            seed: The same recording, voice and seed give the same samples.
        """
        return join(self.submit(audio, voice=voice, seed=seed, plays=False))

    @raising_memory_full()
    def submit(
        self, audio: Recording, *, voice: AnyVoice = None, seed: int | None = None, plays: bool = True
    ) -> Session:
        """Queue a recording and return its session, whose chunks are read. plays: they are played at once."""
        session = self._open_session({"voice": voice, "seed": seed})
        samples, rate_hz = read_recording(audio)
        samples = adjust_loudness(samples, rate_hz, self._model.defaults.recording_loudness_lufs)
        samples_16k = padded(resample(samples, rate_hz, ANALYSIS_RATE_HZ))
        encoders = self._voices.encoders()
        tokens = encoders.tokenize(samples_16k).tolist()
        levels, recorded = token_levels(samples_16k, len(tokens)), None
        if self._model.defaults.renders_recorded_mel:
            mel = recorded_mel(samples, rate_hz, len(tokens), encoders)
            speaker = recorded_voice(samples_16k, encoders, self._model.info, self._model.voice_family)
            recorded = Recorded(mel=mel, voice=speaker)
        session.plays = plays
        in_blocks = self._profile.in_blocks
        segments = SegmentQueue(whole_segments(tokens, levels, in_blocks=in_blocks, recorded=recorded))
        chars = round(CHARS_PER_S * len(samples) / rate_hz)  # of a text that is as long
        self._worker.submit(session, segments, chars=chars)
        return session

    @raising_memory_full()
    def session(
        self, sample_rate_hz: int, *, voice: AnyVoice = None, seed: int | None = None
    ) -> LiveConversion:
        """Open a conversion of a recording that still arrives, with the sample rate of its parts."""
        check_clip(np.zeros(1, np.float32), sample_rate_hz)
        session = self._open_session({"voice": voice, "seed": seed})
        segments = SegmentQueue()
        live = LiveConversion(
            session,
            segments,
            rate_hz=int(sample_rate_hz),
            encoders=self._voices.encoders(),
            model=self._model,
            profile=self._profile,
            wake=self._worker.wake,
            owner=self,
        )
        self._worker.submit(session, segments)
        return live

    def stream(
        self,
        chunks: Iterable[ArrayLike],
        sample_rate_hz: int,
        *,
        voice: AnyVoice = None,
        seed: int | None = None,
    ) -> Iterator[AudioChunk]:
        """Return the converted audio of a recording while its parts arrive; leaving the loop cancels the request.

        Args:
            chunks: Samples, in parts of any size. A part is taken when the audio of those before it was read.
            sample_rate_hz: The sample rate of the parts.
            voice: The target, as for `convert`.
            seed: The same samples, voice and seed give the same audio, whatever the sizes of the parts.
        """
        live = self.session(sample_rate_hz, voice=voice, seed=seed)  # a mistake is found by this call
        return _converted(live, chunks)

    def close(self) -> None:
        """End all requests and the worker thread, unless they are those of a `TTS`.

        Also done when the object is garbage-collected.
        """
        if self._close is not None:
            self._close()

    def __enter__(self) -> VoiceConverter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LiveConversion(LiveRequest):
    """A conversion of a recording that still arrives.

    Samples may be pushed in one thread and audio be read in another.
    """

    def __init__(
        self,
        session: Session,
        segments: SegmentQueue,
        *,
        rate_hz: int,
        encoders: Encoders,
        model: Model,
        profile: Profile,
        wake: Callable[[], None],
        owner: object,
    ) -> None:
        """rate_hz: the sample rate of what is pushed."""
        import soxr  # late, as in audio/resample.py

        super().__init__(session, segments, wake=wake, owner=owner)
        self.audio = session
        """The request behind it, whose chunks can be read without blocking."""
        defaults = model.defaults
        windows = NEAR_WINDOWS
        if model.info.preset.speech_tokenizer.attention_reach is None:
            windows = WIDE_WINDOWS
        self._rate_hz = rate_hz
        self._encoders = encoders
        self._model = model
        self._tokenizer = StreamTokenizer(encoders, windows, with_mel=defaults.renders_recorded_mel)
        self._first_samples: Samples = np.zeros(0, np.float32)
        """The first seconds, until the speaker's voice is known."""
        self._voice: Voice | None = None
        self._mels: list[Floats] = []
        """Frames of tokens that have not been added."""
        self._resampler = soxr.ResampleStream(rate_hz, ANALYSIS_RATE_HZ, 1, dtype="float32", quality="HQ")
        self._splitter = None if profile.in_blocks else PauseSplitter(LIVE_TOKENS, at_every_pause=True)
        block_tokens = (
            profile.first_block_tokens or defaults.first_block_tokens or profile.smallest_block_tokens
        )
        unit = block_tokens + LOOKAHEAD_TOKENS if profile.in_blocks else LIVE_TOKENS
        self.delay_s = (windows.hop + windows.lookahead + unit + HELD_TOKENS) / CLOCKS.token_rate_hz
        """The longest time of audio between what was pushed and what can be rendered."""

    def push(self, samples: ArrayLike) -> None:
        """Add samples, of one axis or of frames and channels. Raise ConfigError after `end`."""
        if self._segments.closed:
            raise ConfigError("the recording has ended", fix="Open another session.")
        if np.size(samples):
            mono, _ = check_clip(samples, self._rate_hz)
            self._enqueue(self._resampler.resample_chunk(mono), final=False)

    def end(self) -> None:
        """Declare the recording complete. Calling it again has no effect."""
        if self._segments.closed:
            return
        try:
            self._enqueue(self._resampler.resample_chunk(np.zeros(0, np.float32), last=True), final=True)
        finally:
            self._segments.closed = True
            self._wake()

    def cancel(self) -> None:
        """Stop, and drop audio that was not read yet."""
        self._session.cancel()

    def ready_chunks(self) -> Iterator[AudioChunk]:
        """Yield the audio that is there, without waiting for more."""
        with suppress(EOFError):
            while (chunk := self._session.take()) is not None:
                yield chunk

    def _enqueue(self, samples_16k: Samples, *, final: bool) -> None:
        for tokens, samples, mel in self._tokenizer.push(samples_16k, final=final):
            if mel is not None:
                self._listen(samples, mel)
            self._split(tokens, token_levels(samples, len(tokens)))
        if final:
            self._split([], token_levels(samples_16k, 0), final=True)
        self._wake()

    def _split(self, tokens: list[int], levels: Levels, *, final: bool = False) -> None:
        """Add tokens as the engine renders them: to one utterance, or to utterances that end at pauses."""
        if self._splitter is None:
            self._add(tokens, ends_utterance=final)
            return
        for utterance in self._splitter.push(tokens, levels, final=final):
            self._add(utterance, ends_utterance=True)

    def _listen(self, samples_16k: Samples, mel: Floats) -> None:
        """Keep the mel of the next tokens, and find the speaker's voice once enough was heard."""
        self._mels.append(mel)
        if self._voice is None:
            self._first_samples = np.concatenate([self._first_samples, samples_16k])
            if len(self._first_samples) >= VOICE_TOKENS * TOKEN_SAMPLES:
                info, family = self._model.info, self._model.voice_family
                self._voice = recorded_voice(self._first_samples, self._encoders, info, family)
                self._first_samples = self._first_samples[:0]

    def _add(self, tokens: list[int], *, ends_utterance: bool) -> None:
        recorded, frames = None, CLOCKS.frames_per_token * len(tokens)
        if self._mels and tokens:
            known = np.concatenate(self._mels)
            self._mels = [known[frames:]]
            if self._voice is not None:
                recorded = Recorded(mel=known[:frames], voice=self._voice)
        self._segments.add(
            RecordedSegment(speech_tokens=tokens, recorded=recorded, ends_utterance=ends_utterance, live=True)
        )


def _converted(live: LiveConversion, chunks: Iterable[ArrayLike]) -> Iterator[AudioChunk]:
    """Push the parts of a recording and yield the audio that is ready after each; then the rest."""
    with live:
        for part in chunks:
            live.push(part)
            yield from live.ready_chunks()
        live.end()
        yield from live
