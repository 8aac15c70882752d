"""SSML in Python and on the command line: pauses, rewritten text, rates and voices, warnings, and hostile documents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cpu_time import cpu_seconds
from typer.testing import CliRunner

from nightingale import TTS
from nightingale.cli.commands import app
from nightingale.engine import load
from nightingale.engine.noise_model import noise_voice
from nightingale.errors import ConfigError, TextError, VoiceError, VoiceNotFound
from nightingale.text.ssml import parse_ssml
from nightingale.types import SegmentStart
from nightingale.voices import library
from nightingale.voices.voice import Voice


@pytest.fixture(autouse=True)
def _other_voice() -> None:
    """Add the voice "other" to the library."""
    own = noise_voice()
    arrays = {
        name: getattr(own, name) for name in ("speaker", "prompt_ids", "flow_prompt_ids", "flow_prompt_mel")
    }
    other = Voice.checked(
        name="other", family="wren", flow_speaker=own.flow_speaker * 3, provenance="x", **arrays
    )
    library.add("other", other)


def segments(tts: TTS, text: str, **request: object) -> list[SegmentStart]:
    with closing(tts.stream(text, seed=1, **request)) as stream:  # type: ignore[arg-type]
        return [chunk.begins for chunk in stream if chunk.begins]


def said(tts: TTS, body: str, **request: object) -> str:
    return " ".join(one.text for one in segments(tts, f"<speak>{body}</speak>", **request)).strip()


def test_text_in_tags_is_spoken_as_they_ask(english: TTS) -> None:
    for body, words in {
        "Plain text &amp; more.": "Plain text and more.",
        '<sub alias="World Wide Web">W W W</sub> it is.': "World Wide Web it is.",
        '<say-as interpret-as="characters">nasa</say-as>': "N A S A",
        '<say-as interpret-as="spell-out">b4</say-as>': "B four",
        'Code <say-as interpret-as="digits">1984</say-as>.': "Code one nine eight four.",
        '<say-as interpret-as="telephone">+1 555-0100</say-as>': "plus one, five five five, zero one zero zero",
        '<say-as interpret-as="date" format="dmy">4.3.2024</say-as>': "March fourth, twenty twenty-four",
        '<say-as interpret-as="date">12/31/99</say-as>': "December thirty-first, nineteen ninety-nine",
        '<say-as interpret-as="date" format="md">3/4</say-as>': "March fourth",
        '<say-as interpret-as="date" format="my">3/2024</say-as>': "March twenty twenty-four",
        "<p><s>One</s><s>Two!</s></p><p>Three</p>": "One. Two! Three",
        "<!-- note --><metadata>no</metadata>Yes.": "Yes.",
        "One\n\n  line <prosody rate='medium'>of</prosody> text.": "One line of text.",
    }.items():
        assert said(english, body) == words, body


def test_a_break_is_a_pause(english: TTS) -> None:
    for mark, pause_ms in (
        ('<break time="500ms"/>', 500), ('<break time="1.5s"/>', 1500), ('<break strength="strong"/>', 700),
        ("<break/>", 400),
    ):  # fmt: skip
        first, second = segments(english, f"<speak>One. {mark} Two.</speak>")
        assert (first.text, first.pause_samples * 1000 // 24_000, second.text) == ("One.", pause_ms, "Two.")
    assert said(english, 'One <break strength="none"/> two.') == "One two."


def test_a_part_has_its_own_voice(english: TTS) -> None:
    text = "This is one whole sentence."
    other = english.say(text, voice="other", seed=1)
    marked = english.say(f'<speak><voice name="Other">{text}</voice></speak>', seed=1)
    assert marked.sha256 == other.sha256 != english.say(text, seed=1).sha256
    mixed = english.say(f'<speak><voice name="other">{text}</voice> And this is another one.</speak>', seed=1)
    spoken = len(other.samples) - 24_000 // 10  # without the pause after it
    assert np.array_equal(mixed.samples[:spoken], other.samples[:spoken])
    assert said(english, f'<voice name="other">{text}</voice> And this is another one.').endswith(
        "another one."
    )


def test_a_voice_may_be_a_blend(english: TTS) -> None:
    text = "This is one whole sentence."
    blended = english.say(text, voice="noise(2)+Other", seed=1)
    assert blended.sha256 == english.say(text, voice=english.voice("noise(4)+other(2)"), seed=1).sha256
    assert blended.sha256 != english.say(text, voice="other", seed=1).sha256
    assert english.voice("noise(2)+Other").name == "noise(2)+other"
    marked = english.say(f'<speak><voice name="noise(2)+Other">{text}</voice></speak>', seed=1)
    assert marked.sha256 == blended.sha256
    guide = {"guide": english.voice("other")}
    given = f'<speak><voice name="Noise(2)+Guide">{text}</voice></speak>'
    assert english.say(given, seed=1, ssml_voices=guide).sha256 == blended.sha256
    for wrong in ("noise+", "noise(0)", "noise+../other", "noise(2)+nobody"):
        with pytest.raises(VoiceError):
            english.say(text, voice=wrong)


def test_a_request_brings_voices_that_its_document_names(english: TTS) -> None:
    text, given = "This is one whole sentence.", {"guide": english.voice("other")}
    ssml = f'<speak><voice name="Guide">{text}</voice></speak>'
    assert (
        english.say(ssml, seed=1, ssml_voices=given).sha256 == english.say(text, voice="other", seed=1).sha256
    )
    with pytest.raises(VoiceNotFound):
        english.say(ssml, seed=1)
    with pytest.raises(ConfigError, match="ssml_voices"):
        english.say(ssml, seed=1, ssml_voices="other")  # type: ignore[arg-type]


def test_a_part_has_its_own_rate(english: TTS) -> None:
    text = "This is one whole sentence."
    for rate, speed in {
        "slow": 0.75,
        "x-fast": 1.6,
        "80%": 0.8,
        "+25%": 1.25,
        "-20%": 0.8,
        "1.5": 1.5,
    }.items():
        marked = english.say(f'<speak><prosody rate="{rate}">{text}</prosody></speak>', seed=1)
        assert marked.sha256 == english.say(text, speed=speed, seed=1).sha256, rate
    nested = f'<speak><prosody rate="2"><prosody rate="50%">{text}</prosody></prosody></speak>'
    assert english.say(nested, seed=1).sha256 == english.say(text, seed=1).sha256
    doubled = f'<speak><prosody rate="2">{text}</prosody></speak>'
    assert english.say(doubled, speed=1.5, seed=1).sha256 == english.say(text, speed=3, seed=1).sha256


def test_what_has_no_effect_is_named(english: TTS) -> None:
    text = '<speak>A <emphasis>b</emphasis> 🙂 <prosody pitch="+2st" rate="1">c</prosody> <mark name="x"/> d.</speak>'
    audio = english.say(text, seed=1)
    assert [(one.what, one.got, one.at) for one in audio.warnings] == [
        ("SSML tags without an effect are ignored", "<emphasis> <mark>", text.index("<emphasis>")),
        ("SSML attributes without an effect are ignored", "<prosody pitch>", text.index("<prosody")),
        ("symbols without a spoken form are left out", "🙂", text.index("🙂")),
    ]
    (unknown,) = english.say('<speak>It is <say-as interpret-as="cardinal">5</say-as>.</speak>').warnings
    assert (unknown.what, unknown.got) == ("say-as knows no such kind", "cardinal: 5")
    (wrong,) = english.say('<speak><say-as interpret-as="date">13/13/24</say-as> is it.</speak>').warnings
    assert wrong.what == "say-as cannot read some text as asked"
    with pytest.raises(TextError, match=r"would not be spoken.*emphasis"):
        english.say("<speak>A <emphasis>b</emphasis>.</speak>", strict=True)


BOMB = '<!DOCTYPE speak [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>'


def test_a_malformed_document_is_refused_with_its_place(english: TTS) -> None:
    for text, message in {
        "<speak>One <break></speak>": r"not well-formed.*mismatched tag in line 1.*every tag closed.*Close each tag",
        "<speak>A & B</speak>": "not well-formed.*&amp;",
        "<speak>Open": "not well-formed",
        "<speak>One</speak><speak>Two</speak>": "junk after document element",
        f'<?xml version="1.0"?><speak>{BOMB}</speak>': "not well-formed",
        "<speak>&b;</speak>": "undefined entity",
        '<speak><break time="5"/>A.</speak>': "break time.*500ms",
        '<speak><break time="11s"/>A.</speak>': "a pause is too long",
        '<speak><break strength="huge"/>A.</speak>': "break strength.*x-strong",
        '<speak><prosody rate="quick">A.</prosody></speak>': "prosody rate.*x-slow",
        '<speak><prosody rate="9">A.</prosody></speak>': "rate of the SSML is out of range.*0.25 to 4",
        "<speak>" + "<p>" * 70 + "A." + "</p>" * 70 + "</speak>": "nested too deeply",
        "<speak> ... </speak>": "nothing to say",
        "<speak>" + "a " * 600_000 + "</speak>": "the SSML is too long",
    }.items():
        with pytest.raises(TextError, match=message):
            english.say(text)
    with pytest.raises(TextError, match=r"document type is refused.*DOCTYPE speak.*Leave it out"):
        english.say(f"<?xml version='1.0'?>{BOMB}<speak>&b;</speak>")


def test_a_long_document_takes_time_in_proportion_to_its_length() -> None:
    for unit in ("\n", "<p/>", "é<break/>", '<prosody rate="2">a</prosody>', "&amp;", "<x/>", "<s>a</s>"):
        document = f"<speak>{unit * (40_000 // len(unit))}</speak>"
        assert (
            cpu_seconds(partial(parse_ssml, document, None)) < 3
        )  # 0.5 s for all of them on an idle machine


def test_a_voice_of_ssml_is_a_name_and_never_a_file(english: TTS, tmp_path: Path) -> None:
    path = tmp_path / "voice.wav"
    path.write_bytes(b"RIFF")
    for name in (str(path), "../other", "nobody-has-this-name"):
        with pytest.raises(VoiceNotFound):
            english.say(f'<speak><voice name="{name}">Hello there.</voice></speak>')


def test_a_session_waits_for_the_end_of_a_document(english: TTS) -> None:
    def parts() -> Iterator[str]:
        yield from ("<sp", "eak>One <break time='300ms'/>", " two. <p>Three.", "</p></sp", "eak> And 4 more.")

    with english.session(seed=1) as session:
        for part in parts():
            session.push(part)
        session.end()
        spoken = [chunk.begins.text for chunk in session if chunk.begins]
    assert [text for text in spoken if text] == ["One,", "two. Three.", "And four more."]
    with english.session() as session:
        session.push("<speak>Open")
        with pytest.raises(TextError, match="not well-formed"):
            session.end()


def test_plain_text_that_begins_with_an_angle_bracket_is_no_ssml(english: TTS) -> None:
    assert segments(english, "<3 is a heart.")[0].text
    assert segments(english, "<speaker> is no tag of SSML.")[0].text.endswith("is no tag of S S M L.")


def test_say_reads_ssml_on_the_command_line(
    english: TTS, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(load, "load_noise", lambda: english._model)
    monkeypatch.chdir(tmp_path)
    Path("greeting.ssml").write_text("<speak>Hello <emphasis>there</emphasis>.</speak>")
    result = CliRunner().invoke(app, ["say", "-f", "greeting.ssml", "-m", "noise", "-o", "a.wav", "-q"])
    assert result.exit_code == 0, result.output
    assert "warning: SSML tags without an effect are ignored: <emphasis> (character 14)" in result.stderr
    result = CliRunner().invoke(app, ["say", "<speak>Open", "-m", "noise", "-o", "a.wav"])
    assert result.exit_code == TextError.exit_code
    assert "not well-formed" in result.stderr
    assert "allowed" in result.stderr
