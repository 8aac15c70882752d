"""Wren's draft head, as a user switches it on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_torch import t3_of

from nightingale import TTS
from nightingale.backends.base import ModelSource
from nightingale.backends.shared.speculation import find_draft_head
from nightingale.backends.torch.draft_heads import TorchDraftHead
from nightingale.backends.torch.draft_models import load_draft_head
from nightingale.engine.load import Model
from nightingale.errors import CheckpointError, ConfigError
from nightingale.models.chatterbox.t3.config import SPEECH_VOCAB_KEY, TAPS
from nightingale.models.chatterbox.t3.draft_head import DraftHead


def test_a_model_without_one_says_so(tiny_model: Model, tmp_path: Path) -> None:
    bare = ModelSource(tiny_model.info, {"t3": tmp_path / "t3.safetensors"})
    with pytest.raises(ConfigError, match=r"no draft_head\.safetensors beside the weights of noise"):
        find_draft_head(bare, "head")
    with pytest.raises(ConfigError, match="no such draft"):
        find_draft_head(tiny_model.source, "head")
    with pytest.raises(ConfigError, match="train draft"):
        TTS.over(tiny_model, "exact+draft=head")


def test_a_file_is_known_by_what_it_holds(tiny_model: Model, tmp_path: Path) -> None:
    width = t3_of(tiny_model).config.backbone.width
    save_file(DraftHead(width, blocks=2, inner=24).state_dict(), tmp_path / "draft_head.safetensors")
    save_file({"tfmr.layers.0.x": torch.zeros(1)}, tmp_path / "draft.safetensors")
    path = find_draft_head(tiny_model.source, str(tmp_path / "draft_head.safetensors"))
    assert path is not None
    head = load_draft_head(path)
    assert (head.width, len(head.blocks)) == (width, 2)
    assert find_draft_head(tiny_model.source, str(tmp_path / "draft.safetensors")) is None
    assert find_draft_head(tiny_model.source, "turbo") is None
    save_file(DraftHead(width + 8, blocks=1, inner=24).state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(ConfigError, match="made for another model"):
        find_draft_head(tiny_model.source, str(tmp_path / "other.safetensors"))
    other = {SPEECH_VOCAB_KEY: "8194"}
    save_file(DraftHead(width, blocks=1, inner=24).state_dict(), tmp_path / "other.safetensors", other)
    with pytest.raises(ConfigError, match=f"width {width} and 8194 speech tokens"):
        find_draft_head(tiny_model.source, str(tmp_path / "other.safetensors"))
    (tmp_path / "damaged.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        find_draft_head(tiny_model.source, str(tmp_path / "damaged.safetensors"))
    runner = TorchDraftHead(t3_of(tiny_model), head)
    state = runner.start(np.zeros((1, (1 + TAPS) * width), np.float32))
    _, logits = runner.step(state, 5, 1)
    assert logits.shape == (1, t3_of(tiny_model).config.speech_vocab)


@pytest.mark.parametrize("temperature", [0.3, 0.0], ids=["sampled", "greedy"])
def test_wren_samples_the_same_tokens_with_its_draft_head(temperature: float) -> None:
    """ONNX Runtime, which the tests' environment has, runs T3 and the head."""
    said = []
    for profile in ("balanced+decoder=float32", "balanced+draft=head"):  # with a draft, T3 is in float32
        with TTS("wren", profile=profile) as tts:
            said.append(tts.say("A small bird sang before it was light.", seed=3, temperature=temperature))
    plain, drafted = said
    assert (plain.samples == drafted.samples).all()
    assert plain.metrics.drafted == 0
    assert drafted.metrics.accepted > 0.3 * drafted.metrics.drafted > 0
