"""What T3 thought, written down: what a draft will be asked with, and a guess that learned from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_torch import t3_of
from backends.conftest import CONFIGS
from parity.tiny import fill
from safetensors.torch import save_file
from typer.testing import CliRunner

from nightingale import TTS
from nightingale.cli.main import app
from nightingale.decoding.decoding import Decoding, prompt_of
from nightingale.engine.model import Model
from nightingale_lab.train.hidden_states import overhear
from nightingale.decoding.random import generator
from nightingale.backends.torch.runner import TorchRunner, Turn
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.t3.draft_head import HALVES
from nightingale.models.chatterbox.t3.model import T3
from nightingale_lab.train.overheard import Overheard, train_overheard

LINES = ["Hello there.", "A bird sang.", "It is late.", "Good night, all."] * 3


@pytest.fixture(scope="module")
def heard(tiny_model: Model) -> dict[str, torch.Tensor]:
    return overhear(tiny_model, LINES, voice=tiny_model.default_voice, seed=3)


def test_it_is_what_the_engine_would_tell_a_draft(tiny_model: Model, heard: dict[str, torch.Tensor]) -> None:
    """Token by token, as it speaks: the same tokens, and the same thoughts before each, of every row."""
    t3, defaults, voice = t3_of(tiny_model), tiny_model.defaults, tiny_model.default_voice
    assert voice is not None
    how = {"defaults": defaults, "sampling": defaults.sampling, "exaggeration": defaults.exaggeration}
    ids = tiny_model.frontend.encode(LINES[0])
    prompt = prompt_of(t3, ids, voice, **how)  # type: ignore[arg-type]
    runner = TorchRunner(t3, slots=1, rows_per_slot=len(prompt), capacity=400, batched=False)
    runner.listen()
    decoding = Decoding(
        t3, defaults=defaults, sampling=defaults.sampling, text_ids=len(ids), rng=generator(3, "tokens")
    )
    scores, thoughts = runner.begin(0, prompt), []
    while not decoding.finished:
        thoughts.append(runner.thought(0, decoding.drawn))
        turn = Turn(slot=0, token=decoding.accept(scores), position=decoding.drawn)
        (scores,) = runner.step([turn])
    rows, count = len(prompt), len(thoughts)
    assert heard["counts"][:rows].tolist() == [count] * rows
    assert len(heard["counts"]) == rows * len(LINES)
    for row in range(rows):
        own = slice(row * count, (row + 1) * count)
        assert heard["tokens"][own].tolist() == decoding.history
        told = torch.stack([thought[row] for thought in thoughts])
        torch.testing.assert_close(heard["thoughts"][own].float(), told, atol=5e-3, rtol=5e-3)
    assert heard["thoughts"].shape[1] == (1 + HALVES) * t3.config.backbone.width
    assert torch.equal(heard["head.weight"], t3.speech_head.weight)


def test_a_guess_trained_from_it_is_one_the_engine_takes(
    heard: dict[str, torch.Tensor], tiny_model: Model, tmp_path: Path
) -> None:
    save_file(heard, tmp_path / "thoughts.safetensors")
    train_overheard(tmp_path / "thoughts.safetensors", tmp_path, budget_s=0.1, device=torch.device("cpu"))
    profile = f"balanced+draft={tmp_path / 'guess.safetensors'}"
    with TTS.over(tiny_model, "balanced") as plain, TTS.over(tiny_model, profile) as guessing:
        said = [tts.say("Hello there.", seed=1).samples for tts in (plain, guessing)]
    assert (said[0] == said[1]).all()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_embeds_what_was_said_as_the_engine_will(name: str, tmp_path: Path) -> None:
    """With a table of positions, or without: what the draft is shown is what it was taught with."""
    t3 = fill(T3(CONFIGS[name]))
    tables = {"head.weight": t3.speech_head.weight, "embedding": t3.speech_emb.weight}
    if t3.config.learned_positions is not None:
        tables["positions"] = t3.speech_pos_emb.emb.weight
    counts, width = [6] * 12, t3.config.backbone.width
    held = {
        "thoughts": torch.zeros(sum(counts), (1 + HALVES) * width),
        "tokens": torch.arange(sum(counts), dtype=torch.int32),
        "counts": torch.tensor(counts, dtype=torch.int32),
        **{name: table.detach().clone() for name, table in tables.items()},
    }
    save_file(held, tmp_path / "t.safetensors")
    told = Overheard.load(tmp_path / "t.safetensors", torch.device("cpu"))
    for draw in range(6):
        shown = t3.embed_speech(torch.tensor([[6 + draw]]), draw + 1)[:, 0]
        torch.testing.assert_close(told.said(torch.tensor([6 + draw])), shown)


def test_too_little_is_refused(heard: dict[str, torch.Tensor], tiny_model: Model, tmp_path: Path) -> None:
    few = int(heard["counts"][0])
    path = tmp_path / "few.safetensors"
    save_file({**heard, "counts": heard["counts"][:1].clone(), "tokens": heard["tokens"][:few].clone()}, path)
    with pytest.raises(ConfigError, match="too little was overheard"):
        Overheard.load(path, torch.device("cpu"))
    with pytest.raises(ConfigError, match="no voice of its own"):
        overhear(replace(tiny_model, default_voice=None), LINES, voice=None, seed=0)
    with pytest.raises(ConfigError, match="nothing was said"):
        overhear(tiny_model, [], voice=tiny_model.default_voice, seed=0)


def test_the_command_line_does_both_steps(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(LINES), encoding="utf-8")
    thoughts, runner = tmp_path / "thoughts.safetensors", CliRunner()
    words = [
        "--model",
        "noise",
        "--texts",
        str(tmp_path / "lines.txt"),
        "--out",
        str(thoughts),
        "--device",
        "cpu",
    ]
    done = runner.invoke(app, ["train", "think", *words])
    assert done.exit_code == 0, done.output
    given = ["--thoughts", str(thoughts), "--out", str(tmp_path), "--budget-s", "0.1", "--device", "cpu"]
    done = runner.invoke(app, ["train", "draft", *given])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "guess.safetensors").is_file()
    done = runner.invoke(app, ["train", "draft", "--out", str(tmp_path), "--budget-s", "1"])
    assert done.exit_code != 0
