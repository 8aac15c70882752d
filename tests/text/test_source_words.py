"""Tests of source words: every spoken word is assigned to the author's word that it comes from."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nightingale.text.english import read
from nightingale.text.multilingual import read as spell_numbers
from nightingale.text.normalized_text import NormalizedText
from nightingale.text.respelling import Lexicon, LexiconEntry
from nightingale.text.source_words import SourceWords, letters_of, read_spans, words_of_ids

MARKS = '.,;:!?"()'

# Author's text -> groups of spoken words; as many groups as author's words that are spoken.
ROWS = (
    ("It costs $5.50 today.", "It=it | costs=costs | $5.50=five dollars and fifty cents | today.=today"),
    ("Dr. Smith is in.", "Dr.=doctor | Smith=smith | is=is | in.=in"),
    ("Mr. and Mrs. Jones left.", "Mr.=mister | and=and | Mrs.=missus | Jones=jones | left.=left"),
    (
        "He lives at 221 Baker St. in London.",
        "He=he | lives=lives | at=at | 221=two twenty-one | Baker=baker | St.=street | in=in | London.=london",
    ),
    (
        "We met on May 5, 2024 in Rome.",
        "We=we | met=met | on=on | May=may | 5,=fifth | 2024=twenty twenty-four | in=in | Rome.=rome",
    ),
    (
        "Meet me at 3:30 p.m. sharp.",
        "Meet=meet | me=me | at=at | 3:30=three thirty | p.m.=p m | sharp.=sharp",
    ),
    (
        "About 50% of 1,234 people.",
        "About=about | 50%=fifty percent | of=of | 1,234=one thousand two hundred thirty-four | people.=people",
    ),
    ("It is -5°C outside.", "It=it | is=is | -5°C=minus five degrees celsius | outside.=outside"),
    ("Run 10 km in 45 min.", "Run=run | 10=ten | km=kilometers | in=in | 45=forty-five | min.=minutes"),
    ("The USA and NASA agree.", "The=the | USA=u s a | and=and | NASA=nasa | agree.=agree"),
    (
        "They raised $5 million last year.",
        "They=they | raised=raised | $5=five | million=million dollars | last=last | year.=year",
    ),
    ("He earns ₹8 lakh.", "He=he | earns=earns | ₹8=eight | lakh.=lakh rupees"),
    ("Use e.g. this one.", "Use=use | e.g.=for example | this=this | one.=one"),
    ("Cats & dogs, i.e. pets.", "Cats=cats | &=and | dogs,=dogs | i.e.=that is | pets.=pets"),
    (
        "The **bold** word and *italic* too.",
        "The=the | bold=bold | word=word | and=and | italic=italic | too.=too",
    ),
    (
        "Read [the docs](https://example.com/a) now.",
        "Read=read | [the=the | docs](https://example.com/a)=docs | now.=now",
    ),
    ("Visit example.com today.", "Visit=visit | example.com=example dot com | today.=today"),
    ("Mail bob@example.org soon.", "Mail=mail | bob@example.org=bob at example dot org | soon.=soon"),
    ("Chapter IV begins.", "Chapter=chapter | IV=four | begins.=begins"),
    ("Call 555-0123 now.", "Call=call | 555-0123=five five five zero one two three | now.=now"),
    ("The 21st of June.", "The=the | 21st=twenty-first | of=of | June.=june"),
    ("In the 1990s it grew.", "In=in | the=the | 1990s=nineteen nineties | it=it | grew.=grew"),
    ("Version 3.0.1 is out.", "Version=version | 3.0.1=three point zero point one | is=is | out.=out"),
    ("A 1/2 cup of milk.", "A=a | 1/2=one half | cup=cup | of=of | milk.=milk"),
    ("It was 9-5 work.", "It=it | was=was | 9-5=nine to five | work.=work"),
    ("Pages 10–12 matter.", "Pages=pages | 10–12=ten to twelve | matter.=matter"),
    ("Wait—what?", "Wait—=wait | what?=what"),
    ("Well -- maybe.", "Well=well | maybe.=maybe"),
    ('She said, "Go home!"', 'She=she | said,=said | "Go=go | home!"=home'),
    ("It's the well-known one.", "It's=it's | the=the | well-known=well-known | one.=one"),
    ("The C++ and C# code.", "The=the | C++=c plus plus | and=and | C#=c sharp | code.=code"),
    ("#1 in sales", "#1=number one | in=in | sales=sales"),
    ("x = 5 + 3", "x=x | ==equals | 5=five | +=plus | 3=three"),
    ("King Henry VIII ruled.", "King=king | Henry=henry | VIII=the eighth | ruled.=ruled"),
    ("Weigh 5 lbs. of it.", "Weigh=weigh | 5=five | lbs.=pounds | of=of | it.=it"),
    ("The U.S. Senate met.", "The=the | U.S.=u s | Senate=senate | met.=met"),
    ("Add 2 tbsp. sugar.", "Add=add | 2=two | tbsp.=tablespoons | sugar.=sugar"),
    (
        "From 9 a.m. to 5 p.m. daily",
        "From=from | 9=nine | a.m.=a m | to=to | 5=five | p.m.=p m | daily=daily",
    ),
    ("Prof. Lee vs. Dr. Kim", "Prof.=professor | Lee=lee | vs.=versus | Dr.=doctor | Kim=kim"),
    ("It rose 3.5%!", "It=it | rose=rose | 3.5%!=three point five percent"),
    ("Really? Yes. No!", "Really?=really | Yes.=yes | No!=no"),
    ("(see page 12)", "(see=see | page=page | 12)=twelve"),
    ("Ich habe 3 Äpfel", "Ich=ich | habe=habe | 3=three | Äpfel=apfel"),
    ("The <b>first</b> item", "The=the | <b>first</b>=first | item=item"),
    (
        "On 12/25/2023 we ate.",
        "On=on | 12/25/2023=december twenty-fifth twenty twenty-three | we=we | ate.=ate",
    ),
)


def sources_of(author: str, spoken: NormalizedText, **options: Any) -> SourceWords:
    sources = SourceWords(author, **options)
    sources.add(spoken)
    return sources


def assigned(text: str) -> str:
    spans = read_spans(read(text))
    assert all(text[span.written.start : span.written.end] == span.written.text for span in spans)
    return " | ".join(
        f"{span.written.text}={' '.join(word.strip(MARKS) for word in span.spoken.lower().split())}"
        for span in spans
        if span.spoken
    )


def test_spoken_words_belong_to_the_authors_words() -> None:
    wrong = [
        f"{text}\n  is  {assigned(text)}\n  not {right}" for text, right in ROWS if assigned(text) != right
    ]
    assert not wrong, "\n".join(wrong)


LEFT_OUT = (
    ("Hello 你好.", "你好."),
    ("Good 🙂 morning.", "🙂"),
    ("As known.[12] Yes.", ""),  # written without a space before it, it is a part of the word
    ("As known [12, 13]. Yes.", "[12, | 13]."),
    ("One.\n\n```\nsome code\n```\n\nTwo.", "some | code"),
    ("- one\n- two", "- | -"),
    ("A <!-- hidden words--> word.", "<!-- | hidden | words-- | >"),
    ("All of it.", ""),
)


@pytest.mark.parametrize(("text", "left_out"), LEFT_OUT)
def test_what_no_rule_reads_is_left_out(text: str, left_out: str) -> None:
    spans = read_spans(read(text))
    assert " | ".join(span.written.text for span in spans if not span.spoken) == left_out
    assert " ".join(span.spoken for span in spans if span.spoken) == read(text)


def test_words_of_segments_continue_where_the_segment_before_ended() -> None:
    text = "He paid $5. She paid $6.\n\n```\nsome code of five words\n```\n\nThey paid $7."
    source = sources_of(text, read(text), place=lambda at: at + 100)
    segments = ("He paid five dollars.", "She paid six dollars.", "They paid seven dollars.")
    found = [source.take_words(segment) for segment in segments]
    assert [[word.text for word in words] for words in found] == [
        ["He", "paid", "$5.", "$5."],
        ["She", "paid", "$6.", "$6."],
        ["They", "paid", "$7.", "$7."],
    ]
    assert found[0][0][1:] == (100, 102)


def test_text_that_is_not_spoken_is_skipped_however_long_it_is() -> None:
    text = f"He paid $5. <!-- {'a comment of some length ' * 79} --> She paid $6 for it. Then they left."
    source = sources_of(text, read(text))
    spoken = ("He paid five dollars.", "She paid six dollars for it.", "Then they left.")
    found = [[word.text for word in source.take_words(segment)] for segment in spoken]
    assert found[1:] == [["She", "paid", "$6", "$6", "for", "it."], ["Then", "they", "left."]]


def test_a_respelled_word_is_the_one_that_was_written() -> None:
    lexicon = Lexicon([LexiconEntry(written="Nguyen", said="win 5", match_case=False)])
    text = "Ask Nguyen now."
    respelled = NormalizedText.of(text).edit([change.edit for change in lexicon.changes(text)])
    source = sources_of(text, read(respelled))
    words = source.take_words("Ask win five now.")
    assert [word.text for word in words] == ["Ask", "Nguyen", "Nguyen", "now."]


def test_text_without_a_normalizer_is_assigned_by_its_spaces() -> None:
    text = "Ça va, très bien – merci !"
    words = sources_of(text, NormalizedText.of(text)).take_words(text)
    assert [word.text for word in words] == ["Ça", "va,", "très", "bien", "–", "merci", "!"]


def test_a_text_without_spaces_is_divided_between_its_segments() -> None:
    text = "彼は1929年に生まれた。今日も元気です。"
    spoken = spell_numbers(text, "ja")
    source = sources_of(text, spoken)
    sentences = [f"{sentence}。" for sentence in spoken.split("。") if sentence]
    found = [[word.text for word in source.take_words(sentence)] for sentence in sentences]
    assert found == [["彼は1929年に生まれた。"], ["今日も元気です。"]]


def test_numbers_of_other_languages_belong_to_the_authors_words() -> None:
    rows = (
        (
            "de",
            "Das kostet 5,50 € und 20 % mehr.",
            ["Das", "kostet", *["5,50 €"] * 5, "und", "20", "%", "mehr."],
        ),
        ("de", "Um 14:30 Uhr, am 3. Mai.", ["Um", *["14:30 Uhr,"] * 3, "am", "3.", "Mai."]),
        (
            "fr",
            "Il est né le 3 mai à 15 h 30.",
            ["Il", "est", "né", "le", "3", "mai", "à", "15 h", "15 h", "30."],
        ),
        ("fr", "Soit 1 234 km.", ["Soit", *["1 234"] * 4, "km."]),
        ("pl", "Spotkanie o 14:30, dr Nowak.", ["Spotkanie", "o", "14:30,", "14:30,", "dr", "Nowak."]),
    )
    for language, text, words in rows:
        spoken = spell_numbers(text, language)
        found = sources_of(text, spoken).take_words(spoken)
        assert [word.text for word in found] == words


def test_text_ids_are_assigned_to_spoken_words_by_letters() -> None:
    assert words_of_ids("wait...what now", [("Wait,", 2), ("what", 2), ("now.", 3)]) == [0, 0, 0, 0, 1, 1, 1]
    assert words_of_ids("one", [("One.", 3)]) == [0, 0, 0]
    assert words_of_ids("a b", [("[en]a", 1), ("b", 2)]) == [0, 1, 1]


def test_words_of_everyday_texts_are_found_in_order() -> None:
    """Citations and code are not spoken, so a few texts have words that no spoken word comes from."""
    data = Path(__file__).parent / "data"
    names = ("english_everyday.tsv", "english_heldout.tsv")
    lines = [line for name in names for line in (data / name).read_text(encoding="utf-8").splitlines()]
    texts = [line.split("\t")[1].replace("\\n", "\n") for line in lines]
    incomplete = 0
    for text in texts:
        spoken = read(text)
        words = sources_of(text, spoken).take_words(spoken)
        assert len(words) == len(spoken.split())
        assert all(one.start <= other.start for one, other in pairwise(words))
        written = "".join(text[word.start : word.end] for word in dict.fromkeys(words))
        incomplete += len(letters_of(written)) < len(letters_of(text))
    assert incomplete <= 0.04 * len(texts)
