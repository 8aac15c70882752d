"""Models, machines and a decode driver for the conformance suite: test_decoder_conformance and its sibling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from tiny_torch import TINY_PRESET, seeded
from tiny_wren import TINY_VOCODER, TINY_VOCODER_GRAPH

from nightingale.backends import BACKENDS, cpu
from nightingale.backends.base import Backend, Decoder, Machine, ModelInfo, ModelSource, Role, Setup
from nightingale.backends.cpu import bf16
from nightingale.backends.cpu import capabilities as cpu_capabilities
from nightingale.backends.onnx import capabilities as onnx_capabilities
from nightingale.backends.profiles import PROFILES, Profile
from nightingale.backends.shared import capability_checks
from nightingale.backends.torch.weights import in_memory
from nightingale.decoding.decoding import Decoding, Prompt
from nightingale.decoding.host_decoder import DecodeRow
from nightingale.engine.noise_model import NOISE
from nightingale.models.chatterbox.build import new_vocoder
from nightingale.models.chatterbox.presets import PRESETS, Preset
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.config import Gpt2Config, LlamaConfig
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.models.frame_vocoder.config import FrameVocoderConfig
from nightingale.models.frame_vocoder.network import FrameVocoder
from nightingale.types import Sampling
from nightingale.voices.voice import Voice

onnx_capabilities.VOCODER_GRAPHS[TINY_VOCODER] = TINY_VOCODER_GRAPH
TOKENS, SLOTS = 24, 4
FAMILIES = ("english", "multilingual", "turbo", "nano", "wren")
CPU = Machine(device="cpu", name="cpu", instructions="")
MLX = Machine(device="mlx", name="mlx", instructions="CPU")
GREEDY = {"temperature": 0.0, "repetition_penalty": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0}


@dataclass(frozen=True)
class Case:
    """A backend in one precision."""

    backend: str
    precision: str

    def __str__(self) -> str:
        return f"{self.backend}-{self.precision}"

    @property
    def exact(self) -> bool:
        return self.precision == "float32"

    @property
    def object(self) -> Backend:
        return next(one for one in BACKENDS if one.name == self.backend)


ALL_DECODERS = [
    Case("torch", "float32"),
    Case("torch", "bfloat16"),
    Case("cuda", "float32"),
    Case("onnx", "float32"),
    Case("onnx", "int8"),
    Case("cpu", "int8"),
    Case("mlx", "float32"),
    Case("mlx", "bfloat16"),
    Case("mlx", "int8"),
    Case("mlx", "int4"),
    Case("noise", "float32"),
]
ALL_RENDERERS = [
    Case("torch", "float32"),
    Case("cuda", "float32"),
    Case("cpu", "bfloat16"),
    Case("cpu", "int8"),
    Case("cpu", "float32"),
    Case("onnx", "float32"),
    Case("onnx", "int8"),
    Case("mlx", "float32"),
    Case("mlx", "float16"),
    Case("noise", "float32"),
]


def tiny_preset(family: str) -> Preset:
    """Return the family's preset at a size that every kernel supports."""
    full = PRESETS[family]
    gpt2 = isinstance(full.t3.backbone, Gpt2Config)
    backbone: Any = (
        Gpt2Config(layers=2, width=128, heads=2, positions=400)
        if gpt2
        else LlamaConfig(layers=2, width=128, heads=2, ffn=384, rope_scaling=False)
    )
    learned = None if full.t3.learned_positions is None else (64, 128)
    prompt_tokens = min(8, full.t3.prompt_tokens)
    return replace(
        TINY_PRESET,
        t3=replace(
            full.t3,
            backbone=backbone,
            text_vocab=300,
            speech_vocab=6563,
            prompt_tokens=prompt_tokens,
            learned_positions=learned,
            speaker_width=16,
            alignment_heads=((1, 0), (0, 1)),
        ),
        flow=replace(TINY_PRESET.flow, block_causal=full.flow.block_causal, meanflow=full.flow.meanflow),
        vocoder=TINY_VOCODER if isinstance(full.vocoder, FrameVocoderConfig) else TINY_PRESET.vocoder,
    )


@cache
def source_of(family: str) -> ModelSource:
    """Return a tiny model of a family with seeded random weights; "noise" is the model without weights."""
    if family == "noise":
        defaults = replace(NOISE.defaults, max_new_tokens=TOKENS)
        return ModelSource(replace(NOISE, defaults=defaults), {})
    preset = tiny_preset(family)
    defaults = replace(
        MODEL_DEFAULTS[family], max_new_tokens=TOKENS, max_text_ids=40, tokens_per_text_id=None
    )
    rng = torch.Generator().manual_seed(7)
    with torch.random.fork_rng(devices=[]):
        networks = T3(preset.t3), Flow(preset.flow), new_vocoder(preset.vocoder)
        t3, flow, vocoder = (seeded(net, rng) for net in networks)
    if isinstance(
        vocoder, FrameVocoder
    ):  # a steady pitch: another one would move the phase of all that follows
        vocoder.pitch_predictor.classifier.weight.zero_()
        vocoder.pitch_predictor.classifier.bias.fill_(151.3)
    for name, weight in t3.named_parameters():  # sharper attention, so that a wrong position is noticed
        if any(part in name for part in ("q_proj.w", "k_proj.w", "c_attn.w")):
            weight.data.mul_(3)
    info = ModelInfo(name=family, preset=preset, defaults=defaults)
    return in_memory(info, t3=t3, flow=flow, vocoder=vocoder)


def setup_for(case: Case, family: str, profile: Profile) -> tuple[ModelSource, Setup]:
    """Return what the backend is opened with.

    The CUDA backend is opened on the CPU, where it runs its graphs' functions eagerly.
    """
    source = source_of("noise" if case.backend == "noise" else family)
    machine = MLX if case.backend == "mlx" else CPU
    setup = Setup(profile=profile, machine=machine, precision=case.precision)
    return source, setup


def runs_here(role: Role, case: Case) -> str | None:
    """Return why a case cannot run on this machine; None if it can."""
    if case.backend in ("cuda", "noise"):
        return None
    setup = Setup(profile=PROFILES["balanced"], machine=CPU, precision=case.precision)
    with at_any_speed(), mock.patch.object(cpu, "SMALL_MODEL_WEIGHTS", 0):
        return case.object.unsupported_reason(role, source_of(rendered_family(case)).info, setup)


@contextmanager
def at_any_speed() -> Iterator[None]:
    """Support also what is too slow to be used here: a busy machine must not change which tests there are."""
    gates = (
        (capability_checks, cpu_capabilities.vocoder_unsupported_reason),
        (bf16, bf16.bf16_unsupported_reason),
        (onnx_capabilities, onnx_capabilities._slow_reason),
    )
    with ExitStack() as stack:
        for module, measured in gates:
            stack.enter_context(mock.patch.object(module, "MIN_SPEEDUP", 0.0))
            measured.cache_clear()
            stack.callback(measured.cache_clear)
        yield


def rendered_family(case: Case) -> str:
    """Return a family that the backend renders."""
    return "wren" if case.backend == "onnx" else "turbo"


def open_decoder(case: Case, family: str, *, batched: bool = True) -> tuple[ModelSource, Decoder]:
    profile = replace(PROFILES["balanced"], slots=SLOTS, batched=batched)
    source, setup = setup_for(case, family, profile)
    return source, case.object.open_decoder(source, setup)


@cache
def voice_of(speaker_width: int, number: int = 0) -> Voice:
    rng = np.random.default_rng(number)
    return Voice.checked(
        name=f"voice {number}",
        family="wren",
        speaker=rng.normal(size=speaker_width),
        prompt_ids=rng.integers(6561, size=8),
        flow_prompt_ids=rng.integers(6561, size=12),
        flow_prompt_mel=rng.normal(size=(24, 80)),
        flow_speaker=rng.normal(size=16),
    )


def decoding_of(source: ModelSource, seed: int, **sampling: Any) -> Decoding:
    """Return an utterance whose text and length depend on the seed."""
    info = source.info
    chosen: Sampling = replace(info.defaults.sampling, **sampling)
    prompt = Prompt(
        text="",
        text_ids=[1 + (7 * seed + n) % 250 for n in range(5 + seed % 5)],
        voice=voice_of(info.preset.t3.speaker_width),
        exaggeration=0.5,
        guided=info.guidable and chosen.cfg_weight > 0,
    )
    vocab = info.preset.t3.speech_vocab
    return Decoding(prompt, vocab=vocab, defaults=info.defaults, sampling=chosen, seed=seed)


class Driver:
    """Drive a decoder as the worker does: prefill, decode, release, move."""

    def __init__(self, source: ModelSource, decoder: Decoder, **sampling: Any) -> None:
        self._source, self.decoder, self._sampling = source, decoder, sampling
        self.tokens: dict[int, list[int]] = {}
        self.errors: dict[int, Exception] = {}
        self.running: list[tuple[int, Decoding]] = []
        decoder.start()

    def decoding(self, seed: int) -> Decoding:
        return decoding_of(self._source, seed, **self._sampling)

    def start(self, seed: int) -> None:
        decoding = self.decoding(seed)
        slot = len(self.running)
        self.running.append((seed, decoding))
        self.tokens[seed] = []
        self._append(seed, decoding, self.decoder.prefill(slot, decoding))

    def step(self) -> None:
        rows = [
            DecodeRow(slot, decoding, self.tokens[seed][-1] if self.tokens[seed] else 0)
            for slot, (seed, decoding) in enumerate(self.running)
        ]
        for (seed, decoding), tokens in zip(list(self.running), self.decoder.decode(rows), strict=True):
            if isinstance(tokens, Exception):
                self.errors[seed] = tokens
                self.decoder.reset([s for s, _ in self.running].index(seed))
                self.stop(seed)
            else:
                self._append(seed, decoding, tokens)
        for seed in [seed for seed, decoding in self.running if decoding.finished]:
            self.stop(seed)

    def stop(self, seed: int) -> None:
        slot, last = [s for s, _ in self.running].index(seed), len(self.running) - 1
        self.decoder.release(slot)
        if slot != last:
            self.decoder.move(last, slot)
            self.running[slot] = self.running[last]
        self.running.pop()

    def run(self, seeds: Sequence[int]) -> dict[int, list[int]]:
        """Decode all seeds in one batch, to their ends."""
        for seed in seeds:
            self.start(seed)
        while self.running:
            self.step()
        return {seed: self.tokens[seed] for seed in seeds}

    def _append(self, seed: int, decoding: Decoding, tokens: list[int]) -> None:
        for token in tokens:
            if not decoding.finished:
                self.tokens[seed].append(token)
                decoding.append(token)


def streams(counts: Sequence[int], seed: int = 0) -> Iterator[list[int]]:
    """Yield runs of random speech tokens, one of each length."""
    rng = np.random.default_rng(seed)
    for count in counts:
        yield rng.integers(6561, size=count).tolist()


DECODERS = [case for case in ALL_DECODERS if runs_here("decoder", case) is None]
RENDERERS = [case for case in ALL_RENDERERS if runs_here("renderer", case) is None]
SIMILAR = {Case("mlx", "bfloat16"), Case("mlx", "float16"), Case("mlx", "int8"), Case("mlx", "int4")}
"""Cases that run the code of MLX in float32 with other layers: `make test` leaves them to `make test-rest`."""


def as_parameters(cases: Sequence[Case]) -> list[Any]:
    """Return the values of `pytest.mark.parametrize` for cases."""
    return [
        pytest.param(case, id=str(case), marks=[pytest.mark.thorough] if case in SIMILAR else [])
        for case in cases
    ]


UNSUPPORTED = [
    (role, case)
    for role, cases in (("decoder", ALL_DECODERS), ("renderer", ALL_RENDERERS))
    for case in cases
    if case not in (DECODERS if role == "decoder" else RENDERERS)
]
"""Cases that this machine cannot run; test_unsupported.py skips each once, with the backend's reason."""
