"""The engine's overhead, and what batching saves: ratios taken in one run, on a small random model.

    python -m nightingale_lab.bench engine
    python -m nightingale_lab.bench engine --tiny       # few tokens, one round: proves that it runs

- overhead: one request through the engine, over the same model calls without it (T3's loop, flow, vocoder).
- batched: ten requests at once, over the same ten one after another, with T3 by torch; and again with the
  fastest backend for T3 on this machine.

Ratios of wall time, medians over rounds; beside them the same ratio of processor time. Run it on an idle
machine: threads that share a product wait for each other, so one busy core slows all of them down.

The model has random weights: a T3 of wren's size, and a tiny flow and vocoder. The last line is JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from nightingale.backends.profiles import BALANCED
from nightingale.engine.load import Model
from nightingale.engine.tts import TTS
from nightingale.models.chatterbox.presets import PRESETS
from nightingale_lab import reference
from nightingale_lab.bench import runner
from nightingale_lab.bench.timing import ratio
from nightingale_lab.random_models import random_model, tiny_preset

REQUESTS = 10
TEXT = "The quick brown fox jumps over the lazy dog."


def small_model(tokens: int) -> Model:
    """Return a model with a T3 of wren's size and tiny flow and vocoder, all random."""
    preset = replace(tiny_preset(PRESETS["wren"]), t3=PRESETS["wren"].t3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return random_model("wren", tokens=tokens, tiny=True, preset=preset)


def without_engine(model: Model, seed: int) -> None:
    """Make the model calls that cannot be avoided."""
    ids = list(reference.speech_tokens(model, TEXT, seed=seed))
    reference.samples_of(model, reference.mel_of(model, ids, seed=seed), seed=seed)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    overhead_rounds, batch_rounds, tokens = (1, 1, 5) if options.tiny else (15, 5, 50)
    model = small_model(tokens)
    exact, by_torch = TTS.over(model, "exact"), TTS.over(model, replace(BALANCED, decoder=()))
    fastest = TTS.over(model, BALANCED)
    for tts in (exact, by_torch, fastest):
        tts.say(TEXT, seed=0)
    without_engine(model, 0)
    overhead = ratio(overhead_rounds, lambda i: exact.say(TEXT, seed=i), lambda i: without_engine(model, i))

    def batched(tts: TTS) -> dict[str, Any]:
        return ratio(
            batch_rounds,
            lambda i: tts.say_many([TEXT] * REQUESTS, seed=i),
            lambda i: [tts.say(TEXT, seed=i) for _ in range(REQUESTS)],
        )

    plain, fast = batched(by_torch), batched(fastest)
    backend = fastest.plan.decoder.backend.name
    runner.print_table(
        "Ratios of times",
        ("", "median", "spread", "goal"),
        [
            ("engine over the bare model calls", overhead["wall"], overhead["spread"], "< 1.05"),
            ("ten at once over ten in a row", plain["wall"], plain["spread"], "≤ 0.6"),
            (f"the same, T3 by {backend}", fast["wall"], fast["spread"], ""),
        ],
    )
    return {
        "engine_over_bare": overhead["wall"],
        "engine_over_bare_spread": overhead["spread"],
        "engine_over_bare_cpu": overhead["cpu"],
        "ten_together_over_ten_in_a_row": plain["wall"],
        "ten_together_spread": plain["spread"],
        "ten_together_cpu": plain["cpu"],
        "ten_together_s": plain["wall_s"],
        "granted_t3": backend,
        "granted_together_over_in_a_row": fast["wall"],
        "granted_together_spread": fast["spread"],
        "granted_together_s": fast["wall_s"],
        "rounds": [overhead_rounds, batch_rounds],
        "tokens": tokens,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    runner.run(__doc__, "engine", measure, arguments=arguments)
