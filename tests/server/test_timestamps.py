"""Timestamps of segments: in events, on sockets and in one document; word timestamps are refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from live_server import LiveServer
from plain_http import HTTP
from websockets.sync.client import connect

from nightingale import TTS
from nightingale.server.service.speech_streams import SegmentTimer, TimedSegment, format_srt
from nightingale.types import AudioChunk, SegmentStart

SPOKEN = ["The first sentence is about birds in a tree.", "The second one is not about anything at all."]
TEXT = " [pause:700ms] ".join(SPOKEN)
TOKENS = 8
"""Per segment, 40 ms each."""


def chunk(samples: int, *begins: Any) -> AudioChunk:
    begun = SegmentStart(text=begins[0], pause_samples=begins[1]) if begins else None
    return AudioChunk(samples=np.zeros(samples, np.float32), sample_rate_hz=1000, begins=begun)


def test_segments_exclude_their_pauses() -> None:
    timer = SegmentTimer()
    assert timer.add(chunk(300, "", 300)) == []  # the text begins with a pause
    assert timer.add(chunk(500, "One,  two.", 100)) == []
    assert timer.add(chunk(250)) == []
    assert timer.add(chunk(400, "Three.", 0)) == [TimedSegment(text="One, two.", start=0.3, end=0.95)]
    assert timer.finish() == [TimedSegment(text="Three.", start=1.05, end=1.45)]
    assert timer.finish() == []


def test_subtitles_are_numbered_and_timed() -> None:
    subtitles = format_srt(
        [TimedSegment(text="One.", start=0, end=1.5), TimedSegment(text="Two.", start=3601.25, end=3662.0)]
    )
    assert subtitles == "1\n00:00:00,000 --> 00:00:01,500\nOne.\n\n2\n01:00:01,250 --> 01:01:02,000\nTwo.\n"


@pytest.mark.parametrize("speed", [None, 2.0])
def test_chunks_of_the_engine_mark_the_start_of_segments(
    small: Callable[..., TTS], speed: float | None
) -> None:
    with small(tokens=TOKENS) as tts:
        chunks = list(tts.stream(TEXT, seed=1, speed=speed))
    begun = [chunk.begins.text for chunk in chunks if chunk.begins is not None]
    assert [" ".join(text.split()) for text in begun] == SPOKEN
    timer = SegmentTimer()
    segments = [found for chunk in chunks for found in timer.add(chunk)] + timer.finish()
    seconds = TOKENS * 0.04 / (speed or 1.0)
    starts = [0.0, seconds + 0.7]
    for segment, start in zip(segments, starts, strict=True):
        assert (segment.start, segment.end) == pytest.approx((start, start + seconds), abs=0.002)
    assert sum(chunk.seconds for chunk in chunks) == pytest.approx(segments[-1].end, abs=0.002)


def events_of(server: LiveServer, **body: Any) -> list[dict[str, Any]]:
    asked = {"input": TEXT, "response_format": "pcm", "stream_format": "sse", "seed": 1, **body}
    answer = HTTP.post(f"{server.http}/v1/audio/speech", json=asked)
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def check(segments: list[dict[str, Any]], samples: int, default_pause_s: float = 0.0) -> None:
    """default_pause_s: the pause that follows each sentence by default."""
    assert [segment["text"] for segment in segments] == SPOKEN
    assert segments[0]["start"] == 0
    assert all(before["end"] < after["start"] for before, after in pairwise(segments))
    assert segments[1]["start"] - segments[0]["end"] == pytest.approx(default_pause_s + 0.7, abs=0.002)
    assert segments[-1]["end"] + default_pause_s == pytest.approx(samples / 24_000, abs=0.002)


def test_events_contain_each_segment_once_after_its_audio(server: LiveServer) -> None:
    events = events_of(server, timestamps="segment")
    sound = b"".join(base64.b64decode(event["audio"]) for event in events if "audio" in event)
    check([segment for event in events for segment in event.get("segments", [])], len(sound) // 2)
    assert [event["type"] for event in events][-2:] == ["speech.audio.segments", "speech.audio.done"]
    plain = events_of(server)
    assert {event["type"] for event in plain} == {"speech.audio.delta", "speech.audio.done"}
    assert b"".join(base64.b64decode(event["audio"]) for event in plain if "audio" in event) == sound


def test_captions_document_contains_audio_and_segments(server: LiveServer) -> None:
    body = {"input": TEXT, "response_format": "pcm", "seed": 1}
    whole = HTTP.post(f"{server.http}/v1/audio/speech", json=body).content
    answer = HTTP.post(f"{server.http}/v1/audio/speech/captions", json=body)
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert base64.b64decode(document["audio"]) == whole
    assert (document["response_format"], document["sample_rate"]) == ("pcm", 24_000)
    check(document["segments"], len(whole) // 2)
    assert document["srt"].startswith("1\n00:00:00,000 --> 00:00:00,320\nThe first sentence")
    wrong = HTTP.post(f"{server.http}/v1/audio/speech/captions", json={**body, "voice": "missing"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "voice_not_found")


def test_socket_sends_segments_relative_to_their_turn(server: LiveServer) -> None:
    with connect(f"{server.ws}/v1/audio/speech/stream") as client:
        client.recv()
        session = {"seed": 1, "timestamps": "segment"}
        client.send(json.dumps({"type": "session.update", "session": session}))
        assert json.loads(client.recv())["session"]["timestamps"] == "segment"
        for _ in range(2):
            for part in (TEXT[:20], TEXT[20:]):
                client.send(json.dumps({"type": "input_text.append", "text": part}))
            client.send(json.dumps({"type": "input_text.end"}))
            samples, segments, kind = 0, list[dict[str, Any]](), ""
            while kind != "speech.audio.done":
                message = client.recv(timeout=20)
                if isinstance(message, bytes):
                    samples += len(message) // 2
                    continue
                event = json.loads(message)
                kind = event["type"]
                segments += event.get("segments", [])
            # The default pause follows each sentence, because it was segmented before the tag arrived.
            check(segments, samples, default_pause_s=0.12)


def test_word_timestamps_are_refused_with_the_alternative(server: LiveServer) -> None:
    for path in ("/v1/audio/speech", "/v1/audio/speech/captions"):
        answer = HTTP.post(server.http + path, json={"input": "Hi.", "timestamps": "word"})
        assert answer.status_code == 400
        assert "segment" in answer.json()["error"]["message"]
    plain = HTTP.post(f"{server.http}/v1/audio/speech", json={"input": "Hi.", "timestamps": "segment"})
    assert plain.status_code == 400
    assert "sse" in plain.json()["error"]["message"]
    with connect(f"{server.ws}/v1/audio/speech/stream") as client:
        client.recv()
        client.send(json.dumps({"type": "session.update", "session": {"timestamps": "word"}}))
        refused = json.loads(client.recv())
        assert refused["type"] == "error"
        assert "segment" in refused["error"]["message"]
