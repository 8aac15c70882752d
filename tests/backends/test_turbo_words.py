"""Word timestamps of a small Turbo with the layout and the alignment head of the real one, on every backend."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from tiny_torch import TINY_PRESET, seeded

pytest.importorskip("onnxruntime")
from backends.conformance import CPU, DECODERS, SLOTS, Case, voice_of

from nightingale import TTS
from nightingale.backends.base import ModelInfo, Setup
from nightingale.backends.profiles import PROFILES
from nightingale.backends.selection import Choice, Plan, for_model
from nightingale.backends.torch.weights import in_memory
from nightingale.engine.load import Model, load_noise
from nightingale.models.chatterbox.build import new_vocoder
from nightingale.models.chatterbox.presets import TURBO
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.config import Gpt2Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.types import TimedWord

TEXT = "Dr. Brown paid $5.50. Nobody else did."
REFERENCE = Case("torch", "float32")


@cache
def small_turbo() -> Model:
    backbone = Gpt2Config(layers=6, width=512, heads=8, positions=500)
    t3 = replace(TURBO.t3, backbone=backbone, text_vocab=300, prompt_tokens=8, speaker_width=16)
    preset = replace(TINY_PRESET, t3=t3, flow=replace(TINY_PRESET.flow, meanflow=True))
    defaults = replace(MODEL_DEFAULTS["turbo"], max_new_tokens=40, tokens_per_text_id=None, guarded=False)
    rng = torch.Generator().manual_seed(3)
    with torch.random.fork_rng(devices=[]):
        networks = [seeded(net, rng) for net in (T3(t3), Flow(preset.flow), new_vocoder(preset.vocoder))]
    info = ModelInfo(name="turbo", preset=preset, defaults=defaults)
    source = in_memory(info, **dict(zip(("t3", "flow", "vocoder"), networks, strict=True)))
    return replace(load_noise(), source=source, notice=None, default_voice=voice_of(16))


@cache
def words_by(case: Case) -> tuple[TimedWord, ...]:
    model = small_turbo()
    profile = for_model(replace(PROFILES["balanced"], slots=SLOTS), model.info)
    machine = replace(CPU, device="mlx", name="mlx") if case.backend == "mlx" else CPU
    decoder = Choice(
        role="decoder",
        backend=case.object,
        setup=Setup(profile=profile, machine=machine, precision=case.precision),
    )
    renderer = Choice(
        role="renderer",
        backend=REFERENCE.object,
        setup=Setup(profile=profile, machine=CPU, precision="float32"),
    )
    plan = Plan(model="turbo", profile=profile, machine=CPU, decoder=decoder, renderer=renderer)
    with TTS.over(model, plan=plan) as tts:
        return tts.say(TEXT, seed=5, voice=voice_of(16), timestamps=True).words


@pytest.mark.parametrize("case", [c for c in DECODERS if c.exact and c.backend != "noise"], ids=str)
def test_every_backend_gives_the_same_words(case: Case) -> None:
    assert TURBO.t3.traced_heads == small_turbo().info.preset.t3.traced_heads
    words = words_by(case)
    assert [word.word for word in words] == TEXT.split()
    assert words == words_by(REFERENCE)
    for word, following in pairwise(words):
        assert word.start_s < word.end_s <= following.start_s
