"""Segmentation of a request's text with warnings about what is not spoken, or errors where that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from nightingale.engine.lexicon_files import open_lexicon
from nightingale.engine.requests.controls import RequestOptions
from nightingale.engine.requests.segments import MAX_CHARS, TextSegment, check_length, segment_text
from nightingale.errors import EmptyText
from nightingale.text.code_blocks import replace_code_blocks
from nightingale.text.frontend import Frontend
from nightingale.text.normalized_text import NormalizedText
from nightingale.text.respelling import Lexicon
from nightingale.text.sound_tags import blank_tags
from nightingale.text.source_words import SourceWords
from nightingale.text.unspoken import check_strict, find_unspoken, unsupported_script
from nightingale.types import TextWarning


class TextCheck:
    """Segments the texts of one request and collects their warnings."""

    def __init__(
        self,
        frontend: Frontend,
        language: str | None,
        *,
        strict: bool = False,
        read_code: bool = False,
        lexicon: Lexicon | None = None,
        timestamps: bool = False,
        into: list[TextWarning],
    ) -> None:
        """Add warnings to the list `into`, each kind once; with `strict`, raise TextError instead.

        timestamps: Find the author's words of each segment.
        """
        self._timestamps = timestamps
        self.chars = 0
        """Characters of the texts before, from which positions of words count."""
        self._read_code, self._lexicon = read_code, lexicon or Lexicon()
        self._frontend, self._language, self._strict, self._warnings = frontend, language, strict, into

    @classmethod
    def of(cls, frontend: Frontend, request: RequestOptions, *, into: list[TextWarning]) -> TextCheck:
        """Return the check that a request's options ask for."""
        if not request.get("normalize", True):
            frontend = replace(frontend, spell_out=None, spell_numbers=None)
        return cls(
            frontend,
            request.get("language"),
            strict=request.get("strict", False),
            read_code=request.get("read_code", False),
            lexicon=open_lexicon(request.get("lexicon")),
            timestamps=request.get("timestamps", False),
            into=into,
        )

    def segment(
        self, text: str, *, place: Callable[[int], int] | None = None, **options: Any
    ) -> Iterator[TextSegment]:
        """Return the segments of a text. The options are those of `segment_text`.

        place: Returns where a position of this text is in that of the request, if it is a part of one.
        """
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
            spoken = blank_tags(replace_code_blocks(respelled, read=self._read_code))
        unspoken = find_unspoken(respelled, self._frontend, self._language, read_code=self._read_code)
        found = [replace(one, at=respelled.source_span(one.at, one.at + 1)[0]) for one in unspoken]
        chars = self.chars
        words = SourceWords(text, place=place or (lambda at: chars + at))
        options["on_normalized"] = words.add if self._timestamps else None
        try:
            segments = segment_text(self._frontend, spoken, self._language, **options)
        except EmptyText as error:
            cause = unsupported_script(respelled, self._frontend) if self._frontend.spell_out else None
            if cause is None:
                raise
            raise cause from error
        if self._strict:
            check_strict(found)
        known = {warning.what for warning in self._warnings}
        self._warnings += [warning for warning in found if warning.what not in known]
        if not self._timestamps:
            return segments
        if place is None:
            self.chars += len(text)
        return (
            replace(one, source=words.take(one.text, self._encoded(one.text))) if one.text_ids else one
            for one in segments
        )

    def _encoded(self, text: str) -> list[tuple[str, int]]:
        return self._frontend.tokenizer.encode_words(text, self._language)
