"""Traces of attention: every runner on the host records what T3's own attention is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

pytest.importorskip("onnxruntime")
from backends.conformance import DECODERS, Case, Driver, decoding_of, open_decoder
from backends.onnx.runners import runner_over
from backends.small_t3 import GPT2, LLAMA, small_t3

from nightingale.backends.cpu import capabilities
from nightingale.backends.shared.packed_t3 import digest_of_tensors, pack, without_backbone
from nightingale.backends.torch.query_recorder import TracePass
from nightingale.backends.torch.runner import TorchRunner, embed_prompt
from nightingale.decoding.attention_trace import AttentionTrace
from nightingale.decoding.decoding import Decoding, Prompt
from nightingale.decoding.runner import StepInput
from nightingale.engine.noise_model import noise_voice
from nightingale.models.chatterbox.t3.config import T3Config
from nightingale.models.chatterbox.t3.model import T3

HEADS = ((1, 0), (0, 1))
TEXT_IDS = [3, 9, 4, 17, 5, 30]
TOKENS = [12, 500, 77, 4000, 12, 63]
POOL: dict[str, Any] = {"slots": 2, "rows_per_slot": 2, "capacity": 80, "batched": True, "max_new_tokens": 24}


def torch_runner(t3: T3, _folder: Path) -> TorchRunner:
    return TorchRunner(t3, **POOL)


def onnx_runner(t3: T3, _folder: Path) -> Any:
    return runner_over(t3, **POOL)


def cpu_runner(t3: T3, folder: Path) -> Any:
    pytest.importorskip("llvmlite")
    from nightingale.backends.cpu.int8_layout import TiledFormat
    from nightingale.backends.cpu.runner import Int8Runner

    weights = t3.state_dict()
    packed = pack(t3.config, weights, TiledFormat(), cache_dir=folder, source=digest_of_tensors(weights))
    return Int8Runner(without_backbone(t3.config, weights, source=Path("t3")), packed, **POOL, threads=1)


class Recorded:
    """A KV cache of one pass that keeps what each head attends to."""

    def positions(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[1])

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.logits = q @ k.mT * q.shape[-1] ** -0.5
        future = torch.ones(self.logits.shape[-2:], dtype=torch.bool).triu(1)
        return self.logits.masked_fill(future, -torch.inf).softmax(-1) @ v


def prompt_of(config: T3Config, trace: AttentionTrace | None) -> Prompt:
    speaker = np.random.default_rng(0).normal(size=config.speaker_width).astype(np.float32)
    voice = replace(noise_voice(), speaker=speaker)
    guided = config.perceiver
    return Prompt(text="", text_ids=TEXT_IDS, voice=voice, exaggeration=0.5, guided=guided, trace=trace)


def expected(t3: T3) -> NDArray[np.float32]:
    """Return the attention to the text in one pass over the prompt and all tokens."""
    x = embed_prompt(t3, prompt_of(t3.config, None), max_new_tokens=24)
    speech = t3.embed_speech(torch.tensor([TOKENS] * len(x)), 1)
    layers = [Recorded() for _ in range(t3.config.backbone.layers)]
    with torch.inference_mode():
        t3.tfmr(torch.cat([x, speech], dim=1), layers)
    end = x.shape[1] - t3.config.starts
    text = slice(end - len(t3.config.frame_text(TEXT_IDS)), end)
    each = [layers[layer].logits[0, head, x.shape[1] - 1 :, text].softmax(-1) for layer, head in HEADS]
    return torch.stack(each).mean(0).numpy()


@pytest.fixture(params=[LLAMA, GPT2], ids=["llama", "gpt2"])
def t3(request: pytest.FixtureRequest) -> T3:
    start = 1 if request.param is LLAMA else None  # of a vocabulary that small
    return small_t3(replace(request.param, alignment_heads=HEADS, start_text=start))


@pytest.mark.parametrize(
    ("make", "tolerance"), [(torch_runner, 1e-4), (onnx_runner, 1e-4), (cpu_runner, 0.05)]
)
def test_a_runner_records_the_attention_of_its_utterance(
    t3: T3, make: Callable[[T3, Path], Any], tolerance: float, tmp_path: Path
) -> None:
    if (
        make is cpu_runner
        and (reason := capabilities._t3_reason(isinstance(t3.config, T3Config))) is not None
    ):
        pytest.skip(reason)
    runner, config = make(t3, tmp_path), t3.config
    framed = len(config.frame_text(TEXT_IDS))
    traces = [AttentionTrace(HEADS, text_ids=framed, starts=config.starts) for _ in range(2)]
    runner.prefill(0, prompt_of(config, None), max_tokens=24)
    runner.prefill(1, prompt_of(config, traces[0]), max_tokens=24)
    # In a batch with an utterance that is not traced, then alone in another slot.
    for number, token in enumerate(TOKENS[:2], start=1):
        runner.step([StepInput(0, token, number), StepInput(1, token, number)])
    runner.release(0)
    runner.move(1, 0)
    runner.step([StepInput(0, TOKENS[2], 3)])
    for number, token in enumerate(TOKENS[3:], start=4):
        runner.step([StepInput(0, token, number)])
    runner.release(0)
    assert not runner.traces
    assert traces[0].rows == len(TOKENS) + 1
    np.testing.assert_allclose(traces[0].attention(), expected(t3), atol=tolerance)
    # x86 rounds a product of fewer rows differently.
    np.testing.assert_allclose(traces[0].attention(3), traces[0].attention()[3:], rtol=1e-6)
    assert traces[1].attention().shape == (0, framed)


def test_a_pass_of_its_own_records_the_same_attention(t3: T3) -> None:
    config = t3.config
    trace = AttentionTrace(HEADS, text_ids=len(config.frame_text(TEXT_IDS)), starts=config.starts)
    prompt = embed_prompt(t3, prompt_of(config, trace), max_new_tokens=24)
    trace.update = TracePass(t3, trace, prompt[:1]).update
    for count in (0, 2, len(TOKENS)):
        trace.tokens = TOKENS[:count]
        np.testing.assert_allclose(trace.attention(), expected(t3)[: count + 1], atol=1e-4)


class TracingDriver(Driver):
    """A driver whose utterances with odd seeds are traced, as words are timed."""

    def __init__(self, *arguments: Any) -> None:
        self.traces: dict[int, AttentionTrace] = {}
        super().__init__(*arguments)

    def decoding(self, seed: int) -> Decoding:
        decoding, config = super().decoding(seed), self._source.info.preset.t3
        if seed % 2:
            ids = len(config.frame_text(decoding.prompt.text_ids))
            self.traces[seed] = AttentionTrace(config.traced_heads, text_ids=ids, starts=config.starts)
            decoding.prompt = replace(decoding.prompt, trace=self.traces[seed])
        return decoding


@pytest.mark.parametrize(
    "case", [case for case in DECODERS if case.exact and case.backend != "noise"], ids=str
)
@pytest.mark.parametrize("family", ["wren", "turbo", "multilingual"])
def test_every_decoder_traces_the_attention_of_the_reference(family: str, case: Case) -> None:
    source, decoder = open_decoder(case, family)
    assert decoder.traces_attention
    driver = TracingDriver(source, decoder)
    driver.run([1, 2, 3])
    t3 = source.loaded("t3")
    for seed, trace in driver.traces.items():
        tokens = driver.tokens[seed]
        trace.tokens = tokens[:-1]
        own = AttentionTrace(trace.heads, text_ids=trace.attention().shape[1], starts=t3.config.starts)
        prompt = embed_prompt(t3, decoding_of(source, seed).prompt, max_new_tokens=len(tokens))
        own.tokens, own.update = tokens[:-1], TracePass(t3, own, prompt[:1]).update
        np.testing.assert_allclose(trace.attention()[: len(tokens)], own.attention(), atol=1e-3)
