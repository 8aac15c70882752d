"""A request that waits behind another one, on a real server that speaks one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from browser.page_watcher import Server
from browser.scripted_speech import wait_for_state

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

pytestmark = pytest.mark.browser

LONG = " ".join(f"This is sentence number {i}, and it takes a while to say." for i in range(60))


def test_a_waiting_page_shows_its_place_in_the_queue(
    start_server: Callable[..., Server], context: BrowserContext
) -> None:
    server = start_server(max_streams="1")
    first, second = context.new_page(), context.new_page()
    for page, text in ((first, LONG), (second, "My turn.")):
        page.goto(server.url)
        page.wait_for_selector("#voices input", state="attached")
        page.fill("#text", text)
        page.click("#speak")
        if page is first:
            wait_for_state(page, "speaking")
    second.wait_for_selector("#queue-status:not([hidden])")
    shown = second.inner_text("#queue-status")
    assert shown.startswith("1st in line, about "), shown
    assert "1st in line" in (second.text_content("#announcer") or "")
    assert second.get_attribute("body", "data-state") == "waiting"
    first.bring_to_front()
    first.click("#stop")
    wait_for_state(second, "playing")
    assert second.is_hidden("#queue-status")
