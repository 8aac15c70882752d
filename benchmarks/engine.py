"""What the engine costs, and what sharing it saves: ratios taken in one run, on a small seeded model.

    python benchmarks/engine.py

- overhead: one request through the engine, over the same model calls made bare (T3's loop, flow, vocoder).
- together: ten requests at once, over the same ten one after another.

The model is the stand-in with a T3 of wren's size. The last line is JSON.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from nightingale.engine.acoustic import audible, render_mel
from nightingale.engine.decode import speak
from nightingale.engine.load import Model
from nightingale.engine.randomness import generator
from nightingale.engine.standin import NOISE, load_noise, seeded
from nightingale.engine.tts import TTS
from nightingale.engine.vocode import render_samples
from nightingale.models.chatterbox.t3.config import LlamaConfig
from nightingale.models.chatterbox.t3.model import T3

TOKENS = 50
REQUESTS = 10
ROUNDS = 3
TEXT = "The quick brown fox jumps over the lazy dog."


def small_model() -> Model:
    """The stand-in with a T3 of wren's size, which never stops by itself."""
    model = load_noise()
    backbone = LlamaConfig(layers=9, width=320, heads=5, ffn=864, rope_scaling=None)
    t3 = seeded(T3(replace(NOISE.t3, backbone=backbone)), torch.Generator().manual_seed(1))
    habits = replace(
        model.habits, max_new_tokens=TOKENS, sampling=replace(model.habits.sampling, cfg_weight=0.0)
    )
    return replace(model, speakers=replace(model.speakers, t3=t3), habits=habits)


def bare(model: Model, seed: int) -> None:
    """The calls that cannot be avoided."""
    assert model.default_voice is not None
    ids = list(
        speak(
            model.speakers.t3,
            model.frontend.encode(TEXT),
            model.default_voice,
            habits=model.habits,
            sampling=model.habits.sampling,
            exaggeration=model.habits.exaggeration,
            rng=generator(seed, "tokens"),
        )
    )
    mel = render_mel(model.speakers.flow, audible(ids), model.default_voice, seed=seed)
    render_samples(model.speakers.hift, mel, seed=seed)


def seconds(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def main() -> None:
    model = small_model()
    exact, shared = TTS.over(model, "exact"), TTS.over(model, "balanced")
    for tts in (exact, shared):
        tts.say(TEXT, seed=0)
    bare(model, 0)
    overheads, savings = [], []
    for round_ in range(ROUNDS):
        overheads.append(
            seconds(lambda r=round_: exact.say(TEXT, seed=r)) / seconds(lambda r=round_: bare(model, r))
        )
        in_a_row = seconds(lambda: [shared.say(TEXT, seed=i) for i in range(REQUESTS)])
        savings.append(seconds(lambda: shared.say_many([TEXT] * REQUESTS, seed=1)) / in_a_row)
    result = {
        "engine_over_bare": round(statistics.median(overheads), 3),
        "engine_over_bare_spread": [round(min(overheads), 3), round(max(overheads), 3)],
        "ten_together_over_ten_in_a_row": round(statistics.median(savings), 3),
        "ten_together_spread": [round(min(savings), 3), round(max(savings), 3)],
        "tokens": TOKENS,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    print(f"engine over bare calls     {result['engine_over_bare']:.3f}   (must be at most 1.05)")
    print(
        f"ten together / in a row    {result['ten_together_over_ten_in_a_row']:.3f}   (must be at most 0.6)"
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
