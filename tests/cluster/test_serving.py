"""Two replicas on a real Ray: the bytes of the single server, routing, voices, metrics and sockets."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from cluster.conftest import Cluster
from live_server import LiveServer, live_server
from websockets.asyncio.client import connect

from nightingale import TTS
from nightingale.server.service.model_loading import load_engine
from nightingale.server.settings import ServerSettings

pytestmark = pytest.mark.ray
NOISE = {"model": "noise", "profile": "exact"}
SENTENCES = ("Good morning.", "The train leaves at 10.", "A longer sentence, with a pause in it, for both.")


@pytest.fixture(scope="module")
def two(cluster: Cluster) -> Cluster:
    cluster.deploy(replicas="2", server=NOISE)
    return cluster


@pytest.fixture(scope="module")
def single() -> Iterator[LiveServer]:
    tts: TTS = load_engine(ServerSettings(**NOISE))
    with tts, live_server(tts) as running:
        yield running


@pytest.fixture(scope="module")
def sessions(two: Cluster) -> dict[str, str]:
    """Return a session for each of the two replicas."""
    found: dict[str, str] = {}
    with two.client() as client:
        for number in range(64):
            answer = client.get("/ready", headers={"x-session-id": f"s{number}"})
            found.setdefault(answer.headers["x-replica"], f"s{number}")
    assert len(found) == 2, "all sessions went to the same replica"
    return found


def speak(client: httpx.Client, text: str, session: str | None = None, **body: Any) -> httpx.Response:
    request = {"input": text, "response_format": "pcm", "seed": 7, **body}
    headers = {"x-session-id": session} if session else {}
    return client.post("/v1/audio/speech", json=request, headers=headers)


@pytest.mark.parametrize("body", [{}, {"response_format": "flac"}, {"stream_format": "sse"}], ids=str)
def test_each_replica_answers_with_the_bytes_of_the_single_server(
    two: Cluster, single: LiveServer, sessions: dict[str, str], body: dict[str, Any]
) -> None:
    with two.client() as client, httpx.Client(base_url=single.http) as alone:
        for text in SENTENCES:
            expected = audio_of(speak(alone, text, **body))
            for replica, session in sessions.items():
                answer = speak(client, text, session, **body)
                assert answer.headers["x-replica"] == replica
                assert audio_of(answer) == expected


def audio_of(answer: httpx.Response) -> list[str] | bytes:
    """Return the audio: a body, or its parts in events, without the times in the last one."""
    assert answer.status_code == 200, answer.text
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return answer.content
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1]["type"] == "speech.audio.done"
    return [event["audio"] for event in events if event["type"] == "speech.audio.delta"]


def test_streams_at_the_same_time_on_both_replicas_have_the_bytes_of_the_single_server(
    two: Cluster, single: LiveServer
) -> None:
    texts = [f"Sentence number {number} of many." for number in range(12)]

    async def speak_all(url: str) -> list[tuple[str, bytes]]:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            bodies = [{"input": text, "response_format": "pcm", "seed": 3} for text in texts]
            answers = await asyncio.gather(*(client.post("/v1/audio/speech", json=body) for body in bodies))
        assert {answer.status_code for answer in answers} == {200}
        return [(answer.headers.get("x-replica", ""), answer.content) for answer in answers]

    ours, expected = asyncio.run(speak_all(two.http)), asyncio.run(speak_all(single.http))
    assert [audio for _, audio in ours] == [audio for _, audio in expected]
    assert len({replica for replica, _ in ours}) == 2, "one replica had all the work"


def test_a_socket_speaks_as_on_the_single_server(two: Cluster, single: LiveServer) -> None:
    async def talk(url: str) -> bytes:
        audio = b""
        async with connect(f"{url}/v1/audio/speech/stream") as socket:
            assert json.loads(await socket.recv())["type"] == "session.created"
            await socket.send(json.dumps({"type": "session.update", "session": {"seed": 5}}))
            for word in ("One sentence. ", "And another ", "one."):
                await socket.send(json.dumps({"type": "input_text.append", "text": word}))
            await socket.send(json.dumps({"type": "input_text.end"}))
            async for message in socket:
                if isinstance(message, bytes):
                    audio += message
                elif json.loads(message)["type"] == "speech.audio.done":
                    return audio
        raise AssertionError("the socket was closed before the end")

    assert asyncio.run(talk(two.ws)) == asyncio.run(talk(single.ws)) != b""


def test_requests_of_one_session_and_of_one_voice_go_to_one_replica(
    two: Cluster, sessions: dict[str, str]
) -> None:
    with two.client() as client:
        for replica, session in sessions.items():
            for text in SENTENCES:
                assert speak(client, text, session).headers["x-replica"] == replica
        for voice in (
            "anna",
            "bert",
        ):  # no such voices: the answer is an error, of the same replica each time
            found = {speak(client, "Hi.", voice=voice).headers["x-replica"] for _ in range(6)}
            assert len(found) == 1


def clip() -> bytes:
    t = np.arange(48_000) / 24_000
    file = io.BytesIO()
    soundfile.write(
        file, 0.3 * np.sin(2 * np.pi * 150 * t) * (1 + np.sin(6 * np.pi * t)), 24_000, format="WAV"
    )
    return file.getvalue()


def test_a_voice_uploaded_to_one_replica_is_spoken_by_the_other_and_deleted_for_both(
    two: Cluster, sessions: dict[str, str]
) -> None:
    (_, first), (other, second) = sessions.items()
    with two.client() as client:
        upload = {"data": {"name": "carla"}, "files": {"audio": ("clip.wav", clip(), "audio/wav")}}
        made = client.post("/v1/audio/voices", headers={"x-session-id": first}, **upload)
        assert made.status_code == 201, made.text
        spoken = speak(client, "Hello.", second, voice="carla")
        assert (spoken.status_code, spoken.headers["x-replica"]) == (200, other)
        gone = client.delete("/v1/audio/voices/carla", headers={"x-session-id": second})
        assert gone.status_code == 200, gone.text
        assert speak(client, "Hello.", first, voice="carla").status_code == 400


def test_of_two_uploads_of_one_name_to_two_replicas_one_succeeds(
    two: Cluster, sessions: dict[str, str]
) -> None:
    async def upload_both() -> list[int]:
        async with two.async_client() as client:
            upload = {"data": {"name": "dora"}, "files": {"audio": ("clip.wav", clip(), "audio/wav")}}
            both = [
                client.post("/v1/audio/voices", headers={"x-session-id": session}, **upload)
                for session in sessions.values()
            ]
            return [answer.status_code for answer in await asyncio.gather(*both)]

    assert sorted(asyncio.run(upload_both())) == [201, 409]


def test_one_scrape_shows_all_replicas(two: Cluster, sessions: dict[str, str]) -> None:
    with two.client() as client:
        page = client.get("/metrics").text
    for replica in sessions:
        assert f'nightingale_model_loaded{{replica="{replica}"}} 1.0' in page
    assert page.count("# TYPE nightingale_ttfa_seconds histogram") == 1


def test_errors_and_the_page_are_those_of_the_single_server(two: Cluster, single: LiveServer) -> None:
    with two.client() as client, httpx.Client(base_url=single.http) as alone:
        for path in ("/", "/v1/models", "/openapi.json", "/nowhere"):
            ours, expected = client.get(path), alone.get(path)
            assert (ours.status_code, ours.content) == (expected.status_code, expected.content)
        assert speak(client, "").json() == speak(alone, "").json()
