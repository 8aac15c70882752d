"""SSML: a subset of the W3C's Speech Synthesis Markup Language, read into parts with a voice and a rate each.

Breaks become pause tags (`[pause:500ms]`), paragraphs become paragraph breaks, and what `say-as` and `sub` enclose is
rewritten. Tags that have no effect are named by warnings, and the text in them is spoken.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

from nightingale.errors import TextError
from nightingale.text.say_as import INTERPRETATIONS, read_as
from nightingale.text.stops import STOPS, WIDE_STOPS
from nightingale.types import TextWarning

MAX_SSML_CHARS: Final = 1_000_000
MAX_DEPTH: Final = 64
BREAK_MS: Final = {"none": 0, "x-weak": 100, "weak": 200, "medium": 400, "strong": 700, "x-strong": 1200}
"""The length of a break by its strength; SSML leaves it to the synthesizer."""
RATES: Final = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.25, "x-fast": 1.6}
SILENT_TAGS: Final = frozenset({"desc", "metadata", "meta", "lexicon"})
"""Tags whose text is not spoken."""
ATTRIBUTES: Final = {
    "speak": None, "p": None, "s": None, "break": {"time", "strength"}, "sub": {"alias"}, "voice": {"name"},
    "say-as": {"interpret-as", "format", "detail"}, "prosody": {"rate"},
}  # fmt: skip
"""The tags that have an effect, and their attributes; None: their attributes do not matter."""

SSML_END: Final = "</speak>"
_BEGINNING: Final = re.compile(
    r"\s*(?:<\?xml[^<>]{0,200}\?>\s*)?<(?:speak(?=[\s>/])|!DOCTYPE\s{1,100}speak\b)"
)
_TIME: Final = re.compile(r"\+?(\d{1,6}(?:\.\d{1,6})?|\.\d{1,6})(ms|s)")
_PERCENT: Final = re.compile(r"([+-]?)(\d{1,4}(?:\.\d{1,4})?)%")


@dataclass(slots=True)
class SsmlPart:
    """Text with one voice and one rate."""

    voice: str | None
    """The name of a voice; None is the request's."""
    rate: float
    """A factor of the speed."""
    last_character: str = ""
    """The last character of the text that is no space."""
    _texts: list[str] = field(default_factory=list)
    _sources: list[tuple[int, int]] = field(default_factory=list)
    """Positions in `text`, and where the text from there on comes from."""
    _length: int = 0

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add(self, text: str, at: int) -> None:
        self._sources.append((self._length, at))
        self._texts.append(text)
        self._length += len(text)
        self.last_character = text.rstrip()[-1:] or self.last_character

    def source_position(self, at: int) -> int:
        """Return the position in the SSML for a position in `text`."""
        start, source = self._sources[bisect_right(self._sources, (at, 1 << 62)) - 1]
        return source + at - start


def is_ssml(text: str) -> bool:
    """Return whether a text is SSML: it begins with `<speak`, perhaps after an XML declaration."""
    return _BEGINNING.match(text) is not None


def may_be_ssml(text: str) -> bool:
    """Return whether a text whose end is missing is SSML, or still may be."""
    begun = text.lstrip()
    return "<speak".startswith(begun[:6]) or begun.startswith("<?xml") or is_ssml(begun)


def end_of_ssml(text: str, start: int = 0) -> int | None:
    """Return where a document ends whose beginning is that of the text; None while its end is missing.

    start: A position that the end tag is not before.
    """
    end = text.find(SSML_END, start)
    return end + len(SSML_END) if end >= 0 else len(text) if len(text) > MAX_SSML_CHARS else None


def parse_ssml(text: str, language: str | None) -> tuple[list[SsmlPart], list[TextWarning]]:
    """Return the parts of an SSML document, and a warning for each kind of tag that has no effect.

    Raises:
        TextError: The document is malformed, too long, nested too deeply, or has a document type, whose entities
            could expand without bound; or a value in it is not valid.
    """
    if len(text) > MAX_SSML_CHARS:
        raise TextError(
            "the SSML is too long",
            got=f"{len(text)} characters",
            allowed=f"at most {MAX_SSML_CHARS}",
            fix="Split it into several documents.",
        )
    reader = _SsmlReader(text, language)
    reader.parse()
    return [part for part in reader.parts if part.text.strip()], reader.warnings()


class _SsmlReader:
    """Handles the events of the XML parser."""

    def __init__(self, text: str, language: str | None) -> None:
        self._data, self._language = text.strip().encode("utf-8", "replace"), language
        self.parts = [SsmlPart(voice=None, rate=1.0)]
        self._bytes, self._chars = 0, len(text) - len(text.lstrip())
        """The last position that was asked for, in bytes of the data and in characters of the text."""
        self._stack: list[tuple[str, dict[str, str], str | None, float]] = []
        """Open tags with their attributes, and the voice and rate around each."""
        self._voice: str | None = None
        self._rate = 1.0
        self._ignored: dict[str, dict[str, int]] = {}
        """The sentence of a warning -> what was found, and its first position."""
        self._captured: list[str] | None = None
        """The text in a tag that rewrites it, so far."""
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype

    def parse(self) -> None:
        try:
            self._parser.Parse(self._data, True)
        except expat.ExpatError as error:
            raise TextError(
                "the SSML is not well-formed",
                got=f"{expat.ErrorString(error.code)} in line {error.lineno}, column {error.offset + 1}",
                allowed="XML in one <speak> tag, with every tag closed",
                fix="Close each tag, and write & as &amp; and < as &lt; in text.",
            ) from error

    def warnings(self) -> list[TextWarning]:
        return [
            TextWarning(what=what, got=" ".join(found), at=min(found.values()))
            for what, found in self._ignored.items()
        ]

    @property
    def _at(self) -> int:
        """The position of the parser, in characters of the text. It only grows."""
        start, self._bytes = self._bytes, max(self._bytes, self._parser.CurrentByteIndex)
        self._chars += len(self._data[start : self._bytes].decode("utf-8", "ignore"))
        return self._chars

    def _refuse_doctype(self, name: str, *_: object) -> None:
        raise TextError(
            "SSML with a document type is refused",
            got=f"<!DOCTYPE {name[:20]}",
            allowed="SSML without <!DOCTYPE> and entities of its own",
            fix="Leave it out.",
        )

    def _warn(self, what: str, got: str) -> None:
        self._ignored.setdefault(what, {}).setdefault(got, self._at)

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if len(self._stack) >= MAX_DEPTH:
            allowed = f"at most {MAX_DEPTH} tags in each other"
            raise TextError("the SSML is nested too deeply", got=f"<{tag[:20]}>", allowed=allowed)
        self._stack.append((tag, attributes, self._voice, self._rate))
        if tag not in ATTRIBUTES:
            if tag not in SILENT_TAGS:
                self._warn("SSML tags without an effect are ignored", f"<{tag}>")
            return
        known = ATTRIBUTES[tag]
        for name in attributes:
            if known is not None and name not in known:
                self._warn("SSML attributes without an effect are ignored", f"<{tag} {name}>")
        if tag == "break":
            self._emit(_pause(attributes))
        elif tag == "p":
            self._emit("\n\n")
        elif tag == "prosody" and "rate" in attributes:
            self._change(self._voice, self._rate * _rate(attributes["rate"]))
        elif tag == "voice" and attributes.get("name", "").strip():
            self._change(attributes["name"].strip(), self._rate)
        elif tag in ("sub", "say-as") and self._captured is None:
            self._captured = []

    def _end(self, tag: str) -> None:
        _, attributes, voice, rate = self._stack.pop()
        if tag in ("sub", "say-as") and not any(name in ("sub", "say-as") for name, *_ in self._stack):
            captured, self._captured = "".join(self._captured or ()), None
            self._emit(self._rewritten(tag, attributes, captured))
        elif tag == "s" and self.parts[-1].last_character not in (*STOPS, *WIDE_STOPS, ""):
            self._emit(". ")
        elif tag == "p":
            self._emit("\n\n")
        if (voice, rate) != (self._voice, self._rate):
            self._change(voice, rate)

    def _characters(self, text: str) -> None:
        if any(name in SILENT_TAGS for name, *_ in self._stack):
            return
        # Line breaks of XML are spaces: paragraphs have a tag of their own.
        text = re.sub(r"\s+", " ", text)
        if self._captured is not None:
            self._captured.append(text)
        else:
            self._emit(text)

    def _rewritten(self, tag: str, attributes: dict[str, str], text: str) -> str:
        if tag == "sub":
            return attributes.get("alias", text)
        kind = attributes.get("interpret-as", "")
        said = read_as(kind, text.strip(), attributes.get("format", ""), self._language)
        if said is None:
            what = (
                "say-as cannot read some text as asked"
                if kind in INTERPRETATIONS
                else "say-as knows no such kind"
            )
            self._warn(what, f"{kind}: {text.strip()[:20]}")
        return text if said is None else said

    def _emit(self, text: str) -> None:
        if text and self._captured is None:
            self.parts[-1].add(text, self._at)

    def _change(self, voice: str | None, rate: float) -> None:
        self._voice, self._rate, last = voice, rate, self.parts[-1]
        if (voice, rate) != (last.voice, last.rate):
            self.parts.append(SsmlPart(voice=voice, rate=rate))


def _pause(attributes: dict[str, str]) -> str:
    """Return the pause tag of a break, which the segmentation checks."""
    time, strength = attributes.get("time"), attributes.get("strength", "medium")
    if time is not None:
        length = _TIME.fullmatch(time.strip())
        if length is None:
            raise _invalid("break time", time, "a time such as 500ms or 1.5s")
        return f"[pause:{float(length[1]):g}{length[2]}]"
    if strength not in BREAK_MS:
        raise _invalid("break strength", strength, ", ".join(BREAK_MS))
    return f"[pause:{BREAK_MS[strength]}ms]" if BREAK_MS[strength] else ""


def _rate(value: str) -> float:
    value = value.strip()
    if value in RATES:
        return RATES[value]
    percent = _PERCENT.fullmatch(value)
    if percent:
        change = float(percent[2]) / 100
        rate = change if not percent[1] else 1 + change if percent[1] == "+" else 1 - change
    else:
        rate = float(value) if re.fullmatch(r"\d{1,2}(?:\.\d{1,4})?", value) else 0.0
    if rate <= 0:
        raise _invalid(
            "prosody rate", value, f"{', '.join(RATES)}, a factor such as 0.8, or a percentage such as 80%"
        )
    return rate


def _invalid(what: str, got: str, allowed: str) -> TextError:
    return TextError(f"an SSML value is invalid: {what}", got=repr(got[:40]), allowed=allowed)
