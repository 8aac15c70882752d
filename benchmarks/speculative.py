"""What guessing ahead costs and saves, for each kind of draft: docs/speculative.md.

    python benchmarks/speculative.py [--model FOLDER] [--sentences N] [--draft NAME]… [--part verify|speak]…

- verify: a pass of T3 over 1 … 9 tokens, over a step; for the model, and for random weights of the
  multilingual width, a fifth as deep (so large that no cache holds them, as all of it is), in torch and where
  onnxruntime is, by that: in float32, and with weights of eight bits. Processor time.
- speak: the same sentences with the same seeds, plain and with each draft in turn: tokens a second over plain
  decoding by the same runtime and by torch, with the adaptive pace and with fixed lengths; the share of
  guesses accepted; whether every token was torch's plain one. By the clock: on an idle machine, please.

Both take turns, sentence by sentence. The last line is JSON, and is kept in benchmarks/results. --chart FILE
draws the accepted shares.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nightingale_lab.bench.store import append, results_folder, signed
from nightingale_lab.bench.wren import texts
from nightingale.decoding.decoding import Decoding, DraftStats, PromptText, prompt_of
from nightingale.decoding.decoder import Decoder, HostDecoder, Speaking
from nightingale.engine.load import load_model
from nightingale.engine.model import Model, default_model
from nightingale.backends.profiles import BALANCED
from nightingale.decoding.random import generator
from nightingale.backends.torch.runner import PlainRunner, Trial, Verifier
from nightingale.decoding.speculative import LONGEST, Costs, SpeculativeDecoder
from nightingale.backends.torch.speculation import open_speculation
from nightingale.models.chatterbox.t3.config import MULTILINGUAL, LlamaConfig
from nightingale.models.chatterbox.t3.model import T3

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
        result["verify"] = verify_tables(model.networks.t3, args.threads, args.rounds)
        print_verify(result["verify"])
    if "speak" in parts:
        drafts = args.draft or ["guess", "exit:6", "lookup"]
        sentences = texts("wren_200")[: args.sentences]
        result["speak"] = speak_table(model, drafts, args.length or [1, 2, 3], sentences, args.threads)
        print_speak(result["speak"])
        if args.chart:
            args.chart.write_text(chart(result["speak"]), encoding="utf-8")
    line = signed(result)
    append(line, "speculative", None if args.no_keep else results_folder())
    print(json.dumps(line, separators=(",", ":")))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=default_model(), help="a name or a folder")
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--draft", action="append", help="guess, lookup, exit:N, a file, or a model")
    parser.add_argument("--chart", type=Path, help="an SVG of the accepted shares")
    parser.add_argument("--length", action="append", type=int, help="fixed numbers of guesses")
    parser.add_argument("--part", action="append", choices=["verify", "speak"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-keep", action="store_true", help="leave benchmarks/results as it is")
    return parser.parse_args()


def verify_tables(t3: T3, threads: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a pass over 1, 2, … tokens."""
    large = random_t3(replace(MULTILINGUAL, backbone=LlamaConfig(layers=6)))
    tables = {"model, torch": passes(in_torch(t3), rounds)}
    if with_onnx():
        tables["model, onnxruntime"] = passes(by_onnx(t3, threads), rounds)
    tables["6 layers of 30, torch"] = passes(in_torch(large), rounds)
    if with_onnx():
        tables["6 layers of 30, onnxruntime, int8"] = int8_passes(large, threads, rounds)
    return tables


def with_onnx() -> bool:
    return importlib.util.find_spec("onnxruntime") is not None


def in_torch(t3: T3, capacity: int = REMEMBERED + 16) -> PlainRunner:
    return PlainRunner(t3, slots=1, rows_per_slot=1, capacity=capacity, spare=LONGEST, batched=False)


def by_onnx(t3: T3, threads: int, capacity: int = REMEMBERED + 16, graph: Any = None) -> Verifier:
    """graph: in float32, if not given."""
    from nightingale.backends.onnx.runner import OnnxRunner, exact_graph

    pool: dict[str, Any] = {"slots": 1, "rows_per_slot": 1, "capacity": capacity, "spare": LONGEST}
    return OnnxRunner(t3, graph or exact_graph(t3), **pool, batched=False, threads=threads)


def random_t3(config: Any) -> T3:
    with torch.device("meta"):
        t3 = T3(config)
    t3.to_empty(device="cpu")
    for weight in t3.parameters():
        weight.data.uniform_(-0.02, 0.02)
    t3.tfmr.inverse = t3.tfmr._frequencies()  # type: ignore[operator]
    return t3.eval().requires_grad_(False)


def passes(runner: Verifier, rounds: int) -> list[float]:
    runner.begin(0, torch.zeros(1, REMEMBERED, runner.t3.config.backbone.width))  # type: ignore[attr-defined]

    def once(count: int) -> float:
        began = time.process_time()
        runner.verify([Trial(slot=0, tokens=[7] * count, position=1)])
        took = time.process_time() - began
        runner.rewind(0, count)
        return took

    return medians(once, rounds)


def int8_passes(t3: T3, threads: int, rounds: int) -> list[float]:
    from nightingale.backends.onnx.graph import GRAPH_FILE, OnnxFormat
    from nightingale.backends.shared.packed_t3 import digest_of_tensors, pack

    tensors = t3.state_dict()
    with tempfile.TemporaryDirectory() as home:
        source = digest_of_tensors(tensors)
        packed = pack(t3.config, tensors, OnnxFormat(), cache_dir=Path(home), source=source)
        return passes(by_onnx(t3, threads, graph=packed.folder / GRAPH_FILE), rounds)


def medians(once: Any, rounds: int) -> list[float]:
    """Of passes over 1 … 9 tokens, taken in turn."""
    taken: list[list[float]] = [[] for _ in range(LONGEST + 1)]
    for _ in range(rounds):
        for count, times in enumerate(taken, start=1):
            times.append(1000 * once(count))
    return [statistics.median(times) for times in taken]


class Way(NamedTuple):
    """One way to decode: a runtime, and what guesses for it."""

    runtime: str
    draft: str
    length: int
    """Guesses a pass; 0 is the pace's own choice."""
    draws: Decoder


def ways_of(model: Model, drafts: list[str], lengths: list[int], threads: int) -> list[Way]:
    t3, capacity = model.networks.t3, 1200
    runners: dict[str, Callable[[], Verifier]] = {"torch": lambda: in_torch(t3, capacity)}
    if with_onnx():
        runners["onnxruntime"] = lambda: by_onnx(t3, threads, capacity)
    ways = [Way(runtime, "", 0, HostDecoder(make())) for runtime, make in runners.items()]
    for name in drafts:
        # Who leaves T3 early needs its layers in torch.
        runtime = "torch" if name.startswith("exit:") else [*runners][-1]
        for length in (0, *lengths):
            profile = replace(BALANCED, draft=name, batched=False, slots=1)
            opened = open_speculation(model, profile, runners[runtime](), threads)
            if length:
                parts = opened._verifier, opened._draft
                opened = SpeculativeDecoder(*parts, costs=FREE, after=1, longest=length)
            ways.append(Way(runtime, name, length, opened))
    return ways


def speak_table(
    model: Model, drafts: list[str], lengths: list[int], sentences: list[str], threads: int
) -> list[dict[str, Any]]:
    """A row for each way; those without a draft come first, torch's before all."""
    ways = ways_of(model, drafts, lengths, threads)
    sums = [[0.0] * 5 for _ in ways]
    same = [True] * len(ways)
    say(model, ways[0].draws, sentences[0], 0)  # warm
    for seed, text in enumerate(sentences):
        expected: list[int] = []
        for i, way in enumerate(ways):
            tokens, spent, tally = say(model, way.draws, text, seed)
            expected = expected or tokens
            same[i] &= tokens == expected
            counted = (len(tokens), spent, tally.drafted, tally.accepted, tally.passes)
            sums[i] = [have + more for have, more in zip(sums[i], counted, strict=True)]
    plain = {way.runtime: sums[i] for i, way in enumerate(ways) if not way.draft}

    def over(mine: list[float], other: list[float]) -> float:
        return (mine[0] / mine[1]) / (other[0] / other[1])

    return [
        {
            "runtime": way.runtime,
            "draft": way.draft or "none",
            "length": way.length,
            "over_plain": over(mine, plain[way.runtime]),
            "over_torch": over(mine, plain["torch"]),
            "accepted_share": mine[3] / mine[2] if mine[2] else None,
            "tokens_per_drafted_pass": 1 + mine[3] / mine[4] if mine[4] else None,
            "passes_saved_share": mine[3] / mine[0],
            "same_tokens": alike,
            "tokens": int(mine[0]),
            "ms_per_token": 1000 * mine[1] / mine[0],
        }
        for way, mine, alike in zip(ways, sums, same, strict=True)
    ]


def say(model: Model, draws: Decoder, text: str, seed: int) -> tuple[list[int], float, DraftStats]:
    """Tokens of one sentence, seconds of its steps, and what was guessed. The prompt is not timed."""
    t3, defaults, voice = model.networks.t3, model.defaults, model.default_voice
    assert voice is not None
    sampling = replace(defaults.sampling, temperature=TEMPERATURE)
    ids = model.frontend.encode(text)
    decoding = Decoding(
        t3,
        defaults=defaults,
        sampling=sampling,
        text_ids=len(ids),
        rng=generator(seed, "tokens"),
        told=PromptText(text=text, text_ids=ids, voice=voice, exaggeration=defaults.exaggeration),
    )
    prompt = prompt_of(t3, ids, voice, defaults=defaults, sampling=sampling, exaggeration=defaults.exaggeration)
    tokens = draws.begin(0, decoding, prompt)
    decoding.note(tokens[0])
    began = time.perf_counter()
    while not decoding.finished:
        (drawn,) = draws.step([Speaking(slot=0, decoding=decoding, last_token=tokens[-1])])
        if isinstance(drawn, Exception):
            raise drawn
        for token in drawn:
            tokens.append(token)
            decoding.note(token)
            if decoding.finished:
                break
    took = time.perf_counter() - began
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
        "\n| T3 by | draft | guesses | accepted | tokens a drafted pass | ms a token "
        "| tokens/s over plain | over torch's plain | same tokens |"
    )
    print("|---" * 9 + "|")
    for row in table:
        share, each = row["accepted_share"], row["tokens_per_drafted_pass"]
        plain = row["draft"] == "none"
        cells = (
            row["runtime"],
            row["draft"],
            "–" if plain else row["length"] or "adaptive",
            "–" if share is None else f"{100 * share:.0f} %",
            "–" if each is None else f"{each:.2f}",
            f"{row['ms_per_token']:.2f}",
            f"{row['over_plain']:.2f}",
            f"{row['over_torch']:.2f}",
            "yes" if row["same_tokens"] else "NO",
        )
        print("| " + " | ".join(map(str, cells)) + " |")


def chart(table: list[dict[str, Any]]) -> str:
    """Bars of the accepted share, one for each draft and number of guesses."""
    rows = [row for row in table if row["length"] and row["accepted_share"] is not None]
    high, left, wide = 26, 170, 400
    bars = []
    for i, row in enumerate(rows):
        y, share = 40 + high * i, row["accepted_share"]
        label = f"{row['draft']}, {row['length']} {'guess' if row['length'] == 1 else 'guesses'}"
        bars.append(
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{label}</text>'
            f'<rect x="{left}" y="{y}" width="{wide * share:.0f}" height="{high - 8}" fill="#4a7c9b"/>'
            f'<text x="{left + wide * share + 6:.0f}" y="{y + 14}">{100 * share:.0f} %, '
            f"{row['tokens_per_drafted_pass']:.2f} tokens a pass</text>"
        )
    size = f'width="{left + wide + 180}" height="{56 + high * len(rows)}"'
    style = 'font-family="sans-serif" font-size="13" fill="#333"'
    title = f'<text x="{left}" y="22" font-weight="bold">Guesses accepted, temperature {TEMPERATURE}</text>'
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{ground}{title}{"".join(bars)}</svg>\n'


if __name__ == "__main__":
    main()
