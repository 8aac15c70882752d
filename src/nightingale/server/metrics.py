"""What a server counts about itself, for Prometheus, and one account per request.

Each server has a registry of its own, so that two in one process (tests) do not add up.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from nightingale.types import Metrics

SECONDS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
RATIOS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 5)
GAPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10)


class Meter:
    """The counters of one server. Names are stable; docs/http-api.md lists them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.active = 0
        self.requests = self._counter("requests", "HTTP requests answered.", ("route", "status"))
        self.ttfa = self._histogram("ttfa_seconds", "From opening a request to its first audio.", SECONDS)
        self.rtf = self._histogram("rtf", "Seconds of work per second of audio.", RATIOS)
        self.queue_wait = self._histogram("queue_wait_seconds", "Waiting for a slot.", SECONDS)
        self.gaps = self._histogram("inter_chunk_gap_seconds", "Between two chunks of a request.", GAPS)
        self.audio = self._counter("audio_seconds", "Audio rendered.")
        self.characters = self._counter("characters", "Characters of text accepted.")
        self.cancelled = self._counter("cancelled", "Requests whose listener left before the end.")
        self.failed = self._counter("failed", "Requests that a fault ended after they had begun.")
        self.underruns = self._counter(
            "underruns", "Chunks that came after a real-time player had run out of sound."
        )
        self.gauge("active_streams", "Requests being spoken or waiting to be.", lambda: self.active)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(f"nightingale_{name}", text, registry=self.registry).set_function(value)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def open(self) -> Account:
        return Account(self)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"nightingale_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"nightingale_{name}", text, registry=self.registry, buckets=buckets)


class Account:
    """One request, from its opening to its closing; closing twice counts once."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._open = True
        meter.active += 1

    def characters(self, count: int) -> None:
        """Text was accepted."""
        self._meter.characters.inc(count)

    def close(self, cost: Metrics | None, *, cancelled: bool = False, failed: bool = False) -> None:
        """cost: None if it never began."""
        if not self._open:
            return
        self._open = False
        meter = self._meter
        meter.active -= 1
        if cost is None:
            return
        if cancelled:
            meter.cancelled.inc()
        if failed:
            meter.failed.inc()
        if cost.audio_seconds:
            meter.audio.inc(cost.audio_seconds)
            meter.ttfa.observe(cost.ttfa_ms / 1000)
            meter.queue_wait.observe(cost.queue_ms / 1000)
            if not (cancelled or failed):
                meter.rtf.observe((cost.total_ms - cost.queue_ms) / 1000 / cost.audio_seconds)
            for gap_ms in cost.chunk_gaps_ms:
                meter.gaps.observe(gap_ms / 1000)
