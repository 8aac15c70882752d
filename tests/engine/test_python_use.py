"""Daily use from Python: voices from memory, progress, iteration over many texts, notebooks, and help."""

from __future__ import annotations

import asyncio
import base64
import inspect
import io
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from synthetic_clip import voice_like

from nightingale import TTS, AsyncTTS, Audio, BadReference, ConfigError, MemoryFull, SpeechProgress, TextError
from nightingale.engine.requests.controls import RequestOptions
from nightingale.types import TextWarning

RATE = 24_000
METHODS = (TTS.say, TTS.stream, TTS.say_many, TTS.say_each, TTS.session, AsyncTTS.say, AsyncTTS.stream,
           AsyncTTS.say_many, AsyncTTS.say_each, AsyncTTS.session)  # fmt: skip


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "anna.wav"
    soundfile.write(path, voice_like(6.0, RATE), RATE, subtype="FLOAT")
    return path


def test_a_voice_is_made_from_a_path_bytes_a_file_object_or_samples(brief: TTS, clip: Path) -> None:
    samples, rate_hz = soundfile.read(clip, dtype="float32")
    voice = brief.voice(clip)
    with clip.open("rb") as file:
        same = [brief.voice(clip.read_bytes()), brief.voice(file), brief.voice((samples, rate_hz))]
    stereo = np.stack([samples, samples], axis=1)
    same += [brief.voice((stereo, rate_hz)), brief.voice((stereo.T, rate_hz))]
    same += [brief.voice((samples.tolist(), np.int64(rate_hz))), brief.voice(memoryview(clip.read_bytes()))]
    assert all(other == voice for other in same)
    assert (voice.name, brief.voice((samples / 2, rate_hz)).name) == ("anna", "clip")
    said = brief.say("Hello.", voice=voice, seed=1).sha256
    assert brief.say("Hello.", voice=(samples, rate_hz), seed=1).sha256 == said
    assert brief.say("Hello.", voice=io.BytesIO(clip.read_bytes()), seed=1).sha256 == said
    assert said != brief.say("Hello.", seed=1).sha256


def test_integers_are_full_scale_samples(brief: TTS) -> None:
    samples = voice_like(6.0, RATE)
    whole = (samples * 32768).round().astype(np.int16)
    expected = brief.voice((whole.astype(np.float32) / 32768, RATE))
    assert brief.voice((whole, RATE)) == expected
    unsigned = (whole.astype(np.int32) + 32768).astype(np.uint16)
    assert brief.voice((unsigned, RATE)) == expected


def test_audio_is_a_clip(brief: TTS, tts_with: Any) -> None:
    said = tts_with(defaults={"max_new_tokens": 60}).say("Hello.", seed=1)
    assert brief.voice(said) == brief.voice((said.samples, said.sample_rate_hz))


@pytest.mark.parametrize("rate_hz", [0, 100, 10**7])
def test_a_clip_of_an_impossible_rate_is_refused(rate_hz: int, brief: TTS) -> None:
    with pytest.raises(BadReference, match="sample rate is out of range"):
        brief.voice((voice_like(6.0, RATE), rate_hz))


def test_a_file_object_is_a_voice_for_many_texts(brief: TTS, clip: Path) -> None:
    one, two = brief.say_many(["Hello.", "Hello."], voice=io.BytesIO(clip.read_bytes()), seed=1)
    assert one.sha256 == two.sha256 == brief.say("Hello.", voice=clip, seed=1).sha256
    again = asyncio.run(AsyncTTS(brief).say_many(["Hello."] * 2, voice=io.BytesIO(clip.read_bytes()), seed=1))
    assert [audio.sha256 for audio in again] == [one.sha256] * 2


def test_an_engine_knows_its_voices(brief: TTS) -> None:
    assert brief.voices == ("noise",) == AsyncTTS(brief).voices
    for name in (*brief.voices, "default", "NOISE", "nova", "Alloy"):
        assert brief.voice(name) == brief.default_voice


def test_wren_knows_its_voices_by_every_name() -> None:
    with TTS() as tts:
        assert {"emma", "heart"} <= set(tts.voices)
        assert tts.voice("Emma") == tts.voice("emma") == tts.voice("marin") == tts.voice("bf_emma")
        assert tts.voice("default") == tts.default_voice


def test_progress_rises_to_one(brief: TTS, tts_with: Any) -> None:
    reports: list[SpeechProgress] = []
    audio = tts_with(defaults={"split_chars": 40}).say(
        "One sentence here. And then another one. " * 6, seed=1, on_progress=reports.append
    )
    fractions = [progress.fraction for progress in reports]
    assert len(fractions) > 3
    assert fractions == sorted(fractions)
    assert fractions[0] < 0.9
    assert fractions[-1] == 1.0
    assert reports[-1].audio_seconds == pytest.approx(audio.seconds)
    loop: list[SpeechProgress] = []
    again = asyncio.run(AsyncTTS(brief).say("One. Two.", seed=1, on_progress=loop.append))
    assert (loop[-1].fraction, loop[-1].audio_seconds) == (1.0, pytest.approx(again.seconds))


def test_progress_counts_texts(brief: TTS) -> None:
    for say_many in (brief.say_many, lambda *a, **o: asyncio.run(AsyncTTS(brief).say_many(*a, **o))):
        reports: list[SpeechProgress] = []
        say_many(iter(["One.", "Two.", "Three.", "Four."]), on_progress=reports.append)
        assert [(one.fraction, one.texts_done) for one in reports] == [
            (0.25, 1),
            (0.5, 2),
            (0.75, 3),
            (1.0, 4),
        ]


def test_a_callback_that_raises_ends_the_call(brief: TTS) -> None:
    def stop(_: SpeechProgress) -> None:
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        brief.say("Hello there.", on_progress=stop)
    assert brief.say("Hello.", seed=1).samples.size


def test_each_text_is_yielded_when_it_is_complete(brief: TTS) -> None:
    taken: list[int] = []

    def endless() -> Iterator[str]:
        for number in count():
            taken.append(number)
            yield f"Number {number}."

    spoken = brief.say_each(endless(), seed=1)
    first = next(spoken)
    assert first.sha256 == brief.say("Number 0.", seed=1).sha256
    assert len(taken) <= brief.at_once + 1
    spoken.close()  # type: ignore[attr-defined]
    assert [audio.sha256 for audio in brief.say_each(["Number 0."], seed=1)] == [first.sha256]


def test_each_text_is_yielded_in_an_event_loop(brief: TTS) -> None:
    async def main() -> list[Audio]:
        return [audio async for audio in AsyncTTS(brief).say_each(["One.", "Two."], seed=1)]

    expected = [brief.say(text, seed=1).sha256 for text in ("One.", "Two.")]
    assert [audio.sha256 for audio in asyncio.run(main())] == expected


def test_a_mistake_is_found_before_the_first_audio(brief: TTS) -> None:
    with pytest.raises(ConfigError, match="temperature"):
        brief.say_each(["One."], temperature=-1)
    with pytest.raises(TextError, match=r"\[text\]"):
        brief.say_each("One.")


def test_a_notebook_shows_a_player(brief: TTS) -> None:
    audio = brief.say("Hello.", seed=1)
    html = audio._repr_html_()
    start, end = '<audio controls src="data:audio/wav;base64,', '"></audio>'
    assert html.startswith(start)
    assert html.endswith(end)
    samples, rate_hz = soundfile.read(io.BytesIO(base64.b64decode(html[len(start) : -len(end)])))
    assert (rate_hz, len(samples)) == (audio.sample_rate_hz, len(audio.samples))


def test_representations_fit_a_terminal(brief: TTS) -> None:
    audio, plan = brief.say("Hello.", seed=1), brief.plan
    machine = plan.machine
    about = (
        f"noise, {plan.profile.name}, on {machine.device} ({machine.name}, {machine.instructions}); "
        f"decoder noise float32; renderer noise float32; stream {plan.profile.stream}"
    )
    assert repr(plan) == f"<Plan {about}>"
    assert repr(brief) == f"<TTS {about}>"
    assert repr(AsyncTTS(brief)) == f"<AsyncTTS {about}>"
    assert [repr(choice) for choice in plan.choices] == [
        "<Choice decoder noise float32>",
        "<Choice renderer noise float32>",
    ]
    assert repr(audio) == f"<Audio {audio.seconds:.2f} s at 24000 Hz, seed 1>"
    warned = replace(audio, warnings=(TextWarning(what="Left out", got="x", at=0),))
    assert repr(warned).endswith(" Hz, seed 1, warnings: 1>")
    chunk = next(iter(brief.stream("Hello.", seed=1)))
    assert repr(chunk) == f"<AudioChunk {chunk.seconds:.2f} s at 24000 Hz>"


def test_audio_is_an_array_with_a_length_and_a_duration(brief: TTS) -> None:
    audio = brief.say("Hello.", seed=1)
    assert np.asarray(audio) is audio.samples
    doubles = np.asarray(audio, dtype=np.float64) / 2
    assert doubles.dtype == np.float64
    assert np.array_equal(doubles, audio.samples.astype(np.float64) / 2)
    copied = np.array(audio)
    assert np.array_equal(copied, audio.samples)
    assert not np.shares_memory(copied, audio.samples)
    assert len(audio) == len(audio.samples)
    assert audio.duration == audio.seconds == len(audio) / audio.sample_rate_hz
    assert np.concatenate([np.asarray(chunk) for chunk in brief.stream("Hello.", seed=1)]).size == len(audio)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__qualname__)
def test_help_names_and_describes_every_parameter(method: Any) -> None:
    parameters = inspect.signature(method).parameters.values()
    assert not [one for one in parameters if one.kind is inspect.Parameter.VAR_KEYWORD]
    described = inspect.getdoc(method) or ""
    for name in RequestOptions.__annotations__:
        assert f"\n    {name}: " in described


def test_a_memory_error_is_memory_full(brief: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("nightingale.engine.requests.whole.np.concatenate", fail)
    calls: tuple[Any, ...] = (
        lambda: brief.say("Hello."),
        lambda: brief.say_many(["Hello."]),
        lambda: asyncio.run(AsyncTTS(brief).say("Hello.")),
    )
    for call in calls:
        with pytest.raises(MemoryFull, match="not enough memory"):
            call()
    monkeypatch.setattr("nightingale.engine.voice_lookup.read_audio", fail)
    with pytest.raises(MemoryFull):
        brief.voice(b"a clip")
