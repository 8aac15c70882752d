"""Take the screenshots of the page in docs/img from a running server:

    nightingale serve &
    python tests/browser/screenshots.py http://127.0.0.1:8880/ docs/img

They show the fonts of the machine; on a bare one, install fonts first (fonts-inter, fonts-urw-base35).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

HISTORY = ["Good evening.", "She listened to the rain on the roof, and did not hear the door."]
TEXT = (
    "The nightingale sings at night, when other birds are still. "
    "Write something here, and hear it while it is still being made."
)
SCREENSHOTS = {
    "page-light": {"width": 1280, "height": 800, "scheme": "light", "scale": 1},
    "page-dark": {"width": 1280, "height": 800, "scheme": "dark", "scale": 1},
    "page-phone": {"width": 390, "height": 844, "scheme": "light", "scale": 2},
}
PLAYBACK_MS = 2500


def take(browser: Browser, url: str, path: Path, *, width: int, height: int, scheme: str, scale: int) -> None:
    """Take one screenshot during playback, with two entries in the history."""
    phone = width < 500
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        device_scale_factor=scale,
        is_mobile=phone,
        has_touch=phone,
    )
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("#voices input", state="attached")
    for text in HISTORY:
        page.fill("#text", text)
        page.click("#speak")
        page.wait_for_selector(f".entry-text >> text={text}", timeout=60_000)
    page.fill("#text", TEXT)
    page.click("#speak")
    page.wait_for_selector('body[data-state="speaking"], body[data-state="playing"]', timeout=60_000)
    page.wait_for_timeout(PLAYBACK_MS)
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=path)
    context.close()


def main(url: str, folder: str) -> None:
    chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        )
        for name, how in SCREENSHOTS.items():
            take(browser, url, Path(folder) / f"{name}.png", **how)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:3])
