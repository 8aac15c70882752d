"""A text that knows which characters of its original each of its characters came from.

Every rule of normalization changes a text by `NormalizedText.sub` or `edit`, and so reports what it replaced. The
edits of all rules are kept, and followed back only for what is asked for: most texts are spoken without a question
about their words.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property

Match = re.Match[str]
Edit = tuple[int, int, str]
"""The start and the end of what is replaced, and the text that replaces it."""
Replacement = str | Callable[[Match], str]
"""A text, or a function of a match. One that returns `Filled` reports what each group of the match became."""

Part = tuple[str | int | tuple[int, int] | None, str]
"""A part of what replaces a match, after the group or the place that it stands for; None if it stands between them."""


class Filled(str):
    """A text that replaces a match, with an edit for each of its parts."""

    edits: list[Edit]


def fill_groups(match: Match, parts: Iterable[Part]) -> Filled:
    """Return a text that replaces a match: its parts, and an edit for each that stands for a group.

    If the groups are in another order than in the match, the text stands for the whole match.
    """
    written, edits, at, between, said = match.string, list[Edit](), match.start(), "", ""
    in_order = True
    for group, text in parts:
        said += text
        start, end = (-1, -1) if group is None else group if isinstance(group, tuple) else match.span(group)
        if start == end or not (
            text or isinstance(group, tuple)
        ):  # no group, an empty one, or one that did not match
            between += text
            continue
        in_order = in_order and start >= at
        if written[at:start] != between:
            edits += _between(match, at, start, between, edits)
        if written[start:end] != text:
            edits.append((start, end, text))
        at, between = end, ""
    if written[at : match.end()] != between:
        edits += _between(match, at, match.end(), between, edits)
    filled = Filled(said)
    filled.edits = edits if in_order else [(*match.span(), said)]
    return filled


def _between(match: Match, start: int, end: int, text: str, edits: list[Edit]) -> Iterator[Edit]:
    """Yield the edit of what is between two parts."""
    if text and match.string.endswith(text, start, end):  # "5th of May" keeps its "of"
        end, text = end - len(text), ""
    written = match.string[start:end]
    if text.strip() and start > match.start() and (rest := re.match(r"\S+(?=\s)", written)):
        yield (start, start + rest.end(), "")  # the full stop of "Jan. - Mar."
        start += rest.end()
    elif not text.strip() and edits and edits[-1][1] == start and re.search(r"\w", written):
        # What is left out belongs to the part before it: "19 h" is "dix-neuf heures".
        first, _, said = edits[-1]
        start += len(written.rstrip())
        edits[-1] = (first, start, said)
    yield (start, end, text)


class _Change:
    """The edits that made one text of another, for the way back."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self._edits = edits

    @cached_property
    def _rows(self) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Return where each edit begins in the changed text; where it ends there, and its place in the text before.

        White space at the ends of an edit came from nothing.
        """
        starts, rows, shift = list[int](), list[tuple[int, int, int]](), 0
        for start, end, text in self._edits:
            words, at = text.strip() or text, start + shift
            first = at + text.find(words)
            last = first + len(words)
            shift += len(text) - (end - start)
            starts += [at, first, last]
            rows += [(first, start, start), (last, start, end), (end + shift, end, end)]
        return starts, rows

    def span_before(self, start: int, end: int) -> tuple[int, int]:
        """Return what a part of the changed text was in the text before; an inserted text was nothing."""
        first, last, is_inside = self._character_before(start)
        if start < end:
            last = self._character_before(end - 1)[1]
        return first, last if start < end or is_inside else first

    def _character_before(self, at: int) -> tuple[int, int, bool]:
        """Return what a character was, and whether the position before it is inside an edit."""
        starts, rows = self._rows
        number = bisect_right(starts, at) - 1
        if number < 0:
            return at, at + 1, False
        stop, first, last = rows[number]
        if at < stop:
            return first, last, at > starts[number]
        return at - stop + last, at - stop + last + 1, False


class NormalizedText(str):
    """A string with its original. It is a value: every change returns a new one."""

    original: str
    _changes: tuple[_Change, ...]

    @classmethod
    def of(cls, text: str) -> NormalizedText:
        """Return the text itself if it is one already, and otherwise one that is its own original."""
        return text if isinstance(text, NormalizedText) else cls._made(text, text, ())

    @classmethod
    def _made(cls, text: str, original: str, changes: tuple[_Change, ...]) -> NormalizedText:
        made = cls(text)
        made.original, made._changes = original, changes
        return made

    def sub(self, pattern: re.Pattern[str], replacement: Replacement, start: int = 0) -> NormalizedText:
        """Return the text with every match of a pattern from `start` on replaced.

        A replacement that is equal to its match changes nothing.
        """
        matches = pattern.finditer(self, start)
        if isinstance(replacement, str):
            return self.edit([(*match.span(), replacement) for match in matches if match[0] != replacement])
        edits = list[Edit]()
        for match in matches:
            said = replacement(match)
            if type(said) is Filled:
                edits += said.edits
            elif said != match[0]:
                edits.append((*match.span(), said))
        return self.edit(edits)

    def replace_characters(self, table: Mapping[str, str]) -> NormalizedText:
        """Return the text with each character of a table replaced."""
        return self.sub(_any_character("".join(table)), lambda match: table[match[0]])

    def strip(self, chars: str | None = None) -> NormalizedText:
        """Return the text without what `str.strip` removes."""
        start = len(self) - len(self.lstrip(chars))
        return self.cut(start, max(start, len(self.rstrip(chars))))

    def cut(self, start: int, end: int) -> NormalizedText:
        """Return a part of the text."""
        return self.edit([edit for edit in ((0, start, ""), (end, len(self), "")) if edit[0] < edit[1]])

    def edit(self, edits: Sequence[Edit]) -> NormalizedText:
        """Return the text with these edits, which are in order and do not overlap."""
        if not edits:
            return self
        pieces, at = list[str](), 0
        for start, end, text in edits:
            pieces += (self[at:start], text)
            at = end
        pieces.append(self[at:])
        return self._made("".join(pieces), self.original, (*self._changes, _Change(edits)))

    def parts(self, at: int) -> list[Part]:
        """Return the words of the text with their places in another text, which has the original at a position."""
        parts, number, first, last = list[Part](), 0, 0, 0
        for word in re.finditer(r"\s+|\S+", self):
            start, end = self.source_span(*word.span())
            if start == end or word[0].isspace():
                parts.append((None, word[0]))
                continue
            said = word[0]
            if start < last:  # words that came from the same characters are one part
                start = first
                said = "".join(text for _, text in parts[number:]) + said
                del parts[number:]
            number, first, last = len(parts), start, max(last, end)
            parts.append(((at + first, at + last), said))
        return parts

    def source_span(self, start: int, end: int) -> tuple[int, int]:
        """Return which characters of the original a part of the text came from: their start and end.

        They are equal for a part that was inserted.
        """
        for change in reversed(self._changes):
            start, end = change.span_before(start, end)
        return start, end


@cache
def _any_character(characters: str) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(characters)}]")
