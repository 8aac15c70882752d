"""Operation of a server: keys, origins, probes, metrics, logs, idle unloading, shutdown."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import platform
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from live_server import LiveServer, live_server
from plain_http import HTTP

from nightingale import TTS
from nightingale.engine.session import Session
from nightingale.errors import EngineFault, MemoryFull, QueueFull, memory_full
from nightingale.server.app import create_app
from nightingale.server.http_errors import http_error
from nightingale.server.logs import JsonFormatter, TextFormatter, log_config
from nightingale.server.metrics import ServerMetrics
from nightingale.server.middleware import is_foreign_host, is_foreign_origin, request_key
from nightingale.server.service import model_loading
from nightingale.server.service.model_loading import release_memory, resident_bytes
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.settings import ServerSettings
from nightingale.server.tenants.tenant_registry import TenantRegistry

SECRET_TEXT = "The password is swordfish."
KEY = {"authorization": "Bearer open sesame"}


@pytest.fixture(scope="module")
def guarded(small: Callable[..., TTS]) -> Iterator[LiveServer]:
    with small() as tts, live_server(tts, api_key="open sesame", cors=["https://chat.example"]) as running:
        yield running


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": "open sesame"}, {"xi-api-key": "x"}]
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/audio/voices", "/metrics"])
def test_requests_without_a_valid_key_are_refused(
    guarded: LiveServer, path: str, headers: dict[str, str]
) -> None:
    answer = HTTP.get(guarded.http + path, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    "headers", [KEY, {"xi-api-key": "open sesame"}, {"authorization": "bearer  open sesame"}]
)
def test_requests_with_the_key_are_answered(guarded: LiveServer, headers: dict[str, str]) -> None:
    assert HTTP.get(f"{guarded.http}/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/docs", "/openapi.json"])
def test_probes_and_pages_need_no_key(guarded: LiveServer, path: str) -> None:
    assert HTTP.get(guarded.http + path).status_code == 200


@pytest.mark.parametrize("prefix", ["/v", "/v1", "/tts", "/"])
def test_path_prefix_does_not_bypass_the_key(prefix: str) -> None:
    async def run() -> None:
        settings = ServerSettings(api_key="k")
        transport = httpx.ASGITransport(create_app(settings, SpeechService(settings)), root_path=prefix)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for path in ("/v1/models", "//v1/models", "/page/../v1/models", "/v1//models"):
                # The files of the page need no key, and none of them has such a path.
                expected = (401, 404) if path.startswith("/page/") else (401,)
                for address in (path, prefix + path):
                    assert (await client.get(address)).status_code in expected
            if prefix == "/tts":
                assert (await client.get("/tts/health")).status_code == 200
                assert (await client.get("/tts/v1/models", headers={"xi-api-key": "k"})).status_code == 200

    asyncio.run(run())


def test_requests_with_wrong_keys_do_not_reach_the_engine(guarded: LiveServer) -> None:
    characters = guarded.service.metrics.characters._value
    before = characters.get()
    for _ in range(20):
        answer = HTTP.post(f"{guarded.http}/v1/audio/speech", json={"input": "hi"})
        assert answer.status_code == 401
    assert characters.get() == before
    HTTP.post(f"{guarded.http}/v1/audio/speech", json={"input": "hi"}, headers=KEY)
    assert characters.get() == before + 2


def test_foreign_page_may_not_post(guarded: LiveServer) -> None:
    def post(origin: str) -> httpx.Response:
        headers = {**KEY, "origin": origin}
        return HTTP.post(f"{guarded.http}/v1/audio/speech", json={"input": "hi"}, headers=headers)

    assert post("https://evil.example").json()["error"]["code"] == "origin_not_allowed"
    allowed = post("https://chat.example")
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://chat.example"
    assert "access-control-allow-credentials" not in allowed.headers
    assert post(guarded.http).status_code == 200, "the server's own page was refused"


def test_preflight_is_answered_for_allowed_origins_only(guarded: LiveServer) -> None:
    def preflight(origin: str) -> httpx.Response:
        headers = {"origin": origin, "access-control-request-method": "POST"}
        return HTTP.options(f"{guarded.http}/v1/audio/speech", headers=headers)

    assert preflight("https://chat.example").headers["access-control-allow-origin"] == "https://chat.example"
    assert "access-control-allow-origin" not in preflight("https://evil.example").headers


def test_dns_rebinding_is_detected() -> None:
    rebound = {"origin": "http://evil.example:8880", "host": "evil.example:8880"}
    assert is_foreign_host(rebound, ServerSettings())
    assert not is_foreign_host({"host": "localhost:8880"}, ServerSettings())
    assert not is_foreign_host(rebound, ServerSettings(host="0.0.0.0"))
    assert not is_foreign_origin(
        {"origin": "http://localhost:8880", "host": "localhost:8880"}, ServerSettings()
    )
    assert not is_foreign_origin({"host": "evil.example"}, ServerSettings()), (
        "a request without an origin is not from a page"
    )


def test_only_whole_keys_match(tmp_path: Path) -> None:
    assert TenantRegistry(ServerSettings(), ServerMetrics()).identify(None) is not None
    file = tmp_path / "keys"
    file.write_text("a\nb\n")
    tenants = TenantRegistry(ServerSettings(api_key_file=file), ServerMetrics())
    assert tenants.identify("b") is not None
    for wrong in (None, "", "c", "ab", "a\n"):
        assert tenants.identify(wrong) is None
    assert request_key({"authorization": "Basic abc", "xi-api-key": "x"}) == "x"


def test_ready_only_after_the_warm_up(small: Callable[..., TTS], monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        with small() as tts:
            service = SpeechService(ServerSettings(), tts)
            warm = asyncio.Event()
            loop = asyncio.get_running_loop()
            hold = asyncio.Event()

            warm_up = model_loading.warm_up

            def slow(tts: TTS, registry: Any) -> None:
                asyncio.run_coroutine_threadsafe(hold.wait(), loop).result()
                warm_up(tts, registry)
                loop.call_soon_threadsafe(warm.set)

            monkeypatch.setattr(model_loading, "warm_up", slow)
            transport = httpx.ASGITransport(create_app(ServerSettings(), service))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                assert (await client.get("/ready")).status_code == 503
                starting = asyncio.create_task(service.start())
                await asyncio.sleep(0.05)
                early = await client.get("/ready")
                assert (early.status_code, early.json()["state"]) == (503, "loading")
                assert (await client.get("/health")).status_code == 200
                hold.set()
                await starting
                assert warm.is_set()
                ready = await client.get("/ready")
                assert ready.status_code == 200
                assert ready.json()["wait_s"] == 0.0
                await service.stop()
                late = await client.get("/ready")
                assert (late.status_code, late.json()["state"]) == (503, "stopping")
                refused = await client.post("/v1/audio/speech", json={"input": "hi"})
                assert refused.status_code == 503

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize(("estimate_s", "low_ms"), [(2.5, 2500), (None, 1000), (0.0, 100), (1e9, 300_000)])
def test_a_full_queue_is_answered_with_the_engines_estimate(estimate_s: float | None, low_ms: int) -> None:
    error = QueueFull("too many requests are waiting")
    error.retry_after_s = estimate_s
    headers = http_error(error).headers or {}
    assert low_ms <= int(headers["retry-after-ms"]) <= 1.25 * low_ms
    assert int(headers["retry-after"]) == math.ceil(int(headers["retry-after-ms"]) / 1000)


def test_a_failed_allocation_is_not_blamed_on_the_text() -> None:
    failed = memory_full(MemoryError("cannot allocate memory"))
    assert isinstance(failed, MemoryFull)
    answer = http_error(failed)
    assert (answer.status_code, answer.envelope["error"]["code"]) == (503, "out_of_memory")
    assert http_error(MemoryFull("the text is longer than its KV cache")).status_code == 400


def test_model_that_cannot_be_loaded_is_a_failure() -> None:
    async def run() -> None:
        service = SpeechService(ServerSettings(model="/no/such/folder"))
        with pytest.raises(Exception, match="no/such"):
            await service.start()
        assert service.state == "failed"
        assert service.failure is not None
        await service.stop()

    asyncio.run(run())


@pytest.fixture
def loads(small: Callable[..., TTS], monkeypatch: pytest.MonkeyPatch) -> list[TTS]:
    """Collect the engines that a service loads."""
    loaded: list[TTS] = []

    def load(_: ServerSettings) -> TTS:
        loaded.append(small())
        return loaded[-1]

    monkeypatch.setattr(model_loading, "load_engine", load)
    return loaded


def test_idle_model_is_unloaded_and_loaded_again(loads: list[TTS]) -> None:
    async def run() -> None:
        service = SpeechService(ServerSettings(keep_alive=0.2))
        await service.start()
        async with await service.open("Hello.") as speech:
            await asyncio.sleep(0.5)
            assert service.state == "ready", "unloaded while a stream is open"
            assert [chunk async for chunk in speech]
        while service.state != "idle":
            await asyncio.sleep(0.02)
        assert service.ready, "an idle server still answers requests"
        with pytest.raises(EngineFault):
            loads[0].say("still there?")
        async with await service.open("Hello again.") as speech:
            assert [chunk async for chunk in speech]
        assert len(loads) == 2
        await service.stop()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_dead_engine_is_replaced(loads: list[TTS]) -> None:
    async def run() -> None:
        service = SpeechService(ServerSettings())
        await service.start()
        loads[0].close()
        async with await service.open("Hello.") as speech:
            assert [chunk async for chunk in speech]
        assert len(loads) == 2
        await service.stop()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_late_failure_of_a_dead_engine_does_not_replace_the_new_one(
    loads: list[TTS], monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = threading.Event()

    async def run() -> None:
        service = SpeechService(ServerSettings())
        await service.start()
        old = loads[0]
        old.close()
        refuse = old.open

        def held_up(text: str, **request: Any) -> Session:
            assert text != "Late." or replaced.wait(20)
            return refuse(text, **request)

        monkeypatch.setattr(old, "open", held_up)
        late = asyncio.create_task(service.open("Late."))
        async with await service.open("Early.") as speech:
            replaced.set()
            async with await late as second:
                assert [chunk async for chunk in second]
            assert [chunk async for chunk in speech]
        assert len(loads) == 2
        await service.stop()

    asyncio.run(asyncio.wait_for(run(), 40))


def test_shutdown_waits_for_the_grace_period(small: Callable[..., TTS]) -> None:
    async def run(grace_s: float) -> int:
        with small(tokens=40) as tts:
            service = SpeechService(ServerSettings(), tts)
            await service.start()
            speech = await service.open("One sentence, and then another one. " * 30, seed=1)
            first = await anext(aiter(speech))
            stopping = asyncio.create_task(service.stop(grace_s))
            received = len(first.samples) + sum([len(chunk.samples) async for chunk in speech])
            await stopping
            return received

    whole, cut = (asyncio.run(asyncio.wait_for(run(grace_s), 60)) for grace_s in (30.0, 0.0))
    assert whole == 5 * 40 * 960 + 4 * 120 * 24
    assert cut < whole


def test_metrics_have_the_documented_names(server: LiveServer) -> None:
    HTTP.post(f"{server.http}/v1/audio/speech", json={"input": "Hello there.", "response_format": "pcm"})
    text = HTTP.get(f"{server.http}/metrics").text
    names = set(re.findall(r"^# TYPE nightingale_(\w+)", text, flags=re.MULTILINE))
    assert names >= {
        "requests_total", "ttfa_seconds", "rtf", "queue_wait_seconds", "inter_chunk_gap_seconds",
        "queue_depth", "active_streams", "batch_size", "audio_seconds_total", "characters_total",
        "cancelled_total", "underruns_total", "model_loaded", "gpu_memory_bytes",
    }  # fmt: skip
    assert 'nightingale_requests_total{route="/v1/audio/speech",status="200"} 1.0' in text
    assert "nightingale_characters_total 12.0" in text
    assert "nightingale_ttfa_seconds_count 1.0" in text
    assert "nightingale_cancelled_total 0.0" in text


def test_log_contains_text_at_debug_only(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    def speak(**more: Any) -> None:
        HTTP.post(f"{server.http}/v1/audio/speech", json={"input": SECRET_TEXT, **more})

    with caplog.at_level(logging.INFO, "nightingale"):
        speak()
        speak(voice="missing")
        speak(speed=77)
        speak(input=SECRET_TEXT * 1000)
    written = "\n".join(JsonFormatter().format(r) + TextFormatter().format(r) for r in caplog.records)
    assert '"chars": 26' in written
    assert "swordfish" not in written
    with caplog.at_level(logging.DEBUG, "nightingale"):
        speak()
    assert any("swordfish" in JsonFormatter().format(record) for record in caplog.records)


def test_log_line_is_one_json_object() -> None:
    record = logging.makeLogRecord({"msg": "two\nlines", "levelname": "INFO", "name": "x", "status": 200})
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line) | {"time": ""} == {
        "time": "", "level": "info", "logger": "x", "event": "two\nlines", "status": 200,
    }  # fmt: skip
    logging.config.dictConfig(log_config("info", as_json=True) | {"loggers": {}})


def test_docs_page_loads_nothing_from_other_hosts(server: LiveServer) -> None:
    api = HTTP.get(f"{server.http}/openapi.json").json()
    assert {"/v1/audio/speech", "/v1/audio/voices", "/v1/models", "/v1/audio/models", "/ready"} <= set(
        api["paths"]
    )
    page = HTTP.get(f"{server.http}/docs").text
    assert "openapi.json" in page
    assert not re.search(r"https?://", page)


def test_models_are_listed_for_openai_and_open_webui(server: LiveServer) -> None:
    models = HTTP.get(f"{server.http}/v1/models").json()
    assert models["object"] == "list"
    first = models["data"][0]
    assert (first["id"], first["object"]) == ("noise", "model")
    assert first["controls"]["speed"] == {"min": 0.25, "max": 4.0, "default": 1.0}
    assert {"tts-1", "tts-1-hd", "gpt-4o-mini-tts"} <= {model["id"] for model in models["data"]}
    audio = HTTP.get(f"{server.http}/v1/audio/models").json()
    assert audio["models"] == audio["data"]
    assert HTTP.get(f"{server.http}/v1/models/tts-1").json()["id"] == "tts-1"
    assert HTTP.get(f"{server.http}/v1/models/gpt-9").json()["error"]["code"] == "model_not_found"


def test_metrics_of_the_process_and_of_rejections(server: LiveServer) -> None:
    def value(name: str) -> float:
        lines = HTTP.get(f"{server.http}/metrics").text.splitlines()
        return float(next((line.split()[-1] for line in lines if line.startswith(name)), 0))

    before = value('nightingale_rejections_total{reason="empty_input"}')
    HTTP.post(f"{server.http}/v1/audio/speech", json={"input": " "})
    assert value('nightingale_rejections_total{reason="empty_input"}') == before + 1
    assert value("nightingale_build_info{") == 1
    if sys.platform == "linux":
        assert value("process_resident_memory_bytes") > 10_000_000
        assert value("nightingale_model_memory_bytes") >= 0


@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="glibc keeps memory")
def test_memory_of_an_unloaded_model_is_given_back() -> None:
    blocks = [np.ones(5_000) for _ in range(3_000)]  # 120 MB
    full = resident_bytes()
    del blocks[:-1]
    release_memory()
    assert resident_bytes() < full - 80_000_000


def test_metrics_in_the_format_of_openmetrics(server: LiveServer) -> None:
    wanted = {"accept": "application/openmetrics-text; version=1.0.0"}
    answer = HTTP.get(f"{server.http}/metrics", headers=wanted)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
