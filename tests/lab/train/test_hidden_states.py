"""Captured hidden states equal those of the engine, and a draft head learns from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from backends.conftest import CONFIGS
from parity.tiny import fill
from safetensors.torch import save_file
from tiny_torch import load_tiny, t3_of
from typer.testing import CliRunner

from nightingale import TTS
from nightingale.backends.torch.runner import TorchRunner
from nightingale.cli.commands import app
from nightingale.decoding.philox import nth_seed
from nightingale.decoding.runner import StepInput
from nightingale.engine.load import Model
from nightingale.errors import ConfigError, VoiceNotFound
from nightingale.models.chatterbox.t3.config import TAPS
from nightingale.models.chatterbox.t3.model import T3
from nightingale_lab.reference import decoding_of
from nightingale_lab.train.draft_head_from_states import HiddenStateDataset, train_from_hidden_states
from nightingale_lab.train.hidden_states import capture_hidden_states

LINES = ["Hello there.", "A bird sang.", "It is late.", "Good night, all."] * 3


@pytest.fixture(scope="module")
def tiny_model() -> Model:
    return load_tiny()


@pytest.fixture(scope="module")
def captured(tiny_model: Model) -> dict[str, torch.Tensor]:
    return capture_hidden_states(tiny_model, LINES, voice=tiny_model.default_voice, seed=3)


def test_states_are_those_that_the_engine_gives_a_draft(
    tiny_model: Model, captured: dict[str, torch.Tensor]
) -> None:
    """Decoding token by token gives the same tokens, and the same hidden states before each, in every row."""
    t3, decoding = t3_of(tiny_model), decoding_of(tiny_model, LINES[0], seed=nth_seed(3, 0))
    rows, most = decoding.prompt.rows, tiny_model.defaults.max_new_tokens
    runner = TorchRunner(t3, slots=1, rows_per_slot=rows, capacity=400, batched=False, max_new_tokens=most)
    runner.capture_hidden_states()
    logits, states = runner.prefill(0, decoding.prompt, max_tokens=decoding.budget), []
    while not decoding.finished:
        states.append(torch.from_numpy(runner.hidden_states(0, decoding.appended)))
        token = decoding.accept(logits)
        (logits,) = runner.step([StepInput(slot=0, token=token, position=decoding.appended)])
    count = len(states)
    assert captured["counts"][:rows].tolist() == [count] * rows
    assert len(captured["counts"]) == rows * len(LINES)
    for row in range(rows):
        own = slice(row * count, (row + 1) * count)
        assert captured["tokens"][own].tolist() == decoding.history
        expected = torch.stack([state[row] for state in states])
        torch.testing.assert_close(captured["hidden_states"][own].float(), expected, atol=5e-3, rtol=5e-3)
    assert captured["hidden_states"].shape[1] == (1 + TAPS) * t3.config.backbone.width
    assert torch.equal(captured["head.weight"], t3.speech_head.weight)


def test_a_trained_draft_head_works_in_the_engine(
    captured: dict[str, torch.Tensor], tiny_model: Model, tmp_path: Path
) -> None:
    save_file(captured, tmp_path / "states.safetensors")
    train_from_hidden_states(
        [tmp_path / "states.safetensors"], tmp_path, budget_s=0.1, device=torch.device("cpu")
    )
    profile = f"balanced+draft={tmp_path / 'draft_head.safetensors'}"
    with TTS.over(tiny_model, "balanced") as plain, TTS.over(tiny_model, profile) as drafting:
        said = [tts.say("Hello there.", seed=1).samples for tts in (plain, drafting)]
    assert (said[0] == said[1]).all()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_embeds_tokens_as_the_engine_does(name: str, tmp_path: Path) -> None:
    """Embeddings in training equal those at inference, with and without position embeddings."""
    t3 = fill(T3(CONFIGS[name]))
    tables = {"head.weight": t3.speech_head.weight, "embedding": t3.speech_emb.weight}
    if t3.config.learned_positions is not None:
        tables["positions"] = t3.speech_pos_emb.emb.weight
    counts, width = [6] * 12, t3.config.backbone.width
    held = {
        "hidden_states": torch.zeros(sum(counts), (1 + TAPS) * width),
        "tokens": torch.arange(sum(counts), dtype=torch.int32),
        "counts": torch.tensor(counts, dtype=torch.int32),
        **{name: table.detach().clone() for name, table in tables.items()},
    }
    save_file(held, tmp_path / "t.safetensors")
    dataset = HiddenStateDataset.load([tmp_path / "t.safetensors"], torch.device("cpu"))
    for index in range(6):
        expected = t3.embed_speech(torch.tensor([[6 + index]]), index + 1)[:, 0]
        torch.testing.assert_close(dataset.embed(torch.tensor([6 + index])), expected)


def test_too_little_is_refused(captured: dict[str, torch.Tensor], tiny_model: Model, tmp_path: Path) -> None:
    few = int(captured["counts"][0])
    path = tmp_path / "few.safetensors"
    save_file(
        {**captured, "counts": captured["counts"][:1].clone(), "tokens": captured["tokens"][:few].clone()},
        path,
    )
    with pytest.raises(ConfigError, match="too few hidden states"):
        HiddenStateDataset.load([path], torch.device("cpu"))
    with pytest.raises(VoiceNotFound, match="no voice of its own"):
        capture_hidden_states(replace(tiny_model, default_voice=None), LINES, voice=None, seed=0)
    with pytest.raises(ConfigError, match="no text to decode"):
        capture_hidden_states(tiny_model, [], voice=tiny_model.default_voice, seed=0)


@pytest.mark.parametrize(("name", "option"), [("capture", "--hidden-states"), ("think", "--thoughts")])
def test_the_command_line_does_both_steps_also_by_their_former_names(
    name: str, option: str, tiny_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightingale.engine.load.load_model", lambda *_, **__: tiny_model)
    (tmp_path / "lines.txt").write_text("\n".join(LINES), encoding="utf-8")
    states, runner = tmp_path / "states.safetensors", CliRunner()
    words = f"--model noise --texts {tmp_path}/lines.txt --out {states} --device cpu".split()
    done = runner.invoke(app, ["train", name, *words])
    assert done.exit_code == 0, done.output
    given = [option, str(states), "--out", str(tmp_path), "--budget-s", "0.1", "--device", "cpu"]
    done = runner.invoke(app, ["train", "draft", *given])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "draft_head.safetensors").is_file()
    done = runner.invoke(app, ["train", "draft", "--out", str(tmp_path), "--budget-s", "1"])
    assert done.exit_code != 0
