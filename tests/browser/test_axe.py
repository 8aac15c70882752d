"""axe-core, a checker of accessibility rules, on the page in its states: it finds no serious or critical issue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser.page_watcher import PageWatcher
from browser.scripted_speech import script_speech, send, send_counting, wait_for_request, wait_for_state
from sample_books import write_epub

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
# Not what axe calls incomplete: it cannot decide those by itself.
RUN = "async () => (await axe.run(document, { resultTypes: ['violations'] })).violations"
OPENERS = {"cloning": "#add-voice", "converting": "#convert", "code": "#copy-curl", "sharing": "#share-link"}


@pytest.fixture(params=["light", "dark"])
def checked(page: Page, request: pytest.FixtureRequest) -> Page:
    """The page with axe-core, in one of the themes."""
    if not AXE.is_file():
        pytest.fail("this test needs axe-core: `make browser` installs it")
    # Without motion, because axe would measure colours in the middle of a transition.
    page.emulate_media(color_scheme=request.param, reduced_motion="reduce")
    page.wait_for_selector(f'html[data-theme="{request.param}"]')
    page.evaluate(AXE.read_text(encoding="utf-8"))
    return page


def check(page: Page, state: str) -> None:
    violations: list[dict[str, Any]] = page.evaluate(RUN)
    found = [
        f"{one['impact']} {one['id']}: {node['html'][:150]} ({node['failureSummary']})"
        for one in violations
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
    assert not found, f"{state}:\n" + "\n".join(found)


def test_axe_finds_nothing_while_the_page_speaks(checked: Page) -> None:
    check(checked, "idle")
    checked.fill("#text", "one two three")
    script_speech(checked)
    checked.click("#speak")
    wait_for_state(checked, "waiting")
    wait_for_request(checked)
    send(checked, "speech.queued", position=2, estimated_wait_s=3)
    checked.wait_for_selector("#queue-status:not([hidden])")
    check(checked, "waiting")
    send_counting(checked, 3)
    wait_for_state(checked, "playing")
    checked.click("#pause")
    check(checked, "speaking")
    checked.focus("#seek")
    checked.keyboard.press("End")
    checked.keyboard.press("Space")
    wait_for_state(checked, "idle")
    checked.wait_for_selector(".entry")
    check(checked, "finished")


def test_axe_finds_nothing_with_errors_and_an_open_book(
    checked: Page, watcher: PageWatcher, tmp_path: Path
) -> None:
    watcher.expected = ("status of 400",)
    book = write_epub(tmp_path / "sea.epub", {"one": "<h1>One</h1><p>A.</p>", "two": "<h1>Two</h1><p>B.</p>"})
    checked.set_input_files("#open-file", book)
    checked.wait_for_selector("#document:not([hidden])")
    (tmp_path / "broken.epub").write_bytes(b"not a zip")
    checked.set_input_files("#open-file", tmp_path / "broken.epub")
    checked.wait_for_selector("#error:not([hidden])")
    checked.fill("#text", "x " * 6000)
    checked.wait_for_selector("#length.over")
    check(checked, "error")


def test_axe_finds_nothing_in_the_dialogs(checked: Page) -> None:
    for dialog, opener in OPENERS.items():
        checked.click(opener)
        checked.wait_for_selector(f"#{dialog}[open]")
        check(checked, dialog)
        checked.keyboard.press("Escape")
        checked.wait_for_selector(f"#{dialog}", state="hidden")
    checked.evaluate("document.getElementById('locked').showModal()")
    check(checked, "locked")


def test_axe_finds_nothing_on_a_phone(checked: Page) -> None:
    checked.set_viewport_size({"width": 390, "height": 844})
    check(checked, "phone")
