"""Tiny networks of each family, and the plain path they are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from parity.tiny import TINY_GPT2, TINY_LLAMA, fill, gaussian
from torch import Tensor

from nightingale.backends.cuda.batched_sampling import Order
from nightingale.decoding.decoding import Decoding
from nightingale.models.chatterbox.t3.config import LlamaConfig, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import MODEL_DEFAULTS, ModelDefaults
from nightingale.types import Sampling

TINY_WREN = replace(
    TINY_LLAMA,
    backbone=LlamaConfig(layers=2, width=48, heads=3, ffn=96, rope_scaling=None),
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


@dataclass(frozen=True, slots=True)
class Family:
    """One member: its T3, and how it is spoken with."""

    t3: T3
    defaults: ModelDefaults
    guided: bool

    @property
    def order(self) -> Order:
        return self.defaults.sampler

    def prompt(self, length: int, seed: int) -> Tensor:
        """(rows, length, width): what T3 would read first."""
        rows = 2 if self.guided else 1
        return gaussian((rows, length, self.t3.config.backbone.width), seed)

    def plain(self, prompt: Tensor, sampling: Sampling, *, budget: int, seed: int = 0) -> list[int]:
        """The tokens of decoding/decoding.py's loop."""
        defaults = replace(self.defaults, max_new_tokens=budget, tokens_per_text_id=None)
        decoding = Decoding(self.t3, defaults=defaults, sampling=sampling, text_ids=9, seed=seed)
        memory = self.t3.new_kv_cache(rows=len(prompt), capacity=prompt.shape[1] + budget)
        x, tokens = prompt, []
        while not decoding.finished:
            with torch.inference_mode():
                tokens.append(decoding.accept(self.t3.next_logits(x, memory)))
                x = self.t3.embed_speech(torch.full((len(prompt), 1), tokens[-1]), decoding.drawn)
        return tokens


@pytest.fixture(params=list(CONFIGS))
def family(request: pytest.FixtureRequest) -> Family:
    return family_named(request.param)


def family_named(name: str) -> Family:
    return Family(fill(T3(CONFIGS[name])), MODEL_DEFAULTS[name], guided=name == "multilingual")
