"""`nightingale verify` and `nightingale bench`, in process, with the noise model and planted defects."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from planted import TEXT, PlantedSubject
from typer.testing import CliRunner, Result

from nightingale.cli.commands import app
from nightingale_lab.bench.speed.request import Details, Target


def run(*words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--quiet"])


@pytest.fixture
def subject(monkeypatch: pytest.MonkeyPatch) -> PlantedSubject:
    """Replace the engine that `verify` checks."""
    planted = PlantedSubject()
    monkeypatch.setattr("nightingale_lab.bench.verify.subject.EngineSubject", lambda *_: planted)
    monkeypatch.setattr("nightingale_lab.bench.verify.verification.sentences", lambda count: [TEXT] * count)
    return planted


def verify_words(folder: Path) -> list[str]:
    where = ["--keep", str(folder / "keep"), "--results", str(folder)]
    return ["verify", "-m", "noise", "--no-judges", "--sentences", "2", *where]


def test_verify_exits_0_if_no_check_fails_and_names_missing_judges(
    subject: PlantedSubject, tmp_path: Path
) -> None:
    done = run(*verify_words(tmp_path))
    assert done.exit_code == 0, done.output
    assert "8 missing" in done.output, "six of judges; a baseline and a voice reference that are stored now"
    assert "--no-judges" in done.output


def test_verify_exits_1_and_names_the_failed_check(subject: PlantedSubject, tmp_path: Path) -> None:
    subject.lost_samples = 1
    done = run(*verify_words(tmp_path))
    assert done.exit_code == 1
    assert "blocks out of place" in done.output
    assert "2 failed" in done.output


def test_verify_prints_and_stores_one_line_of_json(subject: PlantedSubject, tmp_path: Path) -> None:
    subject.greedy_slips = 3
    done = run(*verify_words(tmp_path), "--json")
    line = json.loads(done.stdout.splitlines()[-1])
    assert done.exit_code == 1
    assert line["ok"] is False
    assert [check["value"] for check in line["checks"] if check["verdict"] == "fail"] == [3.0]
    assert json.loads((tmp_path / "verify.jsonl").read_text()) == line
    assert (tmp_path / "keep" / "balanced" / "001.wav").is_file()


def test_noise_model_does_not_pass(tmp_path: Path) -> None:
    done = run(*verify_words(tmp_path), "--json")
    line = json.loads(done.stdout.splitlines()[-1])
    failed = {check["name"] for check in line["checks"] if check["verdict"] == "fail"}
    assert done.exit_code == 1
    assert "noise floor in pauses, median" in failed
    passed = {check["name"] for check in line["checks"] if check["verdict"] == "pass"}
    assert {"same seed, other sha256", "samples off 960 × tokens", "joined stream differs from say"} <= passed


def test_unknown_profile_is_refused() -> None:
    done = CliRunner().invoke(app, ["verify", "--against", "quick"])
    assert done.exit_code == 2


def bench_words(folder: Path) -> list[str]:
    small = ["--text", "word,short", "--concurrency", "1,2", "--rounds", "2", "--no-cold"]
    return ["bench", "-m", "noise", *small, "--results", str(folder)]


def test_bench_prints_tables_and_one_line_of_json_last(tmp_path: Path) -> None:
    done = run(*bench_words(tmp_path), "--profile", "exact,balanced", "--distance")
    assert done.exit_code == 0, done.output
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["complete"] is True
    assert [(row["who"], row["text"]) for row in line["lengths"]] == [
        ("exact", "word"), ("exact", "short"), ("balanced", "word"), ("balanced", "short"),
    ]  # fmt: skip
    assert line["distance"] == []  # the model "noise" has no weights
    assert line["lengths"][0]["t3_ms_per_step"] > 0
    assert "one request at a time" in done.stdout
    assert json.loads((tmp_path / "bench.jsonl").read_text()) == line


def test_bench_measures_listeners_and_the_capacity(tmp_path: Path) -> None:
    small = ["--listeners", "1,2", "--voices", "own", "--stream", "block", "--quick", "--no-cold"]
    done = run("bench", "-m", "noise", "--profile", "balanced", *small, "--results", str(tmp_path))
    assert done.exit_code == 0, done.output
    line = json.loads(done.stdout.splitlines()[-1])
    assert json.loads((tmp_path / "listeners.jsonl").read_text()) == line
    assert [(row["who"], row["voices"]) for row in line["listeners"]] == [
        ("balanced+stream=block", 1),
        ("balanced+stream=block", 2),
    ]
    assert line["capacity"] == []
    for title in ("listeners at once, arriving: together", "a voice never seen before"):
        assert title in done.stdout


def test_bench_measures_the_listeners_of_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def target(url: str, **voice: object) -> Target:
        asked.append((url, voice["voice"]))
        return lambda text, seed: (iter([0.01]), Details)

    monkeypatch.setattr("nightingale_lab.bench.speed.targets.server_target", target)
    words = ["--url", "http://there", "--voice", "nova, emma", "--listeners", "3", "--rounds", "1"]
    done = run("bench", *words, "--results", str(tmp_path))
    assert done.exit_code == 0, done.output
    line = json.loads(done.stdout.splitlines()[-1])
    assert asked == [("http://there", "nova"), ("http://there", "emma")]
    assert [(row["listeners"], row["voices"]) for row in line["listeners"]] == [(3, 2)]


@pytest.mark.parametrize("wrong", [("--stream", "word"), ("--arrivals", "late"), ("--voices", "0")])
def test_unknown_words_for_listeners_are_refused(wrong: tuple[str, str]) -> None:
    assert CliRunner().invoke(app, ["bench", "-m", "noise", "--listeners", "1", *wrong]).exit_code == 2


def test_bench_prints_the_table_of_what_users_notice(tmp_path: Path) -> None:
    done = run("bench", "-m", "noise", "--table", "--quick", "--results", str(tmp_path))
    assert done.exit_code == 0, done.output
    line = json.loads(done.stdout.splitlines()[-1])
    assert json.loads((tmp_path / "headline.jsonl").read_text()) == line
    assert [(row["listeners"], row["sentences"]) for row in line["listeners"]] == [(1, 2), (2, 4), (4, 8)]
    assert line["listeners"][2]["ttfa_ms_by_arrival"][3] > 0
    assert line["fresh"]["peak_memory_mb"] > 10
    values = {row["what"]: row["value"] for row in line["headline"]}
    assert values['nightingale say "Good morning.", process start to file'] == line["say"]["say_s"] > 0
    assert values["underruns, listeners at once: 4, 2 sentences each"] == line["listeners"][2]["underruns"]
    assert f"{line['machine']['arch']}, {line['machine']['cpu']}" in done.stdout
    assert "counts one" in done.stdout


def test_bench_prints_one_line_to_paste() -> None:
    done = run("bench", "-m", "noise", "--share", "--quiet", "--profile", "balanced")
    assert done.exit_code == 0, done.output
    (line,) = done.stdout.splitlines()
    parts = line.split(" | ")
    assert parts[0].startswith("nightingale ")
    assert parts[1] == "noise balanced"
    assert "T3 noise float32" in parts
    (factor,) = (part for part in parts if part.startswith("real-time factor "))
    assert float(factor.removeprefix("real-time factor ")) > 0
    for unit in (" ms", " s", " MB"):
        assert any(part.endswith(unit) for part in parts)


def test_bench_measures_several_profiles(tmp_path: Path) -> None:
    profiles = ["balanced", "balanced+slots=2"]
    small = ["--text", "short", "--concurrency", "", "--rounds", "2", "--no-cold"]
    done = run("bench", "-m", "noise", *small, "--results", str(tmp_path), "--profile", ",".join(profiles))
    assert done.exit_code == 0, done.output
    line = json.loads(done.stdout.splitlines()[-1])
    assert [row["who"] for row in line["lengths"]] == profiles
    assert all(row["t3_ms_per_step"] > 0 for row in line["lengths"])


def test_verify_compares_a_profile_with_another(tmp_path: Path) -> None:
    words = ["--profile", "balanced+slots=2", "--against", "balanced", "--json"]
    done = run(*verify_words(tmp_path), *words)
    line = json.loads(done.stdout.splitlines()[-1])
    passed = {check["name"] for check in line["checks"] if check["verdict"] == "pass"}
    assert "same seed, other sha256" in passed
    assert (line["profile"], line["against"]) == ("balanced+slots=2", "balanced")


def test_interrupted_bench_keeps_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nightingale_lab.bench.speed import load

    took: list[Any] = []
    time_request = load.time_request

    def one_more(*words: Any) -> Any:
        took.append(time_request(*words))
        if len(took) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return took[-1]

    monkeypatch.setattr(load, "time_request", one_more)
    done = run(*bench_words(tmp_path))
    line = json.loads((tmp_path / "bench.jsonl").read_text())
    assert done.exit_code == 130
    assert line["complete"] is False
    assert line["lengths"][0]["requests"] == 2
    assert json.loads(done.stdout.splitlines()[-1]) == line


@pytest.mark.parametrize(
    "words", [["--concurrency", "1,x"], ["--concurrency", "0"], ["--text", "huge"], ["--profile", "quick"]]
)
def test_invalid_bench_arguments_are_refused(words: list[str], tmp_path: Path) -> None:
    assert run("bench", "-m", "noise", "--results", str(tmp_path), *words).exit_code == 2
