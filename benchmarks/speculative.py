"""What guessing ahead costs and saves, for each kind of draft: docs/speculative.md.

    python benchmarks/speculative.py [--model FOLDER] [--sentences N] [--draft NAME]… [--part verify|speak]…

- verify: processor time of a pass of T3 over 1 … 9 tokens, over that of a step; for the model, and for random
  weights of the multilingual width, a fifth as deep (so large that no cache holds them, as all of it is), in
  torch and, where onnxruntime is there, with weights of eight bits.
- speak: the same sentences with the same seeds, plain and with each draft in turn: tokens a second over plain
  with the adaptive pace, and with fixed lengths; the share of guesses accepted; whether every token was the
  plain one.

Times are processor time, alternating, so that other work on the machine disturbs little. The last line is
JSON, and is kept in benchmarks/results.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nightingale.bench.store import append, results_folder, signed
from nightingale.engine.decode import Decoding, Tally, Told, prompt_of
from nightingale.engine.draws import Draws, HostDraws, Speaking
from nightingale.engine.load import Model, default_model, load_model
from nightingale.engine.profiles import BALANCED
from nightingale.engine.randomness import generator
from nightingale.engine.runner import PlainRunner, Trial
from nightingale.engine.speculate import LONGEST, Costs, SpeculativeDraws
from nightingale.engine.speculate_load import open_speculation
from nightingale.models.chatterbox.t3.config import MULTILINGUAL, LlamaConfig
from nightingale.models.chatterbox.t3.model import T3

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "She opened the window and listened to the rain for a while.",
    "Twelve small boats were waiting in the harbour.",
    "Please call me back when you have read the letter.",
    "In the morning the road was covered with snow, and nobody came.",
    "What would you have done if the train had been late?",
    "He counted the coins twice and put them back into the drawer.",
    "The committee will meet again on the second Thursday of March.",
)
TEMPERATURE = 0.8
FREE = Costs(several=1.0, token=0.0, guess=0.0)
"""With nothing to weigh, the pace asks for as many guesses as it may."""
REMEMBERED = 150
"""Positions before the pass that is timed: a sentence in its middle."""


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    parts = args.part or ["verify", "speak"]
    model = load_model(args.model, device="cpu", dtype="auto", offline=True, options={})
    result: dict[str, Any] = {"temperature": TEMPERATURE, "threads": args.threads}
    if "verify" in parts:
        result["verify"] = verify_tables(model.speakers.t3, args.threads, args.rounds)
        print_verify(result["verify"])
    if "speak" in parts:
        drafts = args.draft or ["lookup", "exit:1", "exit:3", "exit:6"]
        sentences = [SENTENCES[i % len(SENTENCES)] for i in range(args.sentences)]
        result["speak"] = speak_table(model, drafts, args.length or [1, 2, 4], sentences)
        print_speak(result["speak"])
    line = signed(result)
    append(line, "speculative", None if args.no_keep else results_folder())
    print(json.dumps(line, separators=(",", ":")))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=default_model(), help="a name or a folder")
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--draft", action="append", help="lookup, exit:N, a file of weights, or a model")
    parser.add_argument("--length", action="append", type=int, help="fixed numbers of guesses")
    parser.add_argument("--part", action="append", choices=["verify", "speak"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-keep", action="store_true", help="leave benchmarks/results as it is")
    return parser.parse_args()


def verify_tables(t3: T3, threads: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a pass over 1, 2, … tokens."""
    large = random_t3(replace(MULTILINGUAL, backbone=LlamaConfig(layers=6)))
    tables = {"model, torch": torch_passes(t3, rounds), "6 layers of 30, torch": torch_passes(large, rounds)}
    if importlib.util.find_spec("onnxruntime") is not None:
        tables["6 layers of 30, int8"] = int8_passes(large, threads, rounds)
    return tables


def random_t3(config: Any) -> T3:
    with torch.device("meta"):
        t3 = T3(config)
    t3.to_empty(device="cpu")
    for weight in t3.parameters():
        weight.data.uniform_(-0.02, 0.02)
    t3.tfmr.inverse = t3.tfmr._frequencies()  # type: ignore[operator]
    return t3.eval().requires_grad_(False)


def torch_passes(t3: T3, rounds: int) -> list[float]:
    runner = PlainRunner(t3, slots=1, rows_per_slot=1, capacity=REMEMBERED + 16, batched=False)
    runner.begin(0, torch.zeros(1, REMEMBERED, t3.config.backbone.width))

    def once(count: int) -> float:
        began = time.process_time()
        runner.verify([Trial(slot=0, tokens=[7] * count, position=1)])
        took = time.process_time() - began
        runner.rewind(0, count)
        return took

    return medians(once, rounds)


def int8_passes(t3: T3, threads: int, rounds: int) -> list[float]:
    """The packed graph scores its last token only: 8 MB of the head are read, but once."""
    from nightingale.accel.cpu.packed import digest_of_tensors, pack
    from nightingale.accel.cpu.runner import CpuRunner

    tensors = t3.state_dict()
    with tempfile.TemporaryDirectory() as home:
        packed = pack(t3.config, tensors, home=Path(home), source=digest_of_tensors(tensors))
        pool: dict[str, Any] = {"slots": 1, "rows_per_slot": 1, "capacity": REMEMBERED + 16}
        runner = CpuRunner(t3, packed, **pool, batched=False, threads=threads)
        width = t3.config.backbone.width
        runner.begin(0, torch.zeros(1, REMEMBERED, width))

        def once(count: int) -> float:
            x = torch.zeros(1, count, width)
            began = time.process_time()
            runner._read(0, x, REMEMBERED)
            return time.process_time() - began

        return medians(once, rounds)


def medians(once: Any, rounds: int) -> list[float]:
    """Of passes over 1 … 9 tokens, taken in turn."""
    taken: list[list[float]] = [[] for _ in range(LONGEST + 1)]
    for _ in range(rounds):
        for count, times in enumerate(taken, start=1):
            times.append(1000 * once(count))
    return [statistics.median(times) for times in taken]


def speak_table(
    model: Model, drafts: list[str], lengths: list[int], sentences: list[str]
) -> list[dict[str, Any]]:
    """A row for each draft and length; length 0 is the pace's own choice."""
    pool = {"slots": 1, "rows_per_slot": 1, "capacity": 1200}
    plain = HostDraws(PlainRunner(model.speakers.t3, **pool, batched=False))
    ways: list[tuple[str, int, Draws]] = []
    for name in drafts:
        for length in (0, *lengths):
            opened = open_speculation(model, replace(BALANCED, draft=name, batched=False), dict(pool))
            if length:
                opened = SpeculativeDraws(
                    opened._verifier, opened._draft, costs=FREE, after=1, longest=length
                )
            ways.append((name, length, opened))
    sums: list[list[float]] = [[0.0, 0.0, 0.0, 0.0, 0.0] for _ in ways]
    same = [True] * len(ways)
    plain_s, plain_tokens = 0.0, 0
    for seed, text in enumerate(sentences):
        expected, took, _ = say(model, plain, text, seed)
        plain_s, plain_tokens = plain_s + took, plain_tokens + len(expected)
        for i, (_, _, draws) in enumerate(ways):
            tokens, spent, tally = say(model, draws, text, seed)
            same[i] &= tokens == expected
            counted = (len(tokens), spent, tally.drafted, tally.accepted, tally.passes)
            sums[i] = [have + more for have, more in zip(sums[i], counted, strict=True)]
    table = []
    for (name, length, _), (tokens, spent, drafted, accepted, passes), alike in zip(
        ways, sums, same, strict=True
    ):
        table.append(
            {
                "draft": name,
                "length": length,
                "over_plain": (tokens / spent) / (plain_tokens / plain_s),
                "accepted_share": accepted / drafted if drafted else None,
                "tokens_per_drafted_pass": 1 + accepted / passes if passes else None,
                "passes_saved_share": accepted / tokens,
                "same_tokens": alike,
                "tokens": tokens,
                "plain_ms_per_token": 1000 * plain_s / plain_tokens,
            }
        )
    return table


def say(model: Model, draws: Draws, text: str, seed: int) -> tuple[list[int], float, Tally]:
    """Tokens of one sentence, processor seconds of its steps, and what was guessed. The prompt is not."""
    t3, habits, voice = model.speakers.t3, model.habits, model.default_voice
    assert voice is not None
    sampling = replace(habits.sampling, temperature=TEMPERATURE)
    ids = model.frontend.encode(text)
    decoding = Decoding(
        t3,
        habits=habits,
        sampling=sampling,
        text_ids=len(ids),
        rng=generator(seed, "tokens"),
        told=Told(text=text, text_ids=ids, voice=voice, exaggeration=habits.exaggeration),
    )
    prompt = prompt_of(t3, ids, voice, habits=habits, sampling=sampling, exaggeration=habits.exaggeration)
    tokens = draws.begin(0, decoding, prompt)
    decoding.note(tokens[0])
    began = time.process_time()
    while not decoding.finished:
        (drawn,) = draws.step([Speaking(slot=0, decoding=decoding, last_token=tokens[-1])])
        if isinstance(drawn, Exception):
            raise drawn
        for token in drawn:
            tokens.append(token)
            decoding.note(token)
            if decoding.finished:
                break
    took = time.process_time() - began
    draws.leave(0)
    return tokens, took, decoding.tally


def print_verify(tables: dict[str, list[float]]) -> None:
    print("| a pass over … tokens | " + " | ".join(str(n) for n in range(1, LONGEST + 2)) + " |")
    print("|---|" + "---|" * (LONGEST + 1))
    for name, times in tables.items():
        print(f"| {name}, ms | " + " | ".join(f"{ms:.1f}" for ms in times) + " |")
        print("| over a step | " + " | ".join(f"{ms / times[0]:.2f}" for ms in times) + " |")
        # With a guess that costs nothing: accepted shares from which k guesses a pass pay.
        print(
            "| pays from | – | "
            + " | ".join(pays_from(ms / times[0], k) for k, ms in enumerate(times[1:], 1))
            + " |"
        )


def pays_from(cost: float, guesses: int) -> str:
    for percent in range(101):
        if sum((percent / 100) ** n for n in range(guesses + 1)) >= cost:
            return f"{percent} %"
    return "never"


def print_speak(table: list[dict[str, Any]]) -> None:
    print(
        "\n| draft | guesses | accepted | tokens a drafted pass | passes saved | tokens/s over plain | same |"
    )
    print("|---|---|---|---|---|---|---|")
    for row in table:
        share, each = row["accepted_share"], row["tokens_per_drafted_pass"]
        cells = (
            row["draft"],
            row["length"] or "adaptive",
            "–" if share is None else f"{100 * share:.0f} %",
            "–" if each is None else f"{each:.2f}",
            f"{100 * row['passes_saved_share']:.0f} %",
            f"{row['over_plain']:.2f}",
            "yes" if row["same_tokens"] else "NO",
        )
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
