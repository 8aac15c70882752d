"""Capture T3's hidden states while it decodes: the training data of a draft head (draft_head_from_states.py)."""

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

MAX_STATE = 6e4
"""Hidden states are clipped here, near the largest float16."""


@dataclass(frozen=True, slots=True)
class DecodedText:
    """A text decoded with the model's own settings."""

    inputs: Tensor
    """(rows, time, width): the embeddings that T3 has read when it samples the last token."""
    prompt_length: int
    """Input positions before the first speech token."""
    tokens: list[int]


@torch.inference_mode()
def decode_text(
    model: Model,
    text: str,
    *,
    voice: Voice | None,
    seed: int,
    language: str | None = None,
    device: str = "cpu",
) -> DecodedText:
    """Decode a text, with the model's default voice unless one is given."""
    t3 = reference.networks_of(model, device).t3
    decoding = reference.decoding_of(model, text, seed=seed, voice=voice, language=language)
    tokens = list(generate(t3, decoding))
    prompt = reference.prompt_embeddings(model, t3, decoding)
    speech = torch.tensor([tokens[:-1]] * len(prompt), device=prompt.device)
    return DecodedText(torch.cat([prompt, t3.embed_speech(speech, 1)], dim=1), prompt.shape[1], tokens)


@torch.inference_mode()
def capture_hidden_states(
    model: Model,
    texts: Iterable[str],
    *,
    voice: Voice | None,
    seed: int,
    language: str | None = None,
    device: str = "cpu",
) -> dict[str, Tensor]:
    """Decode the texts and return what a draft head is trained on.

    For each row of each utterance, in order: its tokens, and T3's hidden state before each of them, as a
    backend hands it to a draft head; the number of rows of an utterance (2 with guidance); and T3's output
    head and embeddings in float32.
    """
    t3 = reference.networks_of(model, device).t3
    caches = [NoKVCache()] * t3.config.backbone.layers
    states, tokens, counts = list[Tensor](), list[Tensor](), list[int]()
    for number, text in enumerate(texts):
        decoded = decode_text(
            model, text, voice=voice, seed=nth_seed(seed, number), language=language, device=device
        )
        parts = t3.hidden_states(decoded.inputs, caches)
        captured = torch.cat([part[:, decoded.prompt_length - 1 :] for part in parts], dim=-1)
        # The residual stream may exceed float16; the head needs no precision there.
        for row in captured.clamp(-MAX_STATE, MAX_STATE).half().cpu():
            states.append(row)
            tokens.append(torch.tensor(decoded.tokens, dtype=torch.int32))
            counts.append(len(row))
    if not counts:
        raise ConfigError(
            "no text to decode", got="no lines", allowed="one line or more", fix="Pass some text."
        )
    tables = {"head.weight": t3.speech_head.weight, "embedding": t3.speech_emb.weight}
    if t3.speech_head.bias is not None:
        tables["head.bias"] = t3.speech_head.bias
    if t3.config.learned_positions is not None:
        tables["positions"] = t3.speech_pos_emb.emb.weight
    return {
        "hidden_states": torch.cat(states),
        "tokens": torch.cat(tokens),
        "counts": torch.tensor(counts, dtype=torch.int32),
        "rows": torch.tensor([len(captured)], dtype=torch.int32),
        **{name: table.detach().float().cpu().contiguous() for name, table in tables.items()},
    }
