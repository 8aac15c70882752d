"""The modules of the ExecuTorch export, in plain PyTorch: several steps and blocks against the reference."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tiny_torch import load_tiny, s3gen_of, t3_of
from tiny_wren import TINY
from torch import Tensor

from nightingale.backends.torch.sample_stream import render_samples
from nightingale.engine.load import Model
from nightingale.errors import CheckpointError, ConfigError
from nightingale.export.executorch import (
    ExportSizes,
    StaticPrograms,
    check_supported,
    make_card,
    speaker_inputs,
    trace,
)
from nightingale.export.executorch_check import (
    compare_with_engine,
    error_db,
    program_noise,
    reference_mel,
    reference_tokens,
)
from nightingale.export.executorch_model import ExecutorchModel
from nightingale.models.chatterbox.presets import ENGLISH
from nightingale.models.chatterbox.t3.config import STOP_SPEECH
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.voices.voice import Voice

# A left context that is full after a few blocks, so that old positions leave the caches.
PRESET = replace(TINY, flow=replace(TINY.flow, left_context=24))
SIZES = ExportSizes(capacity=192, prefill_tokens=8, block_tokens=5, block_frames=6)


@cache
def tiny() -> tuple[Model, ExecutorchModel]:
    """Return a small model and its modules, which take the place of programs."""
    model = load_tiny(PRESET)
    rng = np.random.default_rng(0)
    voice = Voice.checked(
        name="test",
        family="wren",
        speaker=rng.normal(size=256).astype(np.float32),
        prompt_ids=np.zeros(0, np.int64),
        flow_prompt_ids=np.zeros(0, np.int64),
        flow_prompt_mel=np.zeros((0, 80), np.float32),
        flow_speaker=rng.normal(size=256).astype(np.float32),
    )
    info = replace(model.info, name="tiny", defaults=replace(MODEL_DEFAULTS["wren"], max_new_tokens=200))
    model = replace(model, source=model.source.with_info(info), default_voice=voice)
    t3, (flow, hift) = t3_of(model), s3gen_of(model)
    # Random weights would make the magnitudes of the spectrum so large that all samples are clipped.
    hift.conv_post.weight.data.mul_(0.05)
    programs = StaticPrograms(t3, flow, hift, SIZES)
    card = make_card(model, programs, {})
    speaker, flow_speaker = speaker_inputs(voice, t3, flow)
    voices = {"test": (speaker, flow_speaker[:, None])}
    return model, ExecutorchModel(json.loads(json.dumps(card)), programs.files, voices)


@torch.inference_mode()
@pytest.mark.parametrize("text_ids", [3, 5, 21])
def test_tokens_and_logits_equal_the_references(text_ids: int) -> None:
    """One prompt is shorter than a prefill, one is as long, one takes three."""
    model, exported = tiny()
    assert model.default_voice is not None
    ids = torch.randint(1, 250, (text_ids,), generator=torch.Generator().manual_seed(text_ids)).tolist()
    tokens, logits = reference_tokens(model, t3_of(model), model.default_voice, ids)
    seen: list[Tensor] = []

    def choose(values: Tensor) -> int:
        seen.append(values)
        return tokens[len(seen) - 1] if len(seen) <= len(tokens) else STOP_SPEECH

    assert list(exported.generate(ids, "test", choose)) == tokens
    assert len(tokens) > 20
    for own, other in zip(seen, logits, strict=False):
        torch.testing.assert_close(own, other, rtol=0, atol=2e-5)


@torch.inference_mode()
def test_generation_ends_when_the_kv_cache_is_full() -> None:
    _, exported = tiny()
    tokens = list(exported.generate([5] * 40, "test", lambda _: 7))
    assert len(tokens) == SIZES.capacity - 44 + 1


@torch.inference_mode()
@pytest.mark.parametrize("tokens", [2, 5, 6, 8, 40, 43])
def test_mel_blocks_equal_the_references(tokens: int) -> None:
    """Ends with one and with two blocks after the last full lookahead; the caches are full after five blocks."""
    model, exported = tiny()
    assert model.default_voice is not None
    ids = torch.randint(0, 6561, (tokens,), generator=torch.Generator().manual_seed(tokens)).tolist()
    blocks = list(exported.render(ids, "test"))
    assert sum(len(block) for block in blocks) == 2 * tokens
    assert [len(block) for block in blocks[:-1]] == [10] * (len(blocks) - 1)
    flow, _ = s3gen_of(model)
    mel = reference_mel(flow, model.default_voice, ids, [len(block) // 2 for block in blocks])
    torch.testing.assert_close(torch.cat(blocks), mel, rtol=0, atol=2e-5)


@torch.inference_mode()
@pytest.mark.parametrize("frames", [3, 6, 26, 30])
def test_samples_equal_the_references(frames: int) -> None:
    model, exported = tiny()
    _, hift = s3gen_of(model)
    mel = torch.randn(frames, 80, generator=torch.Generator().manual_seed(frames)) * 2 - 5
    blocks = list(exported.vocode([mel[:4], mel[4:]], program_noise(hift, 3)))
    samples = np.concatenate(blocks)
    assert len(samples) == 480 * frames - 12
    assert np.abs(samples).max() > 1e-3
    assert error_db(samples, render_samples(hift, mel.T, seed=3)) < -60


@torch.inference_mode()
def test_voiced_frames_equal_the_references() -> None:
    """Pitch between 200 and 2000 Hz, so that frames have harmonics, and some of them are above the limit."""
    model, _ = tiny()
    flow, given = s3gen_of(model)
    hift = copy.deepcopy(given)
    hift.f0_predictor.classifier.bias.data.fill_(500.0)
    hift.f0_predictor.classifier.weight.data.mul_(600.0)
    mel = torch.randn(33, 80, generator=torch.Generator().manual_seed(1)) * 2 - 5
    f0 = hift.f0_predictor(mel.T[None])
    assert 50 < f0.min() < 350
    assert 920 < f0.max() < 3000
    programs = StaticPrograms(t3_of(model), flow, hift, SIZES)
    exported = ExecutorchModel(make_card(model, programs, {}), programs.files, {})
    samples = np.concatenate(list(exported.vocode([mel], program_noise(hift, 3))))
    assert error_db(samples, render_samples(hift, mel.T, seed=3)) < -60


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.export, for its own code
@pytest.mark.parametrize(
    ("file", "method"),
    [("t3", "step"), ("t3", "prefill"), ("flow", "encode"), ("flow", "step"), ("vocoder", "forward")],
)
def test_a_traced_module_reads_all_its_inputs(file: str, method: str) -> None:
    """Numbers such as positions are inputs of the graph, and no two inputs are one."""
    module: Any = tiny()[1]._programs[file][method]
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
    model, exported = tiny()
    speaker, flow_speaker = exported._voices["test"]
    other = ExecutorchModel(exported.card, exported._programs, {"test": (speaker + 1, flow_speaker)})
    with pytest.raises(CheckpointError, match="other tokens"):
        compare_with_engine(model, other, "abc")
    other = ExecutorchModel(exported.card, exported._programs, {"test": (speaker, flow_speaker + 1)})
    with pytest.raises(CheckpointError, match="differs from the engine"):
        compare_with_engine(model, other, "abc")


def test_other_models_are_refused() -> None:
    model, _ = tiny()
    check_supported(model)
    english = replace(model.info, name="english", preset=ENGLISH)
    with pytest.raises(ConfigError, match="english cannot be exported"):
        check_supported(replace(model, source=model.source.with_info(english)))
