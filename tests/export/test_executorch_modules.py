"""The modules of the ExecuTorch export, in plain PyTorch: several steps and blocks against the reference."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
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

from nightingale.backends.shared.vocoder_blocks import VocoderBlocks
from nightingale.errors import CheckpointError, ConfigError
from nightingale.export.phone.executorch import StaticPrograms, trace
from nightingale.export.phone.executorch_model import FORMAT, FORMAT_VERSION, ExecutorchModel
from nightingale.export.phone.phone_card import check_supported, make_card
from nightingale.export.phone.phone_check import compare_with_engine
from nightingale.models.chatterbox.presets import ENGLISH
from nightingale.models.frame_vocoder.network import FrameVocoder


@cache
def tiny(vocoder: FrameVocoder | None = None) -> ExecutorchModel:
    """Return the modules of a small model, which take the place of programs."""
    t3, flow, own = tiny_networks()
    programs = StaticPrograms(t3, flow, vocoder or own, SIZES)
    card = make_card(tiny_model(), SIZES, {}, kind=FORMAT, version=FORMAT_VERSION)
    card["programs"] = programs.describe()
    return ExecutorchModel(json.loads(json.dumps(card)), programs.files, tiny_voices())


@pytest.mark.parametrize("text_ids", [3, 5, 21])
def test_tokens_and_logits_equal_the_references(text_ids: int) -> None:
    """One prompt is shorter than a prefill, one is longer by an id, one takes four."""
    check_tokens(tiny(), text_ids, atol=2e-5)


@torch.inference_mode()
def test_generation_ends_when_the_kv_cache_is_full() -> None:
    tokens = list(tiny().generate([5] * 40, "test", lambda _: 7))
    assert len(tokens) == SIZES.capacity - 44 + 1


@pytest.mark.parametrize("tokens", [2, 5, 6, 8, 40, 43])
def test_mel_blocks_equal_the_references(tokens: int) -> None:
    """Ends with one and with two blocks after the last full lookahead; the caches are full after five blocks."""
    check_mel(tiny(), tokens, atol=2e-5)


@pytest.mark.parametrize("frames", [3, 6, 26, 30, 33])
def test_samples_equal_the_references(frames: int) -> None:
    check_samples(tiny(), frames, -60)


def test_voiced_frames_equal_the_references() -> None:
    vocoder = voiced_vocoder()
    check_samples(tiny(vocoder), 33, -60, vocoder)


@torch.inference_mode()
def test_samples_lie_where_the_card_says() -> None:
    """An app renders whole blocks up to the end of the silence, and drops samples at both ends."""
    frames, sizes = 23, tiny().card["vocoder"]
    size = sizes["block_frames"]
    mel = torch.randn(frames, 80, generator=torch.Generator().manual_seed(0)) * 2 - 5
    blocks = -(-(frames + sizes["flush_frames"]) // size)
    padded = torch.full((1, blocks * size, 80), sizes["silent_log_mel"])
    padded[0, :frames] = mel
    render, noise = tiny().open_vocoder(), VocoderBlocks(seed=0)
    rendered = np.concatenate(
        [
            render(block, torch.from_numpy(noise.noise(size))[None]).numpy()
            for block in torch.split(padded, size, 1)
        ]
    )
    samples = rendered[sizes["delay_samples"] :][: 480 * frames]
    expected = np.concatenate(list(tiny().vocode([mel], seed=0)))
    np.testing.assert_array_equal(samples[960:], expected[960:])  # after the fade-in


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.export, for its own code
@pytest.mark.parametrize(
    ("file", "method"),
    [("t3", "step"), ("t3", "prefill"), ("flow", "encode"), ("flow", "step"), ("vocoder", "forward")],
)
def test_a_traced_module_reads_all_its_inputs(file: str, method: str) -> None:
    """Numbers such as positions are inputs of the graph, and no two inputs are one."""
    module: Any = tiny().programs[file][method]
    random = torch.Generator().manual_seed(0)
    inputs = [
        torch.full_like(one, number + 3)
        if one.dtype == torch.int64 and one.numel() == 1 and name != "step"
        else torch.ones_like(one)
        if not one.is_floating_point()
        else torch.randn(one.shape, generator=random, dtype=one.dtype)
        for number, (name, one) in enumerate(zip(module.names()[0], module.example(), strict=True))
    ]
    traced = trace(module).module()
    for own, other in zip(traced(*inputs), module(*inputs), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-5)


def test_a_difference_from_the_engine_is_refused() -> None:
    model, exported = tiny_model(), tiny()
    speaker, flow_speaker = exported.voices["test"]
    other = ExecutorchModel(exported.card, exported.programs, {"test": (speaker + 1, flow_speaker)})
    with pytest.raises(CheckpointError, match="differs from the engine"):
        compare_with_engine(model, other, "abc")
    other = ExecutorchModel(exported.card, exported.programs, {"test": (speaker, flow_speaker + 1)})
    with pytest.raises(CheckpointError, match="differs from the engine"):
        compare_with_engine(model, other, "abc")


def test_other_models_are_refused() -> None:
    model = tiny_model()
    check_supported(model, "ExecuTorch")
    english = replace(model.info, name="english", preset=ENGLISH)
    with pytest.raises(ConfigError, match="english cannot be exported to ExecuTorch"):
        check_supported(replace(model, source=model.source.with_info(english)), "ExecuTorch")
