"""The CPU table of docs/performance.md: one sentence of 102 tokens by the large models, T3 in eight bits.

    python benchmarks/cpu.py                                   # ours: about three minutes on two slow cores
    python benchmarks/cpu.py --upstream-python VENV/bin/python # and upstream, from a venv with chatterbox-tts
    python benchmarks/cpu.py --tiny                            # the same path in seconds: proves that it runs
    python benchmarks/cpu.py --runtime onnxruntime             # not what the profile `fast` would choose here

Needs the extra `cpu`. Weights are random and of full size, which costs the time that real ones cost; a
sentence is 102 speech tokens (4.08 s) of 60 text ids in a voice with a ten-second prompt. *Warm* means: the
model and the voice have spoken before, but never this text. Each part runs in a process of its own, so that
its peak of memory is its own. The last line is JSON; it is also appended to benchmarks/results/cpu.jsonl,
with machine and commit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOKENS, TEXT_IDS, PROMPT_TOKENS, TOKENS_PER_S = 102, 60, 250, 25
UPSTREAM_TOKENS = 18
"""Upstream's steps are alike and slow: so many are timed, and counted as often as a sentence has them."""
SWEEP_BYTES = 768 * 2**20
"""Far more than any cache holds."""
GOALS = {
    "T3 multilingual int8 step / time to read its weights": ("≤", 1.8, 1.2),
    "multilingual int8 + meanflow, real-time factor": ("≤", 1.6, 0.9),
    "Nano int8, real-time factor": ("≤", 0.8, 0.4),
    "speed-up over upstream: multilingual": ("≥", 5.0, 10.0),
    "speed-up over upstream: Nano": ("≥", 2.5, 6.0),
    "peak memory, multilingual int8, GiB": ("≤", 2.0, 1.3),
}
"""Must and aim, of the issue."""


def peak_gib() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


# --- ours, each in a process of its own ------------------------------------------------------------------


def preset_of(name: str, *, tiny: bool) -> Any:
    """Meanflow for all: on a CPU the ten guided steps of the larger flow are out of the question."""
    from nightingale.engine.standin import NOISE

    from nightingale.models.chatterbox.presets import PRESETS
    from nightingale.models.chatterbox.t3.config import Gpt2Config

    preset = replace(PRESETS[name], flow=replace(PRESETS[name].flow, meanflow=True))
    if tiny:
        small = {"layers": 2, "width": 128, "heads": 2}
        if not isinstance(preset.t3.backbone, Gpt2Config):
            small["ffn"] = 256
        backbone = replace(preset.t3.backbone, **small)
        flow = replace(NOISE.flow, speaker_width=192)
        preset = replace(preset, t3=replace(preset.t3, backbone=backbone), flow=flow, hift=NOISE.hift)
    return preset


def make(name: str, work: Path, *, tiny: bool) -> dict[str, Any]:
    """Files of random weights, as the hub would give them."""
    import torch
    from safetensors.torch import save_file

    from nightingale.models.chatterbox.hift.generator import Hift
    from nightingale.models.chatterbox.s3gen.flow import Flow
    from nightingale.models.chatterbox.t3.model import T3

    torch.manual_seed(0)
    preset = preset_of(name, tiny=tiny)
    nets = {"": T3(preset.t3), ".flow": Flow(preset.flow), ".hift": Hift(preset.hift)}
    for part, net in nets.items():
        save_file(net.state_dict(), work / f"{name}{part}.safetensors")
    return {}


def opened(name: str, work: Path, runtime: str, *, tiny: bool) -> tuple[Any, Any, Any]:
    """Weights mapped from their file, packed, and T3 without its layers."""
    from nightingale.backends.cpu.capabilities import weight_format
    from nightingale.backends.onnx.graph import OnnxFormat
    from nightingale.backends.shared.packed_t3 import digest_of_file, pack, without_backbone
    from nightingale.models.checkpoint import read_tensors

    path, config = work / f"{name}.safetensors", preset_of(name, tiny=tiny).t3
    tensors = read_tensors(path)
    source = digest_of_file(path, cache_dir=work / "packed")
    kind = weight_format() if runtime == "native" else OnnxFormat()
    packed = pack(config, tensors, kind, cache_dir=work / "packed", source=source, mapped=True)
    return tensors, packed, without_backbone(config, tensors, source=path)


def packing(name: str, work: Path, threads: int, *, tiny: bool, runtime: str) -> dict[str, Any]:  # noqa: ARG001
    started = time.perf_counter()
    _, packed, _ = opened(name, work, runtime, tiny=tiny)
    return {"seconds": time.perf_counter() - started, "bytes": packed.bytes, "peak_gib": peak_gib()}


def bandwidth(threads: int, rounds: int = 5) -> float:
    """Bytes a second: the quickest of several ways to read memory once."""
    import numpy as np

    memory = np.ones(SWEEP_BYTES // 8, np.int64)
    parts = np.array_split(memory, threads)
    best = 0.0
    for read in (np.sum, np.max, np.bitwise_or.reduce):
        for _ in range(rounds):
            readers = [threading.Thread(target=read, args=(part,)) for part in parts]
            started = time.perf_counter()
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            best = max(best, memory.nbytes / (time.perf_counter() - started))
    return best


def chosen_runtime(config: Any) -> str:
    """As the profile `fast` does (engine/load.py)."""
    from nightingale.backends.cpu.capabilities import unsupported_reason

    return "native" if unsupported_reason(config) is None else "onnxruntime"


class Speaker:
    """T3 in eight bits, and what the engine does around it."""

    def __init__(self, name: str, work: Path, threads: int, *, tiny: bool, runtime: str) -> None:
        import torch

        from nightingale.models.defaults import MODEL_DEFAULTS
        from nightingale.voices.voice import Voice

        self.preset, self.defaults = preset_of(name, tiny=tiny), MODEL_DEFAULTS[name]
        self.runtime, self.guided = runtime, self.defaults.sampling.cfg_weight > 0
        _, self.packed, self.t3 = opened(name, work, runtime, tiny=tiny)
        self.runner = self.opened_runner(threads)
        self.rng = torch.Generator().manual_seed(0)
        shown = min(self.preset.t3.prompt_tokens, PROMPT_TOKENS)
        self.voice = Voice.checked(
            name="random",
            family="chatterbox" if self.guided else "turbo",
            speaker=torch.rand(256, generator=self.rng),
            prompt_ids=self.ids(shown, 6561),
            flow_prompt_ids=self.ids(PROMPT_TOKENS, 6561),
            flow_prompt_mel=torch.randn(2 * PROMPT_TOKENS, 80, generator=self.rng),
            flow_speaker=torch.randn(192, generator=self.rng),
        )

    def opened_runner(self, threads: int) -> Any:
        from nightingale.backends.cpu.capabilities import open_runner
        from nightingale.backends.onnx.graph import GRAPH_FILE
        from nightingale.backends.onnx.runner import CpuRunner

        room = {"slots": 1, "rows_per_slot": 2 if self.guided else 1, "capacity": 1024}
        if self.runtime == "native":
            return open_runner(self.t3, self.packed, **room, batched=True, threads=threads)
        return CpuRunner(self.t3, self.packed.folder / GRAPH_FILE, **room, batched=True, threads=threads)

    def ids(self, count: int, below: int) -> Any:
        import torch

        return torch.randint(1, below, (count,), generator=self.rng)

    def begin(self, text_ids: int) -> tuple[Any, Any]:
        """A decoding of a text never seen before, and its first scores."""
        from nightingale.decoding.decoding import Decoding, prompt_of

        # Below 255, where no family has its start and stop of text.
        text = self.ids(text_ids, 255).tolist()
        sampling = self.defaults.sampling
        prompt = prompt_of(
            self.t3, text, self.voice, defaults=self.defaults, sampling=sampling, exaggeration=0.5
        )
        decoding = Decoding(self.t3, defaults=self.defaults, sampling=sampling, text_ids=len(text), seed=0)
        return decoding, self.runner.begin(0, prompt)

    def speak(self, tokens: int, text_ids: int = TEXT_IDS) -> tuple[list[int], float, list[float]]:
        """So many ids, whatever a random network stops at; seconds of the prompt and of each step."""
        from nightingale.backends.torch.runner import Turn

        started = time.perf_counter()
        decoding, scores = self.begin(text_ids)
        spoken, steps = [decoding.draw(scores)], []
        decoding.note(spoken[-1])
        prompt_s = time.perf_counter() - started
        while len(spoken) < tokens:
            started = time.perf_counter()
            turn = Turn(slot=0, token=spoken[-1], position=decoding.drawn)
            spoken.append(decoding.draw(self.runner.step([turn])[0]))
            decoding.note(spoken[-1])
            steps.append(time.perf_counter() - started)
        return spoken, prompt_s, steps


def step(name: str, work: Path, threads: int, *, tiny: bool, runtime: str) -> dict[str, Any]:
    speaker = Speaker(name, work, threads, tiny=tiny, runtime=runtime)
    speaker.speak(8, TEXT_IDS + 7)
    before = bandwidth(threads, 3)
    _, prompt_s, steps = speaker.speak(TOKENS)
    per_second = max(before, bandwidth(threads, 3))
    reading_s = speaker.packed.bytes / per_second
    took = statistics.median(steps)
    return {
        "runtime": speaker.runtime,
        "step_ms": 1000 * took,
        "step_ms_least": 1000 * min(steps),
        "prompt_ms": 1000 * prompt_s,
        "gb_per_s": per_second / 1e9,
        "gb_per_s_one_thread": bandwidth(1, 2) / 1e9,
        "reading_ms": 1000 * reading_s,
        "ratio": took / reading_s,
    }


def sentence(name: str, work: Path, threads: int, *, tiny: bool, runtime: str) -> dict[str, Any]:
    """Text ids to samples, warm; flow and vocoder as they stream, the sentence in one block."""
    from nightingale.backends.cpu.bf16 import bf16_flow, bf16_unsupported_reason, bf16_vocoder
    from nightingale.backends.cpu.capabilities import kernel_context
    from nightingale.backends.cpu.int8_networks import int8_flow, int8_vocoder
    from nightingale.backends.torch.mel_stream import MelStream, audible, prepare_prompt
    from nightingale.backends.torch.sample_stream import SampleStream
    from nightingale.models.chatterbox.hift.generator import Hift
    from nightingale.models.chatterbox.s3gen.flow import Flow
    from nightingale.models.checkpoint import load, read_tensors
    from nightingale.models.layers.weight_layout import pack_for_rendering

    speaker = Speaker(name, work, threads, tiny=tiny, runtime=runtime)
    files = {part: work / f"{name}.{part}.safetensors" for part in ("flow", "hift")}
    flow = load(lambda: Flow(speaker.preset.flow), read_tensors(files["flow"]), source=files["flow"])
    hift = load(lambda: Hift(speaker.preset.hift), read_tensors(files["hift"]), source=files["hift"])
    # As the profile `fast` does (engine/load.py, backends/torch/cpu_layout.py).
    refused = bf16_unsupported_reason(threads)
    if refused is None:
        flow, hift = bf16_flow(flow), bf16_vocoder(hift)
    elif runtime == "native":
        context = kernel_context()
        flow, hift = int8_flow(flow, context), int8_vocoder(hift, context)
        refused += "; products of bytes in its place"
    for net in (flow, hift):
        pack_for_rendering(net)
    prompt = prepare_prompt(flow, speaker.voice)
    runs = []
    for tokens in (20, TOKENS, TOKENS, TOKENS):
        started = time.perf_counter()
        spoken, prompt_s, steps = speaker.speak(tokens, TEXT_IDS if tokens == TOKENS else TEXT_IDS + 7)
        sounds = (audible(spoken) + [0] * tokens)[:tokens]
        middle = time.perf_counter()
        mel = MelStream(flow, speaker.voice, seed=1, streaming=True, prompt=prompt).push(sounds, final=True)
        vocoded = time.perf_counter()
        samples = SampleStream(hift, seed=1, streaming=True).push(mel, final=True)
        ended = time.perf_counter()
        assert len(samples) == tokens * 960
        seconds = {
            "whole": ended - started,
            "prompt": prompt_s,
            "steps": sum(steps),
            "flow": vocoded - middle,
            "vocoder": ended - vocoded,
        }
        runs.append(seconds)
    whole = sorted(runs[1:], key=lambda run: run["whole"])[1]
    return {
        "runtime": speaker.runtime,
        "seconds": whole,
        "rtf": whole["whole"] / (TOKENS / TOKENS_PER_S),
        "bfloat16": "flow and vocoder" if refused is None else refused,
        "peak_gib": peak_gib(),
    }


def quality(
    name: str, work: Path, threads: int, *, tiny: bool, runtime: str, tokens: int = 24
) -> dict[str, Any]:
    """Against float32 in torch, told the same tokens: the error of guided scores, and the greedy choice."""
    import torch

    from nightingale.backends.torch.runner import PlainRunner, Turn
    from nightingale.decoding.sampling import guide
    from nightingale.models.chatterbox.t3.model import T3
    from nightingale.models.checkpoint import load

    speaker = Speaker(name, work, threads, tiny=tiny, runtime=runtime)
    tensors, _, _ = opened(name, work, runtime, tiny=tiny)
    t3 = load(lambda: T3(speaker.preset.t3), tensors, source=work)
    rows = 2 if speaker.guided else 1
    plain = PlainRunner(t3, slots=1, rows_per_slot=rows, capacity=1024, batched=False)
    weight = speaker.defaults.sampling.cfg_weight
    text = speaker.ids(TEXT_IDS, 255).tolist()
    from nightingale.decoding.decoding import prompt_of

    prompt = prompt_of(
        t3,
        text,
        speaker.voice,
        defaults=speaker.defaults,
        sampling=speaker.defaults.sampling,
        exaggeration=0.5,
    )
    exact, near = plain.begin(0, prompt), speaker.runner.begin(0, prompt)
    errors, same, among, plain_s = [], 0, 0, []
    for position in range(1, tokens + 1):
        a, b = guide(exact, weight).flatten(), guide(near, weight).flatten()
        errors.append(float((a - b).square().mean().sqrt() / a.std()))
        token = int(a.argmax())
        same += int(token == int(b.argmax()))
        among += int(token in b.topk(5).indices)
        turn = Turn(slot=0, token=token, position=position)
        started = time.perf_counter()
        exact = plain.step([turn])[0]
        plain_s.append(time.perf_counter() - started)
        near = speaker.runner.step([turn])[0]
    assert torch.isfinite(near).all()
    return {
        "runtime": speaker.runtime,
        "score_error_of_spread": statistics.mean(errors),
        "greedy_same": same / tokens,
        "greedy_among_five": among / tokens,
        "tokens": tokens,
        "plain_float32_step_ms": 1000 * statistics.median(plain_s),
    }


# --- upstream, run by its own Python ---------------------------------------------------------------------


def upstream(name: str, threads: int, folder: Path | None) -> dict[str, Any]:
    """Upstream's own modules, from the packages of this Python or from a folder of them."""
    import torch

    sys.path.insert(0, str(ROOT / "src" / "nightingale" / "bench" / "peers"))
    from upstream import Upstream  # type: ignore[import-not-found]

    torch.set_num_threads(threads)
    if folder is None:
        return upstream_times(Upstream(name))
    from upstream_side import House

    with House(folder).hosted():
        return upstream_times(Upstream(name))


def upstream_times(model: Any) -> dict[str, Any]:
    """T3 is warm; S3Gen is called once, for a minute, of which warming up would be nothing."""
    import torch

    def decode(tokens: int) -> float:
        text = torch.randint(1, 255, (TEXT_IDS,)).tolist()
        started = time.perf_counter()
        ids = model.decode(text, tokens)
        assert ids.shape[1] >= tokens - 1, "a random network stopped by itself: run it again"
        return time.perf_counter() - started

    decode(2)
    begun, several = decode(2), decode(UPSTREAM_TOKENS)
    step_s = (several - begun) / (UPSTREAM_TOKENS - 2)
    started = time.perf_counter()
    model.render(torch.randint(6561, (1, TOKENS)))
    s3gen_s = time.perf_counter() - started
    t3_s = begun + step_s * (TOKENS - 2)
    seconds = {"whole": t3_s + s3gen_s, "t3": t3_s, "t3_step": step_s, "s3gen": s3gen_s}
    return {"seconds": seconds, "peak_gib": peak_gib()}


# --- all of it -------------------------------------------------------------------------------------------


def child(python: str, part: str, name: str, work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run a part in a process of its own; what went wrong is a result too."""
    words = [python, str(Path(__file__).resolve()), "--part", part, "--model", name, "--work", str(work)]
    words += [
        "--threads",
        str(options.threads),
        "--runtime",
        options.runtime,
        *(["--tiny"] if options.tiny else []),
    ]
    words += ["--upstream", str(options.upstream)] if options.upstream else []
    started = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    print(f"[{time.perf_counter() - started:6.1f} s] {part} {name}", flush=True)
    if done.returncode != 0:
        print(done.stderr[-2000:], flush=True)
        return {"error": (done.stderr.strip().splitlines() or ["no word"])[-1]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def table(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    def dig(part: str, *keys: str) -> float | None:
        value: Any = found.get(part, {})
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, float) else None

    def over(theirs: float | None, ours: float | None) -> float | None:
        return theirs / ours if theirs and ours else None

    def whole(part: str) -> float | None:
        return dig(part, "seconds", "whole")

    values = (
        dig("step multilingual", "ratio"),
        dig("sentence multilingual", "rtf"),
        dig("sentence nano", "rtf"),
        over(whole("upstream multilingual"), whole("sentence multilingual")),
        over(whole("upstream nano"), whole("sentence nano")),
        dig("sentence multilingual", "peak_gib"),
    )
    return {name: value for name, value in zip(GOALS, values, strict=True) if value is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--upstream-python", help="of a venv with chatterbox-tts; without it no upstream")
    parser.add_argument(
        "--upstream", type=Path, help="or a folder of its packages (benchmarks/upstream_side.py)"
    )
    parser.add_argument("--work", type=Path, help="a folder for weights, kept for the next run; 3.5 GB")
    parser.add_argument("--runtime", choices=("auto", "onnxruntime", "native"), default="auto")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-store", action="store_true", help="do not append to benchmarks/results")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(run_part(options)))
        return
    theirs = options.upstream_python or (sys.executable if options.upstream else None)
    with tempfile.TemporaryDirectory(prefix="nightingale-cpu-") as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        found: dict[str, dict[str, Any]] = {}
        for name in ("multilingual", "nano"):
            if not (work / f"{name}.safetensors").is_file():
                child(sys.executable, "make", name, work, options)
            for part in ("packing", "step", "sentence"):
                found[f"{part} {name}"] = child(sys.executable, part, name, work, options)
            if theirs and not options.tiny:
                found[f"upstream {name}"] = child(theirs, "upstream", name, work, options)
            found[f"quality {name}"] = child(sys.executable, "quality", name, work, options)
    reached = table(found)
    print(f"\n| {options.threads} threads, warm, {TOKENS} tokens | must | aim | reached |\n|---|---|---|---|")
    for name, (sign, must, aim) in GOALS.items():
        value = f"{reached[name]:.2f}" if name in reached else "not measured"
        print(f"| {name} | {sign} {must:g} | {sign} {aim:g} | {value} |")
    result = {"table": reached, "parts": found, "threads": options.threads, "tiny": options.tiny}
    sys.path.insert(0, str(ROOT / "src"))
    from nightingale_lab.bench import store

    signed = store.signed(result)
    if not options.tiny and not options.no_store:
        store.append(signed, "cpu", store.results_folder())
    print(json.dumps(signed))


def run_part(options: argparse.Namespace) -> dict[str, Any]:
    if options.part == "upstream":
        return upstream(options.model, options.threads, options.upstream)
    sys.path.insert(0, str(ROOT / "src"))
    import torch

    torch.set_num_threads(options.threads)
    name, work = options.model, options.work
    threaded: dict[str, Callable[..., dict[str, Any]]] = {
        "packing": packing,
        "step": step,
        "sentence": sentence,
        "quality": quality,
    }
    with torch.inference_mode():
        if options.part == "make":
            return make(name, work, tiny=options.tiny)
        runtime = options.runtime
        if runtime == "auto":
            runtime = chosen_runtime(preset_of(name, tiny=options.tiny).t3)
        return threaded[options.part](name, work, options.threads, tiny=options.tiny, runtime=runtime)


if __name__ == "__main__":
    main()
