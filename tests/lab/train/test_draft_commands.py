"""The commands of docs/training.md train, check and load a draft head for tiny models of official families."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nightingale.cli.commands import app
from nightingale_lab import reference
from nightingale_lab.random_models import FixedLengthTokenizer, seeded_model
from nightingale_lab.train import draft_head_from_states
from nightingale_lab.train.loop import read_log

ROOT = Path(__file__).parents[3]
TOKENS = 12
SAY_OPTIONS = ("--device", "cpu", "--seed", "1", "--json", "--yes")


def documented_commands(model: str) -> list[list[str]]:
    """Return the commands of the section for a model."""
    page = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    section = page.partition("### A draft head for another model")[2].partition("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL)
    (block,) = [block for block in blocks if f"--model {model} " in block]
    return [shlex.split(line) for line in block.splitlines()]


def run_nightingale(words: list[str]) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, f"{words}: {done.output}"
    return done.stdout


@pytest.mark.parametrize(("name", "rows"), [("turbo", 1), ("multilingual", 2)])
def test_the_documented_commands_work(
    name: str,
    rows: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, languages, encode = seeded_model(name, tokens=TOKENS), set(), FixedLengthTokenizer.encode

    def record(tokenizer: FixedLengthTokenizer, text: str, language: str | None = None) -> list[int]:
        languages.add(language)
        return encode(tokenizer, text, language)

    monkeypatch.setattr(FixedLengthTokenizer, "encode", record)
    for module in ("load", "tts"):
        monkeypatch.setattr(f"nightingale.engine.{module}.load_model", lambda *_, **__: model)
    monkeypatch.setattr("nightingale.cli.downloads.confirm_download", lambda *_, **__: False)
    monkeypatch.setattr(reference, "load", lambda name: model if name == model.name else None)
    monkeypatch.setattr(draft_head_from_states, "BATCH", 16)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.chdir(tmp_path)
    lines = [f"{number} birds sing in the garden." for number in range(12)]
    spoken: list[dict[str, Any]] = []
    for program, *words in documented_commands(name):
        if "--texts" in words:
            Path(words[words.index("--texts") + 1]).write_text("\n".join(lines), encoding="utf-8")
        if program == "python":
            script, *words = words
            monkeypatch.setattr(sys, "argv", [script, *words, "--sentences", "1", "--threads", "1"])
            runpy.run_path(str(ROOT / script), run_name="__main__")
            table = json.loads(capsys.readouterr().out.splitlines()[-1])["speak"]
            assert [row["length"] for row in table if row["draft"] != "none"] == [0, 1, 2, 3]
            assert all(row["same_tokens"] for row in table)
            assert all(row["accepted_share"] is not None for row in table if row["length"])
        elif words[0] == "say":
            profile = words[-1]
            for words[-1] in (profile, profile.partition("+")[0]):
                spoken.append(json.loads(run_nightingale([*words, *SAY_OPTIONS])))
        else:
            short = ["0.2" if word == "600" else word for word in words]
            run_nightingale([*short, "--device", "cpu"])
    drafted, plain = spoken
    assert drafted["tokens"] == TOKENS
    assert drafted["sha256"] == plain["sha256"]
    assert read_log(tmp_path / "draft/draft_head.jsonl")[-1]["step"] > 0
    stored = next(tmp_path.glob("states*.safetensors"))
    counts = draft_head_from_states.load_file(stored)["counts"].tolist()
    assert counts == [TOKENS] * rows * len(lines)
    assert languages == ({"en", "fr"} if name == "multilingual" else {None})
