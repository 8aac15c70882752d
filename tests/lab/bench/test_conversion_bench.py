"""The measurement of voice conversion, with a judge that knows the answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nightingale_lab.bench.conversion import Case, judge, pairs_of

VOICES = [f"v{number}" for number in range(10)]


def test_twenty_pairs_use_every_voice_twice_as_source_and_target() -> None:
    pairs = pairs_of(VOICES, 20)
    assert len(set(pairs)) == 20
    assert all(source != target for source, target in pairs)
    for place in (0, 1):
        assert all([pair[place] for pair in pairs].count(voice) == 2 for voice in VOICES)
    assert len(pairs_of(VOICES[:2], 20)) == 2


def test_rates_and_nearer_pairs_are_counted() -> None:
    cases = [
        Case(pair=pair, text="the birch canoe slid", source=Path(f"s{n}.wav"), converted=Path(f"c{n}.wav"))
        for n, pair in enumerate([("a", "b"), ("b", "a")])
    ]

    def ask(jobs: Sequence[Mapping[str, Any]], judges: Sequence[str]) -> Iterable[dict[str, Any]]:
        for job in jobs:
            words = "the birch canoe slid" if job["wav"].startswith("s") else "the birch canoe sank"
            spoken = {name: {"transcript": words} for name in judges}
            near = {"a": 0.9, "b": 0.5}
            yield {
                "wav": job["wav"],
                **(spoken if "speaker" not in judges else {"speaker": {"cosines": near}}),
            }

    result = judge(cases, {"a": ["a.wav"], "b": ["b.wav"]}, ask)
    assert result["wer"]["base"] == {"source": 0.0, "converted": 0.25}
    assert result["nearer_to_target"] == 1
    assert [row["to_target"] for row in result["pairs"]] == [0.5, 0.9]
