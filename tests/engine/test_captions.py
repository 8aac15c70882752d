"""Captions: cues that end with sentences and can be read, in the formats SubRip and WebVTT."""

from __future__ import annotations

import pytest

from nightingale.engine.captions import format_srt, format_webvtt, make_cues, spread_words, words_json
from nightingale.types import TimedWord

STORY = (
    "Dr. Brown paid $5.50 for a cup of coffee, which was more than she had expected, and sat down at the only "
    "table that was still free. Nobody else was there! She opened her book; then she closed it again. "
    "Was it https://www.example.com/a/very/long/address/that/does/not/fit/into/one/line that she wanted?"
)


def timed(text: str, chars_per_s: float = 15.0) -> list[TimedWord]:
    return spread_words(text, 0.0, len("".join(text.split())) / chars_per_s)


def test_cues_follow_the_rules_for_subtitles() -> None:
    words = timed(STORY)
    cues = make_cues(words)
    shown = " ".join(" ".join(cue.lines) for cue in cues)
    assert shown.replace(" ", "") == STORY.replace(" ", "")
    for cue, following in zip(cues, [*cues[1:], None], strict=True):
        assert len(cue.lines) <= 2
        assert all(len(line) <= 42 for line in cue.lines)
        text = " ".join(cue.lines).removeprefix("Dr. ")
        assert not any(mark in text[:-1] for mark in (". ", "! ", "? ")), "a cue ends with its sentence"
        assert cue.end_s > cue.start_s
        if following is not None:
            assert cue.end_s <= following.start_s
    assert [cue.lines[-1] for cue in cues if cue.lines[-1].endswith("!")] == ["Nobody else was there!"]


def test_a_cue_stays_until_it_can_be_read_or_the_next_one_begins() -> None:
    fast = [
        TimedWord(word="Sixteen", start_s=0.0, end_s=0.2, start_char=0, end_char=7),
        TimedWord(word="letters!", start_s=0.2, end_s=0.4, start_char=8, end_char=16),
    ]
    assert make_cues(fast)[0].end_s == pytest.approx(16 / 17)
    late = TimedWord(word="Next.", start_s=0.7, end_s=2.0, start_char=17, end_char=22)
    assert [cue.end_s for cue in make_cues([*fast, late])] == [pytest.approx(0.7), 2.0]


def test_captions_are_written_in_both_formats() -> None:
    words = [
        TimedWord(word="A<b", start_s=0.5, end_s=1.0, start_char=0, end_char=3),
        TimedWord(word="done.", start_s=3661.25, end_s=3662.0, start_char=4, end_char=9),
    ]
    assert format_srt(words) == "1\n00:00:00,500 --> 01:01:02,000\nA<b done.\n"
    assert format_webvtt(words) == "WEBVTT\n\n00:00:00.500 --> 01:01:02.000\nA&lt;b done.\n"
    assert format_srt([]) == ""
    assert format_webvtt([]) == "WEBVTT\n"
    assert words_json(words)[1] == {
        "word": "done.", "start": 3661.25, "end": 3662.0, "text_start": 4, "text_end": 9,
    }  # fmt: skip
