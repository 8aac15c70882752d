"""The tables of docs/performance.md show what the results files hold, and say what is not there."""

from __future__ import annotations

from typing import Any

from nightingale_lab.bench.report import markdown
from nightingale_lab.bench.runner import markdown_table

MACHINE = {"cores": 2, "cpu": "abacus", "load_1m": 0.5}
SIGNED: dict[str, Any] = {"machine": MACHINE, "commit": "abc", "date": "2026-01-02T03:04:05"}
GOALS = {"Nano int8, real-time factor": ("≤", 0.8, 0.4), "speed-up over upstream: Nano": ("≥", 2.5, 6.0)}


def cpu_line(**more: Any) -> dict[str, Any]:
    seconds = {"whole": 6.0, "prompt": 0.5, "steps": 0.5, "flow": 2.0, "vocoder": 3.0}
    return {
        "table": {"Nano int8, real-time factor": 1.5},
        "parts": {"sentence nano": {"seconds": seconds, "rtf": 1.5}},
        **SIGNED,
        **more,
    }


def cells(said: str, first: str) -> list[str]:
    row = next(line for line in said.splitlines() if line.startswith(f"| {first} "))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_every_row_of_a_table_is_as_wide_as_its_head() -> None:
    said = markdown_table(["a", "b"], [("x", 1), ("y", None)])
    assert said.splitlines() == ["| a | b |", "|---|---|", "| x | 1 |", "| y | – |"]


def test_a_goal_stands_beside_what_was_reached_and_what_it_is_made_of() -> None:
    said = markdown.cpu([cpu_line()], GOALS)
    found = cells(said, "Nano int8, real-time factor")
    assert found[1:] == ["≤ 0.8", "≤ 0.4", "1.5", "T3 0.25, flow 0.50, vocoder 0.75"]
    assert cells(said, "speed-up over upstream: Nano")[3] == markdown.NOT_YET
    assert "2 cores abacus, load 0.5 before the end, 2026-01-02, commit abc" in said


def test_a_goal_without_a_must_and_a_decoder_of_another_model() -> None:
    name = "multilingual + s3gen=meanflow, real-time factor"
    seconds = {"whole": 4.0, "prompt": 1.0, "steps": 1.0, "flow": 1.0, "vocoder": 1.0}
    line = cpu_line(
        table={name: 2.0}, parts={"sentence multilingual+meanflow": {"seconds": seconds, "rtf": 2.0}}
    )
    found = cells(markdown.cpu([line], {name: ("≤", None, 0.9)}), name)
    assert found[1:] == ["", "≤ 0.9", "2", "T3 1.00, flow 0.50, vocoder 0.50"]


def test_the_newest_line_counts_and_toy_sizes_never_do() -> None:
    newer = cpu_line(table={"Nano int8, real-time factor": 0.7})
    toy = cpu_line(table={"Nano int8, real-time factor": 0.1}, tiny=True)
    said = markdown.cpu([cpu_line(), newer, toy], GOALS)
    assert cells(said, "Nano int8, real-time factor")[3] == "0.7"


def test_a_row_that_the_newest_line_lacks_is_that_of_an_older_one_with_its_commit() -> None:
    older = cpu_line(commit="old")
    newer = cpu_line(table={"speed-up over upstream: Nano": 3.0}, parts={})
    said = markdown.cpu([older, newer], GOALS)
    assert cells(said, "Nano int8, real-time factor")[3:] == [
        "1.5",
        "T3 0.25, flow 0.50, vocoder 0.75; commit old",
    ]
    assert cells(said, "speed-up over upstream: Nano")[3:] == ["3", ""]
    quality = {"score_error_of_spread": 0.01, "greedy_same": 1.0, "greedy_among_five": 1.0, "tokens": 24}
    lines = [cpu_line(parts={"quality nano": quality}), cpu_line(parts={"quality multilingual": quality})]
    for family in ("multilingual", "nano"):
        assert cells(markdown.cpu_quality(lines), family)[1] == "1.0 %"


def test_goals_on_a_gpu_stand_beside_upstream_of_the_same_run() -> None:
    row = {"upstream": 18.5, "must": 1.6, "aim": 0.8, "reached": 0.912, "met": True}
    rows = {"T3 step, ms": row, "Turbo: T3 step, ms": row | {"must": None, "upstream": None}}
    said = markdown.gpu([{"table": rows, **SIGNED}])
    assert cells(said, "T3 step, ms")[1:5] == ["18.5", "≤ 1.6", "≤ 0.8", "0.912"]
    assert cells(said, "Turbo: T3 step, ms")[1:3] == ["–", ""]


def test_speed_and_quality_stand_on_one_row_and_peers_have_their_own() -> None:
    def row(who: str, rtf: float) -> dict[str, Any]:
        return {"who": who, "text": "short", "ttfa_ms_p50": 120.4, "ttfa_ms_p95": 150.0, "rtf_p50": rtf}

    bench = {
        "model": "wren",
        "lengths": [row("balanced", 0.25), row("hibari", 0.02)],
        "peers": [{"who": "hibari"}],
        **SIGNED,
    }
    facts = {
        "wer": {"tiny": 0.031, "moonshine": 0.04},
        "distill_mos": {"mean": 4.25},
        "dnsmos": {"ovrl": 3.21},
        "cosine": 0.925,
    }
    verify = {"model": "wren", "profile": "balanced", "facts": facts, "checks": [], **SIGNED}
    said = markdown.bench([bench], [verify])
    assert cells(said, "wren")[2:] == [
        "120 ms", "150 ms", "0.25", "–", "3.1 %, 4.0 %", "4.25", "3.21", "0.925",
    ]  # fmt: skip
    assert cells(said, "hibari")[4] == "0.02"
    assert "Nothing stored yet" in markdown.bench([], [])


def test_a_machine_in_words_is_kept_as_it_was_written() -> None:
    described = SIGNED | {"machine": {"description": "2 cores, busy"}, "commit": None}
    line = described | {"engine_over_bare": 1.0, "engine_over_bare_spread": [0.9, 1.1]}
    more = {"ten_together_over_ten_in_a_row": 0.5, "ten_together_spread": [0.4, 0.6]}
    said = markdown.engine([{**line, **more}])
    assert "0.90 to 1.10" in said
    assert "*2 cores, busy, 2026-01-02: `benchmarks/results/engine.jsonl`*" in said


def test_goals_on_a_gpu_have_their_signs_and_are_of_the_last_run_that_measured_them() -> None:
    goal = {"upstream": None, "must": 0, "aim": 0, "reached": 0.0}
    more = {"upstream": 5.0, "must": 80, "aim": 200, "reached": 100.0, "sign": "≥"}
    whole = {"table": {"listeners with underruns": goal, "audio s/s": more}, "part": "*", **SIGNED}
    later = {"audio s/s": more | {"reached": 120.0, "upstream": None}}
    missing = {"listeners with underruns": goal | {"reached": None}}
    part = {"table": later | missing, "part": "turbo/alone", **SIGNED, "commit": "later"}
    said = markdown.gpu([whole, part])
    assert cells(said, "listeners with underruns")[2:] == ["≤ 0", "≤ 0", "0", SIGNED["commit"]]
    assert cells(said, "audio s/s")[1:] == ["5", "≥ 80", "≥ 200", "120", "later"]
