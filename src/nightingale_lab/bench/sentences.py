"""The sentences to speak and judge, which no model was trained on."""

from __future__ import annotations

from importlib.resources import files


def sentences(name: str) -> list[str]:
    """Return the lines of `wren_200`, `wren_500`, `wren_hard` or `wren_questions`, which have no final mark."""
    text = (files("nightingale_lab.bench") / "texts" / f"{name}.txt").read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]
