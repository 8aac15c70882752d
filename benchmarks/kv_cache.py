"""Quality, size and time of smaller KV caches: the tables of docs/kv-cache.md.

    python benchmarks/kv_cache.py --part gpu                       # on a GPU: about a minute, random weights
    python benchmarks/kv_cache.py [--sentences 100]                # on a CPU, with the model's own weights
    python benchmarks/kv_cache.py --part speak --out FOLDER        # recordings to be scored
    python benchmarks/kv_cache.py --tiny                           # one sentence: proves that it runs

- gpu: throughput with the cache in slots and in paged blocks (benchmarks/kv_cache_gpu.py).
- agree: sentences are decoded greedily with the dense cache, then run again over each kind of paged cache:
  how often the most likely token is the same, and the error of the logits; the first --free of them are also
  decoded over int8, and every token is compared. Bytes at the end of each sentence.
- speak: the same sentences with the same seeds by the whole engine in each profile, written as recordings:
      python -m nightingale_lab.bench.score FOLDER/dense FOLDER/texts.txt
- time: processor time of a step with each cache, in turn.

The last line is JSON.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import torch
import torch.nn.functional as F
from torch import Tensor

from nightingale.backends.profiles import profile_named
from nightingale.backends.torch.decoder import kv_layout
from nightingale.backends.torch.runner import to_logits
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_blocks import KVBlockLayout, KVBlockPool
from nightingale.models.layers.paged_kv_cache import PagedKVSequence
from nightingale_lab import reference
from nightingale_lab.bench import script
from nightingale_lab.bench.sentences import sentences

PROFILES = {
    "dense": "balanced",
    "int8": "balanced+cache=int8",
    "fp8": "balanced+cache=fp8",
    "keep50": "balanced+keep=50",
    "keep25": "balanced+keep=25",
    "int8_keep50": "balanced+cache=int8+keep=50",
    "int8_keep25": "balanced+cache=int8+keep=25",
}
LENGTHS = (80, 300, 600)
"""Positions in the cache before a step is timed."""


def main() -> None:
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    parts = args.part or (["gpu"] if torch.cuda.is_available() else ["agree", "time"])
    result: dict[str, Any] = {}
    if "gpu" in parts:
        import kv_cache_gpu

        result["gpu"] = kv_cache_gpu.measure(tiny=args.tiny)
    if parts != ["gpu"]:
        model = reference.load(args.model)
        variants = args.variant or list(PROFILES)[: 2 if args.tiny else None]
        lines = args.texts.read_text(encoding="utf-8").splitlines() if args.texts else sentences("wren_200")
        texts = [min(lines, key=len)] if args.tiny else lines[: args.sentences]
        result |= {"model": model.name, "sentences": len(texts)}
        acts: dict[str, Callable[[], dict[str, dict[str, Any]]]] = {
            "agree": lambda: agree(model, texts, args.free, variants),
            "time": lambda: step_times(model, variants, args),
            "speak": lambda: record(model, texts, args.out, variants),
        }
        for part, act in acts.items():
            if part in parts:
                result[part] = act()
                script.print_rows(part, result[part])
    script.finish(result, "kv_cache", args)


def arguments() -> argparse.Namespace:
    parser = script.parser(__doc__)
    parser.add_argument("--part", action="append", choices=["gpu", "agree", "speak", "time"])
    parser.add_argument("--model", help="a name or a folder")
    parser.add_argument("--variant", action="append", choices=list(PROFILES), help="default: all")
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--free", type=int, default=100, help="sentences that are also decoded over int8")
    parser.add_argument("--texts", type=Path, help="a file with one sentence per line")
    parser.add_argument("--out", type=Path, default=Path("kv_cache_recordings"), help="folder of recordings")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=40)
    return parser.parse_args()


def layout_for(model: Any, variant: str, *, spare: int | None = None) -> KVBlockLayout | None:
    """Return the paged layout of a variant; None for the dense cache."""
    setup = reference.setup_for(profile_named(PROFILES[variant]))
    layout = kv_layout(model.source, setup, reference.networks_of(model).t3)
    return layout if layout is None or spare is None else replace(layout, rewind_margin=spare)


def new_cache(t3: T3, layout: KVBlockLayout | None, prompt: Tensor, tokens: int) -> list[Any]:
    """Return an empty cache for a prompt (rows, positions, width) and that many tokens."""
    rows, length, _ = prompt.shape
    if layout is None:
        return list(t3.new_kv_cache(rows=rows, capacity=length + tokens))
    blocks = rows * layout.blocks(length, tokens)
    pool = KVBlockPool(blocks=blocks, layout=layout, device=prompt.device, attend=None)
    return list(PagedKVSequence(pool, rows=rows, prompt=length, tokens=tokens).layers)


@torch.inference_mode()
def agree(model: Any, texts: Sequence[str], free: int, variants: list[str]) -> dict[str, dict[str, Any]]:
    t3 = reference.networks_of(model).t3
    position_floats = 2.0 * t3.config.backbone.layers * t3.config.backbone.width
    sums = {name: dict.fromkeys(("same", "bytes", "error", "kl"), 0.0) for name in variants}
    worst = dict.fromkeys(variants, 0.0)
    total, floats, identical, same_free, drawn_free = 0, 0.0, 0, 0, 0
    for number, text in enumerate(texts):
        prompt, tokens = greedy(model, text, None)
        count, length = len(tokens), prompt.shape[1]
        total += count
        floats += position_floats * (length + count)

        def logits_of(
            layout: KVBlockLayout | None, prompt: Tensor = prompt, tokens: list[int] = tokens
        ) -> Tensor:
            cache = new_cache(t3, layout, prompt, len(tokens))
            x = t3.embed_speech(torch.tensor([tokens[:-1]] * len(prompt)), 1)
            return torch.cat([t3.next_logits(prompt, cache)[:, None], t3(x, cache)], dim=1)[0]

        expected = logits_of(None)
        for name in variants:
            # Spare blocks for the whole sentence: every token sees what it would see if it came alone.
            layout, row = layout_for(model, name, spare=count), sums[name]
            if layout is None:
                row["same"] += count
                row["bytes"] += 4.0 * position_floats * (length + count)
                continue
            logits = logits_of(layout)
            row["same"] += int((logits.argmax(-1) == expected.argmax(-1)).sum())
            error = (logits - expected).abs().amax(-1) / expected.std(-1)
            row["error"] += float(error.sum())
            worst[name] = max(worst[name], float(error.max()))
            both = logits.log_softmax(-1), expected.log_softmax(-1)
            row["kl"] += float(F.kl_div(*both, log_target=True, reduction="sum"))
            row["bytes"] += layout.held_blocks(length, count) * layout.block_bytes
        if number < free and "int8" in variants:
            _, own = greedy(model, text, layout_for(model, "int8"))
            until = next((n for n, (a, b) in enumerate(zip(own, tokens, strict=False)) if a != b), count)
            identical += own == tokens
            same_free, drawn_free = same_free + until, drawn_free + count
    rows = {
        name: {
            "over fp32": row["bytes"] / (4 * floats),
            "over fp16": row["bytes"] / (2 * floats),
            "bytes per stream": round(row["bytes"] / len(texts)),
            "same greedy token": row["same"] / total,
            "mean error, std": row["error"] / total,
            "largest error, std": worst[name],
            "KL, nats": row["kl"] / total,
        }
        for name, row in sums.items()
    }
    if drawn_free:
        decoded = {"decoded: same until": same_free / drawn_free, "identical sentences": identical}
        rows["int8"] |= {**decoded, "of": min(free, len(texts))}
    return rows


@torch.inference_mode()
def greedy(model: Any, text: str, layout: KVBlockLayout | None) -> tuple[Tensor, list[int]]:
    """Return a sentence's prompt and its greedy tokens, over a paged or over the dense cache."""
    t3, decoding = reference.networks_of(model).t3, reference.decoding_of(model, text, temperature=0.0)
    prompt = reference.prompt_embeddings(model, t3, decoding)
    cache = new_cache(t3, layout, prompt, decoding.budget)
    x, tokens = prompt, []
    while not decoding.finished:
        tokens.append(decoding.accept(to_logits(t3.next_logits(x, cache))))
        x = t3.embed_speech(torch.tensor([[tokens[-1]]] * len(prompt)), decoding.appended)
    return prompt, tokens


def step_times(model: Any, variants: list[str], args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the milliseconds of processor time of a step at several lengths, variants in turn."""
    lengths, rounds = (LENGTHS[:1], 2) if args.tiny else (LENGTHS, args.rounds)
    rows: dict[str, dict[str, Any]] = {name: {} for name in variants}
    for length in lengths:
        t3 = reference.networks_of(model).t3
        steps = {name: step_at(t3, layout_for(model, name), length) for name in variants}
        taken: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(rounds):
            for name, step in steps.items():
                taken[name].append(1000 * step())
        for name, times in taken.items():
            rows[name][f"ms after {length}"] = statistics.median(times)
    return rows


@torch.inference_mode()
def step_at(t3: T3, layout: KVBlockLayout | None, length: int) -> Callable[[], float]:
    """Return a function that takes one step with that many positions in the cache, and its seconds."""
    prompt = torch.randn(1, 40, t3.config.backbone.width, generator=torch.Generator().manual_seed(1))
    ids = torch.zeros(1, 8, dtype=torch.int64)
    cache = new_cache(t3, layout and replace(layout, rewind_margin=8), prompt, length)
    t3.next_logits(prompt, cache)
    for _ in range((length - 40) // 8):
        t3.next_logits(t3.embed_speech(ids, 1), cache)
    token = t3.embed_speech(ids[:, :1], 1)

    @torch.inference_mode()
    def step() -> float:
        began = time.process_time()
        t3.next_logits(token, cache)
        took = time.process_time() - began
        for layer in cache:
            layer.rewind(layer.position - 1)
        return took

    return step


def record(model: Any, texts: Sequence[str], out: Path, variants: list[str]) -> dict[str, dict[str, Any]]:
    from nightingale.audio.samples import wav_bytes
    from nightingale.decoding.decoding import token_budget
    from nightingale.engine.tts import TTS

    out.mkdir(parents=True, exist_ok=True)
    (out / "texts.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    rows = {}
    for name in variants:
        (out / name).mkdir(exist_ok=True)
        retries = tokens = held = runaways = 0
        with TTS.over(model, PROFILES[name]) as tts:
            for number, text in enumerate(texts):
                audio = tts.say(text, seed=number)
                path, cost = out / name / f"{number:03d}.wav", audio.metrics
                path.write_bytes(wav_bytes(audio.samples, audio.sample_rate_hz))
                retries, tokens, held = retries + cost.retries, tokens + cost.tokens, held + cost.memory_bytes
                budget = token_budget(len(model.frontend.encode(text)), model.defaults)
                runaways += cost.tokens >= budget - 1
        row = {"tokens": tokens, "retries": retries, "runaways": runaways}
        rows[name] = {**row, "bytes per stream": held // len(texts)}
    return rows


if __name__ == "__main__":
    main()
