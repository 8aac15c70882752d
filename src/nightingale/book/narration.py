"""Speaking of passages through the cache, one at a time.

One at a time, because only then does an engine give the same samples for the same seed in every profile: a book
that was interrupted then ends with the same bytes as one that was not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from nightingale.book.passages import Passage
from nightingale.book.sentence_cache import CachedSentence, SentenceCache, cache_key
from nightingale.engine import TTS
from nightingale.engine.lexicon_files import open_lexicon
from nightingale.errors import OutputError, TextError
from nightingale.voices.voice import Voice

DEFAULT_SEED: Final = 0
"""A fixed one: with another seed at each start, nothing spoken before could be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenPassage:
    """The result of speaking one passage."""

    key: str
    sentence: CachedSentence | None
    """None if it failed."""
    error: str = ""
    is_new: bool = False
    """True if it was spoken now, and not before."""


class Narrator:
    """An engine with the voices and settings of one book."""

    def __init__(
        self,
        tts: TTS,
        cache: SentenceCache,
        *,
        voice: Any = None,
        seed: int | None = None,
        settings: Mapping[str, Any] | None = None,
        **controls: Any,
    ) -> None:
        """Find the narrator's voice.

        Args:
            tts: The engine.
            cache: Where the audio of passages is kept.
            voice: The narrator's voice, as `TTS.say` takes it.
            seed: The seed of every passage; None is 0.
            settings: More that the audio depends on, such as the profile's name: a part of the cache's keys.
            controls: Other arguments of `TTS.say`.
        """
        self._tts, self._cache = tts, cache
        self._seed = DEFAULT_SEED if seed is None else seed
        self._controls = {name: value for name, value in controls.items() if value is not None}
        lexicon = open_lexicon(controls.get("lexicon"))
        known = {name: str(value) for name, value in self._controls.items() if name != "lexicon"}
        self._settings = {**(settings or {}), **known, "lexicon": [str(entry) for entry in lexicon.entries]}
        own = tts.default_voice if voice is None else tts.voice(voice)
        self._voices: dict[str | None, Voice] = {} if own is None else {None: own}
        tts.check(voice=self.voice(None), seed=self._seed, **self._controls)

    @property
    def rate_hz(self) -> int:
        return self._tts.sample_rate_hz

    def voice(self, name: str | None) -> Voice:
        """Return a voice by name; None is the narrator's. Raise VoiceNotFound if there is none."""
        if name not in self._voices:
            self._voices[name] = self._tts.voice(name or "default")
        return self._voices[name]

    def key(self, passage: Passage) -> str:
        """Return the cache's key of a passage."""
        return cache_key(
            text=passage.text,
            voice=self.voice(passage.voice).content_hash,
            seed=self._seed,
            settings=self._settings,
            model=[self._tts.name, self._tts.fingerprint],
        )

    def is_spoken(self, passage: Passage) -> bool:
        """Return whether the cache has a passage."""
        return self._cache.path(self.key(passage)).is_file()

    def read(self, key: str) -> CachedSentence:
        """Return a passage that was spoken before. Raise OutputError if its file has gone."""
        sentence = self._cache.get(key)
        if sentence is None:
            raise OutputError(
                "a spoken sentence has disappeared",
                got=str(self._cache.path(key)),
                fix="Start again; only what is missing is spoken.",
            )
        return sentence

    def speak(self, passage: Passage) -> SpokenPassage:
        """Return the audio of a passage from the cache, or speak it and add it to the cache.

        A text that cannot be spoken is a result, and other errors are raised.
        """
        key = self.key(passage)
        if (known := self._cache.get(key)) is not None:
            return SpokenPassage(key=key, sentence=known)
        voice = self.voice(passage.voice)
        try:
            audio = self._tts.say(passage.text, voice=voice, seed=self._seed, **self._controls)
        except TextError as error:
            return SpokenPassage(key=key, sentence=None, error=str(error), is_new=True)
        # The pause at the end of a request is exactly zero. The book has pauses of its own.
        samples = np.trim_zeros(audio.samples, "b")
        if not len(samples):
            return SpokenPassage(key=key, sentence=None, error="the model made no sound", is_new=True)
        warnings = tuple(map(str, audio.warnings))
        sentence = CachedSentence(samples=samples, retries=audio.metrics.retries, warnings=warnings)
        self._cache.put(key, sentence, audio.sample_rate_hz)
        # As it is read later, in 16 bits: whether it was spoken now or before makes no difference.
        return SpokenPassage(key=key, sentence=self.read(key), is_new=True)
