"""The waveform as a slider, and pause: with the pointer, with the keyboard, and while audio is still received."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from browser.page_watcher import Server, eventually
from browser.scripted_speech import script_speech, send_counting, wait_for_request, wait_for_state

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

TEXT = "zero one two three four five six seven eight nine ten eleven"
SECONDS = 12


def pause_after_start(page: Page) -> None:
    page.fill("#text", TEXT)
    script_speech(page)
    page.click("#speak")
    wait_for_request(page)
    send_counting(page, SECONDS)
    wait_for_state(page, "playing")
    page.click("#pause")
    page.wait_for_selector('#pause[title="Resume"]')


@pytest.fixture
def paused(page: Page) -> Page:
    """The page with twelve seconds of audio, paused near its beginning."""
    pause_after_start(page)
    return page


def position(page: Page) -> int:
    return int(page.get_attribute("#seek", "aria-valuenow") or -1)


def spoken(page: Page) -> str:
    return page.inner_text("#spoken .active")


def at(page: Page, part: float) -> tuple[float, float]:
    """Return the point at a part of the waveform's width."""
    box = page.locator("#waveform").bounding_box()
    assert box is not None
    return box["x"] + part * box["width"], box["y"] + box["height"] / 2


def test_a_click_into_the_waveform_goes_there(paused: Page) -> None:
    paused.mouse.click(*at(paused, 6.5 / SECONDS))
    assert (position(paused), spoken(paused)) == (6, "six")
    assert paused.inner_text("#time") == "0:06 / 0:12"
    assert paused.get_attribute("#seek", "aria-valuetext") == "0:06 of 0:12"
    assert paused.get_attribute("#pause", "title") == "Resume", "seeking does not resume"


def test_dragging_shows_the_place_and_letting_go_plays_there(paused: Page) -> None:
    paused.mouse.move(*at(paused, 2.5 / SECONDS))
    paused.mouse.down()
    paused.mouse.move(*at(paused, 9.5 / SECONDS))
    assert (position(paused), spoken(paused)) == (9, "nine")
    paused.mouse.move(*at(paused, 4.5 / SECONDS))
    paused.mouse.up()
    assert (position(paused), spoken(paused)) == (4, "four")
    paused.mouse.move(*at(paused, 11.5 / SECONDS))
    assert position(paused) == 4, "the pointer was let go"


def test_a_drag_past_the_ends_stays_within_the_audio(paused: Page) -> None:
    for part, wanted in ((-0.5, 0), (1.5, SECONDS)):
        paused.mouse.move(*at(paused, 0.5))
        paused.mouse.down()
        paused.mouse.move(*at(paused, part))
        paused.mouse.up()
        assert position(paused) == wanted


def test_keys_of_a_slider_move_the_position(paused: Page) -> None:
    paused.focus("#seek")
    for key, wanted in (
        ("Home", 0), ("ArrowRight", 1), ("ArrowUp", 2), ("ArrowLeft", 1), ("ArrowDown", 0), ("ArrowLeft", 0),
        ("PageUp", 10), ("PageUp", 12), ("PageDown", 2), ("End", 12), ("ArrowLeft", 11),
    ):  # fmt: skip
        paused.keyboard.press(key)
        assert position(paused) == wanted, key
        assert spoken(paused) == TEXT.split()[min(wanted, 11)]
    assert paused.evaluate("scrollY") == 0, "the keys scroll the page"


def test_pause_holds_the_audio_and_resume_plays_on(paused: Page) -> None:
    paused.focus("#seek")
    paused.keyboard.press("End")
    paused.wait_for_timeout(500)
    assert paused.get_attribute("body", "data-state") == "playing", "it ended although it is paused"
    paused.keyboard.press("Space")
    wait_for_state(paused, "idle", 3000)
    assert paused.get_attribute("#pause", "title") == "Play"


def test_audio_can_be_played_again_after_its_end(paused: Page) -> None:
    paused.focus("#seek")
    paused.keyboard.press("End")
    paused.click("#pause")
    wait_for_state(paused, "idle", 3000)
    paused.mouse.click(*at(paused, 8.5 / SECONDS))
    wait_for_state(paused, "playing")
    assert position(paused) >= 8
    paused.focus("#seek")
    paused.keyboard.press("End")
    wait_for_state(paused, "idle", 3000)
    paused.click("#pause")
    wait_for_state(paused, "playing")
    assert position(paused) < 8, "it begins again"


def test_stopped_audio_goes_on_where_it_was(paused: Page) -> None:
    paused.mouse.click(*at(paused, 5.5 / SECONDS))
    paused.keyboard.press("Escape")
    wait_for_state(paused, "idle")
    assert (position(paused), spoken(paused)) == (5, "five")
    paused.click("#pause")
    wait_for_state(paused, "playing")
    assert position(paused) >= 5


def test_the_words_are_followed_in_their_box_and_the_page_stays_where_it_is(paused: Page) -> None:
    paused.set_viewport_size({"width": 320, "height": 400})
    scrolled = paused.evaluate(
        """() => {
            scrollTo(0, document.documentElement.scrollHeight);
            document.getElementById("pause").click();
            return scrollY;
        }"""
    )
    assert scrolled > 200
    eventually(lambda: paused.text_content("#spoken .active") not in ("zero", "one"), True)
    assert paused.evaluate("scrollY") == scrolled


def test_a_finger_drags_the_position(browser: Browser, server: Server) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(server.url)
    page.wait_for_selector("#voices input", state="attached")
    pause_after_start(page)
    touches = context.new_cdp_session(page)
    for kind, second in (("touchStart", 1.5), ("touchMove", 3.5), ("touchMove", 7.5), ("touchEnd", None)):
        points = [] if second is None else [dict(zip("xy", at(page, second / SECONDS), strict=True))]
        touches.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    eventually(lambda: (position(page), spoken(page)), (7, "seven"))
    context.close()


def test_nothing_can_be_sought_before_there_is_audio(page: Page) -> None:
    assert page.get_attribute("#seek", "aria-disabled") == "true"
    assert page.get_attribute("#seek", "tabindex") == "-1"
    assert page.is_disabled("#pause")
    page.mouse.click(*at(page, 0.5))
    assert page.get_attribute("#seek", "aria-valuetext") == "no audio"
    assert page.get_attribute("body", "data-state") == "idle"


def test_speech_of_the_server_is_paused_sought_and_highlighted(page: Page) -> None:
    page.fill("#text", "Every morning the gardener waters the roses. Then the birds come.")
    page.click("#speak")
    page.wait_for_selector("#spoken .active")
    page.click("#pause")
    page.wait_for_selector(".entry")  # all of it was received
    page.focus("#seek")
    page.keyboard.press("End")
    assert spoken(page) == "come."
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    middle = spoken(page)
    assert middle not in ("Every", "come.")
    page.keyboard.press("End")
    page.keyboard.press("Space")
    wait_for_state(page, "idle", 5000)
