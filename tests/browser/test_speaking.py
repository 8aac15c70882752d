"""Speak, play and stop: the page with a real server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from browser.page_watcher import PageWatcher, Server, eventually

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page, Route

pytestmark = pytest.mark.browser

SHORT = "A short line."
LONG = " ".join(f"This is sentence number {i}, and it takes a while to say." for i in range(60))


def state(page: Page, wanted: str, within_ms: int = 30_000) -> None:
    page.wait_for_selector(f'body[data-state="{wanted}"]', timeout=within_ms)


def figure(page: Page, name: str) -> float:
    return float(page.inner_text(f"#figure-{name} span"))


def test_first_audio_is_played_and_measured(page: Page) -> None:
    page.fill("#text", "A line that is long enough to be seen on the page as it is heard.")
    page.click("#speak")
    page.wait_for_selector("#figure-first:not([data-empty])")
    state(page, "idle")
    assert figure(page, "first") > 0
    assert 0 < figure(page, "rtf") < 100
    assert figure(page, "buffer") == 0
    assert page.inner_text("#error-text") == ""
    drawn = page.evaluate(
        """() => {
            const canvas = document.getElementById("waveform");
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return data.filter((value, i) => i % 4 === 3 && value > 0).length;
        }"""
    )
    assert drawn > 2000, "the waveform is a flat line"


def test_audio_is_played_while_more_is_rendered(page: Page, server: Server) -> None:
    page.fill("#text", LONG)
    page.keyboard.press("Control+Enter")
    state(page, "speaking")
    eventually(lambda: page.get_attribute("#figure-buffer", "data-empty"), None)
    eventually(lambda: figure(page, "buffer") > 0, True)
    assert page.get_attribute("body", "data-state") == "speaking"
    assert server.metric("nightingale_active_streams") == 1
    eventually(lambda: figure(page, "queue"), 0)
    page.keyboard.press("Escape")
    state(page, "idle")


@pytest.mark.parametrize("how", ["button", "key"])
def test_stop_stops_playback_and_the_server(page: Page, server: Server, how: str) -> None:
    cancelled = server.metric("nightingale_cancelled_total")
    page.fill("#text", LONG)
    page.click("#speak")
    # Shorter utterances are not stored.
    eventually(lambda: page.get_attribute("#figure-buffer", "data-empty"), None)
    eventually(lambda: figure(page, "buffer") > 0.5, True)
    assert server.metric("nightingale_active_streams") == 1
    page.click("#stop") if how == "button" else page.keyboard.press("Escape")
    state(page, "idle", 1000)
    assert page.is_disabled("#stop")
    eventually(lambda: server.metric("nightingale_active_streams"), 0, within_s=5)
    eventually(lambda: server.metric("nightingale_cancelled_total"), cancelled + 1, within_s=5)
    assert "stopped" in page.inner_text(".entry-facts")


def test_leaving_the_page_frees_the_server(page: Page, server: Server) -> None:
    page.fill("#text", LONG)
    page.click("#speak")
    state(page, "speaking")
    page.goto("about:blank")
    eventually(lambda: server.metric("nightingale_active_streams"), 0, within_s=5)


def test_speaking_again_replaces_the_utterance(page: Page, server: Server) -> None:
    page.fill("#text", LONG)
    page.click("#speak")
    state(page, "speaking")
    page.fill("#text", SHORT)
    page.click("#speak")
    page.wait_for_selector(f".entry-text >> text={SHORT}")
    state(page, "idle")
    assert server.metric("nightingale_active_streams") == 0
    assert page.inner_text("#error-text") == ""


def test_end_of_an_old_utterance_does_not_end_a_new_one(page: Page) -> None:
    page.fill("#text", SHORT)
    page.click("#speak")
    page.wait_for_selector(".entry")
    state(page, "idle")
    held: list[Route] = []
    page.route("**/v1/audio/speech", lambda route: held.append(route))
    page.click(".entry > button")
    state(page, "playing")
    page.click("#speak")
    page.wait_for_timeout(3000)  # longer than the old utterance
    assert page.get_attribute("body", "data-state") == "waiting"
    assert page.is_enabled("#stop")
    held[0].continue_()
    state(page, "playing")


def test_page_plays_without_a_worklet(context: BrowserContext, server: Server, watcher: PageWatcher) -> None:
    """Browsers offer no AudioWorklet over plain http from another machine."""
    watcher.expected = ("ScriptProcessorNode is deprecated",)
    context.add_init_script("delete BaseAudioContext.prototype.audioWorklet")
    page = context.new_page()
    watcher.watch(page)
    page.goto(server.url)
    page.wait_for_selector("#voices input", state="attached")
    assert page.evaluate("new AudioContext().audioWorklet === undefined")
    page.fill("#text", SHORT)
    page.click("#speak")
    state(page, "playing")
    state(page, "idle")
    assert page.locator(".entry").count() == 1


def test_voice_can_be_previewed_and_stopped(page: Page) -> None:
    button = page.locator("[data-preview]").first
    button.click()
    state(page, "playing")
    assert button.get_attribute("title") == "Stop"
    button.click()
    state(page, "idle", 1000)
    assert button.get_attribute("title") == "Play"
    assert page.locator(".entry").count() == 0, "a preview was stored"


def test_error_of_the_server_is_shown(page: Page, server: Server, watcher: PageWatcher) -> None:
    watcher.expected = ("status of 400",)
    page.evaluate("document.getElementById('text').value = 'x'.repeat(20000)")
    page.click("#speak")
    page.wait_for_selector("#error:not([hidden])")
    assert "long" in page.inner_text("#error-text")
    state(page, "idle")
    page.fill("#text", SHORT)
    page.click("#speak")
    state(page, "playing")
    assert page.is_hidden("#error")


def test_full_queue_is_shown_with_the_retry_time(page: Page, watcher: PageWatcher) -> None:
    watcher.expected = ("status of 429",)
    envelope = {"error": {"message": "the queue is full", "type": "x", "param": None, "code": "queue_full"}}
    page.route(
        "**/v1/audio/speech",
        lambda route: route.fulfill(
            status=429, headers={"retry-after-ms": "1500"}, body=json.dumps(envelope)
        ),
    )
    page.click("#speak")
    page.wait_for_selector("#error:not([hidden])")
    assert page.inner_text("#error-text") == "The queue is full. Try again in 1.5 s."


def test_unreachable_server_is_shown(page: Page, watcher: PageWatcher) -> None:
    watcher.expected = ("Failed to load resource",)
    page.route("**/v1/audio/speech", lambda route: route.abort())
    page.click("#speak")
    page.wait_for_selector("#error:not([hidden])")
    assert page.inner_text("#error-text") == "The server cannot be reached."
    state(page, "idle")


def test_sliders_are_sent_only_when_moved(page: Page) -> None:
    sent: list[dict[str, object]] = []
    page.on("request", lambda r: sent.append(r.post_data_json) if r.url.endswith("/speech") else None)
    page.fill("#text", SHORT)
    page.click("#speak")
    state(page, "idle")
    page.fill("#control-speed", "1.5")
    page.fill("#seed", "7")
    page.click("#speak")
    state(page, "playing")
    plain, moved = sent
    assert set(plain) == {"model", "voice", "input", "response_format", "stream_format", "timestamps"}
    assert moved == {**plain, "speed": 1.5, "seed": 7}
    page.click("#reset-controls")
    assert page.input_value("#control-speed") == "1"
    assert page.input_value("#seed") == ""


def test_the_spoken_word_is_highlighted_and_captions_are_downloaded(page: Page) -> None:
    page.fill("#text", "Dr. Brown paid $5.50 today. That was cheap.")
    page.click("#speak")
    page.wait_for_selector("#spoken .active")
    page.wait_for_selector(".entry")
    state(page, "idle")
    with page.expect_download() as download:
        page.click('button[title="Download captions (SRT)"]')
    captions = download.value.path().read_text()
    assert "\nDr. Brown paid $5.50 today.\n" in captions
    page.click(".entry > button")
    page.wait_for_selector("#spoken .active:text-is('$5.50')")
