"""T3 on ONNX Runtime without PyTorch equals T3 in PyTorch: prompts, steps, batches and moves."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
from backends.onnx.runners import runner_without_torch
from backends.small_t3 import relative_error

from nightingale import wren
from nightingale.backends.onnx.embeddings import torch_reason
from nightingale.backends.onnx.numpy_weights import Floats
from nightingale.backends.onnx.runner import OnnxRunner
from nightingale.backends.torch.runner import TorchRunner, embed_prompt
from nightingale.decoding.decoding import Prompt
from nightingale.decoding.runner import StepInput
from nightingale.errors import MemoryFull
from nightingale.models.chatterbox.build import load_t3
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.compact import unpack
from nightingale.voices.voice import Voice

CONFIG = PRESETS["wren"].t3
FILE = wren.folder() / wren.FILES["t3"]
POOL: dict[str, Any] = {"slots": 3, "rows_per_slot": 2, "capacity": 60, "batched": True}
TOKENS = [7, 250, 3, 3, 99]
MAX_ERROR = 1e-4
INT8_ERROR = 0.03
"""Root mean square over the standard deviation of the logits."""


@cache
def reference_t3() -> T3:
    return load_t3(CONFIG, FILE, unpack)


@cache
def runner(*, int8: bool) -> OnnxRunner:
    return runner_without_torch(CONFIG, FILE, int8=int8, **POOL)


def in_torch() -> TorchRunner:
    return TorchRunner(reference_t3(), **POOL, max_new_tokens=40)


def prompt(seed: int, *, guided: bool = False) -> Prompt:
    voice = Voice.load(wren.folder() / wren.VOICES / "heart.safetensors")
    text_ids = [1 + (7 * seed + n) % 250 for n in range(9 + seed)]
    return Prompt(text="", text_ids=text_ids, voice=voice, exaggeration=0.5, guided=guided)


@pytest.mark.parametrize("guided", [False, True])
def test_prompts_are_embedded_as_in_pytorch(guided: bool) -> None:
    expected = embed_prompt(reference_t3(), prompt(1, guided=guided), max_new_tokens=40).numpy()
    np.testing.assert_allclose(
        runner(int8=False).embeddings.prompt(prompt(1, guided=guided)), expected, atol=1e-6
    )


@pytest.mark.parametrize("guided", [False, True])
def test_logits_equal_pytorch(guided: bool) -> None:
    mine, reference = runner(int8=False), in_torch()
    given = prompt(2, guided=guided)
    got, expected = mine.prefill(0, given, max_tokens=40), reference.prefill(0, given, max_tokens=40)
    np.testing.assert_allclose(got, expected, atol=MAX_ERROR)
    for position, token in enumerate(TOKENS, 1):
        inputs = [StepInput(0, token, position)]
        np.testing.assert_allclose(mine.step(inputs)[0], reference.step(inputs)[0], atol=MAX_ERROR)


def test_int8_is_close() -> None:
    mine, exact = runner(int8=True), runner(int8=False)
    errors = [
        relative_error(mine.prefill(0, prompt(3), max_tokens=40), exact.prefill(0, prompt(3), max_tokens=40))
    ]
    for position, token in enumerate(TOKENS, 1):
        inputs = [StepInput(0, token, position)]
        errors.append(relative_error(mine.step(inputs)[0], exact.step(inputs)[0]))
    assert max(errors) < INT8_ERROR


def test_a_batch_equals_single_steps() -> None:
    mine, reference = runner(int8=False), in_torch()
    for slot in range(3):
        given = prompt(slot, guided=slot == 1)
        mine.prefill(slot, given, max_tokens=40)
        reference.prefill(slot, given, max_tokens=40)
    for position, token in enumerate(TOKENS, 1):
        got = mine.step([StepInput(slot, token + slot, position) for slot in range(3)])
        for slot in range(3):
            (expected,) = reference.step([StepInput(slot, token + slot, position)])
            np.testing.assert_allclose(got[slot], expected, atol=MAX_ERROR)


def test_a_moved_utterance_continues() -> None:
    mine, reference = runner(int8=False), in_torch()
    mine.prefill(2, prompt(5), max_tokens=40)
    reference.prefill(2, prompt(5), max_tokens=40)
    mine.move(2, 0)
    (got,), (expected,) = mine.step([StepInput(0, 5, 1)]), reference.step([StepInput(2, 5, 1)])
    np.testing.assert_allclose(got, expected, atol=MAX_ERROR)


@pytest.mark.parametrize("int8", [False, True])
def test_a_prompt_that_is_read_again_gives_the_same_bits(int8: bool) -> None:
    mine = runner(int8=int8)
    first, again = (mine.prefill(0, prompt(7), max_tokens=40) for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_with_a_clip_in_the_prompt_only_what_is_new_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = runner_without_torch(replace(CONFIG, prompt_tokens=6), FILE, int8=False, **POOL)
    rng = np.random.default_rng(0)
    clip, one, other = (rng.normal(size=(1, 6, 320)).astype(np.float32) for _ in range(3))
    mine.prefill_embeddings(0, np.concatenate([clip, one], axis=1))
    read: list[int] = []
    plain = mine._read

    def counted(row: int, x: Floats, known: int) -> Floats:
        read.append(len(x))
        return plain(row, x, known)

    monkeypatch.setattr(mine, "_read", counted)
    got = mine.prefill_embeddings(1, np.concatenate([clip, other], axis=1))
    assert read == [6]
    expected = runner(int8=False).prefill_embeddings(1, np.concatenate([clip, other], axis=1))
    np.testing.assert_allclose(got, expected, atol=MAX_ERROR)


def test_a_full_cache_is_reported() -> None:
    mine = runner(int8=False)
    mine.prefill(0, prompt(1), max_tokens=40)
    mine.lengths[0] = mine.capacity
    with pytest.raises(MemoryFull):
        mine.step([StepInput(0, 5, 1)])


@pytest.mark.parametrize(("name", "supported"), [("wren", True), ("english", False), ("turbo", False)])
def test_prompts_of_other_models_need_pytorch(name: str, supported: bool) -> None:
    assert (torch_reason(PRESETS[name].t3) is None) is supported
