"""From the texts of a request to its segments: plain text, or SSML in parts with their own voice and speed.

What is not spoken becomes a warning, or an error where that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Unpack

from nightingale.engine.faults import raising_engine_faults
from nightingale.engine.lexicon_files import open_lexicon
from nightingale.engine.load import Model
from nightingale.engine.requests.controls import RequestOptions
from nightingale.engine.requests.segments import (
    MAX_CHARS,
    SegmentOptions,
    TextSegment,
    check_length,
    segment_text,
)
from nightingale.engine.session import Session
from nightingale.engine.voice_lookup import VoiceResolver
from nightingale.errors import EmptyText, TextError
from nightingale.request_options import MAX_SPEED, MIN_SPEED
from nightingale.text.code_blocks import replace_code_blocks
from nightingale.text.normalized_text import NormalizedText
from nightingale.text.punctuation import empty_text
from nightingale.text.sound_tags import blank_tags
from nightingale.text.source_words import SourceWords
from nightingale.text.ssml import SsmlPart, is_ssml, parse_ssml
from nightingale.text.unspoken import check_strict, find_unspoken, unsupported_script
from nightingale.types import TextWarning
from nightingale.voices.blend import blend, is_blend, parse_blend
from nightingale.voices.voice import Voice


class RequestSegmenter:
    """Segments the texts of one request and adds the warnings to its session, each kind once."""

    def __init__(
        self, model: Model, voices: VoiceResolver, request: RequestOptions, session: Session, *, exact: bool
    ) -> None:
        """exact: Leave numbers to a model that upstream gives them in digits, unless the request says otherwise."""
        frontend = model.frontend
        if not request.get("normalize", True):
            frontend = replace(frontend, spell_out=None, spell_numbers=None)
        elif exact and "normalize" not in request:
            frontend = replace(frontend, spell_numbers=None)
        self._frontend = frontend
        self._max_ids = model.defaults.max_text_ids
        self._voices = voices
        self._request = request
        self._language = request.get("language")
        self._reads_code = request.get("read_code", False)
        self._lexicon = open_lexicon(request.get("lexicon"))
        self._session = session
        self._chars = 0
        """Characters of the texts before, from which positions of words count."""

    @raising_engine_faults()
    def segment(self, text: str, **options: Unpack[SegmentOptions]) -> Iterator[TextSegment]:
        """Return the segments of a text. A mistake in it is found by this call."""
        options = {"max_ids": self._max_ids, "speed": self._session.request.speed, **options}
        if is_ssml(text):
            return self._segment_ssml(text, options)
        return self._segment_plain(text, options)

    def _segment_ssml(self, text: str, options: SegmentOptions) -> Iterator[TextSegment]:
        check_length(len(text), options.get("max_chars", MAX_CHARS))
        parts, warnings = parse_ssml(text, self._language)
        self._warn(warnings)
        before: SegmentOptions = {**options, "continues": True}
        found = [self._segment_part(part, before) for part in parts[:-1]]
        found += [self._segment_part(part, options) for part in parts[-1:]]
        everything = chain.from_iterable(found)
        first = list(islice(everything, 1))
        if not first and not options.get("continues"):
            raise empty_text("".join(part.text for part in parts))
        self._chars += len(text)
        return chain(first, everything)

    def _segment_part(self, part: SsmlPart, options: SegmentOptions) -> Iterator[TextSegment]:
        """Return the segments of a part of SSML, with its voice and its speed."""
        voice = None if part.voice is None else self._voice_named(part.voice)
        speed = None
        if part.rate != 1:
            speed = _checked_speed(self._session.request.speed * part.rate)
            options = {**options, "speed": speed}
        segments = self._segment_plain(part.text, options, part)
        return (replace(segment, voice=voice, speed=speed) for segment in segments)

    def _voice_named(self, name: str) -> Voice:
        """Return the voice or blend that SSML names."""
        given = self._request.get("ssml_voices") or {}
        if is_blend(name):
            return blend([(self._voice_named(part), weight) for part, weight in parse_blend(name)])
        if name.lower() in given:
            return self._voices.resolve(given[name.lower()])
        return self._voices.named(name)

    def _segment_plain(
        self, text: str, options: SegmentOptions, part: SsmlPart | None = None
    ) -> Iterator[TextSegment]:
        """Return the segments of a text. part: the part of SSML that it is."""
        changes = self._lexicon.changes(text)
        if changes:
            # Before it is built: a respelling may be much longer than its word.
            chars = len(text) + sum(len(change.said) - len(change.written) for change in changes)
            limit = options.get("max_chars", MAX_CHARS)
            check_length(chars, limit, cause=" with the respellings of the lexicon")
        respelled = NormalizedText.of(text).edit([change.edit for change in changes])
        # Before the text is split into paragraphs, of which a code block may have several.
        spoken = respelled
        if self._frontend.spell_out:
            spoken = blank_tags(replace_code_blocks(respelled, read=self._reads_code))
        unspoken = find_unspoken(respelled, self._frontend, self._language, read_code=self._reads_code)
        words = SourceWords(text, place=partial(_position, self._chars, part))
        timestamps = self._request.get("timestamps", False)
        options = {**options, "on_normalized": words.add if timestamps else None}
        try:
            segments = segment_text(self._frontend, spoken, self._language, **options)
        except EmptyText as error:
            cause = unsupported_script(respelled, self._frontend) if self._frontend.spell_out else None
            if cause is None:
                raise
            raise cause from error
        self._warn([replace(one, at=respelled.source_span(one.at, one.at + 1)[0]) for one in unspoken], part)
        if not timestamps:
            return segments
        if part is None:
            self._chars += len(text)
        return (
            replace(one, source=words.take(one.text, self._encoded(one.text))) if one.text_ids else one
            for one in segments
        )

    def _encoded(self, text: str) -> list[tuple[str, int]]:
        return self._frontend.tokenizer.encode_words(text, self._language)

    def _warn(self, found: list[TextWarning], part: SsmlPart | None = None) -> None:
        """Add warnings of a text, or raise TextError if the request is strict."""
        if self._request.get("strict", False):
            check_strict(found)
        known = {warning.what for warning in self._session.warnings}
        for warning in found:
            if warning.what not in known:
                at = warning.at if part is None else part.source_position(warning.at)
                self._session.warnings.append(replace(warning, at=at))


def _position(chars: int, part: SsmlPart | None, at: int) -> int:
    """Return a position in the texts of a request. chars: those before this text, of which `at` is a position."""
    return chars + (at if part is None else part.source_position(at))


def _checked_speed(speed: float) -> float:
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise TextError(
            "the prosody rate of the SSML is out of range",
            got=f"a speed of {speed:g}",
            allowed=f"{MIN_SPEED:g} to {MAX_SPEED:g}",
        )
    return speed
