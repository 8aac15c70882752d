"""Cost and gain of speculative decoding, for each kind of draft: docs/speculative.md.

    python benchmarks/speculative.py [--model FOLDER] [--sentences N] [--draft NAME]… [--part verify|speak]…
    python benchmarks/speculative.py --tiny        # one sentence: proves that it runs

- verify: a pass of T3 over 1 … 9 tokens, over a step; for the model, and for random weights of the
  multilingual width with a fifth of its layers (too large for any cache), in torch and, if installed, in
  onnxruntime: in float32, and with int8 weights; by our own int8 kernels with one row and with both rows of a
  guided utterance. Processor time.
- speak: the same sentences with the same seeds, plain and with each draft in turn: tokens per second over
  plain decoding by the same runtime and by torch, with adaptive and with fixed draft lengths; the acceptance
  rate; whether every token is the same as without a draft. Wall time: run it on an idle machine.

Variants alternate, sentence by sentence. The last line is JSON. --chart FILE plots the acceptance rates.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import checkout  # noqa: F401
import torch

from nightingale.backends.base import Decoder, ModelInfo, ModelSource
from nightingale.backends.profiles import BALANCED, EXACT
from nightingale.decoding.decoding import DraftStats, Prompt
from nightingale.decoding.host_decoder import HostDecoder
from nightingale.decoding.runner import MAX_DRAFT_TOKENS, DraftVerifier, VerifyInput
from nightingale.decoding.speculative import Costs, SpeculativeDecoder
from nightingale.engine.load import Model
from nightingale.models.chatterbox.presets import PRESETS, Preset
from nightingale.models.chatterbox.t3.config import LlamaConfig
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale_lab import reference
from nightingale_lab.bench import script
from nightingale_lab.bench.report import svg
from nightingale_lab.bench.sentences import sentences
from nightingale_lab.random_models import random_t3, random_voice

TEMPERATURE = 0.8
FREE = Costs(several=1.0, token=0.0)
"""Costs of nothing, for which the adaptive length is the longest allowed."""
PRECISIONS = {"torch": "float32", "onnx": "float32", "cpu": "int8"}
PACKAGES = {"onnx": "onnxruntime", "cpu": "llvmlite"}
"""The package that a runtime besides torch needs."""
CACHED = 100
"""Text ids of the prompt before the timed pass, which puts it into the middle of a sentence."""


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    parts = args.part or ["verify", "speak"]
    model = reference.load(args.model)
    result: dict[str, Any] = {"temperature": TEMPERATURE, "threads": args.threads}
    if "verify" in parts:
        layers, rounds = (1, 1) if args.tiny else (6, args.rounds)
        result["verify"] = verify_tables(model, layers, args.threads, rounds)
        print_verify(result["verify"])
    if "speak" in parts:
        drafts, lengths = args.draft or ["head", "lookup"], args.length or [1, 2, 3]
        lines = sentences("wren_200") if args.texts is None else args.texts.read_text().splitlines()
        texts = [line for line in lines if line.strip()][: args.sentences]
        if args.tiny:
            texts, drafts, lengths = [min(texts, key=len)], args.draft or ["lookup"], [1]
        result["speak"] = speak_table(model, drafts, lengths, texts, args.threads, args.language)
        print_speak(result["speak"])
        if args.chart:
            args.chart.write_text(chart(result["speak"]), encoding="utf-8")
    script.finish(result, "speculative", args)


def arguments() -> argparse.Namespace:
    parser = script.parser(__doc__)
    parser.add_argument("--model", help="a name or a folder")
    parser.add_argument("--texts", type=Path, help="a file of sentences, one per line")
    parser.add_argument("--language", help="language code of the sentences, for multilingual models")
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--draft", action="append", help="head, lookup, a file, or a model")
    parser.add_argument("--chart", type=Path, help="an SVG of the acceptance rates")
    parser.add_argument("--length", action="append", type=int, help="fixed draft lengths")
    parser.add_argument("--part", action="append", choices=["verify", "speak"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


def verify_tables(model: Model, layers: int, threads: int, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of a pass over 1, 2, … tokens."""
    backbone = LlamaConfig(layers=layers)
    preset = replace(PRESETS["multilingual"], t3=replace(PRESETS["multilingual"].t3, backbone=backbone))
    info = ModelInfo(name="multilingual", preset=preset, defaults=MODEL_DEFAULTS["multilingual"])
    large = ModelSource(info, {}, loaded={"t3": random_t3(preset.t3)})
    cases = [("model", model.source, "torch", "float32"), ("model", model.source, "onnx", "float32")]
    name = f"{layers} layers of 30"
    cases += [(name, large, "torch", "float32"), (name, large, "onnx", "int8"), (name, large, "cpu", "int8")]
    cases.append((f"{name}, both rows", large, "cpu", "int8"))
    found = {}
    for what, source, backend, precision in cases:
        if backend == "torch" or importlib.util.find_spec(PACKAGES[backend]) is not None:
            guided = what.endswith("both rows")
            runner = open_runner(source, backend, precision, threads, guided=guided)
            found[f"{what}, {backend}, {precision}"] = passes(runner, source, rounds, guided=guided)
    return found


def open_runner(
    source: ModelSource, backend: str, precision: str, threads: int, *, guided: bool
) -> DraftVerifier:
    """Open a backend's decoder for one utterance, and return its runner."""
    info = source.info
    ignored = info.defaults.ignored | ({"cfg_weight"} if not guided else set())
    defaults = replace(info.defaults, ignored=ignored, max_new_tokens=100)
    single = source.with_info(replace(info, defaults=defaults))
    setup = reference.setup_for(replace(EXACT, slots=1), precision=precision, threads=threads)
    decoder = reference.backend_named(backend).open_decoder(single, setup)
    assert isinstance(decoder, HostDecoder)
    runner: DraftVerifier = decoder.runner  # type: ignore[assignment]
    return runner


def passes(runner: DraftVerifier, source: ModelSource, rounds: int, *, guided: bool) -> list[float]:
    """Return the median milliseconds of passes over 1 … 9 tokens, in turn."""
    runner.prefill(0, random_prompt(source.info.preset, guided=guided), max_tokens=50)
    taken: list[list[float]] = [[] for _ in range(MAX_DRAFT_TOKENS + 1)]
    for _ in range(rounds):
        for count, times in enumerate(taken, start=1):
            began = time.process_time()
            runner.verify([VerifyInput(slot=0, tokens=[7] * count, position=1)])
            times.append(1000 * (time.process_time() - began))
            runner.rewind(0, count)
    return [statistics.median(times) for times in taken]


def random_prompt(preset: Preset, *, guided: bool) -> Prompt:
    voice = random_voice(preset, prompt_tokens=20)
    return Prompt(text="", text_ids=[7] * CACHED, voice=voice, exaggeration=0.5, guided=guided)


class Variant(NamedTuple):
    """A runtime, and what drafts for it."""

    runtime: str
    draft: str
    length: int
    """Drafted tokens per pass; 0 is adaptive."""
    decoder: Decoder


def variants(model: Model, drafts: list[str], lengths: list[int], threads: int) -> list[Variant]:
    profile = replace(BALANCED, batched=False, slots=1, stream="segment")
    runtimes = ["torch"]
    for runtime in PACKAGES:
        setup = reference.setup_for(profile, precision=PRECISIONS[runtime], threads=threads)
        backend = reference.backend_named(runtime)
        if backend.unsupported_reason("decoder", model.info, setup) is None:
            runtimes.append(runtime)

    def opened(runtime: str, draft: str) -> Any:
        drafted, precision = replace(profile, draft=draft), PRECISIONS[runtime]
        setup = reference.setup_for(drafted, precision=precision, threads=threads)
        return reference.backend_named(runtime).open_decoder(model.source, setup)

    found = [Variant(runtime, "", 0, opened(runtime, "")) for runtime in runtimes]
    for name in drafts:
        runtime = runtimes[-1]
        for length in (0, *lengths):
            decoder = opened(runtime, name)
            if length:
                parts = decoder._verifier, decoder._draft, decoder.kv_budget
                decoder = SpeculativeDecoder(*parts, costs=FREE, after=1, longest=length)
            found.append(Variant(runtime, name, length, decoder))
    return found


def speak_table(
    model: Model,
    drafts: list[str],
    lengths: list[int],
    texts: list[str],
    threads: int,
    language: str | None,
) -> list[dict[str, Any]]:
    """Return a row for each variant; those without a draft come first, torch before all."""
    found = variants(model, drafts, lengths, threads)
    sums = [[0.0] * 5 for _ in found]
    same = [True] * len(found)
    decode(model, found[0].decoder, texts[0], language, 0)  # warm up
    for seed, text in enumerate(texts):
        expected: dict[str, list[int]] = {}
        for i, variant in enumerate(found):
            tokens, spent, stats = decode(model, variant.decoder, text, language, seed)
            same[i] &= tokens == expected.setdefault(variant.runtime, tokens)
            counted = (len(tokens), spent, stats.drafted, stats.accepted, stats.passes)
            sums[i] = [have + more for have, more in zip(sums[i], counted, strict=True)]
    plain = {variant.runtime: sums[i] for i, variant in enumerate(found) if not variant.draft}

    def speed_over(mine: list[float], other: list[float]) -> float:
        return (mine[0] / mine[1]) / (other[0] / other[1])

    return [
        {
            "runtime": variant.runtime,
            "draft": variant.draft or "none",
            "length": variant.length,
            "over_plain": speed_over(mine, plain[variant.runtime]),
            "over_torch": speed_over(mine, plain["torch"]),
            "accepted_share": mine[3] / mine[2] if mine[2] else None,
            "tokens_per_drafted_pass": 1 + mine[3] / mine[4] if mine[4] else None,
            "passes_saved_share": mine[3] / mine[0],
            "same_tokens": equal,
            "tokens": int(mine[0]),
            "ms_per_token": 1000 * mine[1] / mine[0],
        }
        for variant, mine, equal in zip(found, sums, same, strict=True)
    ]


def decode(
    model: Model, decoder: Decoder, text: str, language: str | None, seed: int
) -> tuple[list[int], float, DraftStats]:
    """Return the tokens of one sentence, the seconds of its steps without the prefill, and draft counts."""
    decoding = reference.decoding_of(model, text, seed=seed, language=language, temperature=TEMPERATURE)
    first = reference.prefill(decoder, decoding)
    began = time.perf_counter()
    (tokens,) = reference.decode_rest(decoder, [decoding], [first])
    return tokens, time.perf_counter() - began, decoding.stats


def print_verify(tables: dict[str, list[float]]) -> None:
    rows: list[tuple[object, ...]] = []
    for name, times in tables.items():
        ratios = [ms / times[0] for ms in times]
        rows.append((f"{name}, ms", *times))
        rows.append(("over a step", *ratios))
        rows.append(("pays from", None, *(pays_from(ratio, k) for k, ratio in enumerate(ratios[1:], 1))))
    script.print_table("A pass over several tokens", ("tokens", *range(1, MAX_DRAFT_TOKENS + 2)), rows)  # type: ignore[arg-type]


def pays_from(cost: float, drafted: int) -> str:
    """Return the acceptance rate from which that many drafted tokens pay, if drafting costs nothing."""
    for percent in range(101):
        if sum((percent / 100) ** n for n in range(drafted + 1)) >= cost:
            return f"{percent} %"
    return "never"


def print_speak(table: list[dict[str, Any]]) -> None:
    head = ("T3 by", "draft", "length", "accepted", "tokens per drafted pass", "ms per token")
    head += ("tokens/s over plain", "over torch's plain", "same tokens")
    rows = []
    for row in table:
        share, plain = row["accepted_share"], row["draft"] == "none"
        rows.append(
            (
                row["runtime"],
                row["draft"],
                None if plain else row["length"] or "adaptive",
                None if share is None else f"{100 * share:.0f} %",
                row["tokens_per_drafted_pass"],
                row["ms_per_token"],
                row["over_plain"],
                row["over_torch"],
                "yes" if row["same_tokens"] else "NO",
            )
        )
    script.print_table("Speculative decoding", head, rows)


def chart(table: list[dict[str, Any]]) -> str:
    """Return bars of the acceptance rate for each draft and length."""
    shares = {
        f"{row['draft']}, {row['length']}": 100 * row["accepted_share"]
        for row in table
        if row["length"] and row["accepted_share"] is not None
    }
    title = f"Accepted drafts, temperature {TEMPERATURE}"
    style = "<style>text{font:13px sans-serif;fill:#333}.bar{fill:#4a7c9b}</style>"
    drawn = svg.bars(title, shares, unit="%").replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return drawn.replace("<title>", f"{style}<title>", 1) + "\n"


if __name__ == "__main__":
    main()
