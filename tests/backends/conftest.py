"""Tiny networks of each family, and the plain decode loop that backends are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from parity.tiny import TINY_GPT2, TINY_LLAMA, fill, gaussian
from tiny_torch import load_tiny
from torch import Tensor

from nightingale.backends.cuda.t3.batched_sampling import SamplerOrder
from nightingale.backends.torch.runner import to_logits
from nightingale.decoding.decoding import Decoding, Prompt
from nightingale.engine.load import Model
from nightingale.models.chatterbox.t3.config import LlamaConfig, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import MODEL_DEFAULTS, ModelDefaults
from nightingale.types import Sampling
from nightingale.voices.voice import Voice

TINY_WREN = replace(
    TINY_LLAMA,
    backbone=LlamaConfig(layers=2, width=48, heads=3, ffn=96, rope_scaling=False),
    speech_vocab=6563,
    learned_positions=None,
    perceiver=False,
    starts=1,
)
CONFIGS: dict[str, T3Config] = {"multilingual": TINY_LLAMA, "turbo": TINY_GPT2, "wren": TINY_WREN}


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="package", autouse=True)
def _separate_package_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what fixtures of a module compile or pack away from the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTINGALE_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@dataclass(frozen=True, slots=True)
class Family:
    """A model family: its T3 and its defaults."""

    t3: T3
    defaults: ModelDefaults
    guided: bool

    @property
    def order(self) -> SamplerOrder:
        return self.defaults.sampler

    def prompt(self, length: int, seed: int) -> Tensor:
        """Return prompt embeddings (rows, length, width)."""
        rows = 2 if self.guided else 1
        return gaussian((rows, length, self.t3.config.backbone.width), seed)

    def plain(self, prompt: Tensor, sampling: Sampling, *, budget: int, seed: int = 0) -> list[int]:
        """Return the tokens of the plain decode loop over prompt embeddings."""
        decoding = self.decoding(sampling, budget=budget, seed=seed)
        cache = self.t3.new_kv_cache(rows=len(prompt), capacity=prompt.shape[1] + budget)
        x, tokens = prompt, []
        while not decoding.finished:
            with torch.inference_mode():
                tokens.append(decoding.accept(to_logits(self.t3.next_logits(x, cache))))
                x = self.t3.embed_speech(torch.full((len(prompt), 1), tokens[-1]), decoding.appended)
        return tokens

    def decoding(self, sampling: Sampling, *, budget: int, seed: int = 0) -> Decoding:
        defaults = replace(self.defaults, max_new_tokens=budget, tokens_per_text_id=None)
        prompt = Prompt(
            text="", text_ids=[1] * 9, voice=voice_for(self.t3.config), exaggeration=0.5, guided=self.guided
        )
        vocab = self.t3.config.speech_vocab
        return Decoding(prompt, vocab=vocab, defaults=defaults, sampling=sampling, seed=seed)


def voice_for(config: T3Config) -> Voice:
    """Return a voice with random arrays of a model's sizes."""
    rng = np.random.default_rng(0)
    return Voice.checked(
        name="random",
        family="wren",
        speaker=rng.normal(size=config.speaker_width),
        prompt_ids=rng.integers(6561, size=min(4, config.prompt_tokens)),
        flow_prompt_ids=rng.integers(6561, size=4),
        flow_prompt_mel=rng.normal(size=(8, 80)),
        flow_speaker=rng.normal(size=config.speaker_width),
    )


@pytest.fixture(scope="session")
def tiny_model() -> Model:
    return load_tiny()


@pytest.fixture(params=list(CONFIGS))
def family(request: pytest.FixtureRequest) -> Family:
    return family_named(request.param)


def family_named(name: str) -> Family:
    return Family(fill(T3(CONFIGS[name])), MODEL_DEFAULTS[name], guided=name == "multilingual")
