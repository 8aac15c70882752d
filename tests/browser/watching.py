"""A server as its users see it, and a witness to what a page does."""

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
        """A number of /metrics."""
        with urllib.request.urlopen(f"{self.url}metrics", timeout=10) as answer:
            page = answer.read().decode()
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"{name} "))


@dataclass
class Witness:
    """What a page must not do, noticed."""

    host: str
    complaints: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()
    """Parts of complaints that a test is about."""

    def watch(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on("console", lambda said: self.heard(said.type, said.text))
        page.on("request", lambda request: self.asked(request.url))

    def heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def asked(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        host, _, path = rest.partition("/")
        if scheme in ("http", "https", "ws", "wss") and host != self.host:
            self.complaints.append(f"asked another host: {url}")
        self.paths.append(f"/{path}")

    def verdict(self) -> list[str]:
        return [c for c in self.complaints if not any(part in c for part in self.expected)]


def eventually(look: Callable[[], Any], wanted: Any, within_s: float = 10) -> None:
    give_up_s = time.monotonic() + within_s
    while (seen := look()) != wanted:
        assert time.monotonic() < give_up_s, f"still {seen!r} after {within_s} s, not {wanted!r}"
        time.sleep(0.05)
