"""The modules of the Core ML export, in plain PyTorch and without coremltools: steps and blocks, by the loop."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_phone import (
    SIZES,
    check_mel,
    check_samples,
    check_tokens,
    tiny_model,
    tiny_networks,
    tiny_voices,
    voiced_vocoder,
)
from torch import Tensor

from nightingale.errors import ConfigError
from nightingale.export import export_model
from nightingale.export.phone.coreml import coreml_modules, describe, missing_reason, write_tables
from nightingale.export.phone.coreml_layers import CoremlLayerNorm, CoremlMish, CoremlRmsNorm
from nightingale.export.phone.coreml_model import FORMAT, FORMAT_VERSION, CoremlModel
from nightingale.export.phone.coreml_modules import CoremlModule
from nightingale.export.phone.phone_card import make_card
from nightingale.export.phone.static_layers import StaticLayerNorm, StaticMish, StaticRmsNorm
from nightingale.install import install_command
from nightingale.models.frame_vocoder.network import FrameVocoder


class ModuleFunction:
    """A module in the place of a function of a package: float32 inside, and the package's types outside."""

    def __init__(self, module: CoremlModule) -> None:
        self.module = module.eval()

    def new_state(self) -> dict[str, Tensor]:
        return {name: torch.zeros_like(getattr(self.module, name)) for name in self.module.states}

    def __call__(
        self, inputs: Mapping[str, Tensor], state: dict[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        for name in self.module.states:
            assert state is not None
            setattr(self.module, name, state[name])
        expected = self.module.inputs()
        assert inputs.keys() == expected.keys()
        for name, one in expected.items():
            assert inputs[name].shape == one.shape
        given = [inputs[name] for name in expected]
        results: Any = self.module(*(one.float() if one.is_floating_point() else one for one in given))
        named = self.module.outputs()
        results = results if isinstance(results, tuple) else (results,)
        return dict(zip(named, results, strict=True))


@cache
def tiny(vocoder: FrameVocoder | None = None) -> CoremlModel:
    t3, flow, own = tiny_networks()
    files = coreml_modules(t3, flow, vocoder or own, SIZES)
    card = make_card(tiny_model(), SIZES, {}, kind=FORMAT, version=FORMAT_VERSION)
    card["programs"] = {
        file: {name: describe(module) for name, module in functions.items()}
        for file, functions in files.items()
    }
    packages: Any = {
        file: {name: ModuleFunction(module) for name, module in functions.items()}
        for file, functions in files.items()
    }
    tables = {
        "t3": torch.cat([t3.text_emb.weight, t3.speech_emb.weight]).detach(),
        "flow": flow.input_embedding.weight.detach(),
    }
    return CoremlModel(card, packages, tables, tiny_voices())


@pytest.mark.parametrize("text_ids", [3, 5, 21])
def test_tokens_and_logits_equal_the_references(text_ids: int) -> None:
    """The voice is in float16 in this loop, so logits differ by that."""
    check_tokens(tiny(), text_ids, atol=2e-3)


@pytest.mark.parametrize("tokens", [2, 6, 43])
def test_mel_blocks_equal_the_references(tokens: int) -> None:
    check_mel(tiny(), tokens, atol=2e-5)


@pytest.mark.parametrize("frames", [3, 26])
def test_samples_equal_the_references(frames: int) -> None:
    check_samples(tiny(), frames, -60)


def test_voiced_frames_equal_the_references() -> None:
    vocoder = voiced_vocoder()
    check_samples(tiny(vocoder), 33, -60, vocoder)


@torch.no_grad()
def test_layers_equal_those_that_they_replace() -> None:
    x = torch.randn(1, 7, 32, generator=torch.Generator().manual_seed(0)) * 3 + 1
    norm = torch.nn.LayerNorm(32)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    layer, rms = StaticLayerNorm(norm, 2.0), StaticRmsNorm(norm.weight)
    torch.testing.assert_close(CoremlLayerNorm(layer)(x), layer(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(CoremlRmsNorm(rms)(x), rms(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(CoremlMish()(x), StaticMish()(x), rtol=1e-5, atol=1e-5)


def test_tables_have_a_row_for_every_id(tmp_path: Path) -> None:
    t3, flow, _ = tiny_networks()
    described = write_tables(t3, flow, tmp_path)
    assert described["t3"]["shape"][0] == t3.config.text_vocab + t3.config.speech_vocab
    for one in described.values():
        assert (tmp_path / one["file"]).stat().st_size == 2 * one["shape"][0] * one["shape"][1]


@pytest.mark.parametrize("absent", ["coremltools", "coremltools.libmilstoragepython"])
def test_missing_parts_of_coremltools_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: str
) -> None:
    """pip installs coremltools without its native libraries where there is no wheel, as on ARM Linux."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else object())
    assert absent.rpartition(".")[2] in (missing_reason() or "")
    with pytest.raises(ConfigError, match=re.escape(install_command("coreml"))):
        export_model("wren", tmp_path / "out", file_format="coreml")
