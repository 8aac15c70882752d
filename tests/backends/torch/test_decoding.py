"""The reference decode loop, with tiny networks and with scripted logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_torch import t3_of
from torch import Tensor

from nightingale.backends.torch.runner import generate
from nightingale.decoding.decoding import Decoding, Prompt
from nightingale.engine.load import Model
from nightingale.errors import TextTooLong
from nightingale.models.chatterbox.t3 import config as t3_config
from nightingale.models.chatterbox.t3.config import (
    START_SPEECH,
    STOP_SPEECH,
    Gpt2Config,
    LlamaConfig,
    T3Config,
)
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import ENGLISH, MODEL_DEFAULTS, TURBO, ModelDefaults
from nightingale.models.layers.kv_cache import KVCache
from nightingale.types import Sampling
from nightingale.voices.voice import Voice
from nightingale_lab.no_kv_cache import NoKVCache

LLAMA = replace(
    t3_config.ENGLISH,
    backbone=LlamaConfig(layers=2, width=16, heads=2, ffn=32, rope_scaling=False),
    text_vocab=256,
    speech_vocab=STOP_SPEECH + 1,
    prompt_tokens=4,
    learned_positions=(20, 1100),
    speaker_width=8,
)
GPT2 = replace(
    t3_config.TURBO,
    backbone=Gpt2Config(layers=2, width=16, heads=2, positions=60),
    text_vocab=256,
    prompt_tokens=4,
    speaker_width=8,
)
PLAIN = Sampling(temperature=0.0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, cfg_weight=0.0)
TEXT = [5, 6, 7, 8]


class Scripted(T3):
    """Says the rows of a script, then its last row for ever."""

    def __init__(self, config: T3Config, script: Sequence[dict[int, float]]) -> None:
        super().__init__(config)
        self.script, self.step = script, 0

    def next_logits(self, x: Tensor, memory: Sequence[KVCache]) -> Tensor:
        row = torch.full((self.config.speech_vocab,), -10.0)
        for token, score in self.script[min(self.step, len(self.script) - 1)].items():
            row[token] = score
        self.step += 1
        return row.expand(len(x), -1)


def lively(config: T3Config) -> T3:
    """A network whose scores differ enough that whatever reaches them changes the draw."""
    t3 = T3(config)
    for name, weight in t3.named_parameters():
        if weight.dim() > 1 and "emb" not in name:
            weight.data.mul_(5)
    return t3.requires_grad_(False)


@pytest.fixture(autouse=True)
def _same_weights() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        yield


@pytest.fixture
def voice() -> Voice:
    rng = torch.Generator().manual_seed(0)
    return Voice.checked(
        name="tiny",
        family="wren",
        speaker=torch.randn(8, generator=rng),
        prompt_ids=torch.tensor([1, 2, 3, 4]),
        flow_prompt_ids=torch.tensor([1]),
        flow_prompt_mel=torch.zeros(2, 80),
        flow_speaker=torch.ones(8),
    )


def decoding_of(
    config: T3Config,
    voice: Voice,
    *,
    text: list[int] = TEXT,
    seed: int = 0,
    defaults: ModelDefaults = replace(ENGLISH, max_new_tokens=12),  # noqa: B008, a frozen value
    sampling: Sampling = PLAIN,
    exaggeration: float = 0.5,
) -> Decoding:
    prompt = Prompt(
        text="", text_ids=text, voice=voice, exaggeration=exaggeration, guided=sampling.cfg_weight > 0
    )
    return Decoding(prompt, vocab=config.speech_vocab, defaults=defaults, sampling=sampling, seed=seed)


def said(t3: T3, voice: Voice, **changes: Any) -> list[int]:
    return list(generate(t3, decoding_of(t3.config, voice, **changes)))


def prompt_of(t3: T3, voice: Voice, *, guided: bool) -> Tensor:
    return t3.prompt(
        torch.tensor([t3.config.frame_text(TEXT)]),
        speaker=torch.tensor(voice.speaker[None]),
        prompt_ids=torch.tensor(voice.prompt_ids[None]),
        exaggeration=torch.tensor([0.5]),
        guided=guided,
    )


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_the_same_seed_samples_the_same_ids(config: T3Config, voice: Voice) -> None:
    t3, warm = lively(config), replace(PLAIN, temperature=1.0)
    assert said(t3, voice, sampling=warm, seed=1) == said(t3, voice, sampling=warm, seed=1)
    assert said(t3, voice, sampling=warm, seed=1) != said(t3, voice, sampling=warm, seed=2)


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_temperature_zero_needs_no_seed(config: T3Config, voice: Voice) -> None:
    t3 = lively(config)
    assert said(t3, voice, seed=1) == said(t3, voice, seed=2)
    cold = replace(PLAIN, temperature=1e-4)
    assert said(t3, voice, sampling=cold, seed=1) == said(t3, voice, sampling=cold, seed=2) == said(t3, voice)


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
@torch.inference_mode()
def test_one_token_at_a_time_equals_the_whole_at_once(config: T3Config, voice: Voice) -> None:
    t3 = lively(config)
    ids = said(t3, voice)
    x = torch.cat([prompt_of(t3, voice, guided=False), t3.embed_speech(torch.tensor([ids[:-1]]), 1)], dim=1)
    scores = t3(x, [NoKVCache() for _ in range(config.backbone.layers)])[0, -len(ids) :]
    assert len(ids) == 12
    assert scores.argmax(-1).tolist() == ids


@torch.inference_mode()
def test_without_guidance_one_row_runs_and_it_is_the_told_row(voice: Voice) -> None:
    t3 = lively(LLAMA)
    rows: list[int] = []
    plain_scores = t3.next_logits
    t3.next_logits = lambda x, memory: (rows.append(len(x)), plain_scores(x, memory))[1]  # type: ignore[method-assign]
    alone, both = prompt_of(t3, voice, guided=False), prompt_of(t3, voice, guided=True)
    assert torch.equal(alone[0], both[0])
    assert not torch.equal(both[0], both[1])
    said(t3, voice, sampling=replace(PLAIN, cfg_weight=0.0))
    assert set(rows) == {1}
    rows.clear()
    said(t3, voice, sampling=replace(PLAIN, cfg_weight=0.5))
    assert set(rows) == {2}


def test_guidance_and_exaggeration_reach_the_scores(voice: Voice) -> None:
    t3 = lively(LLAMA)
    warm = replace(PLAIN, temperature=1.0)
    plain = said(t3, voice, sampling=warm)
    assert said(t3, voice, sampling=replace(warm, cfg_weight=3.0)) != plain
    assert said(t3, voice, sampling=warm, exaggeration=5.0) != plain


@torch.inference_mode()
def test_a_prompt_longer_than_the_model_takes_is_cut(voice: Voice) -> None:
    t3 = lively(LLAMA)
    longer = replace(voice, prompt_ids=np.array([1, 2, 3, 4, 99, 98]))
    other = replace(voice, prompt_ids=np.array([1, 2, 3, 99]))
    warm = replace(PLAIN, temperature=1.0)
    assert said(t3, longer, sampling=warm) == said(t3, voice, sampling=warm)
    assert said(t3, other, sampling=warm) != said(t3, voice, sampling=warm)


def test_the_stop_id_ends_and_is_told(voice: Voice) -> None:
    t3 = Scripted(LLAMA, [{5: 9.0}, {6: 9.0}, {STOP_SPEECH: 9.0}, {7: 9.0}])
    assert said(t3, voice) == [5, 6, STOP_SPEECH]
    assert t3.step == 3


@pytest.mark.parametrize("limit", [1, 5])
def test_the_limit_ends(limit: int, voice: Voice) -> None:
    t3 = Scripted(LLAMA, [{5: 9.0}])
    assert said(t3, voice, defaults=replace(ENGLISH, max_new_tokens=limit)) == [5] * limit


def test_turbo_samples_one_more_than_its_loop(voice: Voice) -> None:
    roomy = replace(GPT2, backbone=Gpt2Config(layers=1, width=8, heads=1, positions=1100))
    assert len(said(Scripted(roomy, [{5: 9.0}]), voice, defaults=TURBO)) == 1001
    assert len(said(Scripted(LLAMA, [{5: 9.0}]), voice, defaults=ENGLISH)) == 1000


def test_turbo_does_not_stop_at_its_first_draw(voice: Voice) -> None:
    script = [{STOP_SPEECH: 9.0}, {5: 9.0}, {STOP_SPEECH: 9.0}]
    turbo = replace(TURBO, max_new_tokens=12)
    assert said(Scripted(GPT2, script), voice, defaults=turbo) == [STOP_SPEECH, 5, STOP_SPEECH]
    assert said(Scripted(LLAMA, script), voice) == [STOP_SPEECH]


def test_turbo_forgets_the_start_after_its_first_draw(voice: Voice) -> None:
    script = [{START_SPEECH: 2.0, 7: 1.9, 8: 1.8}]
    penalised = replace(PLAIN, repetition_penalty=1.2)
    turbo, chatterbox = replace(TURBO, max_new_tokens=2), replace(ENGLISH, max_new_tokens=2)
    assert said(Scripted(GPT2, script), voice, sampling=penalised, defaults=turbo) == [7, START_SPEECH]
    assert said(Scripted(LLAMA, script), voice, sampling=penalised, defaults=chatterbox) == [7, 8]


def test_a_text_may_fill_the_table_but_not_pass_it(voice: Voice) -> None:
    t3 = lively(LLAMA)
    assert said(t3, voice, text=[9] * 18)  # with start and stop: 20 rows
    with pytest.raises(TextTooLong, match="21 text ids"):
        said(t3, voice, text=[9] * 19)


def test_turbos_one_table_must_hold_text_and_speech(voice: Voice) -> None:
    turbo = replace(TURBO, max_new_tokens=12)
    t3 = Scripted(GPT2, [{5: 9.0}])
    t3.next_logits = lambda x, memory: T3.next_logits(t3, x, memory).index_fill(
        1, torch.tensor(STOP_SPEECH), -99
    )  # type: ignore[method-assign]
    most = 60 - (1 + 4 + 1 + 12)  # speaker, prompt, start, speech
    assert len(said(t3, voice, text=[9] * most, defaults=turbo)) == 12
    with pytest.raises(TextTooLong, match=f"at most {most}"):
        said(t3, voice, text=[9] * (most + 1), defaults=turbo)


def test_a_text_too_long_is_refused_before_anything_is_drawn(voice: Voice) -> None:
    t3 = Scripted(LLAMA, [{5: 9.0}])
    with pytest.raises(TextTooLong):
        said(t3, voice, text=[9] * 100)
    assert t3.step == 0


def test_two_interleaved_utterances_do_not_affect_each_other(tiny_model: Model) -> None:
    voice = tiny_model.default_voice
    assert voice is not None

    def start(seed: int) -> Any:
        defaults = replace(MODEL_DEFAULTS["noise"], max_new_tokens=8)
        t3 = t3_of(tiny_model)
        sampling = defaults.sampling
        return generate(t3, decoding_of(t3.config, voice, seed=seed, defaults=defaults, sampling=sampling))

    alone = [list(start(1)), list(start(2))]
    together: list[list[int]] = [[], []]
    for pair in zip(start(1), start(2), strict=True):
        assert not torch.is_inference_mode_enabled()  # the caller's mode is the caller's
        for ids, token in zip(together, pair, strict=True):
            ids.append(token)
    assert together == alone
    assert alone[0] != alone[1]
