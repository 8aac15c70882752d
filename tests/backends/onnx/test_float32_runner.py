"""T3 by ONNX Runtime in float32: its logits, and the models that it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("onnxruntime")
from backends.onnx.runners import runner_over
from backends.small_t3 import GPT2, LLAMA, prompt, small_t3

from nightingale.backends.onnx import capabilities
from nightingale.backends.shared.capability_checks import weight_count
from nightingale.backends.torch.runner import TorchRunner
from nightingale.decoding.runner import StepInput
from nightingale.models.chatterbox.t3.config import MULTILINGUAL, LlamaConfig, T3Config

POOL: dict[str, Any] = {
    "slots": 4, "rows_per_slot": 2, "capacity": 40, "batched": False, "max_new_tokens": 24
}  # fmt: skip
TOKENS = [7, 250, 3, 3, 99]


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
@pytest.mark.parametrize("rows", [1, 2])
def test_logits_match_torch(config: T3Config, rows: int) -> None:
    t3, x = small_t3(config), prompt(rows, 9, 1)
    ours, plain = runner_over(t3, **POOL), TorchRunner(t3, **POOL)
    pairs = [(ours.prefill_embeddings(1, x.numpy()), plain.prefill_embeddings(1, x))]
    for position, token in enumerate(TOKENS, 1):
        step = StepInput(slot=1, token=token, position=position)
        pairs.append((ours.step([step])[0], torch.as_tensor(plain.step([step])[0])))
    for got, expected in pairs:
        torch.testing.assert_close(torch.as_tensor(got), expected, atol=1e-4, rtol=1e-4)


def test_large_models_are_not_copied() -> None:
    assert "would hold a second copy" in str(capabilities.float32_unsupported_reason(MULTILINGUAL))
    t3 = small_t3(LLAMA)
    counted = sum(p.numel() for n, p in t3.named_parameters() if n.startswith("tfmr.l") and p.dim() > 1)
    assert weight_count(LLAMA) == counted + t3.speech_head.weight.numel()
    small = replace(MULTILINGUAL, backbone=LlamaConfig(layers=1, width=64, heads=1))
    assert capabilities.float32_unsupported_reason(small) is None
