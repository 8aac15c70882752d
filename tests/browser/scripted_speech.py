"""Answers to the page's requests for speech that a test writes event by event, and waiting for states of the page."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import numpy as np
from browser.page_watcher import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Page

RATE_HZ = 24_000
# Routes of Playwright answer at once. This answers as a server does: in parts.
SCRIPT = """() => {
    const real = window.fetch;
    window.fetch = (url, options) => {
        if (!String(url).endsWith("/v1/audio/speech")) return real(url, options);
        const body = new ReadableStream({
            start(controller) {
                const coder = new TextEncoder();
                window.speech = {
                    send: (event) => controller.enqueue(coder.encode(`data: ${JSON.stringify(event)}\\n\\n`)),
                    end: () => controller.close(),
                };
                options.signal.addEventListener("abort", () => controller.error(options.signal.reason));
            },
        });
        return Promise.resolve(new Response(body, { headers: { "X-Sample-Rate": "24000" } }));
    };
}"""


def script_speech(page: Page) -> None:
    """Take the place of the server for speech until the page is loaded again."""
    page.evaluate(SCRIPT)


def wait_for_request(page: Page) -> None:
    """Wait until the page has asked for speech. The page's policy forbids Playwright's `wait_for_function`."""
    eventually(lambda: page.evaluate("window.speech !== undefined"), True)


def send(page: Page, kind: str, **fields: object) -> None:
    page.evaluate("(event) => window.speech.send(event)", {"type": kind, **fields})


def send_counting(page: Page, seconds: int) -> None:
    """Send a tone of that length, in which a word of the text is said in each second, and end the answer."""
    text = page.input_value("#text")
    words = text.split(" ")
    starts = [sum(len(word) + 1 for word in words[:i]) for i in range(len(words))]
    timed = [
        {"word": word, "start": i, "end": i + 1, "text_start": start, "text_end": start + len(word)}
        for i, (word, start) in enumerate(zip(words, starts, strict=True))
    ]
    samples = (3000 * np.sin(np.arange(seconds * RATE_HZ) / 20)).astype("<i2")
    send(page, "speech.audio.words", words=timed)
    send(page, "speech.audio.delta", audio=base64.b64encode(samples.tobytes()).decode())
    send(page, "speech.audio.done", srt="")
    page.evaluate("window.speech.end()")


def wait_for_state(page: Page, wanted: str, within_ms: int = 30_000) -> None:
    page.wait_for_selector(f'body[data-state="{wanted}"]', timeout=within_ms)
