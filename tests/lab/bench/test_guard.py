"""The regression guard detects what got slower, and ignores noise and a busy machine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from nightingale_lab.bench import guard
from nightingale_lab.bench.guard import Measured, compare, last_accepted, measure, summary


def moved(before: float, now: float, noise: float) -> guard.Change:
    return compare({"x": {"value": before, "noise": noise}}, {"x": Measured(value=now, noise=noise)})[0]


@pytest.mark.parametrize(
    ("now", "noise", "slower"),
    [(1.3, 0.01, True), (1.08, 0.001, False), (1.3, 0.1, False), (0.5, 0.01, False), (1.0, 0.0, False)],
    ids=["slower", "within a tenth", "lost in noise", "faster", "the same"],
)
def test_slower_is_more_than_a_tenth_and_more_than_the_noise(now: float, noise: float, slower: bool) -> None:
    assert moved(1.0, now, noise).slower is slower


def test_a_planted_delay_is_caught() -> None:
    def work(seconds: float) -> Any:
        return lambda _: time.sleep(seconds) or seconds

    def unit() -> None:
        time.sleep(0.002)

    healthy = measure({"x": work(0.004)}, unit, rounds=7)
    delayed = measure({"x": work(0.008)}, unit, rounds=7)
    before = {"x": {"value": healthy["x"].value, "noise": healthy["x"].noise}}
    assert compare(before, delayed)[0].slower
    assert not compare(before, healthy)[0].slower


@pytest.mark.parametrize("pace_s", [1.0, 2.0], ids=["quick machine", "slow machine"])
def test_how_fast_the_machine_is_changes_no_ratio(pace_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def unit() -> None:
        nonlocal now_s
        now_s += pace_s

    monkeypatch.setattr(guard, "_seconds", lambda act: (act(), pace_s)[1])
    assert measure({"x": lambda _: 3 * pace_s}, unit, rounds=3)["x"].value == pytest.approx(3.0)
    assert now_s == 6 * pace_s  # before and after each act


def test_no_round_is_begun_after_the_time_is_spent_but_the_least_are_made() -> None:
    spent = measure({"x": lambda _: 1.0}, lambda: None, rounds=50, budget_s=0.0)
    assert spent["x"].rounds == guard.LEAST_ROUNDS
    assert measure({"x": lambda _: 1.0}, lambda: None, rounds=9)["x"].rounds == 9


def test_one_slow_round_changes_neither_value_nor_noise_by_much() -> None:
    calm = summary([1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01])
    unlucky = summary([1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 9.0])
    assert unlucky.value == pytest.approx(calm.value, rel=0.02)
    assert unlucky.noise < 0.02


def line(**more: Any) -> dict[str, Any]:
    machine = {"arch": "arm", "cpu": "abacus", "cores": 2, "threads": 2}
    return {"machine": machine, "fingerprint": "f", "accepted": True, "commit": "c", **more}


def test_only_accepted_lines_of_the_same_model_and_machine_count() -> None:
    lines = [
        line(commit="good"),
        line(commit="not accepted", accepted=False),
        line(commit="other model", fingerprint="g"),
        line(commit="other machine", machine={"arch": "x86"}),
    ]
    found = last_accepted(lines, line())
    assert found is not None
    assert found["commit"] == "good"
    assert last_accepted(lines[1:], line()) is None


def test_a_run_is_compared_with_the_accepted_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--model", "noise", "--rounds", "1", "--results", str(tmp_path)]
    steady = {"x": Measured(value=2.0, noise=0.01)}
    monkeypatch.setattr(guard, "measure", lambda *_: steady)
    monkeypatch.setattr(guard, "quantities", lambda _: {})
    assert guard.main(words) == 0
    assert "Nothing accepted so far" in capsys.readouterr().out
    assert guard.main([*words, "--accept"]) == 0
    capsys.readouterr()
    steady["x"] = Measured(value=3.0, noise=0.01)
    assert guard.main(words) == 1
    said = capsys.readouterr().out
    assert "SLOWER" in said
    assert "+50.0%" in said
    assert json.loads(said.splitlines()[-1])["slower"] == ["x"]
    assert len((tmp_path / "guard.jsonl").read_text().splitlines()) == 1
