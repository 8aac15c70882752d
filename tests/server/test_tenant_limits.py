"""Limits of tenants, their error responses, their counters in /metrics, and keys that are revoked."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")
from live_server import LiveServer
from plain_http import HTTP
from tenant_clients import KEYS, PCM, clip, header, speak, tenant, tenant_server, upload, write_tenants
from websockets.sync.client import ClientConnection, connect

from nightingale import TTS
from nightingale.server.tenants import tenant_usage, usage_store
from nightingale.server.tenants.access_errors import LimitExceeded
from nightingale.server.tenants.key_file import Tenant
from nightingale.server.tenants.tenant_usage import RequestWindow
from nightingale.server.tenants.usage_store import CharacterCounts


@contextmanager
def ann_with(tts: TTS, folder: Path, **limits: Any) -> Iterator[LiveServer]:
    """Serve with these limits of ann. Bob has none."""
    with tenant_server(tts, folder / "keys.toml", tenant("ann", **limits)) as server:
        yield server


def code_of(answer: httpx.Response) -> str:
    assert answer.status_code == 429, answer.text
    return str(answer.json()["error"]["code"])


@contextmanager
def open_turn(server: LiveServer, name: str) -> Iterator[ClientConnection]:
    """Keep a request running: a turn of our socket whose text has not ended."""
    url = f"{server.ws}/v1/audio/speech/stream"
    with connect(url, additional_headers=header(name)) as socket:
        send(socket, "input_text.append", text="Hello there. ")
        send(socket, "input_text.flush")
        while not isinstance(socket.recv(20), bytes):
            pass
        yield socket


def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    socket.send(json.dumps({"type": kind, **fields}))


def next_of(socket: ClientConnection, kind: str) -> dict[str, Any]:
    while True:
        message = socket.recv(20)
        event: dict[str, Any] = json.loads(message) if isinstance(message, str) else {}
        if event.get("type") == kind:
            return event


def test_requests_at_once_are_limited_for_each_tenant(brief: TTS, tmp_path: Path) -> None:
    with ann_with(brief, tmp_path, concurrent_requests=1) as server:
        with (
            open_turn(server, "ann"),
            connect(f"{server.ws}/v1/audio/speech/stream", additional_headers=header("ann")) as second,
        ):
            answer = speak(server, "ann")
            assert code_of(answer) == "too_many_concurrent_requests"
            assert answer.json()["error"]["type"] == "rate_limit_error"
            assert int(answer.headers["retry-after"]) >= 1
            url = f"{server.http}/v1/text-to-speech/noise?output_format=pcm_24000"
            answer = HTTP.post(url, json={"text": "Hi."}, headers={"xi-api-key": KEYS["ann"]})
            assert answer.json()["detail"]["status"] == "too_many_concurrent_requests"
            assert code_of(upload(server, "ann", "anna", clip())) == "too_many_concurrent_requests"
            send(second, "input_text.append", text="Hello there. ")
            assert next_of(second, "error")["error"]["code"] == "too_many_concurrent_requests"
            assert speak(server, "bob").status_code == 200
        server.wait_until_idle()
        assert speak(server, "ann").status_code == 200


def test_requests_a_minute_are_limited(brief: TTS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=1000.0, monotonic=lambda: clock.now_s)
    monkeypatch.setattr(tenant_usage, "time", clock)
    with ann_with(brief, tmp_path, requests_per_minute=2) as server:
        assert speak(server, "ann").status_code == 200
        clock.now_s += 20
        assert speak(server, "ann", voice="missing").status_code == 400
        answer = speak(server, "ann")
        assert code_of(answer) == "rate_limit_exceeded"
        assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("40", "40000")
        assert speak(server, "bob").status_code == 200
        clock.now_s += 40
        assert speak(server, "ann").status_code == 200
        assert code_of(speak(server, "ann")) == "rate_limit_exceeded"


@pytest.mark.parametrize(("limit", "wait_s"), [(5, None), (4, 20.0), (1, 50.0), (0, 60.0)])
def test_a_lowered_limit_counts_the_requests_before(
    monkeypatch: pytest.MonkeyPatch, limit: int, wait_s: float | None
) -> None:
    clock = SimpleNamespace(now_s=0.0, monotonic=lambda: clock.now_s)
    monkeypatch.setattr(tenant_usage, "time", clock)
    window = RequestWindow()
    for clock.now_s in (0.0, 10.0, 20.0, 30.0):
        window.start(Tenant(name="ann", requests_per_minute=10))
    clock.now_s = 40.0
    lowered = Tenant(name="ann", requests_per_minute=limit)
    if wait_s is None:
        window.start(lowered)
    else:
        with pytest.raises(LimitExceeded) as refused:
            window.start(lowered)
        assert refused.value.retry_after_s == wait_s


def test_characters_of_a_day_survive_a_restart(
    brief: TTS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noon = SimpleNamespace(time=lambda: 20_000 * 86_400 + 43_200.0)
    monkeypatch.setattr(usage_store, "time", noon)
    with ann_with(brief, tmp_path, characters_per_day=10) as server:
        assert speak(server, "ann", input="12345.").status_code == 200
        assert speak(server, "ann", input="123.", voice="missing").status_code == 400, "it does not count"
        assert code_of(speak(server, "ann", input="12345")) == "insufficient_quota"
        assert speak(server, "ann", input="123.").status_code == 200
    with ann_with(brief, tmp_path, characters_per_day=10) as server:
        answer = speak(server, "ann", input="1")
        assert code_of(answer) == "insufficient_quota"
        assert (answer.headers["retry-after"], answer.headers["x-should-retry"]) == ("43200", "false")
        url = f"{server.http}/v1/text-to-speech/noise/stream?output_format=pcm_24000"
        answer = HTTP.post(url, json={"text": "Hi."}, headers={"xi-api-key": KEYS["ann"]})
        assert answer.json()["detail"]["status"] == "quota_exceeded"
        url = f"{server.ws}/v1/audio/speech/stream"
        with connect(url, additional_headers=header("ann")) as socket:
            send(socket, "input_text.append", text="Hello there.")
            assert next_of(socket, "error")["error"]["code"] == "insufficient_quota"
        assert speak(server, "bob", input="A longer text than ten characters.").status_code == 200
        noon.time = lambda: 20_001 * 86_400 + 1.0
        assert speak(server, "ann", input="1").status_code == 200, "a new day"


def test_openais_client_does_not_try_again_without_characters(brief: TTS, tmp_path: Path) -> None:
    openai = pytest.importorskip("openai")
    with ann_with(brief, tmp_path, characters_per_day=0) as server:
        base = f"{server.http}/v1"
        with (
            openai.OpenAI(base_url=base, api_key=KEYS["ann"], max_retries=5) as client,
            pytest.raises(openai.RateLimitError) as refused,
        ):
            client.audio.speech.create(model="tts-1", voice="nova", input="Hi.")
        assert refused.value.code == "insufficient_quota"
        assert series(server)['rejections{reason="characters_per_day",tenant="ann"}'] == 1


def test_text_that_arrives_in_parts_is_charged_part_by_part(brief: TTS, tmp_path: Path) -> None:
    with ann_with(brief, tmp_path, characters_per_day=20) as server, open_turn(server, "ann") as socket:
        send(socket, "input_text.append", text="More than is left.")
        assert next_of(socket, "error")["error"]["code"] == "insufficient_quota"
        assert server.service.tenants.used_today("ann") == len("Hello there. ")


def test_processes_share_the_characters_of_a_day(tmp_path: Path) -> None:
    file = tmp_path / "usage.sqlite3"
    one, two = CharacterCounts(file), CharacterCounts(file)
    for counts, chars in ((one, 3), (two, 4)):
        assert counts.add("ann", chars, limit=10)
        counts.save()
    one.add("ann", 1)
    one.save()
    assert (one.used("ann"), two.used("ann"), CharacterCounts(file).used("ann")) == (8, 7, 8)
    assert not one.add("ann", 3, limit=10)
    one.add("ann", -2)
    one.save()
    assert CharacterCounts(file).used("ann") == 6
    assert one.used("bob") == 0


def test_counting_from_many_threads_loses_nothing(tmp_path: Path) -> None:
    counts = CharacterCounts(tmp_path / "usage.sqlite3")

    def count() -> None:
        for number in range(200):
            counts.add("ann", 1)
            if number % 50 == 0:
                counts.save()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts.used("ann") == 800
    counts.save()
    assert CharacterCounts(tmp_path / "usage.sqlite3").used("ann") == 800


def test_limits_hold_while_the_file_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    counts = CharacterCounts(tmp_path / "file" / "usage.sqlite3")
    assert counts.add("ann", 10, limit=10)
    counts.save()
    assert not counts.add("ann", 1, limit=10)
    assert [record.getMessage() for record in caplog.records] == ["the use of tenants cannot be stored"]


def series(server: LiveServer) -> dict[str, float]:
    text = HTTP.get(f"{server.http}/metrics", headers=header("boss")).text
    found = re.findall(r"^nightingale_tenant_(\w+)_total(\{.*\}) (\S+)$", text, flags=re.MULTILINE)
    return {f"{name}{labels}": float(value) for name, labels, value in found}


def test_metrics_count_by_tenants_of_the_key_file_only(brief: TTS, tmp_path: Path) -> None:
    with ann_with(brief, tmp_path, requests_per_minute=2) as server:
        before = series(server)
        assert set(before.values()) == {0.0}
        assert len(before) == 3 * (3 + 4), "the counters of three tenants, one of them for four reasons"
        for _ in range(3):
            speak(server, "ann")
        HTTP.post(f"{server.http}/v1/audio/speech", json=PCM, headers={"xi-api-key": "ng_stranger"})
        server.wait_until_idle()
        after = series(server)
        assert after.keys() == before.keys(), "a client has added series"
        assert after['requests{tenant="ann"}'] == 2
        assert after['characters{tenant="ann"}'] == 2 * len(PCM["input"])
        assert after['audio_seconds{tenant="ann"}'] > 0
        assert after['rejections{reason="requests_per_minute",tenant="ann"}'] == 1
        assert after['requests{tenant="bob"}'] == 0
        write_tenants(tmp_path / "keys.toml", tenant("ann"), Tenant(name="bob"), Tenant(name="cy"))
        assert {re.findall(r'tenant="(\w+)"', name)[0] for name in series(server)} == {
            "ann",
            "bob",
            "boss",
            "cy",
        }


def test_a_revoked_key_ends_the_use_of_open_sockets(brief: TTS, tmp_path: Path) -> None:
    with ann_with(brief, tmp_path) as server, open_turn(server, "ann") as socket:
        write_tenants(tmp_path / "keys.toml", Tenant(name="ann"))
        assert speak(server, "ann").status_code == 401
        send(socket, "input_text.end")
        next_of(socket, "speech.audio.done")  # what runs is finished
        send(socket, "input_text.append", text="Hello again.")
        assert next_of(socket, "error")["error"]["code"] == "invalid_api_key"
        assert speak(server, "bob").status_code == 200


def test_changed_limits_apply_to_open_sockets(brief: TTS, tmp_path: Path) -> None:
    with ann_with(brief, tmp_path) as server, open_turn(server, "ann") as socket:
        write_tenants(tmp_path / "keys.toml", tenant("ann", requests_per_minute=0))
        send(socket, "input_text.end")
        next_of(socket, "speech.audio.done")
        send(socket, "input_text.append", text="Hello again.")
        assert next_of(socket, "error")["error"]["code"] == "rate_limit_exceeded"


def test_a_request_that_fails_or_is_cancelled_gives_its_place_back(
    small: Callable[..., TTS], tmp_path: Path
) -> None:
    with small(tokens=40) as tts, ann_with(tts, tmp_path, concurrent_requests=1) as server:
        for _ in range(3):
            assert speak(server, "ann", voice="missing").status_code == 400
            assert upload(server, "ann", "anna", b"no clip").status_code == 400
            body = {**PCM, "input": "One sentence, and then another one. " * 50}
            url = f"{server.http}/v1/audio/speech"
            with HTTP.stream("POST", url, json=body, headers=header("ann")) as answer:
                next(answer.iter_raw())
            server.wait_until_idle()
        assert speak(server, "ann").status_code == 200
