"""The share of everyday inputs that the English normalizer reads wrongly.

`tests/text/data/english_everyday.tsv` has one input a row: its kind, the text as written (`\\n` is a line
break), and the words that a reader would say, with ` || ` between readings that are equally right. The rows
were written before the rules that they test. Those of `english_heldout.tsv` were written after the rules and
measured once; no rule may be written for them. Run with `-s` to print the rates and the inputs that are wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from nightingale.text.english import normalize

DATA = Path(__file__).parent / "data"
MAX_WRONG_SHARE = 0.05


def read_rows(path: Path) -> list[tuple[str, str, list[str]]]:
    """Return kind, written text and accepted readings of each row."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return [(kind, written.replace("\\n", "\n"), said.split(" || ")) for kind, written, said in rows]


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation; an apostrophe is part of a word only inside."""
    return re.findall(r"[a-z]+(?:'[a-z]+)*", text.lower())


def wrong_rows(rows: list[tuple[str, str, list[str]]]) -> list[tuple[str, str, str]]:
    """Return kind, written text and result of each row that is read wrongly."""
    read = [(kind, written, normalize(written), said) for kind, written, said in rows]
    return [
        (kind, written, result)
        for kind, written, result, said in read
        if words_of(result) not in [words_of(reading) for reading in said]
    ]


@pytest.mark.parametrize(("name", "least"), [("english_everyday", 300), ("english_heldout", 100)])
def test_at_most_one_in_twenty_everyday_inputs_is_read_wrongly(name: str, least: int) -> None:
    rows = read_rows(DATA / f"{name}.tsv")
    wrong = wrong_rows(rows)
    print(f"\n{name}: {len(wrong)} of {len(rows)} inputs are wrong ({len(wrong) / len(rows):.1%})")
    print(", ".join(f"{kind} {count}" for kind, count in Counter(kind for kind, *_ in wrong).most_common()))
    for kind, written, result in wrong:
        print(f"  {kind}: {written!r} is read {result!r}")
    assert len(rows) >= least
    assert len(wrong) <= MAX_WRONG_SHARE * len(rows)
