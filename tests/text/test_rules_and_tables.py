"""Rules of normalization, whose templates read groups by name, and the tables of words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nightingale import text as text_package
from nightingale.text.english import blocks, calendar, markup, symbols, technical, web
from nightingale.text.english.rule import Rule, any_of
from nightingale.text.normalized_text import NormalizedText
from nightingale.text.tables import word_list, word_map

FOLDER = Path(text_package.__file__).parent
FILES = [json.loads((FOLDER / name).read_text(encoding="utf-8")) for name in ("tables.json", "notation.json")]
SYMBOLS = """Jan. - Mar., Ctrl+C, C++, C#, a -> b, a<b, a > b, a*b, x^y, 6 / 3, y = x - 2, squared - 4, 5″, 3 − 2,
I <3 you, thanks <3, <b class="c">, [a](b), hyphen-
ated, https://a.org

A paragraph."""
TABLES = {name: table for file in FILES for name, table in file.items()}


@pytest.mark.parametrize(
    ("pattern", "template", "written", "read"),
    [
        (r"(\d+)%", "{1:number} percent", "12% of 3.5%", "twelve percent of 3.five percent"),
        (r"(\d+)th of (\w+)", "{1:ordinal} of {2:months}", "5th of Jan", "fifth of January"),
        (r"(\d+)th of (\w+)", "{1:ordinal} of {2:months}", "5th of it", "fifth of it"),
        (
            r"(?P<day>\d+)(?: (?P<year>\d{4}))?",
            "{day:ordinal}{year:, year}",
            "7 1905",
            "seventh, nineteen oh five",
        ),
        (r"(?P<day>\d+)(?: (?P<year>\d{4}))?", "{day:ordinal}{year:, year}", "7", "seventh"),
        (r"(\d)([A-Z])? ", "{1}{2: } ", "3B x 4 y", "3 B x 4 y"),
        (r"(\w+)", "the {0:cardinal}", "XIV", "the fourteen"),
        (r"-+", ", ", "a--b", "a, b"),
    ],
)
def test_a_template_reads_each_group_by_its_name(
    pattern: str, template: str, written: str, read: str
) -> None:
    assert Rule(pattern, template).apply(NormalizedText.of(written)) == read


EVERYDAY = (Path(__file__).parent / "data" / "english_everyday.tsv").read_text(encoding="utf-8")
RULES_WITH_NEEDS = [
    rule
    for module in (blocks, calendar, markup, symbols, technical, web)
    for rules in vars(module).values()
    if isinstance(rules, tuple)
    for rule in rules
    if isinstance(rule, Rule) and rule.needs
]


@pytest.mark.parametrize("rule", RULES_WITH_NEEDS, ids=lambda rule: rule.pattern)
def test_a_rule_matches_nothing_without_the_characters_it_needs(rule: Rule) -> None:
    text = EVERYDAY + SYMBOLS
    assert re.search(rule.pattern, text)
    assert not re.search(rule.pattern, re.sub(f"[{re.escape(rule.needs)}]", " ", text))


def test_the_longest_word_of_a_table_is_matched() -> None:
    assert re.match(any_of("months"), "Sept 5")[0] == "Sept"  # type: ignore[index]
    assert any_of(["a", "a.b"]) == r"a\.b|a"


def test_no_table_is_in_two_files() -> None:
    assert len(TABLES) == sum(map(len, FILES))


def test_every_table_is_read_somewhere() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.py"))
    named = re.findall(r"""["'{ :](\w+)["'}]""", source)
    assert len(TABLES) > 50
    assert set(TABLES) - set(named) == set()


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_words_without_repetition(name: str) -> None:
    assert set(TABLES[name]) <= {"about", "words"}
    words = word_list(name)
    assert words
    assert len(words) == len(set(words))
    if isinstance(TABLES[name]["words"], dict):
        assert word_map(name) == TABLES[name]["words"]
