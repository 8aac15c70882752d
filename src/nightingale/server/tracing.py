"""OpenTelemetry spans: one for each HTTP request, one for its speech, and one for each phase of that.

The standard variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, …) say where spans go. A request that comes
with a `traceparent` header continues its caller's trace. Spans never hold the text that is spoken.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nightingale.errors import ConfigError
from nightingale.install import install_command
from nightingale.types import Metrics

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

SERVER_ERROR: Final = 500

OnResponse = Callable[[str, int, str], None]
"""Called with the route, the status and the request id of a response."""


class Tracing:
    """Records spans with a tracer. Without one, nothing is recorded and OpenTelemetry is not imported."""

    def __init__(self, tracer: Tracer | None = None, close: Callable[[], None] = lambda: None) -> None:
        """close: sends what has not been sent yet."""
        self._tracer, self.close = tracer, close

    @contextlib.contextmanager
    def request(self, method: str, headers: Mapping[str, str]) -> Iterator[OnResponse]:
        """Record a span for the HTTP request that the context answers. Header names are in lower case."""
        if self._tracer is None:
            yield lambda _route, _status, _request_id: None
            return
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, Status, StatusCode

        with self._tracer.start_as_current_span(
            method, context=extract(headers), kind=SpanKind.SERVER, attributes={"http.request.method": method}
        ) as span:

            def answered(route: str, status: int, request_id: str) -> None:
                span.update_name(f"{method} {route}")
                span.set_attributes({"http.route": route, "http.response.status_code": status})
                span.set_attribute("nightingale.request_id", request_id)
                if status >= SERVER_ERROR:
                    span.set_status(Status(StatusCode.ERROR))

            yield answered

    def current(self) -> Context | None:
        """Return the context of the request that is being answered, for speech that ends in another task."""
        if self._tracer is None:
            return None
        from opentelemetry.context import get_current

        return get_current()

    def record_speech(
        self, metrics: Metrics, parent: Context | None, *, outcome: str, voice: str | None
    ) -> None:
        """Record the speech of one request, which has just ended, in the phases queue, first_audio and stream."""
        if self._tracer is None:
            return
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        end_ns = time.time_ns()
        start_ns = end_ns - round(1e6 * metrics.total_ms)
        admitted_ns = start_ns + round(1e6 * metrics.queue_ms)
        first_ns = start_ns + round(1e6 * metrics.ttfa_ms)
        attributes: dict[str, Any] = {
            "nightingale.outcome": outcome,
            "nightingale.audio_seconds": metrics.audio_seconds,
            "nightingale.tokens": metrics.tokens,
            "nightingale.voice": voice or "",
        }
        attributes |= {f"nightingale.stage.{stage}_ms": ms for stage, ms in metrics.stage_ms.items()}
        speech = self._tracer.start_span("speech", context=parent, start_time=start_ns, attributes=attributes)
        inside = set_span_in_context(speech, parent)
        phases = [("queue", start_ns, admitted_ns)]
        if admitted_ns < end_ns:
            phases.append(("first_audio", admitted_ns, first_ns))
        if metrics.audio_seconds:
            phases.append(("stream", first_ns, end_ns))
        for name, begin_ns, until_ns in phases:
            self._tracer.start_span(name, context=inside, start_time=begin_ns).end(until_ns)
        if outcome == "failed":
            speech.set_status(Status(StatusCode.ERROR))
        speech.end(end_ns)


def open_tracing(*, enabled: bool) -> Tracing:
    """Return what records spans as the environment says, or nothing. Raise ConfigError without the packages."""
    if not enabled:
        return Tracing()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            "spans cannot be recorded without OpenTelemetry",
            got=str(error),
            fix=f"Install it: {install_command('otel')}.",
        ) from error
    named = Resource({SERVICE_NAME: "nightingale"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=named)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider.get_tracer("nightingale"), provider.shutdown)


def trace_requests(app: ASGIApp, tracing: Tracing) -> ASGIApp:
    """Record a span for every HTTP request. Sockets have one for each speech, without a request around it."""

    async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        with tracing.request(scope["method"], dict(Headers(scope=scope))) as answered:

            async def send_traced(message: Message) -> None:
                if message["type"] == "http.response.start":
                    route = getattr(scope.get("route"), "path", None) or "other"
                    answered(
                        route, message["status"], Headers(raw=message["headers"]).get("x-request-id", "")
                    )
                await send(message)

            await app(scope, receive, send_traced)

    return middleware
