"""The blind A/B page of `nightingale report --blind`, in a real browser and without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from planted import RATE_HZ, sound

from nightingale.audio.samples import wav_bytes
from nightingale_lab.bench.report.blind import blind_page

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.browser
CLIPS = 6


@pytest.fixture
def blind(context: BrowserContext, tmp_path: Path) -> Page:
    for folder in ("default", "exact"):
        (tmp_path / folder).mkdir()
        for number in range(CLIPS):
            (tmp_path / folder / f"{number:03d}.wav").write_bytes(wav_bytes(sound(number), RATE_HZ))
    texts = [f"Sentence {number} <b>&</b> more." for number in range(CLIPS)]
    path = tmp_path / "blind.html"
    path.write_text(blind_page(tmp_path / "default", tmp_path / "exact", texts), encoding="utf-8")
    context.set_offline(True)
    page = context.new_page()
    page.goto(path.as_uri())
    return page


def listen(page: Page) -> None:
    for player in page.locator("audio").all():
        player.dispatch_event("play")


def test_labels_are_hidden_until_the_last_answer_and_then_counted(blind: Page) -> None:
    asked = []
    for number in range(CLIPS):
        shown = blind.locator("body").inner_text()
        assert "default" not in shown
        assert "exact" not in shown
        assert f"{number + 1} of {CLIPS}" in shown
        asked.append(blind.locator("h2").inner_text())
        assert blind.get_by_role("button").first.is_disabled(), "both must be played before an answer"
        listen(blind)
        answer = "No difference" if number == 0 else "A is better"
        blind.get_by_role("button", name=answer).click()
    assert sorted(asked) == [f"Sentence {number} <b>&</b> more." for number in range(CLIPS)]
    found = json.loads(blind.locator("#json").input_value())
    assert found["labels"] == ["default", "exact"]
    assert sum(found["wins"]) == CLIPS - 1
    assert found["same"] == 1
    assert len(found["answers"]) == CLIPS
    assert "default preferred" in blind.locator("#result").inner_text()
    assert blind.evaluate("[...document.querySelectorAll('tbody')[1].rows].length") == CLIPS


def test_pairs_and_sides_are_shuffled_again_whenever_it_is_opened(blind: Page) -> None:
    seen = set()
    for _ in range(12):
        seen.add(blind.evaluate("JSON.stringify(queue.map(pair => [pair.number, pair.order[0]]))"))
        blind.reload()
    assert len(seen) > 8
    sides = [json.loads(one)[0][1] for one in seen]
    assert set(sides) == {0, 1}


def test_the_preference_is_tested_against_chance(blind: Page) -> None:
    assert blind.evaluate("binomialP(5, 5)") == pytest.approx(0.0625)
    assert blind.evaluate("binomialP(15, 20)") == pytest.approx(0.041389, abs=1e-5)
    assert blind.evaluate("binomialP(10, 20)") == pytest.approx(1.0)
    assert blind.evaluate("binomialP(0, 0)") == pytest.approx(1.0)
    assert blind.evaluate("interval(15, 20)") == pytest.approx([0.5313, 0.8881], abs=1e-3)
    assert blind.evaluate("interval(0, 0)") == [0, 1]
