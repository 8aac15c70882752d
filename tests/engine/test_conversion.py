"""Voice conversion: whole recordings, recordings that still arrive, and their place beside speech."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from engine_helpers import call_in_thread, is_drained, wait_until
from synthetic_clip import voice_like

from nightingale import TTS, AsyncTTS, BadReference, ConfigError, Voice, VoiceConverter
from nightingale.audio.loudness import normalize_loudness
from nightingale.audio.resample import resample
from nightingale.backends.base import Block
from nightingale.backends.noise.encoders import NoiseEncoders
from nightingale.backends.noise.renderer import NoiseRenderer
from nightingale.backends.profiles import BALANCED
from nightingale.engine.load import Model, load_model
from nightingale.engine.requests.recorded_segments import (
    LIVE_TOKENS,
    WHOLE_TOKENS,
    PauseSplitter,
    token_levels,
    whole_segments,
)
from nightingale.engine.requests.recordings import recorded_voice
from nightingale.engine.session import Session
from nightingale.models.chatterbox.presets import WREN
from nightingale.types import AudioChunk, Samples

RATE_HZ = 16_000
TOKEN_SAMPLES = 960
CLIP = voice_like(3.2, RATE_HZ)


@pytest.fixture(scope="module")
def tts(noise_model: Model) -> Iterator[TTS]:
    with TTS.over(noise_model) as engine:
        yield engine


@pytest.fixture(scope="module")
def whole_rendering(noise_model: Model) -> Iterator[TTS]:
    """Return an engine that renders each segment whole, as the official models do."""
    with TTS.over(noise_model, "balanced+stream=segment") as engine:
        yield engine


def other_voice(voice: Voice | None) -> Voice:
    assert voice is not None
    return Voice.checked(
        name="other",
        family=voice.family,
        speaker=-voice.speaker,
        prompt_ids=voice.prompt_ids,
        flow_prompt_ids=voice.flow_prompt_ids,
        flow_prompt_mel=voice.flow_prompt_mel,
        flow_speaker=-voice.flow_speaker,
    )


def joined(chunks: Iterator[AudioChunk]) -> Samples:
    return np.concatenate([chunk.samples for chunk in chunks])


def parts(samples: Samples, size: int) -> Iterator[Samples]:
    return (samples[at : at + size] for at in range(0, len(samples), size))


def settled_s(session: Session) -> float:
    """Return the seconds of audio that were made when no more has come for a while."""
    samples = -1
    while samples != session.timing.samples:
        samples = session.timing.samples
        time.sleep(0.1)
    return samples / 24_000


def test_a_conversion_keeps_the_length_and_changes_with_the_voice(tts: TTS) -> None:
    own = tts.convert((CLIP, RATE_HZ), seed=1)
    assert len(own.samples) == len(CLIP) // 640 * TOKEN_SAMPLES
    assert np.array_equal(own.samples, tts.convert((CLIP, RATE_HZ), seed=1).samples)
    assert not np.array_equal(own.samples, tts.convert((CLIP, RATE_HZ), seed=2).samples)
    other = tts.convert((CLIP, RATE_HZ), voice=other_voice(tts.default_voice), seed=1)
    assert len(other.samples) == len(own.samples)
    assert not np.array_equal(own.samples, other.samples)
    assert own.metrics.tokens == len(CLIP) // 640


def test_recordings_are_read_from_everything_that_holds_audio(tts: TTS, tmp_path: Path) -> None:
    path = tmp_path / "clip.wav"
    soundfile.write(path, CLIP, RATE_HZ, subtype="FLOAT")
    expected = tts.convert((CLIP, RATE_HZ), seed=1).samples
    chunk = AudioChunk(samples=CLIP, sample_rate_hz=RATE_HZ)
    for recording in (path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes()), chunk):
        assert np.array_equal(tts.convert(recording, seed=1).samples, expected), type(recording)
    stereo = np.stack([CLIP, CLIP], axis=1)
    assert np.array_equal(tts.convert((stereo, RATE_HZ), seed=1).samples, expected)
    said = tts.say("Hello there.", seed=1)
    assert tts.convert(said, seed=1).seconds == pytest.approx(said.seconds, abs=0.1)


@pytest.mark.parametrize(
    ("recording", "error", "words"),
    [
        (CLIP[:100], ConfigError, "sample rate"),
        (None, ConfigError, "audio has a wrong type"),
        (b"no audio", BadReference, "cannot be decoded"),
        (b"", BadReference, "empty"),
        ((CLIP[:100], RATE_HZ), BadReference, "too short"),
        ((np.full(RATE_HZ, np.nan, np.float32), RATE_HZ), BadReference, "not finite"),
        ("missing.wav", BadReference, "cannot be opened"),
    ],
)
def test_what_is_no_recording_is_refused(
    tts: TTS, recording: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        tts.convert(recording)
    assert is_drained(tts)


def test_a_recording_is_brought_to_the_loudness_that_the_model_expects(noise_model: Model) -> None:
    with TTS.over(noise_model.with_defaults(recording_loudness_lufs=-24.0)) as tts:
        near = normalize_loudness(CLIP, RATE_HZ, -25.0)
        expected = tts.convert((normalize_loudness(CLIP, RATE_HZ, -24.0), RATE_HZ), seed=1).samples
        for gain in (0.05, 8.0):
            same = tts.convert((gain * near, RATE_HZ), seed=1).samples == expected
            assert same.mean() > 0.9, "all but tokens that rounding decides"
        assert (tts.convert((near, RATE_HZ), seed=1).samples == expected).mean() < 0.5, "left as it is"
        assert tts.convert((np.zeros(RATE_HZ, np.float32), RATE_HZ)).seconds == 1.0


def test_a_stream_equals_the_whole_whatever_the_sizes_of_its_parts(tts: TTS) -> None:
    whole = tts.convert((CLIP, RATE_HZ), seed=1).samples
    for size in (333, 1600, len(CLIP)):
        streamed = joined(tts.converter.stream(parts(CLIP, size), RATE_HZ, seed=1))
        assert np.array_equal(streamed, whole), size


def test_audio_comes_before_the_recording_ends_and_within_the_stated_delay(tts: TTS) -> None:
    with tts.converter.session(RATE_HZ, seed=1) as live:
        assert live.delay_s < 3
        for part in parts(voice_like(8.0, RATE_HZ), RATE_HZ // 2):
            live.push(part)
        assert wait_until(lambda: live.metrics.audio_seconds >= 8.0 - live.delay_s)
        assert settled_s(live.audio) < 8.0
        live.end()
        assert sum(chunk.seconds for chunk in live) == pytest.approx(8.0, abs=0.05)
    assert is_drained(tts)


def test_blocks_of_a_live_conversion_do_not_grow(tts: TTS) -> None:
    with tts.converter.session(RATE_HZ, seed=1) as live:
        live.push(voice_like(6.0, RATE_HZ))
        live.end()
        sizes = [len(chunk.samples) // TOKEN_SAMPLES for chunk in live]
    assert max(sizes) <= max(sizes[0], BALANCED.smallest_block_tokens)
    grown = [len(chunk.samples) // TOKEN_SAMPLES for chunk in tts.converter.submit((CLIP, RATE_HZ)).chunks()]
    assert max(grown) > max(sizes)


def test_other_sample_rates_are_resampled(tts: TTS) -> None:
    for rate_hz in (8000, 24_000, 44_100):
        clip = voice_like(2.0, rate_hz)
        assert tts.convert((clip, rate_hz)).seconds == pytest.approx(2.0, abs=0.05)
        streamed = joined(tts.converter.stream(parts(clip, 999), rate_hz))
        assert len(streamed) / 24_000 == pytest.approx(2.0, abs=0.09)


def test_whole_segments_are_split_at_pauses(whole_rendering: TTS) -> None:
    with whole_rendering.converter.session(RATE_HZ, seed=1) as live:
        loud = voice_like(3.0, RATE_HZ)
        live.push(
            np.concatenate([loud, np.zeros(RATE_HZ, np.float32), loud, np.zeros(2 * RATE_HZ, np.float32)])
        )
        assert wait_until(lambda: live.metrics.audio_seconds > 3.0), "rendered before the recording ends"
        live.end()
        assert sum(chunk.seconds for chunk in live) == pytest.approx(9.0, abs=0.05)
        assert live.delay_s > LIVE_TOKENS / 25


def test_a_whole_recording_of_thirty_seconds_is_one_utterance(whole_rendering: TTS) -> None:
    clip = voice_like(4.0, RATE_HZ)
    chunks = list(whole_rendering.converter.submit((clip, RATE_HZ), seed=1).chunks())
    assert [len(chunk.samples) for chunk in chunks] == [100 * TOKEN_SAMPLES]


def test_tokens_are_split_at_the_quietest_place() -> None:
    levels = np.full(WHOLE_TOKENS + 100, 0.5, np.float32)
    levels[600:610] = 0.01
    tokens = list(range(len(levels)))
    segments = list(whole_segments(tokens, levels, in_blocks=False))
    assert [token for segment in segments for token in segment.speech_tokens] == tokens
    assert all(segment.ends_utterance for segment in segments)
    assert 600 <= len(segments[0].speech_tokens) <= 610
    splitter = PauseSplitter(LIVE_TOKENS, at_every_pause=True)
    even = np.full(LIVE_TOKENS * 3, 0.5, np.float32)
    sizes = [len(one) for one in splitter.push(range(len(even)), even, final=True)]
    assert max(sizes) <= LIVE_TOKENS
    assert sum(sizes) == len(even)


def test_levels_of_a_last_token_are_those_of_its_samples() -> None:
    levels = token_levels(np.full(900, 0.5, np.float32), 2)
    assert levels[0] == pytest.approx(0.5)
    assert 0 < levels[1] < 0.5


def test_leaving_a_stream_cancels_the_request(tts: TTS) -> None:
    stream = tts.converter.stream(parts(np.tile(CLIP, 9), RATE_HZ), RATE_HZ)
    assert next(stream).seconds > 0
    stream.close()
    assert is_drained(tts)
    live = tts.converter.session(RATE_HZ)
    live.push(CLIP)
    del live
    assert is_drained(tts)


def test_a_session_that_has_ended_takes_no_more_samples(tts: TTS) -> None:
    with tts.converter.session(RATE_HZ) as live:
        live.push(CLIP)
        live.end()
        live.end()
        with pytest.raises(ConfigError, match="has ended"):
            live.push(CLIP)
        assert sum(chunk.seconds for chunk in live) > 3
    with tts.converter.session(RATE_HZ) as empty:
        empty.end()
        assert list(empty) == []
    with pytest.raises(BadReference, match="sample rate"):
        tts.converter.session(100)


def test_a_listener_that_stalls_stops_the_work(tts: TTS) -> None:
    session = tts.converter.submit((np.tile(CLIP, 30), RATE_HZ))
    assert wait_until(lambda: session.is_ahead)
    assert settled_s(session) < BALANCED.ahead_seconds + 25
    assert sum(chunk.seconds for chunk in session.chunks()) == pytest.approx(30 * 3.2, abs=0.05)
    assert is_drained(tts)


def test_speech_beside_a_conversion_is_what_it_is_alone(tts: TTS) -> None:
    alone = tts.say("Hello there, how are you?", seed=3)
    converted = tts.convert((CLIP, RATE_HZ), seed=4)
    live = tts.converter.session(RATE_HZ, seed=4)
    live.push(CLIP[:RATE_HZ])
    beside = call_in_thread(lambda: tts.say("Hello there, how are you?", seed=3))
    assert np.array_equal(beside.samples, alone.samples)  # type: ignore[attr-defined]
    live.push(CLIP[RATE_HZ:])
    live.end()
    assert np.array_equal(joined(iter(live)), converted.samples)


def test_a_converter_of_its_own_needs_no_t3(tts: TTS) -> None:
    with VoiceConverter.load("noise") as converter:
        assert converter.name == "noise"
        assert np.array_equal(
            converter.convert((CLIP, RATE_HZ), seed=1).samples, tts.convert((CLIP, RATE_HZ), seed=1).samples
        )
        voice = converter.voice((voice_like(3.0, 24_000), 24_000))
        assert converter.convert((CLIP, RATE_HZ), voice=voice, seed=1).seconds > 3
    with pytest.raises(Exception, match="closed"):
        converter.convert((CLIP, RATE_HZ))


def test_asyncio_programs_convert(tts: TTS) -> None:
    expected = tts.convert((CLIP, RATE_HZ), seed=1).samples
    audio = asyncio.run(AsyncTTS(tts).convert((CLIP, RATE_HZ), seed=1))
    assert np.array_equal(audio.samples, expected)


def test_closing_the_converter_of_an_engine_leaves_the_engine_open(tts: TTS) -> None:
    with tts.converter as converter:
        assert converter.convert((CLIP, RATE_HZ), seed=1).seconds > 3
    assert tts.say("Hello.", seed=1).seconds > 0


@pytest.fixture
def rendered_blocks(monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    """Return the blocks that the renderer of the model "noise" has got."""
    blocks: list[Block] = []
    render = NoiseRenderer.render

    def watched(renderer: NoiseRenderer, given: Sequence[Block]) -> Any:
        blocks.extend(given)
        return render(renderer, given)

    monkeypatch.setattr(NoiseRenderer, "render", watched)
    return blocks


@pytest.mark.parametrize("stream", ["block", "segment"])
def test_a_stream_has_the_mel_of_the_recording_once_its_speaker_is_known(
    noise_model: Model, stream: str, rendered_blocks: list[Block]
) -> None:
    recording, found = voice_like(12.0, RATE_HZ), []
    with TTS.over(noise_model.with_defaults(renders_recorded_mel=True), f"balanced+stream={stream}") as tts:
        for size in (777, len(recording)):
            rendered_blocks.clear()
            chunks = joined(tts.converter.stream(parts(recording, size), RATE_HZ, seed=1))
            assert len(chunks) == pytest.approx(12 * 24_000, abs=2000)
            blocks = [(block.recorded, len(block.tokens)) for block in rendered_blocks if block.tokens]
            assert all(len(one.mel) == 2 * tokens for one, tokens in blocks if one)
            unknown = sum(tokens for one, tokens in blocks if one is None)
            assert unknown <= (60 if stream == "block" else 0)
            mel = np.concatenate([one.mel for one, _ in blocks if one])
            first = int(np.isnan(mel[:, 0]).sum())
            assert not np.isnan(mel[first:]).any()
            found.append(mel[first:])
    assert np.array_equal(*found), "the sizes of the parts do not matter"
    whole = NoiseEncoders(noise_model.info.preset).flow_mel(resample(recording, RATE_HZ, 24_000))
    inner, expected = found[0][20:-20], whole[len(whole) - len(found[0]) :][20:-20]
    assert np.median(np.abs(inner - expected)) < 0.1


@pytest.mark.parametrize("stream", ["block", "segment"])
def test_blocks_have_the_mel_of_the_recording_where_the_model_renders_it(
    noise_model: Model, stream: str, rendered_blocks: list[Block]
) -> None:
    blocks = rendered_blocks
    recording = voice_like(41.0, RATE_HZ)
    for renders_mel in (True, False):
        blocks.clear()
        model = noise_model.with_defaults(renders_recorded_mel=renders_mel)
        with TTS.over(model, f"balanced+stream={stream}") as tts:
            converted = tts.convert((recording, RATE_HZ), seed=1)
            tts.say("Hello there.")
        spoken = [block for block in blocks if block.recorded is None]
        assert spoken, "speech has no recording"
        known = [block.recorded for block in blocks if block.recorded is not None]
        assert bool(known) == renders_mel
        if renders_mel:
            assert all(len(block.recorded.mel) == 2 * len(block.tokens) for block in blocks if block.recorded)
            mel = np.concatenate([one.mel for one in known])
            expected = NoiseEncoders(model.info.preset).flow_mel(resample(recording, RATE_HZ, 24_000))
            assert len(mel) == converted.metrics.tokens * 2
            assert np.array_equal(mel[: len(expected)], expected[: len(mel)])
            assert {one.voice.content_hash for one in known} == {known[0].voice.content_hash}


def test_wren_keeps_the_articulation_of_a_recording() -> None:
    """The envelope of converted speech follows that of its source more closely than its tokens do alone."""
    model = load_model("wren", offline=True, options={})
    with TTS.over(model) as tts, TTS.over(model.with_defaults(renders_recorded_mel=False)) as by_tokens:
        source = tts.say("The tallest building in the city has ninety floors.", voice="emma", seed=1)
        converted = [one.convert(source, voice="fenrir", seed=1) for one in (tts, by_tokens)]
    unlike, unlike_by_tokens = (1 - envelope_likeness(source.samples, one.samples) for one in converted)
    assert unlike < 0.6 * unlike_by_tokens


def test_the_voice_of_a_recording_has_the_flows_speaker_embedding_if_there_is_one(
    noise_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, encoders = noise_model.info, NoiseEncoders(noise_model.info.preset)
    shared = recorded_voice(CLIP, encoders, info, "wren")
    assert np.array_equal(shared.flow_speaker, shared.speaker)
    monkeypatch.setattr(encoders, "flow_speaker", lambda samples: np.full(192, len(samples), np.float32))
    own = recorded_voice(CLIP, encoders, info, "wren")
    assert np.array_equal(own.flow_speaker, np.full(192, len(CLIP)))
    assert np.array_equal(own.speaker, shared.speaker)


def envelope_likeness(one: Samples, other: Samples) -> float:
    """Return the mean correlation over time of averages over eight bands."""
    mels = [
        NoiseEncoders(WREN).flow_mel(samples)[:, :80].reshape(-1, 10, 8).mean(axis=2)
        for samples in (one, other)
    ]
    frames = min(map(len, mels))
    bands = zip(*(mel[:frames].T for mel in mels), strict=True)
    return float(np.mean([np.corrcoef(a, b)[0, 1] for a, b in bands]))
