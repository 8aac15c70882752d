"""What the engine costs, and what sharing it saves: ratios taken in one run, on a small seeded model.

    python benchmarks/engine.py              # --no-store: nothing is appended to benchmarks/results

- overhead: one request through the engine, over the same model calls made bare (T3's loop, flow, vocoder).
- together: ten requests at once, over the same ten one after another, with T3 by torch; and once more with T3
  by whatever this machine has for it, which is quicker at both, and at one by itself most of all.

Both are times by the clock, medians over rounds; beside them stands the same ratio of processor time. Run it
on an idle machine: threads that share a product wait for each other, so one busy core makes all of them wait.

The model is the stand-in with a T3 of wren's size. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from nightingale_lab.bench import store
from nightingale.backends.torch.mel_stream import audible, render_mel
from nightingale.decoding.decoding import speak
from nightingale.engine.model import Model
from nightingale.backends.profiles import BALANCED
from nightingale.decoding.random import generator
from nightingale.engine.standin import NOISE, load_noise, seeded
from nightingale.engine.tts import TTS
from nightingale.backends.torch.sample_stream import render_samples
from nightingale.models.chatterbox.t3.config import LlamaConfig
from nightingale.models.chatterbox.t3.model import T3

TOKENS = 50
REQUESTS = 10
OVERHEAD_ROUNDS = 15
TOGETHER_ROUNDS = 5
TEXT = "The quick brown fox jumps over the lazy dog."


def small_model() -> Model:
    """The stand-in with a T3 of wren's size, which never stops by itself."""
    model = load_noise()
    backbone = LlamaConfig(layers=9, width=320, heads=5, ffn=864, rope_scaling=None)
    t3 = seeded(T3(replace(NOISE.t3, backbone=backbone)), torch.Generator().manual_seed(1))
    defaults = replace(
        model.defaults, max_new_tokens=TOKENS, sampling=replace(model.defaults.sampling, cfg_weight=0.0)
    )
    return replace(model, networks=replace(model.networks, t3=t3), defaults=defaults)


def bare(model: Model, seed: int) -> None:
    """The calls that cannot be avoided."""
    assert model.default_voice is not None
    ids = list(
        speak(
            model.networks.t3,
            model.frontend.encode(TEXT),
            model.default_voice,
            defaults=model.defaults,
            sampling=model.defaults.sampling,
            exaggeration=model.defaults.exaggeration,
            rng=generator(seed, "tokens"),
        )
    )
    mel = render_mel(model.networks.flow, audible(ids), model.default_voice, seed=seed)
    render_samples(model.networks.hift, mel, seed=seed)


class Cost(NamedTuple):
    wall_s: float
    cpu_s: float
    """Of the whole process: other processes disturb it less."""


def cost(act: Callable[[], object]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    act()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def compared(
    rounds: int, over: Callable[[int], object], under: Callable[[int], object]
) -> dict[str, float | list[float]]:
    """The ratio of the two costs, medians over the rounds. Who goes first alternates."""
    walls, cpus = [], []
    for round_ in range(rounds):
        acts = [partial(over, round_), partial(under, round_)]
        first, second = (cost(act) for act in (acts if round_ % 2 else reversed(acts)))
        above, below = (first, second) if round_ % 2 else (second, first)
        walls.append(above.wall_s / below.wall_s)
        cpus.append(above.cpu_s / below.cpu_s)
    return {
        "wall": round(statistics.median(walls), 3),
        "spread": [round(min(walls), 3), round(max(walls), 3)],
        "cpu": round(statistics.median(cpus), 3),
        "wall_s": round(above.wall_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-store", action="store_true", help="do not append to benchmarks/results")
    options = parser.parse_args()
    model = small_model()
    exact, shared = TTS.over(model, "exact"), TTS.over(model, replace(BALANCED, t3=()))
    granted = TTS.over(model, BALANCED)
    for tts in (exact, shared, granted):
        tts.say(TEXT, seed=0)
    bare(model, 0)
    overhead = compared(OVERHEAD_ROUNDS, lambda i: exact.say(TEXT, seed=i), lambda i: bare(model, i))

    def crowd(tts: TTS) -> dict[str, float | list[float]]:
        return compared(
            TOGETHER_ROUNDS,
            lambda i: tts.say_many([TEXT] * REQUESTS, seed=i),
            lambda i: [tts.say(TEXT, seed=i) for _ in range(REQUESTS)],
        )

    together, swift = crowd(shared), crowd(granted)
    result = {
        "engine_over_bare": overhead["wall"],
        "engine_over_bare_spread": overhead["spread"],
        "engine_over_bare_cpu": overhead["cpu"],
        "ten_together_over_ten_in_a_row": together["wall"],
        "ten_together_spread": together["spread"],
        "ten_together_cpu": together["cpu"],
        "ten_together_s": together["wall_s"],
        "granted_t3": granted.plan.t3.way,
        "granted_together_over_in_a_row": swift["wall"],
        "granted_together_spread": swift["spread"],
        "granted_together_s": swift["wall_s"],
        "rounds": [OVERHEAD_ROUNDS, TOGETHER_ROUNDS],
        "tokens": TOKENS,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    print(f"engine over bare calls     {overhead['wall']:.3f}   (asked for: less than 1.05)")
    print(f"ten together / in a row    {together['wall']:.3f}   (asked for: at most 0.6)")
    print(f"the same, T3 by {granted.plan.t3.way:<10} {swift['wall']:.3f}")
    print(f"seconds for ten together   {together['wall_s']}, {swift['wall_s']}")
    signed = store.signed(result)
    if not options.no_store:
        store.append(signed, "engine", store.results_folder())
    print(json.dumps(signed))


if __name__ == "__main__":
    main()
