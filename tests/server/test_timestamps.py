"""Timestamps of segments and words: in events, on sockets, in documents, and in the formats of others."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from live_server import LiveServer, live_server
from plain_http import HTTP
from websockets.sync.client import connect

from nightingale import TTS
from nightingale.server.service.speech_streams import SegmentTimer, TimedSegment
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
    assert [word["word"] for word in document["words"]] == " ".join(SPOKEN).split()
    assert [TEXT[word["text_start"] : word["text_end"]] for word in document["words"]] == " ".join(
        SPOKEN
    ).split()
    assert document["srt"].startswith("1\n00:00:00,000 --> 00:00:01,020\nThe first sentence")
    by_segments = HTTP.post(
        f"{server.http}/v1/audio/speech/captions", json={**body, "timestamps": "segment"}
    ).json()
    assert by_segments["words"] == []
    assert by_segments["srt"].startswith("1\n00:00:00,000 --> 00:00:01,020\nThe first sentence")
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


def test_events_and_sockets_contain_each_word_once(server: LiveServer) -> None:
    events = events_of(server, timestamps="word")
    words = [word for event in events for word in event.get("words", [])]
    assert [word["word"] for word in words] == " ".join(SPOKEN).split()
    assert all(before["end"] <= after["start"] for before, after in pairwise(words))
    assert events[-1]["srt"].startswith("1\n00:00:00,")
    with connect(f"{server.ws}/v1/audio/speech/stream") as client:
        client.recv()
        client.send(json.dumps({"type": "session.update", "session": {"seed": 1, "timestamps": "word"}}))
        client.recv()
        client.send(json.dumps({"type": "input_text.append", "text": SPOKEN[0]}))
        client.send(json.dumps({"type": "input_text.end"}))
        received = list[dict[str, Any]]()
        while not received or received[-1]["type"] != "speech.audio.done":
            message = client.recv(timeout=20)
            received += [] if isinstance(message, bytes) else [json.loads(message)]
    words = [word for event in received for word in event.get("words", [])]
    assert [SPOKEN[0][word["text_start"] : word["text_end"]] for word in words] == SPOKEN[0].split()


def test_timestamps_need_events_and_a_decoder_that_traces_attention(
    server: LiveServer, small: Callable[..., TTS]
) -> None:
    for kind in ("segment", "word"):
        plain = HTTP.post(f"{server.http}/v1/audio/speech", json={"input": "Hi.", "timestamps": kind})
        assert plain.status_code == 400
        assert "sse" in plain.json()["error"]["message"]
    with small() as tts:
        tts._worker.decoder.traces_attention = False
        with live_server(tts) as other:
            body = {"input": TEXT, "response_format": "pcm", "timestamps": "word"}
            refused = HTTP.post(f"{other.http}/v1/audio/speech/captions", json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "timestamps")
            document = HTTP.post(
                f"{other.http}/v1/audio/speech/captions", json={**body, "timestamps": None}
            ).json()
            assert document["words"] == []
            assert document["srt"].count("-->") == 2


def test_captioned_speech_has_the_format_of_kokoro_fastapi(server: LiveServer) -> None:
    body = {"model": "kokoro", "input": TEXT, "voice": "noise", "response_format": "pcm", "seed": 1}
    sound = HTTP.post(f"{server.http}/v1/audio/speech", json={**body, "model": "nightingale"}).content
    for stream in (True, False):
        answer = HTTP.post(f"{server.http}/dev/captioned_speech", json={**body, "stream": stream})
        assert answer.status_code == 200, answer.text
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert (len(lines) > 1) is stream
        assert b"".join(base64.b64decode(line["audio"]) for line in lines) == sound
        words = [word for line in lines for word in line["timestamps"]]
        assert [word["word"] for word in words] == " ".join(SPOKEN).split()
        assert all(word.keys() == {"word", "start_time", "end_time"} for word in words)
    untimed = HTTP.post(f"{server.http}/dev/captioned_speech", json={**body, "return_timestamps": False})
    assert json.loads(untimed.text.splitlines()[0])["timestamps"] == []


def test_elevenlabs_timestamps_cover_every_character(server: LiveServer) -> None:
    base = f"{server.http}/v1/text-to-speech/noise"
    for path in ("/with-timestamps", "/stream/with-timestamps"):
        answer = HTTP.post(f"{base}{path}?output_format=pcm_24000", json={"text": TEXT, "seed": 1})
        assert answer.status_code == 200, answer.text
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert all(line["audio_base64"] is not None for line in lines)
        alignments = [line["alignment"] for line in lines if line["alignment"] is not None]
        assert "".join("".join(one["characters"]) for one in alignments) == TEXT
        starts = [at for one in alignments for at in one["character_start_times_seconds"]]
        ends = [at for one in alignments for at in one["character_end_times_seconds"]]
        assert starts == sorted(starts)
        assert all(start <= end for start, end in zip(starts, ends, strict=True))


def test_elevenlabs_sockets_send_alignment_relative_to_the_message_before(server: LiveServer) -> None:
    path = f"{server.ws}/v1/text-to-speech/noise/stream-input?output_format=pcm_24000"
    for sync in ("", "&sync_alignment=true"):
        with connect(path + sync) as client:
            client.send(json.dumps({"text": " "}))  # opens the connection, and is not spoken
            client.send(json.dumps({"text": SPOKEN[0] + " "}))
            client.send(json.dumps({"text": ""}))
            messages = list[dict[str, Any]]()
            while not messages or not messages[-1].get("isFinal"):
                messages.append(json.loads(client.recv(timeout=20)))
        alignments = [one["alignment"] for one in messages if one.get("alignment")]
        assert "".join("".join(one["chars"]) for one in alignments) == SPOKEN[0] + " "
        ends_ms = [one["charStartTimesMs"][-1] + one["charDurationsMs"][-1] for one in alignments]
        assert all(start >= 0 for one in alignments for start in one["charStartTimesMs"])
        assert 200 < (ends_ms[-1] if sync else sum(ends_ms)) <= 330  # eight tokens of 40 ms
