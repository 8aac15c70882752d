"""Detection of what a front end leaves out of a text: other scripts, symbols, parts of links, tags and code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
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
MAX_PATH_CHARS: Final = 40
"""A longer path of a link is not read (`nightingale.text.english.web`)."""

_LETTERS: Final = re.compile(r"[^\W\d_\x00-\u024f\u1e00-\u1eff]+")
_SYMBOL: Final = re.compile(r"[^\w\s\x00-\x7f]")
_LINK: Final = re.compile(
    r"\b(?:https?|ftp)://[^\s/?#<>\"()]+(?P<path>/[^\s?#<>\"()]*)?(?P<query>[?#][^\s<>\"()]+)?"
)
_TAG: Final = re.compile(r"</?([a-zA-Z][a-zA-Z0-9:-]{0,30})(?:\s[^<>]{0,300})?/?>")


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
        found += [*_other_scripts(text, frontend.family), *_symbols(text, frontend), *_links(text)]
        found += [*_tags(text), *(() if read_code else _code(text))]
    return sorted(found, key=lambda warning: warning.at)


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


def _other_scripts(text: str, family: str) -> Iterator[TextWarning]:
    seen: set[str] = set()
    for run in _foreign_runs(text):
        script = _script(run[0])
        if script in seen:
            continue
        seen.add(script)
        code = SCRIPTS.get(script)
        other = f"; the model multilingual speaks {LANGUAGES[code]}" if code else ""
        what = f"{family} speaks English and leaves out {_label(script)}{other}"
        yield TextWarning(what=what, got=_shortened(run[0]), at=run.start())


def _foreign_runs(text: str) -> Iterator[re.Match[str]]:
    """Yield runs of letters that no normalization turns into Latin ones. Single Greek letters have names."""
    if text.isascii():
        return
    for run in _LETTERS.finditer(text):
        if normalize("NFKD", run[0])[0].isascii() or (len(run[0]) == 1 and _script(run[0]) == "GREEK"):
            continue
        if _script(run[0]) not in ("MODIFIER", "LATIN", "DOUBLE-STRUCK", "SCRIPT"):
            yield run


def _script(letters: str) -> str:
    return name(letters[0], "UNKNOWN").split()[0].split("-")[0]


def _label(script: str) -> str:
    return SCRIPT_LABELS.get(script, f"{script.capitalize()} letters")


def _symbols(text: str, frontend: Frontend) -> Iterator[TextWarning]:
    if text.isascii():
        return
    assert frontend.spell_out is not None  # the caller checked it
    at: dict[str, int] = {}
    for match in _SYMBOL.finditer(text):
        at.setdefault(match[0], match.start())
    # With a word after it, since a single mark is nothing to say. No more than the warning shows: each is spelled out.
    symbols = (symbol for symbol in at if _is_symbol(symbol) and frontend.spell_out(f"{symbol} a") == "a")
    lost = list(islice(symbols, MAX_SHOWN_CHARS))
    if lost:
        yield TextWarning(
            what="symbols without a spoken form are left out", got=_shortened(" ".join(lost)), at=at[lost[0]]
        )


def _is_symbol(character: str) -> bool:
    """Return whether a character may mean something; bullets, stars and trademarks are typography."""
    return category(character) in ("So", "Sm", "Sc") and character not in "▪◦•™®©→⇒★☆☐☑☒■□●○◆"


def _links(text: str) -> Iterator[TextWarning]:
    for link in _LINK.finditer(text) if "://" in text else ():
        path, query = link["path"] or "", (link["query"] or "").rstrip(".,;:!'")
        if len(path) > MAX_PATH_CHARS:
            yield TextWarning(
                what="a long path of a link is not read", got=_shortened(path), at=link.start("path")
            )
        if len(query) > 1:
            yield TextWarning(
                what="the query of a link is not read", got=_shortened(query), at=link.start("query")
            )


def _tags(text: str) -> Iterator[TextWarning]:
    names: dict[str, int] = {}
    for tag in _TAG.finditer(text) if "<" in text else ():
        names.setdefault(tag[1].lower(), tag.start())
    names = {tag: at for tag, at in names.items() if tag not in word_list("formatting_tags")}
    if names:
        shown = _shortened(" ".join(f"<{tag}>" for tag in names))
        yield TextWarning(what="unknown tags are left out", got=shown, at=min(names.values()))


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


def _code(text: str) -> Iterator[TextWarning]:
    for block in CODE_BLOCK.finditer(text) if has_fence(text) else ():
        yield TextWarning(
            what="a code block is not read", got=_shortened(block["code"].strip()), at=block.start()
        )


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
