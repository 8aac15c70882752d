"""What a smaller memory of T3 costs and saves: the tables of docs/kv-cache.md.

    python benchmarks/kv_cache.py --part gpu                       # on a GPU: about a minute, random weights
    python benchmarks/kv_cache.py [--sentences 100]                # on a CPU, with the model's own weights
    python benchmarks/kv_cache.py --part speak --out FOLDER        # recordings, to be scored

- gpu: T3 of the multilingual size, 64 guided streams of 500 tokens after prompts of 100, each step one CUDA
  graph: tokens a second with the memory in slots of bfloat16 (by torch's attention, and by our kernels), and
  in cells of bfloat16, int8 and fp8, all of them or windows of half and a quarter. Whether the kernel is its
  twin. How many such streams fit in 40 GiB beside the weights. Needs torch, Triton, numpy and safetensors.
- agree: sentences are spoken greedily with the dense memory, then read again over each kind of cells: in how
  many places the likeliest token is the same, and how far the scores are off; the first --free of them are
  also spoken over int8, and every token compared. Bytes at the end of each sentence.
- speak: the same sentences with the same seeds by the whole engine in each profile, written as recordings:
      python -m nightingale_lab.bench.score FOLDER/dense FOLDER/texts.txt
- time: processor time of a step, dense and in cells, in turn.

The last line is JSON; what runs on a CPU is kept in benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from nightingale.models.chatterbox.t3.config import MULTILINGUAL, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_blocks import KVBlockLayout, KVBlockPool
from nightingale.models.layers.paged_kv_cache import KVBlockTables, PagedKVSequence
from nightingale.models.layers.rope import inverse_frequencies, rotations
from nightingale_lab.bench.paged_attention_reference import attend_reference

PROFILES = {
    "dense": "balanced",
    "int8": "balanced+cache=int8",
    "fp8": "balanced+cache=fp8",
    "keep50": "balanced+keep=50",
    "keep25": "balanced+keep=25",
    "int8_keep50": "balanced+cache=int8+keep=50",
    "int8_keep25": "balanced+cache=int8+keep=25",
}
STREAMS, PROMPT, TOKENS = 64, 100, 500
BUDGET_BYTES = 40 * 2**30
WARM_STEPS = 5
TUNINGS = [(64, 4), (128, 4), (64, 2), (32, 1)]
"""Of the kernel: cells at a time, and warps."""


def main() -> None:
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    parts = args.part or (["gpu"] if torch.cuda.is_available() else ["agree", "time"])
    result: dict[str, Any] = {}
    if "gpu" in parts:
        result["gpu"] = gpu(args)
        if parts == ["gpu"]:
            print(json.dumps(result, separators=(",", ":")))
            return
    from nightingale.engine.load import load_model
    from nightingale.engine.model import default_model
    from nightingale_lab.bench.store import append, results_folder, signed

    model = load_model(args.model or default_model(), device="cpu", dtype="auto", offline=True, options={})
    texts = Path(args.texts).read_text(encoding="utf-8").splitlines()[: args.sentences]
    result |= {"model": model.name, "sentences": len(texts)}
    if "agree" in parts:
        result["agree"] = agree(model, texts, args.free, args.variant or list(PROFILES))
        print_rows(result["agree"])
    if "time" in parts:
        result["time"] = step_times(model, args.variant or list(PROFILES), args.rounds)
        print_rows(result["time"])
    if "speak" in parts:
        result["speak"] = record(model, texts, Path(args.out), args.variant or list(PROFILES))
        print_rows(result["speak"])
    line = signed(result)
    append(line, "kv_cache", None if args.no_keep else results_folder())
    print(json.dumps(line, separators=(",", ":")))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--part", action="append", choices=["gpu", "agree", "speak", "time"])
    parser.add_argument("--model", help="a name or a folder")
    parser.add_argument("--variant", action="append", choices=list(PROFILES), help="all, if none is named")
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--free", type=int, default=100, help="so many are also spoken over int8, greedily")
    texts = Path(__file__).parents[1] / "src" / "nightingale" / "bench" / "texts" / "wren_200.txt"
    parser.add_argument("--texts", default=str(texts))
    parser.add_argument("--out", default="kv_cache_recordings", help="folder of the recordings")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--tiny", action="store_true", help="gpu: two small layers, to see that it runs")
    parser.add_argument("--no-keep", action="store_true", help="leave benchmarks/results as it is")
    return parser.parse_args()


def print_rows(rows: dict[str, dict[str, Any]]) -> None:
    heads = list(dict.fromkeys(key for row in rows.values() for key in row))
    print("\n| | " + " | ".join(heads) + " |\n|---|" + "---|" * len(heads))
    for name, row in rows.items():
        cells = (row.get(head, "") for head in heads)
        print(
            f"| {name} | " + " | ".join(f"{x:.5g}" if isinstance(x, float) else str(x) for x in cells) + " |"
        )


# ---- on a CPU, with real weights ----


def cells_for(model: Any, variant: str, *, spare: int | None = None) -> KVBlockLayout | None:
    from nightingale.backends.torch.paged import cells_of

    from nightingale.backends.profiles import profile_named

    plan = cells_of(model, profile_named(PROFILES[variant]))
    return plan if plan is None or spare is None else replace(plan, rewind_margin=spare)


@torch.inference_mode()
def agree(model: Any, texts: Sequence[str], free: int, variants: list[str]) -> dict[str, dict[str, Any]]:
    t3, width = model.networks.t3, model.networks.t3.config.backbone.width
    sums: dict[str, dict[str, float]] = {
        name: dict.fromkeys(("same", "bytes", "off", "kl"), 0.0) for name in variants
    }
    worst = dict.fromkeys(variants, 0.0)
    total, float_bytes, identical, same_free, spoken_free = 0, 0.0, 0, 0, 0
    for number, text in enumerate(texts):
        prompt, tokens = greedy(model, text, None)
        count, length = len(tokens), prompt.shape[1]
        total += count
        float_bytes += 2.0 * t3.config.backbone.layers * width * (length + count)
        x = t3.embed_speech(torch.tensor([tokens[:-1]]), 1)
        dense = t3.new_kv_cache(rows=1, capacity=length + count)
        expected = torch.cat([t3.next_logits(prompt, dense)[:, None], t3(x, dense)], dim=1)[0]
        for name in variants:
            # Cells to spare for the whole sentence: every token sees what it would see if it came alone.
            plan = cells_for(model, name, spare=count)
            if plan is None:
                sums[name]["same"] += count
                sums[name]["bytes"] += 4.0 * 2 * t3.config.backbone.layers * width * (length + count)
                continue
            block_pool = KVBlockPool(
                blocks=plan.blocks(length, count), layout=plan, device=prompt.device, attend=None
            )
            memory = PagedKVSequence.open(block_pool, rows=1, prompt=length, tokens=count).layers
            scores = torch.cat([t3.next_logits(prompt, memory)[:, None], t3(x, memory)], dim=1)[0]
            row = sums[name]
            row["same"] += int((scores.argmax(-1) == expected.argmax(-1)).sum())
            off = (scores - expected).abs().amax(-1) / expected.std(-1)
            row["off"] += float(off.sum())
            worst[name] = max(worst[name], float(off.max()))
            row["kl"] += float(
                F.kl_div(scores.log_softmax(-1), expected.log_softmax(-1), log_target=True, reduction="sum")
            )
            row["bytes"] += plan.held_blocks(length, count) * plan.block_bytes
        if number < free and "int8" in variants:
            _, mine = greedy(model, text, cells_for(model, "int8"))
            alike = next((n for n, (a, b) in enumerate(zip(mine, tokens, strict=False)) if a != b), count)
            identical += mine == tokens
            same_free, spoken_free = same_free + alike, spoken_free + count
    rows = {
        name: {
            "over fp32": row["bytes"] / (4 * float_bytes),
            "over fp16": row["bytes"] / (2 * float_bytes),
            "bytes a stream": round(row["bytes"] / len(texts)),
            "same greedy token": row["same"] / total,
            "mean off, std": row["off"] / total,
            "most off, std": worst[name],
            "KL, nats": row["kl"] / total,
        }
        for name, row in sums.items()
    }
    if spoken_free:
        rows["int8"] |= {
            "spoken: same until": same_free / spoken_free,
            "sentences alike": identical,
            "of": min(free, len(texts)),
        }
    return rows


def greedy(model: Any, text: str, plan: KVBlockLayout | None) -> tuple[Tensor, list[int]]:
    """A sentence's prompt, and its likeliest tokens one by one, over cells or over the dense memory."""
    from nightingale.decoding.decoding import Decoding, prompt_of

    t3, defaults, voice = model.networks.t3, model.defaults, model.default_voice
    sampling = replace(defaults.sampling, temperature=0.0)
    ids = model.frontend.encode(text)
    decoding = Decoding(t3, defaults=defaults, sampling=sampling, text_ids=len(ids), seed=0)
    prompt = prompt_of(
        t3, ids, voice, defaults=defaults, sampling=sampling, exaggeration=defaults.exaggeration
    )
    if plan is None:
        memory = t3.new_kv_cache(rows=1, capacity=prompt.shape[1] + decoding.budget)
    else:
        cells = plan.blocks(prompt.shape[1], decoding.budget)
        block_pool = KVBlockPool(blocks=cells, layout=plan, device=prompt.device, attend=None)
        memory = list(
            PagedKVSequence.open(block_pool, rows=1, prompt=prompt.shape[1], tokens=decoding.budget).layers
        )
    x, tokens = prompt, []
    with torch.inference_mode():
        while not decoding.finished:
            tokens.append(decoding.accept(t3.next_logits(x, memory)))
            x = t3.embed_speech(torch.tensor([[tokens[-1]]]), decoding.drawn)
    return prompt, tokens


def step_times(model: Any, variants: list[str], rounds: int) -> dict[str, dict[str, Any]]:
    """Milliseconds of processor time, in turn, after 80, 300 and 600 positions."""
    t3 = model.networks.t3
    rows: dict[str, dict[str, Any]] = {name: {} for name in variants}
    for length in (80, 300, 600):
        steps: dict[str, Callable[[], float]] = {}
        for name in variants:
            steps[name] = one_step(t3, cells_for(model, name), length)
        taken: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(rounds):
            for name, step in steps.items():
                taken[name].append(1000 * step())
        for name, times in taken.items():
            rows[name][f"ms after {length}"] = statistics.median(times)
    return rows


@torch.inference_mode()
def one_step(t3: T3, plan: KVBlockLayout | None, length: int) -> Callable[[], float]:
    prompt = torch.randn(1, 40, t3.config.backbone.width, generator=torch.Generator().manual_seed(1))
    said = torch.zeros(1, 8, dtype=torch.int64)
    if plan is None:
        memory = t3.new_kv_cache(rows=1, capacity=length + 16)
    else:
        plan = replace(plan, rewind_margin=8)
        block_pool = KVBlockPool(
            blocks=plan.blocks(40, length), layout=plan, device=prompt.device, attend=None
        )
        memory = list(PagedKVSequence.open(block_pool, rows=1, prompt=40, tokens=length).layers)
    t3.next_logits(prompt, memory)
    for _ in range((length - 40) // 8):
        t3.next_logits(t3.embed_speech(said, 1), memory)
    token = t3.embed_speech(said[:, :1], 1)

    @torch.inference_mode()
    def step() -> float:
        began = time.process_time()
        t3.next_logits(token, memory)
        took = time.process_time() - began
        for layer in memory:
            layer.rewind(layer.position - 1)  # type: ignore[attr-defined]
        return took

    return step


def record(model: Any, texts: Sequence[str], out: Path, variants: list[str]) -> dict[str, dict[str, Any]]:
    from nightingale.audio.encoders.recording import recording
    from nightingale.engine.tts import TTS

    out.mkdir(parents=True, exist_ok=True)
    (out / "texts.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    rows = {}
    for name in variants:
        (out / name).mkdir(exist_ok=True)
        retries = tokens = held = runaways = 0
        with TTS.over(model, PROFILES[name]) as tts:
            for number, text in enumerate(texts):
                spoken = tts.say(text, seed=number)
                with recording(out / name / f"{number:03d}.wav", spoken.sample_rate_hz) as recorder:
                    recorder.feed(spoken.samples)
                cost = spoken.metrics
                retries, tokens, held = retries + cost.retries, tokens + cost.tokens, held + cost.memory_bytes
                runaways += runs_away(model, text, cost.tokens)
        rows[name] = {
            "tokens": tokens,
            "retries": retries,
            "runaways": runaways,
            "bytes a stream": held // len(texts),
        }
    return rows


def runs_away(model: Any, text: str, tokens: int) -> bool:
    """Spoken to the very end of what it may take."""
    from nightingale.decoding.decoding import budget_tokens

    return tokens >= budget_tokens(len(model.frontend.encode(text)), model.defaults) - 1


# ---- on a GPU, with random weights ----


def gpu(args: argparse.Namespace) -> dict[str, Any]:
    device = torch.device("cuda")
    tokens = 40 if args.tiny else TOKENS
    config = (
        replace(MULTILINGUAL, backbone=replace(MULTILINGUAL.backbone, layers=2))
        if args.tiny
        else MULTILINGUAL
    )
    t3 = random_t3(config, device)
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    result["twin"] = {
        str(kind): twin(kind, device) for kind in (torch.int8, torch.float8_e4m3fn, torch.bfloat16)
    }
    print_rows(result["twin"])
    result["fit"] = fit(config, sum(w.nbytes for w in t3.parameters()))
    print_rows({name: {"streams": count} for name, count in result["fit"].items()})
    tried = {
        f"{cells} cells, {warps} warps": timed(
            lambda tuning=(cells, warps): in_cells(t3, STREAMS, tokens, torch.int8, None, tuning),
            STREAMS,
            tokens,
        )
        for cells, warps in TUNINGS
    }
    best = max(TUNINGS, key=lambda t: tried[f"{t[0]} cells, {t[1]} warps"].get("tokens/s", 0.0))
    result["tunings"], result["tuning"] = tried, best
    print_rows(tried)

    def ways(streams: int) -> dict[str, Callable[[], Callable[[], float]]]:
        found: dict[str, Callable[[], Callable[[], float]]] = {
            f"slots of bf16, {told}": lambda way=way: in_slots(t3, streams, tokens, way)
            for told, way in (("torch's attention", "sdpa"), ("our kernels", "triton"))
        }
        for told, kind, percent in (
            ("bf16", torch.bfloat16, None),
            ("int8", torch.int8, None),
            ("fp8", torch.float8_e4m3fn, None),
            ("int8, keep 50 %", torch.int8, 50),
            ("int8, keep 25 %", torch.int8, 25),
        ):
            found[f"cells of {told}"] = lambda kind=kind, percent=percent: in_cells(
                t3, streams, tokens, kind, percent, best
            )
        return found

    for streams in (STREAMS, 1):
        rows = result[f"streams_{streams}"] = {
            name: timed(make, streams, tokens) for name, make in ways(streams).items()
        }
        plain = max(row.get("tokens/s", 0.0) for name, row in rows.items() if name.startswith("slots"))
        for row in rows.values():
            if "tokens/s" in row and plain:
                row["over the best slots"] = row["tokens/s"] / plain
        print(f"\n{streams} guided streams, {tokens} tokens after a prompt of {PROMPT}:")
        print_rows(rows)
    return result


def timed(make: Callable[[], Callable[[], float]], streams: int, tokens: int) -> dict[str, Any]:
    """The better of two runs; what fails is named, and the others go on."""
    try:
        run = make()
        best = min(run() for _ in range(2))
        del run
        return {"tokens/s": streams * tokens / best, "ms a step": 1000 * best / tokens}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:150]}"}
    finally:
        torch.cuda.empty_cache()


def random_t3(config: T3Config, device: torch.device) -> T3:
    with torch.device("meta"):
        t3 = T3(config)
    t3.to_empty(device=device)
    for weight in t3.parameters():
        weight.data.uniform_(-0.02, 0.02)
    t3.to(torch.bfloat16)
    t3.tfmr.inverse = t3.tfmr._frequencies().to(device)  # type: ignore[operator]
    return t3.eval().requires_grad_(False)


def plan_for(config: T3Config, kind: torch.dtype, percent: int | None, tokens: int = TOKENS) -> KVBlockLayout:
    """percent: windows of uneven lengths, so many percent of the tokens on average."""
    backbone, windows = config.backbone, None
    if percent is not None:
        shares = [0.5 + (head % 5) / 4 for head in range(backbone.heads)]
        mean = sum(shares) / len(shares)
        layer = tuple(round(tokens * percent / 100 * share / mean) for share in shares)
        windows = (layer,) * backbone.layers
    width = backbone.width // backbone.heads
    return KVBlockLayout(
        layers=backbone.layers, heads=backbone.heads, width=width, dtype=kind, windows=windows
    )


def fit(config: T3Config, weights: int) -> dict[str, float]:
    """Guided streams of 500 tokens after prompts of 100, opened until there is no room."""
    from nightingale.errors import MemoryFull

    room, counts = BUDGET_BYTES - weights, {}
    for name, kind, percent in (
        ("bf16", torch.bfloat16, None),
        ("int8", torch.int8, None),
        ("int8, keep 50 %", torch.int8, 50),
        ("int8, keep 25 %", torch.int8, 25),
    ):
        plan = plan_for(config, kind, percent)
        # The block_pool's bookkeeping alone: what is counted is what would be allocated.
        block_pool = KVBlockPool(blocks=0, layout=plan, device=torch.device("cpu"), attend=None)
        block_pool.blocks, opened = room // plan.block_bytes, 0
        try:
            while True:
                PagedKVSequence.open(block_pool, rows=2, prompt=PROMPT, tokens=TOKENS)
                opened += 1
        except MemoryFull:
            counts[name] = opened
    return counts | {f"{name} over bf16": counts[name] / counts["bf16"] for name in list(counts)[1:]}


def fill_cells(
    t3: T3, streams: int, tokens: int, plan: KVBlockLayout, attend: Any
) -> tuple[KVBlockPool, list[KVBlockTables]]:
    """Streams whose prompts are random numbers: all rows of all streams are one stream of many rows."""
    device = t3.speech_head.weight.device
    rows = 2 * streams
    block_pool = KVBlockPool(
        blocks=rows * plan.blocks(PROMPT, tokens), layout=plan, device=device, attend=attend
    )
    stream = PagedKVSequence.open(block_pool, rows=rows, prompt=PROMPT, tokens=tokens)
    for layer in stream.layers:
        given = (
            torch.randn(rows, plan.heads, PROMPT, plan.width, device=device).bfloat16() for _ in range(3)
        )
        layer.attend(*given)
    starts = torch.from_numpy(stream.starts()).to(device)
    rings = (
        torch.tensor(stream.rings, dtype=torch.int32, device=device)[:, None]
        .expand(-1, rows, -1)
        .contiguous()
    )
    prompts = torch.full((rows,), PROMPT, dtype=torch.int32, device=device)
    lengths = prompts.clone()
    tables = [
        KVBlockTables(
            block_pool=block_pool, starts=starts[n], rings=rings[n], prompts=prompts, lengths=lengths
        )
        for n in range(plan.layers)
    ]
    return block_pool, tables


@torch.inference_mode()
def twin(kind: torch.dtype, device: torch.device) -> dict[str, Any]:
    """One step after another by the kernel and by torch, over the same cells, windows included."""
    from nightingale.backends.cuda.paged_attention import attend_cells

    config = replace(MULTILINGUAL, backbone=replace(MULTILINGUAL.backbone, layers=1))
    t3 = random_t3(config, device)
    most, alike = 0.0, True
    for percent in (None, 50):
        plan = replace(plan_for(config, kind, percent, tokens=60), rewind_margin=4)
        both = []
        for attend in (attend_cells, attend_reference):
            torch.manual_seed(3)
            both.append(fill_cells(t3, 1, 60, plan, attend))
        for step in range(60):
            torch.manual_seed(100 + step)
            q, k, v = (torch.randn(2, plan.heads, 1, plan.width, device=device).bfloat16() for _ in range(3))
            mine, other = (tables[0].attend(q, k, v) for _, tables in both)
            most = max(most, float((mine.float() - other.float()).abs().max()))
            for _, tables in both:
                tables[0].lengths.add_(1)
        ours, theirs = (block_pool for block_pool, _ in both)
        for name in ("keys", "values", "key_scales", "value_scales"):
            alike &= torch.equal(getattr(ours, name).view(torch.int8), getattr(theirs, name).view(torch.int8))
    return {"most off": most, "same cells": alike}


def in_cells(
    t3: T3,
    streams: int,
    tokens: int,
    kind: torch.dtype,
    percent: int | None,
    tuning: tuple[int, int],
) -> Callable[[], float]:
    from nightingale.backends.cuda.paged_attention import CellSteps, attend_cells
    from nightingale.backends.cuda.t3_layers import pack

    plan = plan_for(t3.config, kind, percent, tokens)
    with torch.inference_mode():
        _, tables = fill_cells(t3, streams, tokens, plan, attend_cells)
        steps = CellSteps(t3, pack(t3), turn_table(t3, PROMPT + tokens), tuning)  # type: ignore[arg-type]
    lengths = tables[0].lengths
    return replayed(t3, streams, tokens, lengths, {PROMPT + tokens: lambda x: steps(x, tables)})


def in_slots(t3: T3, streams: int, tokens: int, way: str) -> Callable[[], float]:
    """As the engine's decoder does: a graph for each span of remembered positions."""
    from nightingale.backends.cuda.t3_layers import PackedT3

    device, backbone = t3.speech_head.weight.device, t3.config.backbone
    whole = PROMPT + tokens
    packed = PackedT3(t3, positions=whole, way=way)  # type: ignore[arg-type]
    shape = (2 * streams, backbone.heads, whole, backbone.width // backbone.heads)
    caches = [
        tuple(torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2))
        for _ in range(backbone.layers)
    ]
    lengths = torch.full((2 * streams,), PROMPT, dtype=torch.int64, device=device)
    token = torch.zeros(2 * streams, dtype=torch.int64, device=device)

    def of_span(span: int) -> Callable[[Tensor], Tensor]:
        part = [(keys[:, :, :span], values[:, :, :span]) for keys, values in caches]
        return lambda _: packed.step(token, lengths - PROMPT + 1, part, lengths)

    spans = [span for span in (256, 512) if span < whole] + [whole]
    return replayed(t3, streams, tokens, lengths, {span: of_span(span) for span in spans})


def turn_table(t3: T3, positions: int) -> tuple[Tensor, Tensor]:
    backbone, weight = t3.config.backbone, t3.speech_head.weight
    inverse = inverse_frequencies(
        backbone.width // backbone.heads,
        theta=backbone.rope_theta,  # type: ignore[union-attr]
        scaling=backbone.rope_scaling,  # type: ignore[union-attr]
    ).to(weight.device)
    return rotations(inverse, torch.arange(positions, device=weight.device), weight.dtype)


def replayed(
    t3: T3, streams: int, tokens: int, lengths: Tensor, steps: dict[int, Callable[[Tensor], Tensor]]
) -> Callable[[], float]:
    """Seconds of all tokens, a graph to a step. steps: by how many positions they reach. Both kinds of memory
    are given the same embedding, and guided argmax takes the place of the draw."""
    device = lengths.device
    token = torch.zeros(2 * streams, dtype=torch.int64, device=device)

    def step(score: Callable[[Tensor], Tensor]) -> None:
        x = t3.embed_speech_at(token, lengths.long() - PROMPT + 1)
        told, untold = score(x).view(streams, 2, -1).unbind(1)
        token.view(streams, 2).copy_((told + 0.5 * (told - untold)).argmax(-1, keepdim=True))
        lengths.add_(1)

    graphs = {}
    with torch.inference_mode():
        for reach, score in steps.items():
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(WARM_STEPS):
                    step(score)
            torch.cuda.current_stream().wait_stream(aside)
            lengths.fill_(PROMPT)
            graphs[reach] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[reach]):
                step(score)
            lengths.fill_(PROMPT)

    def run() -> float:
        with torch.inference_mode():
            lengths.fill_(PROMPT)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for at in range(PROMPT, PROMPT + tokens):
            graphs[min(reach for reach in graphs if reach > at)].replay()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    return run


if __name__ == "__main__":
    main()
