"""Limits of tenants: requests at once, requests a minute and characters a day; and their counters in /metrics."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Final, Self

from prometheus_client import CollectorRegistry, Counter

from nightingale.errors import QueueFull
from nightingale.server.metrics import NAMESPACE
from nightingale.server.tenants.access_errors import ConcurrencyExceeded, LimitExceeded, QuotaExceeded
from nightingale.server.tenants.key_file import LIMITS, Tenant
from nightingale.server.tenants.usage_store import CharacterCounts, until_tomorrow_s

MINUTE_S: Final = 60.0
REASONS: Final = (*LIMITS, "queue_full")
"""Values of the label `reason` of the counter of rejections."""


class TenantCounters:
    """Counters by tenant. Their labels are names of the key file only, so that clients cannot add series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(name, about, ("tenant", *labels), namespace=NAMESPACE, registry=registry)

        self._requests = counter("tenant_requests", "Requests of a tenant that were queued and have ended.")
        self._characters = counter("tenant_characters", "Characters of the text of these requests.")
        self._audio = counter("tenant_audio_seconds", "Audio rendered for these requests.")
        self._rejections = counter("tenant_rejections", "Requests of a tenant over a limit.", "reason")
        self._names: set[str] = set()

    def set_names(self, names: Iterable[str]) -> None:
        """Show the tenants of these names, from zero on, and remove the others."""
        given = set(names)
        series: list[tuple[Counter, tuple[str, ...]]]
        series = [(self._requests, ()), (self._characters, ()), (self._audio, ())]
        series += [(self._rejections, (reason,)) for reason in REASONS]
        for counter, labels in series:
            for name in self._names - given:
                counter.remove(name, *labels)
            for name in given - self._names:
                counter.labels(name, *labels)
        self._names = given

    def count_request(self, tenant: str, chars: int, audio_seconds: float) -> None:
        if tenant in self._names:
            self._requests.labels(tenant).inc()
            self._characters.labels(tenant).inc(chars)
            self._audio.labels(tenant).inc(audio_seconds)

    def count_rejection(self, tenant: str, error: QueueFull) -> None:
        if tenant in self._names:
            reason = error.limit if isinstance(error, LimitExceeded) else "queue_full"
            self._rejections.labels(tenant, reason).inc()


class RequestWindow:
    """The number of a tenant's requests that run now, and the times of those of the last minute."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._started: deque[float] = deque()
        """When requests were accepted, while there is a limit of their number."""

    def start(self, tenant: Tenant) -> None:
        """Count a request, or raise LimitExceeded and count nothing."""
        with self._lock:
            limit = tenant.concurrent_requests
            if limit is not None and self._running >= limit:
                raise ConcurrencyExceeded("too many requests at once for this key", allowed=f"{limit}")
            now_s, limit = time.monotonic(), tenant.requests_per_minute
            while self._started and self._started[0] <= now_s - MINUTE_S:
                self._started.popleft()
            if limit is not None and len(self._started) >= limit:
                error = LimitExceeded("too many requests a minute for this key", allowed=f"{limit}")
                # After a limit was lowered, more than one request has to become older than a minute.
                error.retry_after_s = self._started[-limit] + MINUTE_S - now_s if limit else MINUTE_S
                raise error
            if limit is not None:
                self._started.append(now_s)
            self._running += 1

    def end(self) -> None:
        with self._lock:
            self._running -= 1


class TenantRequest:
    """A request of a tenant within its limits: a context manager, or `end` or `fail` is called when it is over."""

    def __init__(
        self, tenant: Tenant, window: RequestWindow, characters: CharacterCounts, counters: TenantCounters
    ) -> None:
        """Raise LimitExceeded if the tenant has too many requests."""
        self._tenant, self._window, self._characters, self._counters = tenant, window, characters, counters
        self._chars, self._is_open = 0, True
        try:
            window.start(tenant)
        except LimitExceeded as error:
            counters.count_rejection(tenant.name, error)
            raise

    def charge(self, chars: int) -> None:
        """Count the characters of a text; raise QuotaExceeded if the tenant has not so many left today."""
        name, limit = self._tenant.name, self._tenant.characters_per_day
        if not self._characters.add(name, chars, limit):
            error = QuotaExceeded(
                "the characters of a day are used up for this key",
                got=f"{chars} after {self._characters.used(name)}",
                allowed=f"{limit}",
                fix="Counting starts anew at midnight UTC.",
            )
            error.retry_after_s = until_tomorrow_s()
            self._counters.count_rejection(name, error)
            raise error
        self._chars += chars

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self, audio_seconds: float = 0.0) -> None:
        """Count a request that was queued, and let another one start in its place."""
        if self._close():
            self._counters.count_request(self._tenant.name, self._chars, audio_seconds)

    def fail(self, error: BaseException) -> None:
        """Take back the characters of a request that could not be queued."""
        if self._close():
            self._characters.add(self._tenant.name, -self._chars)
            if isinstance(error, QueueFull) and not isinstance(error, LimitExceeded):
                self._counters.count_rejection(self._tenant.name, error)

    def _close(self) -> bool:
        was_open, self._is_open = self._is_open, False
        if was_open:
            self._window.end()
        return was_open
