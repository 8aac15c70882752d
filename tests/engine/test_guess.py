"""Guesses at T3's next thought, as a user switches them on."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from nightingale import TTS
from nightingale.backends.torch.drafts import TorchDraftHead
from nightingale.engine.load import open_guess
from nightingale.engine.model import Model
from nightingale.backends.torch.speculation import find_guess
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.t3.draft_head import DraftHead


def test_a_model_without_one_says_so(noise_model: Model, tmp_path: Path) -> None:
    bare = replace(noise_model, voices=tmp_path / "voices")
    with pytest.raises(ConfigError, match=r"no draft_head\.safetensors beside the weights of noise"):
        find_guess(bare, "guess")
    with pytest.raises(ConfigError, match="no such draft"):
        find_guess(replace(noise_model, voices=None), "guess")
    with pytest.raises(ConfigError, match="train draft"):
        TTS.over(bare, "balanced+draft=guess")


def test_a_file_is_known_by_what_it_holds(noise_model: Model, tmp_path: Path) -> None:
    width = noise_model.networks.t3.config.backbone.width
    save_file(DraftHead(width, blocks=2, inner=24).state_dict(), tmp_path / "draft_head.safetensors")
    save_file({"tfmr.layers.0.x": torch.zeros(1)}, tmp_path / "draft.safetensors")
    head = find_guess(noise_model, str(tmp_path / "draft_head.safetensors"))
    assert head is not None
    assert (head.width, len(head.blocks)) == (width, 2)
    assert find_guess(noise_model, str(tmp_path / "draft.safetensors")) is None
    assert find_guess(noise_model, "turbo") is None
    save_file(DraftHead(width + 8, blocks=1, inner=24).state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(ConfigError, match="made for another model"):
        find_guess(noise_model, str(tmp_path / "other.safetensors"))
    guesser = open_guess(noise_model.networks.t3, head, fast=False, threads=None, longest=3)
    assert isinstance(guesser, TorchDraftHead)


@pytest.mark.parametrize("temperature", [0.3, 0.0], ids=["sampled", "greedy"])
def test_wren_says_the_same_with_its_own_guesses(temperature: float) -> None:
    """By onnxruntime where it is installed, and by torch elsewhere."""
    said = []
    for profile in ("balanced", "balanced+draft=guess"):
        with TTS("wren", profile=profile) as tts:
            said.append(tts.say("A small bird sang before it was light.", seed=3, temperature=temperature))
    plain, guessed = said
    assert (plain.samples == guessed.samples).all()
    assert plain.metrics.drafted == 0
    if find_spec("onnxruntime"):  # torch's passes over several tokens do not pay everywhere
        assert guessed.metrics.accepted > 0.3 * guessed.metrics.drafted > 0
