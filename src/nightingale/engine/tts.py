"""The engine's public class, `TTS`.

A model is loaded once and shared; everything that changes belongs to a request. `say` is the joined `stream`:
there is one path from text to audio.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, Unpack

from nightingale.backends.profiles import Profile, profile_named, with_options
from nightingale.backends.selection import Plan, check_precision
from nightingale.clocks import CLOCKS
from nightingale.engine.conversion import AnyVoice, VoiceConverter
from nightingale.engine.faults import check_range, check_text, check_texts, check_types
from nightingale.engine.load import Model, default_model, load_model
from nightingale.engine.open_engine import Engine, open_engine
from nightingale.engine.requests.controls import Control, RequestOptions, available_controls, show_options
from nightingale.engine.requests.early_checks import languages_of
from nightingale.engine.requests.incremental_text import IncrementalSegmenter
from nightingale.engine.requests.live import LiveSession, Stream
from nightingale.engine.requests.recordings import Recording
from nightingale.engine.requests.request_segmenter import RequestSegmenter
from nightingale.engine.requests.segments import MAX_CHARS, SegmentQueue
from nightingale.engine.requests.whole import OnProgress, join, progress_of
from nightingale.engine.session import Session
from nightingale.engine.stream_capacity import MaxStreams, Occupancy, check_max_streams
from nightingale.engine.voice_lookup import VoiceReference
from nightingale.errors import ConfigError, raising_memory_full
from nightingale.models.defaults import StreamMode
from nightingale.text.languages import check_language
from nightingale.text.sentences import DEFAULT_SPAN_CHARS
from nightingale.types import Audio
from nightingale.voices.voice import Voice


class TTS:
    """A loaded model. It is safe to use from several threads: requests are decoded in batches."""

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        profile: str | None = None,
        stream: StreamMode | None = None,
        flow_steps: int | None = None,
        first_block_tokens: int | None = None,
        offline: bool = False,
        max_chars: int = MAX_CHARS,
        max_streams: MaxStreams = "auto",
        watermark: bool = False,
        **options: Any,
    ) -> None:
        """Load a model and open its backends.

        Args:
            model: A name of `nightingale models list`, a folder, or None for the model in the package.
            device: "cpu", "cuda", another device of a backend, or "auto": a GPU if the model is faster on it.
            dtype: T3's floating-point precision; "auto" leaves it to the profile.
            profile: "exact" computes in float32, as upstream does; "balanced" uses the fastest backends that are
                proven faithful; "fast" also lower precisions (`plan` says which). None or "default" is the
                model's default. Options may follow the name: docs/python.md.
            stream: "segment" renders each text segment whole, as upstream does; "block" hands out audio while the
                segment is still being decoded (docs/streaming.md). None is the model's default.
            flow_steps: Steps of the flow's solver: fewer are faster. None is upstream's number.
            first_block_tokens: Size of the first block, 5 to 32 tokens of 40 ms each, with stream="block".
            offline: Never fetch weights.
            max_chars: Longer texts are refused. Memory does not depend on it.
            max_streams: Requests that are synthesized at once. "auto": as many as the engine can supply with
                audio while they play, by its measured rate; the others wait.
            watermark: Mark all audio, as upstream does (docs/conversion.md). It needs the package resemble-perth.
            options: `kind`, `t3` and `s3gen` select files of an official model. `s3gen="meanflow"` gives the
                English and the multilingual model Turbo's decoder, which takes two steps.
        """
        check_types(
            model=(model, str | Path | None, "a model's name, a folder, or None"),
            device=(device, str, 'the name of a device, such as "auto"'),
            dtype=(dtype, str, 'a precision, such as "auto"'),
            profile=(profile, str | None, "a profile's name, or None"),
            flow_steps=(flow_steps, int | None, "an integer, or None"),
            first_block_tokens=(first_block_tokens, int | None, "an integer, or None"),
            offline=(offline, bool, "True or False"),
            watermark=(watermark, bool, "True or False"),
        )
        check_precision(dtype)
        check_max_streams(max_streams)
        check_range("max_chars", max_chars, 1, sys.maxsize, integer=True)
        asked = {"stream": stream, "flow_steps": flow_steps, "first_block_tokens": first_block_tokens}
        profile = with_options(profile, asked)
        profile_named(profile)  # a mistake is found before the model is loaded
        loaded = load_model(default_model() if model is None else model, offline=offline, options=options)
        engine = open_engine(
            loaded, profile, device=device, dtype=dtype, max_streams=max_streams, watermark=watermark
        )
        self._start(engine, max_chars)

    @classmethod
    def over(
        cls,
        model: Model,
        profile: str | Profile | None = None,
        *,
        max_chars: int = MAX_CHARS,
        device: str = "auto",
        dtype: str = "auto",
        plan: Plan | None = None,
        max_streams: MaxStreams = "auto",
        watermark: bool = False,
    ) -> TTS:
        """Return an engine over a model that is loaded already. plan: the backends, if chosen already."""
        tts = cls.__new__(cls)
        engine = open_engine(
            model,
            profile,
            device=device,
            dtype=dtype,
            plan=plan,
            max_streams=check_max_streams(max_streams),
            watermark=watermark,
        )
        tts._start(engine, max_chars)
        return tts

    def _start(self, engine: Engine, max_chars: int) -> None:
        self._engine = engine
        self._model = engine.model
        self._worker = engine.worker
        self._voices = engine.voices
        self._max_chars = max_chars
        # A TTS that is garbage-collected must not leave its thread behind.
        weakref.finalize(self, engine.close)

    def __repr__(self) -> str:
        return f"<TTS {self.plan.summary}>"

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def fingerprint(self) -> str:
        """A digest that tells models of the same name apart."""
        return self._model.fingerprint

    @property
    def plan(self) -> Plan:
        """The backend of each role, and why."""
        return self._engine.plan

    @property
    def notice(self) -> str | None:
        """A note that users must read before they listen; None if there is none."""
        return self._model.notice

    @property
    def sample_rate_hz(self) -> int:
        return CLOCKS.sample_rate_hz

    @property
    def default_voice(self) -> Voice | None:
        """The voice of requests that name none."""
        return self._model.default_voice

    @property
    def voice_family(self) -> str:
        """The family whose voices it can use."""
        return self._model.voice_family

    @property
    def voices(self) -> tuple[str, ...]:
        """Names of the voices it can use, the user's own included; `voice=` also takes clips."""
        return self._voices.names()

    @property
    def voices_folder(self) -> Path | None:
        """Folder of the voices that came with the model, where that is not the package's."""
        return self._model.voices

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages it speaks."""
        return languages_of(self.name)

    @property
    def controls(self) -> dict[str, Control]:
        """Request parameters besides text, voice, language and seed."""
        return available_controls(self._model.defaults)

    @property
    def occupancy(self) -> Occupancy:
        return self._worker.occupancy

    @property
    def at_once(self) -> int:
        """Requests that one caller may open together: a full set of slots, and as many in the queue. The rest
        of the queue is for other callers."""
        slots = self._worker.scheduler.slots
        return slots + min(slots, self._engine.profile.queue_limit)

    @raising_memory_full()
    @show_options
    def stream(self, text: str, **request: Unpack[RequestOptions]) -> Stream:
        """Return audio as it is rendered, for a text of any length; leaving the loop cancels the request."""
        return Stream(self.open(text, **request), self)

    @raising_memory_full()
    @show_options
    def say(
        self, text: str, *, on_progress: OnProgress | None = None, **request: Unpack[RequestOptions]
    ) -> Audio:
        """Return the whole audio: the joined stream.

        Args:
            text: The text to speak.
            on_progress: Called in this thread with a `SpeechProgress` after each chunk; what it raises ends the call.
        """
        return join(self._open_whole(text, request), len(text), on_progress)

    @show_options
    def say_many(
        self,
        texts: Iterable[str],
        *,
        on_progress: OnProgress | None = None,
        **request: Unpack[RequestOptions],
    ) -> list[Audio]:
        """Return the audio of several texts, decoded in batches. Each is what `say` returns with the same seed,
        up to rounding where the profile is not "exact".

        Args:
            texts: The texts to speak.
            on_progress: Called in this thread with a `SpeechProgress` after each text; what it raises ends the call.
        """
        texts = list(check_texts(texts))
        spoken: list[Audio] = []
        for audio in self.say_each(texts, **request):
            spoken.append(audio)
            if on_progress is not None:
                on_progress(progress_of(spoken, len(texts)))
        return spoken

    @show_options
    def say_each(self, texts: Iterable[str], **request: Unpack[RequestOptions]) -> Iterator[Audio]:
        """Yield the audio of each text in order, as `say_many` makes it, when it is complete.

        Texts are taken from the iterable as they are needed, so there may be any number. Leaving the loop cancels
        those that are in work.
        """
        texts = check_texts(texts)
        # A mistake is found by this call, not by the first audio, and a clip is read once.
        return self._each(texts, {**request, "voice": self._engine.build_request(request).voice})

    def _each(self, texts: Iterable[str], request: RequestOptions) -> Iterator[Audio]:
        opened: deque[Session] = deque()
        try:
            for text in texts:
                if len(opened) == self.at_once:
                    yield join(opened.popleft())
                opened.append(self._open_whole(text, request))
            while opened:
                yield join(opened.popleft())
        finally:
            for session in opened:
                session.cancel()

    @raising_memory_full()
    def voice(self, reference: VoiceReference) -> Voice:
        """Return a voice by name, from a voice file, or from a clip (computed once, then cached by content).

        Args:
            reference: A name; the path of a voice file or of a wav, flac, ogg or mp3 clip; the contents of such a
                clip or an open file of them; an `Audio`; or (samples, sample rate in hertz), as soundfile reads it.
        """
        return self._voices.find(reference)

    @raising_memory_full()
    def learn(self, clip: bytes, *, name: str, max_seconds: float) -> Voice:
        """Return a voice made from the bytes of an untrusted audio file; nothing is stored."""
        return self._voices.learn(clip, name=name, max_seconds=max_seconds)

    @property
    def converter(self) -> VoiceConverter:
        """The converter of recordings to its voices, also of recordings that still arrive (docs/conversion.md)."""
        return VoiceConverter(
            self._model, self._engine.profile, self._worker, self._voices, self._open_session
        )

    def convert(self, audio: Recording, *, voice: AnyVoice = None, seed: int | None = None) -> Audio:
        """Return a recording in another voice; its words and timing stay. See `VoiceConverter.convert`."""
        return self.converter.convert(audio, voice=voice, seed=seed)

    def close(self) -> None:
        """End all requests and the worker thread. Also done when the object is garbage-collected."""
        self._engine.close()

    def __reduce__(self) -> NoReturn:
        fix = "Open a TTS in each process; audio, voices and errors can be pickled."
        raise ConfigError("a TTS cannot be pickled", got="a loaded model and its thread", fix=fix)

    def __enter__(self) -> TTS:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @show_options
    def open(self, text: str, **request: Unpack[RequestOptions]) -> Session:
        """Queue a request and return its session. Invalid requests are refused here."""
        check_text(text)
        defaults = self._model.defaults
        profile = self._engine.profile
        session = self._open_session(request)
        segments = self._segmenter(request, session).segment(
            text,
            split_chars=defaults.split_chars,
            fill=defaults.fill_segments,
            short_first=profile.short_first_segment and not profile.in_blocks,
            max_chars=self._max_chars,
            closing_ms=defaults.closing_pause_ms,
        )
        session.timing.record("text", session.timing.opened_s)
        timed = session.timing.segmenting(segments)
        self._worker.submit(session, SegmentQueue(timed), chars=len(text))
        return session

    def _open_whole(self, text: str, request: RequestOptions) -> Session:
        session = self.open(text, **request)
        session.plays = False
        return session

    @show_options
    def session(self, **request: Unpack[RequestOptions]) -> LiveSession:
        """Open a request whose text still arrives."""
        session = self._open_session(request)
        segmenter = self._segmenter(request, session)
        segments = SegmentQueue()
        self._worker.submit(session, segments)
        split_chars = self._model.defaults.split_chars or DEFAULT_SPAN_CHARS
        return LiveSession(
            session,
            segments,
            text=IncrementalSegmenter(max_chars=split_chars, language=request.get("language")),
            segmenter=segmenter,
            split_chars=split_chars,
            max_chars=self._max_chars,
            wake=self._worker.wake,
            owner=self,
        )

    @show_options
    def check(self, **request: Unpack[RequestOptions]) -> None:
        """Raise the error that `session` would raise, without opening one."""
        self._engine.build_request(request)
        language = request.get("language")
        if language is not None and (language or len(self.languages) == 1):
            check_language(language, self.languages)

    def _open_session(self, request: RequestOptions) -> Session:
        return self._engine.open_session(request)  # a method, so that a converter keeps the engine open

    def _segmenter(self, request: RequestOptions, session: Session) -> RequestSegmenter:
        exact = self._engine.profile.name == "exact"
        return RequestSegmenter(self._model, self._voices, request, session, exact=exact)
