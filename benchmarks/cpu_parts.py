"""The parts of benchmarks/cpu.py. Each runs in a process of its own and returns a dictionary.

make        files of random weights
packing     T3 quantized to int8 and packed for this machine: seconds, bytes
step        T3's step over the time to read its weights
sentence    text ids to samples, warm: seconds by stage, real-time factor
quality     int8 against float32 in torch, on the same tokens
upstream    upstream's own networks
"""

from __future__ import annotations

import resource
import statistics
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import numpy as np
import torch
from safetensors.torch import save_file

from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.presets import PRESETS, Preset
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.config import Gpt2Config, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale_lab.random_models import random_voice, tiny_preset
from nightingale_lab.upstream.families import FAMILIES
from nightingale_lab.upstream.networks import RandomUpstream

TOKENS, TEXT_IDS, TOKENS_PER_S = 102, 60, 25
UPSTREAM_TOKENS = 18
"""Upstream's steps are alike and slow: that many are timed and extrapolated to a sentence."""
SWEEP_BYTES = 768 * 2**20
"""Far more than any cache holds."""
QUALITY_TOKENS = 24


def peak_gib() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def preset_of(name: str, *, tiny: bool) -> Preset:
    """Return a preset with meanflow: the ten guided steps of the larger flow are too slow on a CPU."""
    preset = replace(PRESETS[name], flow=replace(PRESETS[name].flow, meanflow=True))
    if not tiny:
        return preset
    made = tiny_preset(preset)
    small = {"width": 128, "heads": 2}  # int8 blocks have 128 weights
    if not isinstance(made.t3.backbone, Gpt2Config):
        small["ffn"] = 256
    return replace(made, t3=replace(made.t3, backbone=replace(made.t3.backbone, **small)))  # type: ignore[arg-type]


def make(name: str, work: Path, *, tiny: bool) -> dict[str, Any]:
    """Write files of random weights, as the hub would have them."""
    torch.manual_seed(0)
    preset = preset_of(name, tiny=tiny)
    networks = {"": T3(preset.t3), ".flow": Flow(preset.flow), ".hift": Hift(preset.hift)}
    for part, network in networks.items():
        save_file(network.state_dict(), work / f"{name}{part}.safetensors")
    return {}


def open_packed(name: str, work: Path, runtime: str, *, tiny: bool) -> tuple[Any, Any, Any]:
    """Return the mapped weights, the packed weights, and T3 without its layers."""
    from nightingale.backends.cpu.capabilities import form
    from nightingale.backends.shared.packed_t3 import FOR_ONNX, digest_of_file, pack, without_backbone
    from nightingale.models.checkpoint import read_tensors

    path, config = work / f"{name}.safetensors", preset_of(name, tiny=tiny).t3
    tensors = read_tensors(path)
    source = digest_of_file(path, home=work / "packed")
    kind = form() if runtime == "native" else FOR_ONNX
    packed = pack(config, tensors, home=work / "packed", source=source, mapped=True, form=kind)
    return tensors, packed, without_backbone(config, tensors, source=path)


def packing(name: str, work: Path, threads: int, *, tiny: bool, runtime: str) -> dict[str, Any]:  # noqa: ARG001
    started = time.perf_counter()
    _, packed, _ = open_packed(name, work, runtime, tiny=tiny)
    return {"seconds": time.perf_counter() - started, "bytes": packed.bytes, "peak_gib": peak_gib()}


def bandwidth(threads: int, rounds: int = 5) -> float:
    """Return the bytes per second of the fastest of several ways to read memory once."""
    block = np.ones(SWEEP_BYTES // 8, np.int64)
    parts = np.array_split(block, threads)
    best = 0.0
    for read in (np.sum, np.max, np.bitwise_or.reduce):
        for _ in range(rounds):
            readers = [threading.Thread(target=read, args=(part,)) for part in parts]
            started = time.perf_counter()
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            best = max(best, block.nbytes / (time.perf_counter() - started))
    return best


def fastest_runtime(config: T3Config) -> str:
    """Return the runtime that the profile `fast` uses."""
    from nightingale.backends.cpu.capabilities import refusal

    return "native" if refusal(config) is None else "onnxruntime"


class Int8T3:
    """T3 in int8 with a random voice, and the sampling around it."""

    def __init__(self, name: str, work: Path, threads: int, *, tiny: bool, runtime: str) -> None:
        self.preset, self.defaults = preset_of(name, tiny=tiny), MODEL_DEFAULTS[name]
        self.runtime, self.guided = runtime, self.defaults.sampling.cfg_weight > 0
        self.tensors, self.packed, self.t3 = open_packed(name, work, runtime, tiny=tiny)
        self.runner = self.open_runner(threads)
        self.rng = torch.Generator().manual_seed(0)
        self.voice = random_voice(self.preset)

    def open_runner(self, threads: int) -> Any:
        from nightingale.backends.cpu.capabilities import open_runner
        from nightingale.backends.onnx.runner import CpuRunner

        sizes = {"slots": 1, "rows_per_slot": 2 if self.guided else 1, "capacity": 1024}
        if self.runtime == "native":
            return open_runner(self.t3, self.packed, **sizes, batched=True, threads=threads)
        return CpuRunner(self.t3, self.packed.graph, **sizes, batched=True, threads=threads)

    def text(self, ids: int) -> list[int]:
        """Return a new random text. Ids below 255 start or stop no family's text."""
        drawn: list[int] = torch.randint(1, 255, (ids,), generator=self.rng).tolist()
        return drawn

    def prompt(self, t3: T3, text: list[int]) -> Any:
        from nightingale.decoding.decoding import prompt_of

        sampling = self.defaults.sampling
        return prompt_of(t3, text, self.voice, defaults=self.defaults, sampling=sampling, exaggeration=0.5)

    def decode(self, tokens: int, text_ids: int = TEXT_IDS) -> tuple[list[int], float, list[float]]:
        """Draw that many tokens, and return them with the seconds of the prefill and of each step."""
        from nightingale.backends.torch.runner import Turn
        from nightingale.decoding.decoding import Decoding

        text, sampling = self.text(text_ids), self.defaults.sampling
        started = time.perf_counter()
        decoding = Decoding(
            self.t3, defaults=self.defaults, sampling=sampling, text_ids=len(text), rng=self.rng
        )
        drawn, steps = [decoding.draw(self.runner.begin(0, self.prompt(self.t3, text)))], []
        decoding.note(drawn[-1])
        prefill_s = time.perf_counter() - started
        while len(drawn) < tokens:
            started = time.perf_counter()
            turn = Turn(slot=0, token=drawn[-1], position=decoding.drawn)
            drawn.append(decoding.draw(self.runner.step([turn])[0]))
            decoding.note(drawn[-1])
            steps.append(time.perf_counter() - started)
        return drawn, prefill_s, steps


def step(name: str, work: Path, threads: int, *, tiny: bool, runtime: str) -> dict[str, Any]:
    t3 = Int8T3(name, work, threads, tiny=tiny, runtime=runtime)
    t3.decode(8, TEXT_IDS + 7)
    before = bandwidth(threads, 3)
    _, prefill_s, steps = t3.decode(TOKENS)
    per_second = max(before, bandwidth(threads, 3))
    reading_s = t3.packed.bytes / per_second
    took = statistics.median(steps)
    return {
        "runtime": t3.runtime,
        "step_ms": 1000 * took,
        "step_ms_least": 1000 * min(steps),
        "prompt_ms": 1000 * prefill_s,
        "gb_per_s": per_second / 1e9,
        "gb_per_s_one_thread": bandwidth(1, 2) / 1e9,
        "reading_ms": 1000 * reading_s,
        "ratio": took / reading_s,
    }


def rendering_networks(t3: Int8T3, name: str, work: Path, threads: int) -> tuple[Any, Any, str]:
    """Return flow and vocoder as the profile `fast` runs them, and in which precision they are."""
    from nightingale.backends.cpu import bf16
    from nightingale.backends.cpu.capabilities import workshop
    from nightingale.backends.cpu.int8_networks import rounded_flow, rounded_vocoder
    from nightingale.models.checkpoint import load, read_tensors
    from nightingale.models.layers.weight_layout import for_rendering

    files = {part: work / f"{name}.{part}.safetensors" for part in ("flow", "hift")}
    flow = load(lambda: Flow(t3.preset.flow), read_tensors(files["flow"]), source=files["flow"])
    hift = load(lambda: Hift(t3.preset.hift), read_tensors(files["hift"]), source=files["hift"])
    reason, precision = bf16.refusal(threads), "flow and vocoder"
    if reason is None:
        flow, hift = bf16.halved_flow(flow), bf16.halved_vocoder(hift)
    elif t3.runtime == "native":
        context = workshop()
        flow, hift = rounded_flow(flow, context), rounded_vocoder(hift, context)
        precision = f"{reason}; int8 instead"
    else:
        precision = reason
    for network in (flow, hift):
        for_rendering(network)
    return flow, hift, precision


def sentence(name: str, work: Path, threads: int, *, tiny: bool, runtime: str) -> dict[str, Any]:
    """Time text ids to samples, warm; flow and vocoder as they stream, the sentence in one block."""
    from nightingale.backends.torch.mel_stream import MelStream, audible, prepare_prompt
    from nightingale.backends.torch.sample_stream import SampleStream

    t3 = Int8T3(name, work, threads, tiny=tiny, runtime=runtime)
    flow, hift, precision = rendering_networks(t3, name, work, threads)
    prompt = prepare_prompt(flow, t3.voice)
    runs = []
    for tokens in (20, TOKENS, TOKENS, TOKENS):
        started = time.perf_counter()
        drawn, prefill_s, steps = t3.decode(tokens, TEXT_IDS if tokens == TOKENS else TEXT_IDS + 7)
        ids = (audible(drawn) + [0] * tokens)[:tokens]
        decoded = time.perf_counter()
        mel = MelStream(flow, t3.voice, seed=1, streaming=True, prompt=prompt).push(ids, final=True)
        vocoding = time.perf_counter()
        samples = SampleStream(hift, seed=1, streaming=True).push(mel, final=True)
        ended = time.perf_counter()
        assert len(samples) == tokens * 960
        runs.append(
            {
                "whole": ended - started,
                "prompt": prefill_s,
                "steps": sum(steps),
                "flow": vocoding - decoded,
                "vocoder": ended - vocoding,
            }
        )
    median = sorted(runs[1:], key=lambda run: run["whole"])[1]
    return {
        "runtime": t3.runtime,
        "seconds": median,
        "rtf": median["whole"] / (TOKENS / TOKENS_PER_S),
        "bfloat16": precision,
        "peak_gib": peak_gib(),
    }


def quality(name: str, work: Path, threads: int, *, tiny: bool, runtime: str) -> dict[str, Any]:
    """Compare the logits after CFG, and the greedy token, with float32 in torch on the same tokens."""
    from nightingale.backends.torch.runner import PlainRunner, Turn
    from nightingale.decoding.sampling import guide
    from nightingale.models.checkpoint import load

    int8 = Int8T3(name, work, threads, tiny=tiny, runtime=runtime)
    t3 = load(lambda: T3(int8.preset.t3), int8.tensors, source=work)
    plain = PlainRunner(t3, slots=1, rows_per_slot=2 if int8.guided else 1, capacity=1024, batched=False)
    weight = int8.defaults.sampling.cfg_weight
    prompt = int8.prompt(t3, int8.text(TEXT_IDS))
    exact, near = plain.begin(0, prompt), int8.runner.begin(0, prompt)
    errors, same, among, plain_s = [], 0, 0, []
    for position in range(1, QUALITY_TOKENS + 1):
        a, b = (torch.as_tensor(guide(logits, weight)).flatten() for logits in (exact, near))
        errors.append(float((a - b).square().mean().sqrt() / a.std()))
        token = int(a.argmax())
        same += int(token == int(b.argmax()))
        among += int(token in b.topk(5).indices)
        turn = Turn(slot=0, token=token, position=position)
        started = time.perf_counter()
        exact = plain.step([turn])[0]
        plain_s.append(time.perf_counter() - started)
        near = int8.runner.step([turn])[0]
    assert torch.isfinite(torch.as_tensor(near)).all()
    return {
        "runtime": int8.runtime,
        "score_error_of_spread": statistics.mean(errors),
        "greedy_same": same / QUALITY_TOKENS,
        "greedy_among_five": among / QUALITY_TOKENS,
        "tokens": QUALITY_TOKENS,
        "plain_float32_step_ms": 1000 * statistics.median(plain_s),
    }


def upstream(name: str, threads: int, folder: Path | None) -> dict[str, Any]:
    """Time upstream's networks, from the packages of this Python or from an unpacked folder of them."""
    torch.set_num_threads(threads)
    if folder is None:
        return upstream_times(RandomUpstream(FAMILIES[name]))
    from upstream_side import UpstreamPackages

    with UpstreamPackages(folder).active():
        return upstream_times(RandomUpstream(FAMILIES[name]))


def upstream_times(model: RandomUpstream) -> dict[str, Any]:
    """Time T3 when it is warm. S3Gen is called once, since it takes a minute."""

    def decode(tokens: int) -> float:
        text = torch.randint(1, 255, (TEXT_IDS,)).tolist()
        started = time.perf_counter()
        model.decode(text, tokens)
        return time.perf_counter() - started

    decode(2)
    two_s, several_s = decode(2), decode(UPSTREAM_TOKENS)
    step_s = (several_s - two_s) / (UPSTREAM_TOKENS - 2)
    started = time.perf_counter()
    model.render(torch.randint(6561, (TOKENS,)))
    s3gen_s = time.perf_counter() - started
    t3_s = two_s + step_s * (TOKENS - 2)
    seconds = {"whole": t3_s + s3gen_s, "t3": t3_s, "t3_step": step_s, "s3gen": s3gen_s}
    return {"seconds": seconds, "peak_gib": peak_gib()}
