"""Prometheus metrics of a server, and the metrics of one request as JSON."""

from __future__ import annotations

import platform
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector

from nightingale import __version__
from nightingale.types import Metrics

NAMESPACE = "nightingale"
SECONDS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
RATIOS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 5)
GAPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10)


class ServerMetrics:
    """Metrics of one server, in a registry of its own. docs/http-api.md lists their names."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.active = 0
        counter = partial(Counter, namespace=NAMESPACE, registry=self.registry)
        histogram = partial(Histogram, namespace=NAMESPACE, registry=self.registry)
        self.gauge = partial(Gauge, namespace=NAMESPACE, registry=self.registry)
        self.requests = counter("requests", "HTTP requests answered.", ("route", "status"))
        self.rejections = counter("rejections", "Requests answered by an error.", ("reason",))
        self.ttfa = histogram("ttfa_seconds", "Time to first audio of a request.", buckets=SECONDS)
        self.rtf = histogram("rtf", "Seconds of work per second of audio.", buckets=RATIOS)
        self.queue_wait = histogram("queue_wait_seconds", "Time in the queue.", buckets=SECONDS)
        self.gaps = histogram(
            "inter_chunk_gap_seconds", "Time between two chunks of a request.", buckets=GAPS
        )
        self.audio = counter("audio_seconds", "Audio rendered.")
        self.characters = counter("characters", "Characters of text accepted.")
        self.cancelled = counter("cancelled", "Requests whose client left before the end.")
        self.failed = counter("failed", "Requests that failed after they had started.")
        self.underruns = counter("underruns", "Chunks that were late for real-time playback.")
        ProcessCollector(registry=self.registry)
        build = Info("build", "Versions of the server.", namespace=NAMESPACE, registry=self.registry)
        build.info({"version": __version__, "python": platform.python_version()})
        self.gauge("active_streams", "Requests that are being decoded or wait.").set_function(
            lambda: self.active
        )

    def count_request(self, metrics: Metrics, *, cancelled: bool, failed: bool) -> None:
        """Record the result of a request for speech."""
        self.cancelled.inc(cancelled)
        self.failed.inc(failed)
        if metrics.audio_seconds:
            self.audio.inc(metrics.audio_seconds)
            self.ttfa.observe(metrics.ttfa_ms / 1000)
            self.queue_wait.observe(metrics.queue_ms / 1000)
            if not (cancelled or failed):
                self.rtf.observe((metrics.total_ms - metrics.queue_ms) / 1000 / metrics.audio_seconds)
            for gap_ms in metrics.chunk_gaps_ms:
                self.gaps.observe(gap_ms / 1000)


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
