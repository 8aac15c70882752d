"""Detection of what a front end leaves out of a text: other scripts, symbols, parts of links, tags and code.

Warnings are known before the first segment is spoken, and a book takes too long to normalize for that. So patterns
find what may be left out, and the normalizer tells by its spans whether it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final
from unicodedata import category, name, normalize

from nightingale.errors import TextError, UnsupportedLanguage
from nightingale.text.code_blocks import CODE_BLOCK, has_fence
from nightingale.text.frontend import Frontend
from nightingale.text.language_steps import STEPS
from nightingale.text.languages import LANGUAGES
from nightingale.text.sound_tags import SOUND_TAG, SOUND_TAGS, blank_tags
from nightingale.text.tables import word_list
from nightingale.types import TextWarning

SCRIPTS: Final = {
    "CJK": "zh", "HIRAGANA": "ja", "KATAKANA": "ja", "HANGUL": "ko", "CYRILLIC": "ru", "ARABIC": "ar",
    "HEBREW": "he", "DEVANAGARI": "hi", "GREEK": "el",
}  # fmt: skip
"""The first word of a letter's Unicode name -> a language that is written so."""
SCRIPT_LABELS: Final = {"CJK": "Chinese characters", "HIRAGANA": "kana", "KATAKANA": "kana"}
"""Names of scripts that are not their Unicode name and "letters"."""
MAX_SHOWN_CHARS: Final = 24
MAX_CHECKED: Final = 400
"""Things of a text that are normalized to find out whether they are left out: it takes 0.2 ms each."""
_NEAR_CHARS: Final = 24
"""Characters before and after such a thing that are normalized with it."""

_LETTER: Final = re.compile(r"[^\W_]")
_LETTERS: Final = re.compile(r"[^\W\d_\x00-\u024f\u1e00-\u1eff]+")
_SYMBOL: Final = re.compile(r"[^\w\s\x00-\x7f]")
_LINK: Final = re.compile(
    r"\b(?:https?|ftp)://[^\s/?#<>\"()]+(?P<path>/[^\s?#<>\"()]*)?(?P<query>[?#][^\s<>\"()]+)?"
)
_TAG: Final = re.compile(r"</?([a-zA-Z][a-zA-Z0-9:-]{0,30})(?:\s[^<>]{0,300})?/?>")
_SYMBOLS, _TAGS = "symbols without a spoken form are left out", "unknown tags are left out"

_Candidate = tuple[str, str, int, Callable[[], bool]]
"""The sentence of a warning, what may be left out, its place, and whether it is left out."""


def find_unspoken(
    text: str, frontend: Frontend, language: str | None, *, read_code: bool = False
) -> list[TextWarning]:
    """Return a warning for each kind of text that this front end leaves out, in the order of the text.

    Things of one kind (letters of one script, symbols, tags) make one warning, at the first of them.
    """
    found = [*_sound_tags(text, frontend)]
    if frontend.spell_out is None:
        found += _unknown_characters(blank_tags(text), frontend, language)
    else:
        lost, checked = dict[str, dict[str, int]](), set[tuple[str, str]]()
        for what, got, at, is_left_out in _candidates(text, frontend, read_code):
            # All symbols and tags are shown, and the first thing of other kinds.
            is_known = (what, got) in checked or (what in lost and what not in (_SYMBOLS, _TAGS))
            if not is_known and len(checked) < MAX_CHECKED:
                checked.add((what, got))
                if is_left_out():
                    lost.setdefault(what, {})[got] = at
        for what, things in lost.items():
            shown = " ".join(things) if what in (_SYMBOLS, _TAGS) else next(iter(things))
            found.append(TextWarning(what=what, got=_shortened(shown), at=min(things.values())))
    return sorted(found, key=lambda warning: warning.at)


def _candidates(text: str, frontend: Frontend, read_code: bool) -> Iterator[_Candidate]:
    """Yield what may be left out of a text."""
    for run in _foreign_runs(text):
        script = _script(run[0])
        code = SCRIPTS.get(script)
        other = f"; the model multilingual speaks {LANGUAGES[code]}" if code else ""
        what = f"{frontend.family} speaks English and leaves out {_label(script)}{other}"
        yield what, run[0], run.start(), lambda: True
    for symbol in () if text.isascii() else _SYMBOL.finditer(text):
        # Bullets, stars and trademarks are typography.
        if category(symbol[0]) in ("So", "Sm", "Sc") and symbol[0] not in "▪◦•™®©→⇒★☆☐☑☒■□●○◆":
            # With a word after it, since a single mark is nothing to say.
            yield _SYMBOLS, symbol[0], symbol.start(), partial(_is_left_out, frontend, f"{symbol[0]} a", 0, 1)
    for link in _LINK.finditer(text) if "://" in text else ():
        for part, what in (
            ("path", "a long path of a link is not read"),
            ("query", "the query of a link is not read"),
        ):
            written = (link[part] or "").rstrip(".,;:!'")
            if len(written) > 1:
                start = link.start(part) - link.start()
                is_left_out = partial(_is_left_out, frontend, link[0], start, start + len(written))
                yield what, written, link.start(part), is_left_out
    for tag in _TAG.finditer(text) if "<" in text else ():
        if tag[1].lower() not in word_list("formatting_tags"):
            start = max(0, tag.start() - _NEAR_CHARS)
            near = text[start : tag.end() + _NEAR_CHARS]
            is_left_out = partial(_is_left_out, frontend, near, tag.start() - start, tag.end() - start)
            yield _TAGS, f"<{tag[1].lower()}>", tag.start(), is_left_out
    for block in CODE_BLOCK.finditer(text) if has_fence(text) and not read_code else ():
        yield "a code block is not read", block["code"].strip(), block.start(), lambda: True


def _is_left_out(frontend: Frontend, text: str, start: int, end: int) -> bool:
    """Return whether no spoken letter comes from a part of a text."""
    spoken = frontend.spell(text, None)
    spans = (spoken.source_span(*letter.span()) for letter in _LETTER.finditer(spoken))
    return not any(first < end and last > start for first, last in spans)


def check_strict(warnings: Iterable[TextWarning]) -> None:
    """Raise TextError if there is a warning."""
    for warning in warnings:
        raise TextError(
            "a part of the text would not be spoken",
            got=str(warning),
            allowed="with strict, text that is spoken whole",
            fix="Change the text, or leave out strict.",
            param="strict",
        )


def unsupported_script(text: str, frontend: Frontend) -> UnsupportedLanguage | None:
    """Return the error for a text of which nothing can be spoken because of its script; None if it has none."""
    run = next(_foreign_runs(text), None)
    if run is None:
        return None
    code = SCRIPTS.get(_script(run[0]))
    fix = f"Use the model that speaks {LANGUAGES[code]}: -m multilingual -l {code}." if code else None
    return UnsupportedLanguage(
        f"{frontend.family} speaks English, and this text has no English word",
        got=f"{_shortened(text)} ({_label(_script(run[0]))})",
        allowed="English text",
        fix=fix,
    )


def _foreign_runs(text: str) -> Iterator[re.Match[str]]:
    """Yield runs of letters that no normalization turns into Latin ones. Single Greek letters have names."""
    for run in () if text.isascii() else _LETTERS.finditer(text):
        script = _script(run[0])
        is_read = normalize("NFKD", run[0])[0].isascii() or (len(run[0]) == 1 and script == "GREEK")
        if not is_read and script not in ("MODIFIER", "LATIN", "DOUBLE-STRUCK", "SCRIPT"):
            yield run


def _script(letters: str) -> str:
    return name(letters[0], "UNKNOWN").split()[0].split("-")[0]


def _label(script: str) -> str:
    return SCRIPT_LABELS.get(script, f"{script.capitalize()} letters")


def _sound_tags(text: str, frontend: Frontend) -> Iterator[TextWarning]:
    """Yield a warning about tags such as [laugh] that the model does not know."""
    tags: dict[str, int] = {}
    for tag in SOUND_TAG.finditer(text) if "[" in text else ():
        tags.setdefault(tag[0], tag.start())
    unknown = [tag for tag in tags if tag not in frontend.tags]
    if unknown:
        does = "leaves them out" if frontend.spell_out else "reads them as text"
        what = f"{frontend.family} does not know these tags and {does}; the models turbo and nano know {SOUND_TAGS[0]}"
        yield TextWarning(what=what, got=_shortened(" ".join(unknown)), at=tags[unknown[0]])


def _unknown_characters(text: str, frontend: Frontend, language: str | None) -> list[TextWarning]:
    """Return a warning about characters that the vocabulary lacks; the steps of a language spell others."""
    if frontend.lacks is None or language in STEPS:
        return []
    lost = [
        character
        for character in dict.fromkeys(text)
        if character.isprintable() and frontend.lacks(character)
    ]
    if lost and frontend.spell_numbers is not None:  # such as %, which is spoken as a word
        spelled = frontend.spell(text, language)
        lost = [character for character in lost if character in spelled]
    if not lost:
        return []
    what = "the model has no sound for some characters"
    return [TextWarning(what=what, got=_shortened(" ".join(lost)), at=text.index(lost[0]))]


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_SHOWN_CHARS else line[: MAX_SHOWN_CHARS - 1] + "…"
