"""The page converts a recording that was chosen or recorded, and offers the tags of models that have them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import soundfile
from synthetic_clip import voice_like

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


def test_a_chosen_file_is_spoken_in_the_chosen_voice(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "me.wav"
    soundfile.write(path, voice_like(2.0, 44_100), 44_100)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    page.click("#convert")
    assert page.is_disabled("#convert-start")
    page.set_input_files("#convert-file", str(path))
    page.wait_for_selector("#convert-status >> text=2.0 seconds.")
    page.click("#convert-start")
    page.wait_for_selector(".entry-text >> text=Recording: me.wav")
    page.wait_for_selector('body[data-state="idle"]')
    assert any("/v1/speech-to-speech/" in url for url in sent)
    assert page.is_hidden("#error")


def test_the_microphone_is_recorded(page: Page) -> None:
    page.click("#convert")
    page.click("#convert-record")
    page.wait_for_selector("#convert-record >> text=Finish")
    page.wait_for_timeout(700)
    page.click("#convert-record")
    page.wait_for_selector("#convert-start:enabled")


def test_tags_are_offered_by_models_that_have_them_and_inserted_at_the_cursor(page: Page) -> None:
    assert page.is_hidden("#tags"), "wren has none"
    page.fill("#text", "Well, well.")
    page.evaluate(
        """async () => {
            const { showTags, insertTag } = await import(new URL("page/js/ui/tags.js", document.baseURI));
            const area = document.getElementById("text");
            showTags({ tags: ["[laugh]", "[clear throat]"] }, (tag) => insertTag(area, tag));
            area.setSelectionRange(5, 5);
        }"""
    )
    page.click("#tags >> text=[clear throat]")
    assert page.input_value("#text") == "Well, [clear throat] well."
