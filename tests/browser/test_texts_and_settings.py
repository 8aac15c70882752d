"""Files that are opened, the limit of a text, the queue, formats of downloads, traits of voices, and links."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import soundfile
from browser.page_watcher import PageWatcher, Server, eventually
from browser.scripted_speech import script_speech, send, send_counting, wait_for_request, wait_for_state
from sample_books import write_epub

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.browser

LIMIT = 120
PARAGRAPH = "The rain fell in torrents on the roofs of the town all night."


@pytest.fixture(scope="module")
def strict_server(start_server: Callable[..., Server]) -> Server:
    """A server that accepts only short texts."""
    return start_server(max_text_chars=str(LIMIT))


@pytest.fixture
def strict(context: BrowserContext, strict_server: Server) -> Page:
    page = context.new_page()
    page.goto(strict_server.url)
    page.wait_for_selector("#voices input", state="attached")
    return page


@pytest.fixture
def book(tmp_path: Path) -> Path:
    documents = {
        "one": f"<h1>One</h1><p>{PARAGRAPH}</p><p>{PARAGRAPH}</p><p>{PARAGRAPH}</p>",
        "two": "<h1>Two</h1><p>It stopped.</p>",
    }
    return write_epub(tmp_path / "sea.epub", documents)


def chapters(page: Page) -> list[str]:
    page.wait_for_selector("#document:not([hidden])")
    return page.locator("#chapter option").all_inner_texts()


def test_an_epub_is_opened_by_chapters(page: Page, book: Path) -> None:
    page.set_input_files("#open-file", book)
    assert chapters(page) == ["one", "two"]
    assert page.inner_text("#document-title") == "The Sea & the Storm"
    assert page.text_content("#announcer") == "The Sea & the Storm, 2 parts."
    assert page.input_value("#text").startswith(f"One\n\n{PARAGRAPH}\n\n")
    page.select_option("#chapter", label="two")
    assert page.input_value("#text") == "Two\n\nIt stopped."
    assert page.inner_text("#length").startswith("16 of 10,000 characters")
    page.click("#close-document")
    assert page.is_hidden("#document")
    assert page.input_value("#text") == "Two\n\nIt stopped.", "closing keeps the text"


def test_a_chapter_over_the_limit_is_divided(strict: Page, book: Path) -> None:
    strict.set_input_files("#open-file", book)
    assert chapters(strict) == ["one, part 1 of 3", "one, part 2 of 3", "one, part 3 of 3", "two"]
    for index in range(4):
        strict.select_option("#chapter", index=index)
        assert 0 < len(strict.input_value("#text")) <= LIMIT
        assert strict.is_enabled("#speak")


def drop(page: Page, name: str, data: bytes) -> None:
    page.evaluate(
        """([coded, name]) => {
            const data = new DataTransfer();
            const bytes = Uint8Array.from(atob(coded), (letter) => letter.charCodeAt(0));
            data.items.add(new File([bytes], name));
            for (const type of ["dragover", "drop"]) {
                const how = { dataTransfer: data, bubbles: true, cancelable: true };
                document.querySelector("main").dispatchEvent(new DragEvent(type, how));
            }
        }""",
        [b64encode(data).decode(), name],
    )


def test_a_dropped_text_is_opened_and_not_taken_for_a_clip(page: Page) -> None:
    drop(page, "notes.TXT", "Café au lait.".encode("cp1252"))
    eventually(lambda: page.input_value("#text"), "Café au lait.")
    assert page.is_hidden("#cloning")
    assert page.is_hidden("#document"), "one chapter needs no choice"
    page.reload()
    assert page.input_value("#text") == "Café au lait."


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(page: Page, watcher: PageWatcher) -> None:
    watcher.expected = ("status of 400",)
    before = page.input_value("#text")
    drop(page, "broken.epub", b"not a zip")
    page.wait_for_selector("#error:not([hidden])")
    assert "EPUB cannot be read" in page.inner_text("#error-text")
    assert page.input_value("#text") == before


def test_a_text_over_the_limit_cannot_be_spoken(strict: Page) -> None:
    sent: list[str] = []
    strict.on("request", lambda request: sent.append(request.url))
    strict.fill("#text", "🐦" * LIMIT)
    assert strict.inner_text("#length").startswith(f"{LIMIT} of {LIMIT} characters, about ")
    assert strict.is_enabled("#speak")
    strict.fill("#text", "🐦" * (LIMIT + 1))
    assert strict.inner_text("#length") == f"{LIMIT + 1} of {LIMIT} characters, 1 too many"
    assert strict.is_disabled("#speak")
    assert strict.get_attribute("#text", "aria-invalid") == "true"
    assert "too long" in strict.inner_text("#announcer")
    strict.keyboard.press("Control+Enter")
    assert "too long" in strict.inner_text("#error-text")
    assert not [url for url in sent if url.endswith("/speech")]
    strict.fill("#text", "Short.")
    assert strict.is_enabled("#speak")
    strict.keyboard.press("Control+Enter")
    wait_for_state(strict, "playing")
    assert strict.is_hidden("#error")


def test_the_place_in_the_queue_is_shown_while_waiting(page: Page) -> None:
    page.fill("#text", "one two")
    script_speech(page)
    page.click("#speak")
    wait_for_state(page, "waiting")
    wait_for_request(page)
    for queued, shown in (((3, 4.2), "3rd in line, about 4 s"), ((1, 1.4), "1st in line, about 1 s")):
        send(page, "speech.queued", position=queued[0], estimated_wait_s=queued[1])
        page.wait_for_selector(f"#queue-status:text-is('{shown}')")
        assert page.text_content("#announcer") == f"{shown}."
    send_counting(page, 2)
    wait_for_state(page, "playing")
    assert page.is_hidden("#queue-status")


def test_the_queue_is_forgotten_when_the_wait_is_ended(page: Page) -> None:
    script_speech(page)
    page.click("#speak")
    wait_for_request(page)
    send(page, "speech.queued", position=2, estimated_wait_s=9)
    page.wait_for_selector("#queue-status:not([hidden])")
    page.keyboard.press("Escape")
    wait_for_state(page, "idle")
    assert page.is_hidden("#queue-status")


@pytest.mark.parametrize(("name", "container"), [("mp3", "MP3"), ("flac", "FLAC"), ("opus", "OGG")])
def test_an_utterance_is_downloaded_in_the_chosen_format(page: Page, name: str, container: str) -> None:
    page.fill("#text", "Something to keep.")
    page.click("#speak")
    page.wait_for_selector(".entry")
    offered = page.locator("#format option").all_inner_texts()
    assert {"WAV", "MP3", "OPUS", "FLAC"} <= set(offered)
    page.select_option("#format", name)
    with page.expect_download() as waiting:
        page.click(f'[title="Download as {name.upper()}"]')
    assert waiting.value.suggested_filename == f"something-to-keep.{name}"
    sound = soundfile.info(io.BytesIO(Path(waiting.value.path()).read_bytes()))
    assert sound.format == container
    shown_s = float(page.inner_text(".entry-facts").split(" · ")[1].removesuffix(" s"))
    assert sound.duration == pytest.approx(shown_s, abs=0.15)
    page.reload()
    page.wait_for_selector(f'[title="Download as {name.upper()}"]')


def test_voices_show_accent_and_gender(page: Page) -> None:
    shown = {
        label.locator(".voice-name").inner_text(): label.locator(".voice-traits").inner_text()
        for label in page.locator(".voice label").all()
    }
    assert len(shown) == 10
    assert (shown["emma"], shown["michael"]) == ("British · female", "American · male")
    assert page.get_by_role("radio", name="fable British · male").count() == 1


@pytest.mark.parametrize(("width", "shown"), [(1280, True), (390, False)])
def test_measurements_are_folded_away_on_a_phone(
    browser: Browser, server: Server, width: int, shown: bool
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 844})
    page = context.new_page()
    page.goto(server.url)
    page.wait_for_selector("#voices input", state="attached")
    assert page.is_visible("#figure-first") == page.is_visible("#copy-curl") == shown
    page.click("#developers-title")
    assert page.is_visible("#figure-first") != shown
    page.reload()
    page.wait_for_selector("#voices input", state="attached")
    assert page.is_visible("#figure-first") != shown, "the choice is kept"
    context.close()


def test_a_link_shares_the_settings_and_never_the_key(page: Page, browser: Browser) -> None:
    page.evaluate("localStorage.setItem('nightingale.key', 'secret-key')")
    page.reload()
    page.wait_for_selector("#voices input", state="attached")
    page.check('input[value="emma"]', force=True)
    page.fill("#control-speed", "1.5")
    page.fill("#seed", "7")
    page.fill("#text", "Tea & cake? 100%.")
    page.click("#share-link")
    link = page.inner_text("#share-url")
    assert link.split("#")[1] == "voice=emma&speed=1.5&seed=7"
    page.check("#share-text")
    link = page.inner_text("#share-url")
    assert "secret" not in link
    page.click("#share-copy")
    page.wait_for_selector("#share-copied:not(:empty)")
    context = browser.new_context()
    other = context.new_page()
    sent: list[str] = []
    other.on("request", lambda request: sent.append(request.url))
    other.goto(link)
    other.wait_for_selector("#voices input", state="attached")
    assert other.is_checked('input[value="emma"]')
    assert (other.input_value("#control-speed"), other.input_value("#seed")) == ("1.5", "7")
    assert other.input_value("#text") == "Tea & cake? 100%."
    assert "#" not in other.url, "the link counts once"
    assert not [url for url in sent if "voice=emma" in url]
    other.fill("#seed", "8")
    other.reload()
    other.wait_for_selector("#voices input", state="attached")
    assert other.input_value("#seed") == "8"
    assert other.is_checked('input[value="emma"]')
    context.close()


def test_a_link_is_followed_in_an_open_page_and_says_what_is_missing(page: Page) -> None:
    page.evaluate("location.hash = 'voice=nobody&speed=0.8&text=Hello'")
    page.wait_for_selector("#error:not([hidden])")
    assert "no voice nobody" in page.inner_text("#error-text")
    assert page.input_value("#control-speed") == "0.8"
    assert page.input_value("#text") == "Hello"
    assert page.is_checked('input[value="heart"]')
