"""The server under test, and a watcher that collects the errors and requests of a page."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page


@dataclass(frozen=True)
class Server:
    url: str

    def metric(self, name: str) -> float:
        """Return a value of /metrics."""
        with urllib.request.urlopen(f"{self.url}metrics", timeout=10) as answer:
            page = answer.read().decode()
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"{name} "))


@dataclass
class PageWatcher:
    """Collects errors, warnings and requests to other hosts."""

    host: str
    errors: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()
    """Parts of errors that a test provokes."""

    def watch(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.errors.append(f"uncaught: {error}"))
        page.on("console", lambda message: self.on_console(message.type, message.text))
        page.on("request", lambda request: self.on_request(request.url))

    def on_console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.errors.append(f"{kind}: {text}")

    def on_request(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        host, _, path = rest.partition("/")
        if scheme in ("http", "https", "ws", "wss") and host != self.host:
            self.errors.append(f"request to another host: {url}")
        self.paths.append(f"/{path}")

    def unexpected(self) -> list[str]:
        return [error for error in self.errors if not any(part in error for part in self.expected)]


def eventually(read: Callable[[], Any], wanted: Any, within_s: float = 10) -> None:
    deadline_s = time.monotonic() + within_s
    while (seen := read()) != wanted:
        assert time.monotonic() < deadline_s, f"still {seen!r} after {within_s} s, not {wanted!r}"
        time.sleep(0.05)
