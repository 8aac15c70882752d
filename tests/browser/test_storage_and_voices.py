"""Stored data of the page (history, draft, choices, key), and voices from clips."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import soundfile
from browser.page_watcher import PageWatcher, Server

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.browser

TEXT = "Something worth keeping."


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Six seconds of a tone, in stereo and at another rate than the engine's."""
    time_s = np.arange(6 * 44100) / 44100
    tone = 0.3 * np.sin(2 * np.pi * 140 * time_s) * (1 + np.sin(2 * np.pi * 3 * time_s)) / 2
    path = tmp_path / "Anna Maria (1).wav"
    soundfile.write(path, np.stack([tone, tone], axis=1), 44100)
    return path


def say(page: Page, text: str = TEXT) -> None:
    page.fill("#text", text)
    page.click("#speak")
    page.wait_for_selector(f".entry-text >> text={text}")
    page.wait_for_selector('body[data-state="idle"]')


def test_history_survives_a_reload_and_can_be_replayed(page: Page) -> None:
    say(page)
    facts = page.inner_text(".entry-facts")
    page.reload()
    page.wait_for_selector(".entry")
    assert page.inner_text(".entry-text") == TEXT
    assert page.inner_text(".entry-facts") == facts
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.click(".entry > button")
    page.wait_for_selector('body[data-state="playing"]')
    page.wait_for_selector('.entry.playing > [title="Stop"]')
    page.wait_for_selector('body[data-state="idle"]')
    page.wait_for_selector('.entry > [title="Play"]')
    assert not [url for url in requests if "/v1/" in url], "a replay needs no server"


def test_download_contains_the_audio(page: Page) -> None:
    say(page)
    with page.expect_download() as waiting:
        page.click('[title="Download as WAV"]')
    assert waiting.value.suggested_filename == "something-worth-keeping.wav"
    samples, rate = soundfile.read(io.BytesIO(Path(waiting.value.path()).read_bytes()))
    assert rate == 24000
    assert samples.ndim == 1
    assert f"{len(samples) / rate:.1f} s" in page.inner_text(".entry-facts")
    assert np.abs(samples).max() > 0.01


def test_history_entry_can_be_reused_and_deleted(page: Page) -> None:
    say(page)
    page.fill("#text", "another text")
    page.click('[title="Reuse this text"]')
    assert page.input_value("#text") == TEXT
    page.click('.entry [title="Delete"]')
    page.wait_for_selector("#history-empty:not([hidden])")
    page.reload()
    page.wait_for_selector("#history-empty:not([hidden])")
    assert page.locator(".entry").count() == 0


def test_draft_and_choices_survive_a_reload(page: Page) -> None:
    page.fill("#text", "half a senten")
    page.fill("#control-speed", "0.8")
    page.click("#theme")
    theme = page.get_attribute("html", "data-theme")
    page.reload()
    page.wait_for_selector("#control-speed")
    assert page.input_value("#text") == "half a senten"
    assert page.input_value("#control-speed") == "0.8"
    assert page.get_attribute("html", "data-theme") == theme


def test_clip_from_a_file_becomes_a_voice(page: Page, clip: Path) -> None:
    page.click("#add-voice")
    assert page.is_disabled("#clone-save")
    page.set_input_files("#clone-file", clip)
    page.wait_for_selector("#clone-clip:not([hidden])")
    assert page.input_value("#clone-name") == "anna-maria-1"
    assert "6.0 seconds" in page.inner_text("#clone-status")
    page.click("#clone-save")
    page.wait_for_selector('input[value="anna-maria-1"]', state="attached")
    assert page.is_checked('input[value="anna-maria-1"]')
    assert not page.evaluate("document.getElementById('cloning').open")
    say(page, "In the new voice.")
    assert "anna-maria-1" in page.inner_text(".entry-facts")
    page.once("dialog", lambda dialog: dialog.accept())
    page.click('[aria-label="Delete: anna-maria-1"]')
    page.wait_for_selector('input[value="anna-maria-1"]', state="detached")


def test_dropped_clip_opens_the_dialog(page: Page, clip: Path) -> None:
    page.evaluate(
        """(coded) => {
            const data = new DataTransfer();
            const bytes = Uint8Array.from(atob(coded), (letter) => letter.charCodeAt(0));
            data.items.add(new File([bytes], "dropped.wav", { type: "audio/wav" }));
            const target = document.querySelector("main");
            for (const type of ["dragover", "drop"]) {
                const how = { dataTransfer: data, bubbles: true, cancelable: true };
                target.dispatchEvent(new DragEvent(type, how));
            }
        }""",
        b64encode(clip.read_bytes()).decode(),
    )
    page.wait_for_selector("#clone-clip:not([hidden])")
    assert page.input_value("#clone-name") == "dropped"
    page.keyboard.press("Escape")
    page.wait_for_selector("#cloning", state="hidden")


def test_recording_becomes_a_clip(page: Page) -> None:
    page.click("#add-voice")
    page.click("#clone-record")
    page.wait_for_selector("#clone-status >> text=Recording, 2 seconds")
    page.click("#clone-record")
    page.wait_for_selector("#clone-clip:not([hidden])")
    assert "seconds: short" in page.inner_text("#clone-status")


def test_file_that_is_not_audio_is_refused(page: Page, tmp_path: Path) -> None:
    page.click("#add-voice")
    (tmp_path / "notes.txt").write_text("not audio")
    page.set_input_files("#clone-file", tmp_path / "notes.txt")
    page.wait_for_selector("#clone-status.error")
    assert "cannot decode" in page.inner_text("#clone-status")
    assert page.is_disabled("#clone-save")


def test_server_with_a_key_asks_for_it(start_server: Callable[..., Server], context: BrowserContext) -> None:
    locked = start_server(api_key="right-key")
    watcher = PageWatcher(locked.url.split("/")[2], expected=("status of 401",))
    page = context.new_page()
    watcher.watch(page)
    page.goto(locked.url)
    for key in ("wrong-key", "right-key"):
        page.wait_for_selector("#locked[open]")
        page.fill("#key", key)
        page.click("#locked .primary")
    page.wait_for_selector("#voices input", state="attached")
    assert not page.evaluate("document.getElementById('locked').open")
    page.click("#copy-curl")
    assert "$NIGHTINGALE_API_KEY" in page.inner_text("#code-text")
    assert "right-key" not in page.inner_text("#code-text")
    page.reload()
    page.wait_for_selector("#voices input", state="attached")
    say(page)
    assert not watcher.unexpected()
