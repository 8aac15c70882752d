"""The public class TTS: what it returns and what it refuses."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightingale import (
    TTS,
    ConfigError,
    DeviceError,
    EmptyText,
    NightingaleError,
    TextTooLong,
    UnknownModel,
    VoiceNotFound,
)
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.request_options import NUMBERS


def is_helpful(error: NightingaleError) -> None:
    """Every part that an error has says something, and a user learns what is allowed or what to do."""
    parts = [part for part in (error.what, error.got, error.allowed, error.fix) if part is not None]
    assert all(part.strip() for part in parts)
    assert error.allowed or error.fix


def test_say_is_the_joined_stream(brief: TTS) -> None:
    said = brief.say("Hello there.", seed=5)
    chunks = list(brief.stream("Hello there.", seed=5))
    assert np.array_equal(said.samples, np.concatenate([chunk.samples for chunk in chunks]))
    assert {chunk.sample_rate_hz for chunk in chunks} == {said.sample_rate_hz, brief.sample_rate_hz, 24_000}


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(brief: TTS) -> None:
    one = brief.say("Hello there.", seed=5)
    assert brief.say("Hello there.", seed=5).sha256 == one.sha256
    assert brief.say("Hello there.", seed=6).sha256 != one.sha256


def test_without_a_seed_each_call_chooses_one_and_returns_it(brief: TTS) -> None:
    one, two = brief.say("Hello"), brief.say("Hello")
    assert one.seed != two.seed
    assert brief.say("Hello", seed=one.seed).sha256 == one.sha256


def test_a_model_loaded_again_says_the_same(brief: TTS) -> None:
    one, other = (TTS.over(TTS("noise")._model.with_defaults(max_new_tokens=6)) for _ in range(2))
    assert one.say("Hello", seed=5).sha256 == other.say("Hello", seed=5).sha256


def test_a_stream_takes_its_request_when_it_is_asked(brief: TTS) -> None:
    """A bad control or voice is refused by the call, not by the first chunk."""
    with pytest.raises(ConfigError, match="temperature is out of range: got -1"):
        brief.stream("Hello", temperature=-1)
    with pytest.raises(VoiceNotFound, match="nobody"):
        brief.stream("Hello", voice="nobody")


def test_interleaved_streams_equal_streams_alone(brief: TTS, noise_model: Any) -> None:
    other = replace(noise_model.default_voice, speaker=-noise_model.default_voice.speaker)
    alone = [brief.say("One.", seed=1).samples, brief.say("Two.", voice=other, seed=2).samples]
    first, second = brief.stream("One.", seed=1), brief.stream("Two.", voice=other, seed=2)
    received: list[list[np.ndarray]] = [[], []]
    for pair in zip(first, second, strict=True):
        for chunks, chunk in zip(received, pair, strict=True):
            chunks.append(chunk.samples)
    for mine, theirs in zip(received, alone, strict=True):
        assert np.array_equal(np.concatenate(mine), theirs)


def test_threads_share_a_model(brief: TTS) -> None:
    alone = {seed: brief.say("Hello", seed=seed).sha256 for seed in (1, 2, 3)}
    received: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda s=seed: received.update({s: brief.say("Hello", seed=s).sha256}))
        for seed in alone
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert received == alone


def test_a_stream_left_early_disturbs_no_other(brief: TTS) -> None:
    before = brief.say("Hello", seed=1).sha256
    abandoned = iter(brief.stream("Something else.", seed=9))
    next(abandoned)
    del abandoned
    assert brief.say("Hello", seed=1).sha256 == before


def test_the_cost_is_measured(brief: TTS) -> None:
    audio = brief.say("Hello", seed=1)
    cost = audio.metrics
    assert set(cost.stage_ms) == {"text", "prefill", "t3", "flow", "vocoder"}
    assert cost.tokens * 960 == len(audio.samples)
    assert cost.audio_seconds == audio.seconds == len(audio.samples) / 24_000
    assert 0 < cost.ttfa_ms <= cost.total_ms
    assert sum(cost.stage_ms.values()) <= cost.total_ms
    assert cost.rtf == pytest.approx(cost.total_ms / 1000 / cost.audio_seconds)


def test_a_stream_knows_its_cost_and_its_seed(brief: TTS) -> None:
    stream = brief.stream("Hello")
    assert stream.metrics.tokens == 0
    received = np.concatenate([chunk.samples for chunk in stream])
    cost = stream.metrics
    assert cost.tokens * 960 == len(received)
    assert 0 < cost.ttfa_ms <= cost.total_ms == stream.metrics.total_ms
    assert np.array_equal(brief.say("Hello", seed=stream.seed).samples, received)
    stream.close()
    stream.close()
    assert next(stream, None) is None


def test_a_stream_that_was_closed_gives_no_more(brief: TTS) -> None:
    stream = brief.stream("Hello there.", seed=1)
    stream.close()
    assert list(stream) == []


def test_a_stream_may_be_closed_while_another_thread_listens(tts_with: Any) -> None:
    tts = tts_with(defaults={"max_new_tokens": 1000})
    stream = tts.stream("Nobody can wait for the end of this.", seed=1)
    received: list[object] = []
    listener = threading.Thread(target=lambda: received.append(list(stream)))
    listener.start()
    time.sleep(0.05)
    stream.close()
    listener.join(timeout=10)
    assert len(received) == 1


def test_a_recording_saves_itself(brief: TTS, tmp_path: Path) -> None:
    audio = brief.say("Hello", seed=1)
    audio.save(tmp_path / "hello.wav")
    assert (tmp_path / "hello.wav").stat().st_size == 44 + 2 * len(audio.samples)
    with pytest.raises(ConfigError, match="no encoder"):
        audio.save(str(tmp_path / "hello.xyz"))


def test_multilingual_drops_the_audio_of_its_last_token(tts_with: Any) -> None:
    assert [name for name, defaults in MODEL_DEFAULTS.items() if defaults.drop_last_token] == ["multilingual"]
    whole, cut = (
        tts_with().say("Hello", seed=1),
        tts_with(defaults={"drop_last_token": True}).say("Hello", seed=1),
    )
    assert len(whole.samples) - len(cut.samples) == 960
    assert np.array_equal(cut.samples, whole.samples[:-960])


def test_multilingual_keeps_its_only_token(tts_with: Any) -> None:
    tts = tts_with(defaults={"drop_last_token": True, "max_new_tokens": 1})
    assert len(tts.say("Hello", seed=1).samples) == 960


@pytest.mark.parametrize(
    ("control", "value"),
    [
        ("temperature", 0.0),
        ("temperature", 5.0),
        ("temperature", 1e-38),
        ("top_p", 0.0),
        ("min_p", 1.0),
        ("top_k", 1),
        ("top_k", 1_000_000),
        ("repetition_penalty", 0.1),
        ("repetition_penalty", 10.0),
        ("cfg_weight", 0.0),
        ("cfg_weight", 10),
        ("exaggeration", 0),
        ("exaggeration", 5.0),
        ("seed", 2**32 - 1),
    ],
)
def test_the_edge_of_every_control_can_be_spoken(control: str, value: float, brief: TTS) -> None:
    audio = brief.say("Hello", **{"seed": 1, control: value})
    assert np.isfinite(audio.samples).all()
    assert len(audio.samples) == 960 * audio.metrics.tokens


@pytest.mark.parametrize(
    ("control", "value"),
    [
        *((name, option.limits[0] - 0.01) for name, option in NUMBERS.items()),
        *((name, option.limits[1] + 1) for name, option in NUMBERS.items()),
        *((name, bad) for name in NUMBERS for bad in (nan, inf, -inf)),
        ("temperature", "0.8"),
        ("temperature", True),
        ("top_k", 2.5),
        ("seed", 1.0),
        ("seed", "7"),
    ],
)
def test_a_control_out_of_range_is_refused_by_name(control: str, value: Any, brief: TTS) -> None:
    with pytest.raises(ConfigError) as refusal:
        brief.say("Hello", **{control: value})
    assert control in refusal.value.what
    assert "from" in refusal.value.allowed
    is_helpful(refusal.value)


def test_a_number_of_numpys_is_a_number(brief: TTS) -> None:
    ours = brief.say("Hello.", seed=3, temperature=0.5, speed=1.25)
    theirs = brief.say("Hello.", seed=np.int64(3), temperature=np.float32(0.5), speed=np.float64(1.25))  # type: ignore[arg-type]
    assert theirs.sha256 == ours.sha256
    assert type(theirs.seed) is int


def test_a_control_of_none_is_the_models_own(brief: TTS) -> None:
    named = dict.fromkeys(("temperature", "top_p", "min_p", "top_k", "repetition_penalty", "cfg_weight"))
    assert brief.say("Hello", seed=1, **named).sha256 == brief.say("Hello", seed=1).sha256


@pytest.mark.parametrize("control", ["temprature", "length_penalty", "voices", "max_new_tokens"])
def test_an_unknown_control_is_refused_by_name(control: str, brief: TTS) -> None:
    with pytest.raises(ConfigError, match=repr(control)) as refusal:
        brief.say("Hello", **{control: None})
    assert "temperature" in refusal.value.allowed


@pytest.mark.parametrize("control", ["cfg_weight", "exaggeration", "min_p"])
@pytest.mark.parametrize("family", ["turbo", "nano"])
def test_a_control_the_family_ignores_is_refused(control: str, family: str, tts_with: Any) -> None:
    tts = tts_with(defaults={"ignored": MODEL_DEFAULTS[family].ignored})
    with pytest.raises(ConfigError, match=f"has no {control}") as refusal:
        tts.say("Hello", **{control: 0.5})
    assert control not in refusal.value.allowed.split(", ")
    tts.say("Hello", **{control: None})


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "…", "?!", "\u200b"])
def test_nothing_to_say_is_refused(text: str, brief: TTS) -> None:
    with pytest.raises(EmptyText) as refusal:
        brief.say(text)
    is_helpful(refusal.value)


def test_a_text_over_the_limit_is_refused(brief: TTS) -> None:
    small = TTS.over(brief._model, max_chars=40)
    assert len(small.say("a" * 40, seed=1).samples) > 0
    for speak in (small.say, small.stream, small.open, small.session().push):
        with pytest.raises(TextTooLong, match="41 characters") as refusal:
            speak("a" * 41)
        is_helpful(refusal.value)
    with pytest.raises(TextTooLong, match="at most 5000000"):
        brief.stream("a" * 5_000_001)


@pytest.mark.parametrize("text", ["a", "Ünïcödé, 你好, 👋", "x" * 500, "1", "Hello\0world", "\ud800 lone"])
def test_odd_text_is_spoken(text: str, brief: TTS) -> None:
    assert len(brief.say(text, seed=1).samples) > 0


def test_a_model_without_a_voice_says_so(tts_with: Any, noise_model: Any) -> None:
    mute = tts_with(default_voice=None)
    with pytest.raises(VoiceNotFound, match="no voice of its own") as refusal:
        mute.say("Hello")
    is_helpful(refusal.value)
    assert len(mute.say("Hello", voice=noise_model.default_voice, seed=1).samples) > 0


@pytest.mark.parametrize("model", ["turbbo", "wrenn", "no/such/folder", "Noise"])
def test_an_unknown_model_is_refused(model: str) -> None:
    with pytest.raises(UnknownModel) as refusal:
        TTS(model, offline=True)
    is_helpful(refusal.value)


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "meta", "", "cpu:x"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(DeviceError) as refusal:
        TTS("noise", device=device)
    is_helpful(refusal.value)


@pytest.mark.parametrize("dtype", ["float16", "int8", "double", ""])
def test_an_unknown_dtype_is_refused(dtype: str) -> None:
    with pytest.raises(ConfigError, match="unknown dtype"):
        TTS("noise", dtype=dtype)


@pytest.mark.parametrize("option", [{"colour": "blue"}, {"t3": "v3"}, {"steps": 2}])
def test_an_option_the_model_does_not_have_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=repr(next(iter(option)))):
        TTS("noise", **option)


def test_wren_has_no_options() -> None:
    with pytest.raises(ConfigError, match="the model 'wren' has no options: got 's3gen'"):
        TTS("wren", s3gen="meanflow")


def test_the_model_noise_has_a_notice() -> None:
    notice = TTS("noise").notice
    assert notice is not None
    assert "test signal, not speech" in notice
