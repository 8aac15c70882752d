"""A real server process and a real Chromium for the tests of the page."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError

import pytest
from browser.page_watcher import PageWatcher, Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

START_S = 60
FLAGS = [
    "--headless",
    "--no-sandbox",  # tests may run as root, in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-device-for-media-stream",  # a microphone that plays beeps
    "--use-fake-ui-for-media-stream",
]


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Return a function that starts `nightingale serve` with settings and waits until it is ready."""
    running: list[subprocess.Popen[bytes]] = []

    def start(**settings: str) -> Server:
        port = free_port()
        log = tmp_path_factory.mktemp("server") / "log"
        given = {f"NIGHTINGALE_{name.upper()}": value for name, value in settings.items()}
        home = {"NIGHTINGALE_HOME": str(tmp_path_factory.mktemp("home"))}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "nightingale", "serve", "--port", str(port), "--model", "wren"],
                env={**os.environ, **home, **given},
                stdout=output,
                stderr=output,
            )
        running.append(process)
        server = Server(f"http://127.0.0.1:{port}/")
        wait_until_ready(server, process, log)
        return server

    yield start
    for process in running:
        process.terminate()
    for process in running:
        process.wait(30)


@pytest.fixture(scope="session")
def server(start_server: Callable[..., Server]) -> Server:
    return start_server()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.fail("these tests need Chromium: `apt-get install chromium`, or set CHROMIUM to its path")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("these tests need Playwright: `pip install '.[browser]'` (or `make browser`)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser profile without stored data."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 800}, permissions=["microphone"], accept_downloads=True
    )
    context.set_default_timeout(20_000)
    yield context
    context.close()


@pytest.fixture
def watcher(server: Server) -> Iterator[PageWatcher]:
    """Fail if a page reports an unexpected error or contacts another host."""
    watcher = PageWatcher(server.url.split("/")[2])
    yield watcher
    assert not watcher.unexpected(), "\n".join(watcher.unexpected())


@pytest.fixture
def page(context: BrowserContext, server: Server, watcher: PageWatcher) -> Page:
    """The page, loaded and ready."""
    page = context.new_page()
    watcher.watch(page)
    page.goto(server.url)
    page.wait_for_selector("#voices input", state="attached")
    return page


def wait_until_ready(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, f"the server ended by itself:\n{log.read_text()}"
        try:
            with urllib.request.urlopen(f"{server.url}ready", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(f"the server was not ready within {START_S} s:\n{log.read_text()}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
