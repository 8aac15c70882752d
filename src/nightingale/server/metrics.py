"""Prometheus metrics of a server, and the part that each request adds to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from nightingale.types import AudioChunk, Metrics

SECONDS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
RATIOS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 5)
GAPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10)


class ServerMetrics:
    """Metrics of one server, in a registry of its own. docs/http-api.md lists their names."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.active = 0
        self.requests = self._counter("requests", "HTTP requests answered.", ("route", "status"))
        self.ttfa = self._histogram("ttfa_seconds", "Time to first audio of a request.", SECONDS)
        self.rtf = self._histogram("rtf", "Seconds of work per second of audio.", RATIOS)
        self.queue_wait = self._histogram("queue_wait_seconds", "Time in the queue.", SECONDS)
        self.gaps = self._histogram("inter_chunk_gap_seconds", "Time between two chunks of a request.", GAPS)
        self.audio = self._counter("audio_seconds", "Audio rendered.")
        self.characters = self._counter("characters", "Characters of text accepted.")
        self.cancelled = self._counter("cancelled", "Requests whose client left before the end.")
        self.failed = self._counter("failed", "Requests that failed after they had started.")
        self.underruns = self._counter("underruns", "Chunks that were late for real-time playback.")
        self.gauge("active_streams", "Requests that are being decoded or wait.", lambda: self.active)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(f"nightingale_{name}", text, registry=self.registry).set_function(value)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"nightingale_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"nightingale_{name}", text, registry=self.registry, buckets=buckets)


class RequestMetrics:
    """One request for speech, from its opening to its closing."""

    def __init__(self, server: ServerMetrics) -> None:
        self._server = server
        self._open = True
        self._buffered_until_s: float | None = None
        server.active += 1

    def add_text(self, text: str) -> None:
        self._server.characters.inc(len(text))

    def add_chunk(self, chunk: AudioChunk) -> None:
        """Count an underrun if a player that started with the first chunk would have run out of audio."""
        now_s = time.monotonic()
        if self._buffered_until_s is not None and now_s > self._buffered_until_s:
            self._server.underruns.inc()
        self._buffered_until_s = max(now_s, self._buffered_until_s or now_s) + chunk.seconds

    def close(self, metrics: Metrics | None, *, cancelled: bool = False, failed: bool = False) -> None:
        """Record the result once; later calls do nothing. metrics is None if the request never started."""
        if not self._open:
            return
        self._open = False
        server = self._server
        server.active -= 1
        if metrics is None:
            return
        server.cancelled.inc(cancelled)
        server.failed.inc(failed)
        if metrics.audio_seconds:
            server.audio.inc(metrics.audio_seconds)
            server.ttfa.observe(metrics.ttfa_ms / 1000)
            server.queue_wait.observe(metrics.queue_ms / 1000)
            if not (cancelled or failed):
                server.rtf.observe((metrics.total_ms - metrics.queue_ms) / 1000 / metrics.audio_seconds)
            for gap_ms in metrics.chunk_gaps_ms:
                server.gaps.observe(gap_ms / 1000)


def metrics_json(metrics: Metrics, **more: Any) -> dict[str, Any]:
    """Return the metrics of a request as clients and the log get them, with `more` fields."""
    return {
        "ttfa_ms": round(metrics.ttfa_ms, 1),
        "queue_ms": round(metrics.queue_ms, 1),
        "total_ms": round(metrics.total_ms, 1),
        "audio_seconds": round(metrics.audio_seconds, 3),
        "rtf": round(metrics.rtf, 4) if metrics.audio_seconds else None,
        "tokens_per_s": round(metrics.tokens_per_s, 1),
        **more,
    }
