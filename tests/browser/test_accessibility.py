"""Accessibility and layout: screen readers, keyboards, contrast, small screens, path prefixes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from browser.page_watcher import PageWatcher, Server, eventually
from browser.prefix_proxy import prefixed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.browser

# The contrast of text by the formula of WCAG, which exempts disabled controls.
LOW_CONTRAST = """() => {
    const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (color) => {
        paint.clearRect(0, 0, 1, 1);
        paint.fillStyle = color;
        paint.fillRect(0, 0, 1, 1);
        return [...paint.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map((v) => v / 255)
            .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const behind = (node) => {
        for (let up = node; up; up = up.parentElement) {
            const color = rgba(getComputedStyle(up).backgroundColor);
            if (color[3] === 255) return color;
        }
        return rgba(getComputedStyle(document.documentElement).backgroundColor);
    };
    const hidden = (node) => node.closest(":disabled, .visually-hidden, noscript, svg");
    const low = [];
    for (const node of document.querySelectorAll("body *")) {
        const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
        if (!own || !node.checkVisibility() || hidden(node)) continue;
        const [front, back] = [light(rgba(getComputedStyle(node).color)), light(behind(node))];
        const contrast = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
        const text = node.textContent.trim().slice(0, 30);
        if (contrast < 4.5) low.push(`${node.tagName} "${text}" ${contrast.toFixed(2)}`);
    }
    return low;
}"""

# The focus of a hidden input is shown by its label or its row.
FOCUS_IS_VISIBLE = """() => ["*", "label", ".voice"]
    .map((selector) => document.activeElement.closest(selector))
    .some((node) => node && getComputedStyle(node).outlineStyle === "solid" && node.offsetWidth > 2)"""


@pytest.fixture
def full(page: Page) -> Page:
    """The page with two entries in its history."""
    for count, text in enumerate(["Something.", "Something else."], 1):
        page.fill("#text", text)
        page.click("#speak")
        eventually(page.locator(".entry").count, count)
    page.wait_for_selector('body[data-state="idle"]')
    return page


def nodes(page: Page) -> list[dict[str, Any]]:
    """Return the nodes of the accessibility tree."""
    session = page.context.new_cdp_session(page)
    tree: list[dict[str, Any]] = session.send("Accessibility.getFullAXTree")["nodes"]
    return [
        {"role": node["role"]["value"], "name": node.get("name", {}).get("value", "")}
        for node in tree
        if not node["ignored"]
    ]


def test_all_controls_have_a_name(full: Page) -> None:
    roles = {"button", "textbox", "slider", "radio", "combobox", "link", "image", "meter", "radiogroup"}
    usable = [node for node in nodes(full) if node["role"] in roles]
    assert len(usable) > 15
    assert not [node for node in usable if not node["name"].strip()]


def test_names_of_buttons_are_unique(full: Page) -> None:
    names = [node["name"] for node in nodes(full) if node["role"] == "button"]
    assert len(names) == len(set(names)), sorted(names)


@pytest.mark.parametrize("opener", ["#add-voice", "#copy-curl"])
def test_dialogs_have_a_name_and_restore_the_focus(page: Page, opener: str) -> None:
    page.focus(opener)
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    shown = nodes(page)
    assert next(node["name"] for node in shown if node["role"] == "dialog")
    assert not [node for node in shown if node["role"] in ("button", "radio") and not node["name"]]
    assert page.evaluate("document.activeElement.closest('dialog') !== null")
    page.keyboard.press("Escape")
    assert page.evaluate("`#${document.activeElement.id}`") == opener


def test_page_has_landmarks_and_one_title(page: Page) -> None:
    assert page.get_attribute("html", "lang") == "en"
    assert page.locator("h1").count() == 1
    for landmark in ("header", "main", "main section", "main aside"):
        assert page.locator(landmark).count() >= 1
    levels = page.eval_on_selector_all("h1, h2, h3", "found => found.map((h) => Number(h.tagName[1]))")
    assert len(levels) > 2
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_all_controls_are_reachable_by_keyboard(full: Page) -> None:
    full.focus("#text")
    reached = set()
    for _ in range(40):
        full.keyboard.press("Tab")
        reached.add(full.evaluate("document.activeElement.id || document.activeElement.title"))
    wanted = {"speak", "copy-curl", "add-voice", "control-speed", "seed", "theme", "clear-history"}
    assert wanted | {"Play", "Reuse this text", "Download as WAV", "Delete"} <= reached


def test_the_focus_is_visible_and_moves_in_reading_order(full: Page) -> None:
    wanted = [
        "text", "speak", "open-file", "convert", "pause", "seek", "developers-title", "copy-curl",
        "copy-python", "add-voice", "control-speed", "seed", "share-link", "format", "clear-history",
    ]  # fmt: skip
    full.focus("#theme")
    reached = []
    for _ in range(60):
        full.keyboard.press("Tab")
        if full.evaluate("document.activeElement === document.body"):
            break  # after the last one
        reached.append(full.evaluate("document.activeElement.id"))
        if reached[-1] != "text":  # whose line below is coloured
            assert full.evaluate(FOCUS_IS_VISIBLE), full.evaluate("document.activeElement.outerHTML")
    assert [name for name in reached if name in wanted] == wanted


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(full: Page, scheme: Any) -> None:
    full.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    full.wait_for_selector(f'html[data-theme="{scheme}"]')
    full.evaluate("document.getElementById('error').hidden = false")
    assert full.evaluate(LOW_CONTRAST) == []
    full.evaluate("document.getElementById('cloning').showModal()")
    assert full.evaluate(LOW_CONTRAST) == []


@pytest.mark.parametrize("width", [1280, 768, 390, 320])
def test_page_never_scrolls_horizontally(full: Page, width: int) -> None:
    full.set_viewport_size({"width": width, "height": 844})
    assert full.evaluate("document.documentElement.scrollWidth") <= width
    full.click("#add-voice")
    box = full.locator("#cloning").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width


def test_touch_targets_are_large(browser: Browser, server: Server) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(server.url)
    page.wait_for_selector("#voices input", state="attached")
    small = page.eval_on_selector_all(
        "button:not(.link)",
        """found => found.filter((b) => b.checkVisibility()).map((b) => [b.id || b.ariaLabel, b.offsetHeight])
            .filter(([, height]) => height < 40)""",
    )
    context.close()
    assert small == []


def test_reduced_motion_is_respected(page: Page) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.evaluate("document.body.dataset.state = 'waiting'")
    assert page.evaluate("getComputedStyle(document.getElementById('waveform')).animationName") == "none"


def test_theme_follows_the_system_until_one_is_chosen(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector('html[data-theme="dark"]')
    page.click("#theme")
    page.wait_for_selector('html[data-theme="light"]')
    page.emulate_media(color_scheme="light")
    page.emulate_media(color_scheme="dark")
    assert page.get_attribute("html", "data-theme") == "light"


def test_page_works_behind_a_path_prefix(context: BrowserContext, server: Server) -> None:
    with prefixed(server.url, "/voice") as address:
        watcher = PageWatcher(address.split("/")[2])
        page = context.new_page()
        watcher.watch(page)
        page.goto(address)
        page.wait_for_selector("#voices input", state="attached")
        page.fill("#text", "Hello.")
        page.click("#speak")
        page.wait_for_selector(".entry")
        page.wait_for_selector('body[data-state="idle"]')
        page.click("#copy-curl")
        assert f"{address}v1/audio/speech" in page.inner_text("#code-text")
        page.close()
    assert not watcher.unexpected()
    assert watcher.paths
    assert all(path.startswith("/voice/") for path in watcher.paths), watcher.paths
