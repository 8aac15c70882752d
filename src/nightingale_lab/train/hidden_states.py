"""Hidden states of T3, captured while it decodes: the training data of a draft head (overheard.py)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from nightingale.backends.torch.runner import generate
from nightingale.decoding.philox import nth_seed
from nightingale.engine.load import Model
from nightingale.errors import ConfigError
from nightingale.voices.voice import Voice
from nightingale_lab import reference
from nightingale_lab.no_kv_cache import NoKVCache

FARTHEST = 6e4


@dataclass(frozen=True, slots=True)
class Spoken:
    """A text as a model says it, with its own settings: what T3 has read when the last token is drawn."""

    read: Tensor
    """(rows, time, width)."""
    prompt: int
    """So many of them before the first token."""
    tokens: list[int]


@torch.inference_mode()
def spoken(model: Model, text: str, *, voice: Voice | None, seed: int, device: str = "cpu") -> Spoken:
    """voice: the model's own, if not told."""
    t3 = reference.networks_of(model, device).t3
    decoding = reference.decoding_of(model, text, seed=seed, voice=voice)
    tokens = list(generate(t3, decoding))
    prompt = reference.prompt_embeddings(model, t3, decoding)
    said = torch.tensor([tokens[:-1]] * len(prompt), device=prompt.device)
    return Spoken(torch.cat([prompt, t3.embed_speech(said, 1)], dim=1), prompt.shape[1], tokens)


@torch.inference_mode()
def overhear(
    model: Model, texts: Iterable[str], *, voice: Voice | None, seed: int, device: str = "cpu"
) -> dict[str, Tensor]:
    """The texts as this model would say them. Of each row of each utterance, in order: its tokens, and what
    T3 thought before each (`Verifier.thought`); and T3's tables, in float32."""
    t3 = reference.networks_of(model, device).t3
    memory = [NoKVCache()] * t3.config.backbone.layers
    thoughts, tokens, counts = list[Tensor](), list[Tensor](), list[int]()
    for number, text in enumerate(texts):
        one = spoken(model, text, voice=voice, seed=nth_seed(seed, number), device=device)
        heard = torch.cat([part[:, one.prompt - 1 :] for part in t3.hidden_states(one.read, memory)], dim=-1)
        # A stream may grow further than float16 goes; nothing is read that exactly there.
        for row in heard.clamp(-FARTHEST, FARTHEST).half().cpu():
            thoughts.append(row)
            tokens.append(torch.tensor(one.tokens, dtype=torch.int32))
            counts.append(len(row))
    if not counts:
        raise ConfigError(
            "nothing was said", got="no lines of text", allowed="one line or more", fix="Pass some text."
        )
    tables = {"head.weight": t3.speech_head.weight, "embedding": t3.speech_emb.weight}
    if t3.speech_head.bias is not None:
        tables["head.bias"] = t3.speech_head.bias
    if t3.config.learned_positions is not None:
        tables["positions"] = t3.speech_pos_emb.emb.weight
    return {
        "thoughts": torch.cat(thoughts),
        "tokens": torch.cat(tokens),
        "counts": torch.tensor(counts, dtype=torch.int32),
        **{name: table.detach().float().cpu().contiguous() for name, table in tables.items()},
    }
