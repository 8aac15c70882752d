"""OpenTelemetry spans of requests, received by a collector as another program would."""

from __future__ import annotations

import gzip
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

import httpx
import pytest
from live_server import LiveServer, live_server
from plain_http import HTTP

from nightingale import TTS
from nightingale.errors import ConfigError
from nightingale.install import install_command
from nightingale.server.tracing import Tracing, open_tracing

sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "The password is swordfish."


@pytest.fixture
def traced(
    small: Callable[..., TTS], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[LiveServer, Callable[..., dict[str, Any]]]]:
    """Return a server, and a function that waits for the spans of these names and returns all that were recorded."""
    exporter, provider = in_memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    tracing = Tracing(provider.get_tracer("test"))
    monkeypatch.setattr("nightingale.server.service.speech_service.open_tracing", lambda enabled: tracing)

    def spans(*names: str) -> dict[str, Any]:
        deadline_s = time.monotonic() + 30
        found: dict[str, Any] = {}
        # A span ends after its response was sent.
        while not found.keys() >= set(names) and time.monotonic() < deadline_s:
            found = {span.name: span for span in exporter.get_finished_spans()}
            time.sleep(0.01)
        return found

    with small() as tts, live_server(tts, tracing=True) as running:
        exporter.clear()
        yield running, spans


def speak(server: LiveServer, **headers: str) -> httpx.Response:
    return HTTP.post(
        f"{server.http}/v1/audio/speech", json={"input": SECRET, "voice": "default"}, headers=headers
    )


def test_a_request_has_a_span_for_its_speech_and_each_phase(traced: tuple[LiveServer, Any]) -> None:
    server, spans = traced
    answer = speak(server, traceparent=f"00-{TRACE}-{CALLER}-01")
    assert answer.status_code == 200
    found = spans("POST /v1/audio/speech", "speech")
    request, speech = found["POST /v1/audio/speech"], found["speech"]
    assert f"{request.context.trace_id:032x}" == TRACE, "the caller's trace is continued"
    assert f"{request.parent.span_id:016x}" == CALLER
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["nightingale.request_id"] == answer.headers["x-request-id"]
    assert speech.parent.span_id == request.context.span_id
    phases = [found[name] for name in ("queue", "first_audio", "stream")]
    assert {phase.parent.span_id for phase in phases} == {speech.context.span_id}
    bounds = [speech.start_time, *(phase.end_time for phase in phases)]
    assert bounds == sorted(bounds), "phases follow one another"
    assert bounds[-1] == speech.end_time
    assert speech.attributes["nightingale.outcome"] == "completed"
    assert speech.attributes["nightingale.stage.t3_ms"] > 0
    assert "swordfish" not in "".join(span.to_json() for span in found.values())


def test_a_refused_request_has_a_span_without_speech(traced: tuple[LiveServer, Any]) -> None:
    server, spans = traced
    HTTP.post(f"{server.http}/v1/audio/speech", json={"input": "", "voice": "default"})
    HTTP.get(f"{server.http}/nothing")
    found = spans("POST /v1/audio/speech", "GET other")
    assert set(found) == {"POST /v1/audio/speech", "GET other"}
    assert found["POST /v1/audio/speech"].attributes["http.response.status_code"] == 400


def test_without_the_setting_nothing_is_recorded() -> None:
    tracing = open_tracing(enabled=False)
    with tracing.request("GET", {}) as answered:
        answered("/", 200, "")
        assert tracing.current() is None


def test_spans_arrive_at_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector is the one of the standard variable, and the spans come in OTLP over HTTP."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    received: Queue[tuple[str, bytes]] = Queue()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.put((self.path, gzip.decompress(body) if self.headers["content-encoding"] else body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "speech-of-the-lobby")
        tracing = open_tracing(enabled=True)
        with tracing.request("GET", {}) as answered:
            answered("/v1/models", 200, "req_1")
        tracing.close()
        path, body = received.get(timeout=30)
        collector.shutdown()
    assert path == "/v1/traces"
    (sent,) = ExportTraceServiceRequest.FromString(body).resource_spans
    names = {one.key: one.value.string_value for one in sent.resource.attributes}
    assert names["service.name"] == "speech-of-the-lobby"
    assert [span.name for span in sent.scope_spans[0].spans] == ["GET /v1/models"]


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=re.escape(install_command("otel"))):
        open_tracing(enabled=True)
