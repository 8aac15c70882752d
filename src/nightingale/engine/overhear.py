"""What a T3 thinks while it speaks, written down: all that its guess learns from (train/overheard.py)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from nightingale.engine.decode import Decoding, prompt_of
from nightingale.engine.model import Model
from nightingale.engine.randomness import generator, nth_seed
from nightingale.engine.runner import PlainRunner, Turn
from nightingale.errors import ConfigError
from nightingale.voices.voice import Voice

FARTHEST = 6e4


@torch.inference_mode()
def overhear(model: Model, texts: Iterable[str], *, voice: Voice | None, seed: int) -> dict[str, Tensor]:
    """The texts as this model would say them, with its own settings. Of each row of each utterance, in order:
    its tokens, and what T3 thought before each (`Runner.thought`); and T3's tables, in float32."""
    if voice is None:
        raise ConfigError(
            "this model has no voice of its own",
            got=model.name,
            allowed="a voice to speak with",
            fix="Pass one: --voice FILE.safetensors.",
        )
    t3, habits = model.speakers.t3, model.habits
    rows = 1 if "cfg_weight" in habits.ignored else 2
    capacity = t3.prompt_length(habits.max_text_ids) + habits.max_new_tokens
    runner = PlainRunner(t3, slots=1, rows_per_slot=rows, capacity=capacity, batched=False)
    runner.listen()
    thoughts, tokens, counts = list[Tensor](), list[Tensor](), list[int]()
    for number, text in enumerate(texts):
        ids, rng = model.frontend.encode(text), generator(nth_seed(seed, number), "tokens")
        decoding = Decoding(t3, habits=habits, sampling=habits.sampling, text_ids=len(ids), rng=rng)
        prompt = prompt_of(
            t3, ids, voice, habits=habits, sampling=habits.sampling, exaggeration=habits.exaggeration
        )
        scores, heard = runner.begin(0, prompt), list[Tensor]()
        while True:
            # A stream may grow further than float16 goes; nothing is read that exactly there.
            heard.append(runner.thought(0, decoding.drawn).clamp(-FARTHEST, FARTHEST).half().cpu())
            token = decoding.accept(scores)
            if decoding.finished:
                break
            (scores,) = runner.step([Turn(slot=0, token=token, position=decoding.drawn)])
        for row in torch.stack(heard, dim=1):
            thoughts.append(row)
            tokens.append(torch.tensor(decoding.history, dtype=torch.int32))
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
