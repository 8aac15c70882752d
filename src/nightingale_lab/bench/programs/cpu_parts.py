"""The parts of cpu.py. Each runs in a process of its own and returns a dictionary.

make        files of random weights
packing     T3 quantized to int8 and packed for this machine: seconds, bytes
step        T3's step over the time to read its weights
sentence    text ids to samples, warm: seconds by stage, real-time factor
quality     T3 in int8 against float32 in torch, on the same tokens
mel         the renderer's flow against float32 in torch, on the same tokens
upstream    upstream's own networks
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nightingale.backends import BACKENDS
from nightingale.backends.base import ModelInfo, ModelSource
from nightingale.backends.profiles import Preference, profile_named
from nightingale.backends.selection import Choice, find_machine, select
from nightingale.decoding.decoding import Decoding, Prompt
from nightingale.decoding.host_decoder import DecodeRow
from nightingale.decoding.runner import StepInput
from nightingale.decoding.sampling import guide
from nightingale.engine.tts import TTS
from nightingale.models.chatterbox.presets import PRESETS, Preset
from nightingale.models.chatterbox.t3.config import Gpt2Config
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale_lab.bench.timing import cost
from nightingale_lab.random_models import (
    random_model,
    random_networks,
    random_t3,
    random_voice,
    save_weights,
    seeded,
    tiny_preset,
)
from nightingale_lab.reference import backend_named, setup_for
from nightingale_lab.upstream.families import FAMILIES
from nightingale_lab.upstream.networks import RandomUpstream

TOKENS, TEXT_IDS, TOKENS_PER_S = 102, 60, 25
UPSTREAM_TOKENS = 18
"""Upstream's steps are alike and slow: that many are timed and extrapolated to a sentence."""
SWEEP_BYTES = 768 * 2**20
"""Far more than any cache holds."""
QUALITY_TOKENS, MEL_TOKENS = 24, 50
ROUNDS, ENOUGH_S = 3, 40.0
"""Sentences that are timed after one that warms up: fewer where they take so long."""
BACKEND_OF = {"native": "cpu", "onnxruntime": "onnx"}


def peak_gib() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def preset_of(name: str, *, tiny: bool) -> Preset:
    """Return the preset of a model; "multilingual+meanflow" has Turbo's decoder."""
    family, _, decoder = name.partition("+")
    preset = PRESETS[family]
    if decoder:
        preset = replace(preset, flow=PRESETS["turbo"].flow)
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
    networks = random_networks(preset_of(name, tiny=tiny))
    seeded(networks.flow, 1)  # by fan-in: PyTorch's own may exceed the error that an int8 flow may have
    save_weights(networks, work, f"{name}.")
    if "+" in name:  # T3 is the plain model's
        (work / f"{name}.t3.safetensors").unlink()
    return {}


class Bench:
    """A model of random weights on disk, and the backends that a profile chooses for it."""

    def __init__(
        self, name: str, work: Path, threads: int, *, tiny: bool, runtime: str, profile: str = "default"
    ) -> None:
        os.environ["NIGHTINGALE_HOME"] = str(work / "home")  # packed weights and machine code go there
        self.preset, self.threads, self.tokens = preset_of(name, tiny=tiny), threads, TOKENS
        family = name.partition("+")[0]
        defaults = replace(MODEL_DEFAULTS[family], max_new_tokens=TOKENS, tokens_per_text_id=None)
        info = ModelInfo(name=family, preset=self.preset, defaults=defaults)
        files = {"t3": work / f"{family}.t3.safetensors", "s3gen": work / f"{name}.s3gen.safetensors"}
        self.source, self.defaults = ModelSource(info, files), defaults
        chosen = replace(profile_named(defaults.profile if profile == "default" else profile), slots=1)
        if runtime != "auto":
            chosen = replace(chosen, decoder=(Preference(BACKEND_OF[runtime], "int8"),))
        torch.set_num_threads(threads)
        self.plan = select(BACKENDS, info, find_machine(BACKENDS, "cpu"), chosen)
        self.rng = np.random.default_rng(0)
        self.voice = random_voice(self.preset)

    def open_decoder(self, choice: Choice | None = None) -> Any:
        choice = choice or self.plan.decoder
        return choice.backend.open_decoder(self.source, replace(choice.setup, threads=self.threads))

    @property
    def runtime(self) -> str:
        return f"{self.plan.decoder.backend.name} {self.plan.decoder.precision}"

    def decoding(self, text_ids: int = TEXT_IDS) -> Decoding:
        """Return the state of a new random text. Ids below 255 start or stop no family's text."""
        sampling = self.defaults.sampling
        prompt = Prompt(
            text="",
            text_ids=self.rng.integers(1, 255, size=text_ids).tolist(),
            voice=self.voice,
            exaggeration=0.5,
            guided=sampling.cfg_weight > 0,
        )
        vocab = self.preset.t3.speech_vocab
        return Decoding(prompt, vocab=vocab, defaults=self.defaults, sampling=sampling, seed=0)

    def decode(self, decoder: Any, tokens: int, text_ids: int = TEXT_IDS) -> tuple[float, list[float]]:
        """Draw that many tokens, and return the seconds of the prefill and of each step."""
        decoding = self.decoding(text_ids)
        steps: list[float] = []
        started = time.perf_counter()
        (token,) = decoder.prefill(0, decoding)
        decoding.append(token)
        prefill_s = time.perf_counter() - started
        while len(steps) < tokens - 1:
            started = time.perf_counter()
            (drawn,) = decoder.decode([DecodeRow(0, decoding, token)])
            (token,) = drawn
            decoding.append(token)
            steps.append(time.perf_counter() - started)
        decoder.release(0)
        return prefill_s, steps


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


def packed_bytes(bench: Bench) -> int:
    from nightingale.backends.cpu.int8_layout import TiledFormat
    from nightingale.backends.onnx.torch_model import OnnxFormat
    from nightingale.backends.shared.packed_t3 import WEIGHTS, open_packed

    native = bench.plan.decoder.backend.name == "cpu"
    kind = TiledFormat() if native else OnnxFormat()
    _, folder = open_packed(bench.source, kind, lambda: random_t3(bench.preset.t3))  # its files are packed
    return (folder / WEIGHTS).stat().st_size


def packing(bench: Bench) -> dict[str, Any]:
    started = time.perf_counter()
    size = packed_bytes(bench)
    return {"seconds": time.perf_counter() - started, "bytes": size, "peak_gib": peak_gib()}


def step(bench: Bench) -> dict[str, Any]:
    decoder, threads = bench.open_decoder(), bench.threads
    decoder.start()
    bench.decode(decoder, 8, TEXT_IDS + 7)
    before = bandwidth(threads, 3)
    prefill_s, steps = bench.decode(decoder, bench.tokens)
    per_second = max(before, bandwidth(threads, 3))
    reading_s = packed_bytes(bench) / per_second
    took = statistics.median(steps)
    return {
        "runtime": bench.runtime,
        "step_ms": 1000 * took,
        "step_ms_least": 1000 * min(steps),
        "prompt_ms": 1000 * prefill_s,
        "gb_per_s": per_second / 1e9,
        "gb_per_s_one_thread": bandwidth(1, 2) / 1e9,
        "reading_ms": 1000 * reading_s,
        "ratio": took / reading_s,
    }


def sentence(bench: Bench) -> dict[str, Any]:
    """Time whole sentences by the engine, warm; each is rendered whole, or in one block."""
    profile = bench.plan.profile
    if profile.in_blocks:
        profile = replace(profile, first_block_tokens=TOKENS, largest_block_tokens=TOKENS)
    model = random_model(
        bench.source.info.name, tokens=bench.tokens, preset=bench.preset, source=bench.source
    )
    plan = replace(bench.plan, profile=profile)
    runs: list[dict[str, float]] = []
    with TTS.over(model, profile, plan=plan) as tts:
        for round_ in range(1 + ROUNDS):
            if len(runs) > 1 and sum(run["whole"] for run in runs) > ENOUGH_S:
                break
            started, cpu_started = time.perf_counter(), time.process_time()
            audio = tts.say("Words" + " and more" * round_, seed=round_)
            seconds = {name: ms / 1000 for name, ms in audio.metrics.stage_ms.items()}
            whole, cpu = time.perf_counter() - started, time.process_time() - cpu_started
            share = bench.tokens / audio.metrics.tokens
            runs.append({"whole": whole * share, "cpu": cpu * share, **seconds})
    median = sorted(runs[1:], key=lambda run: run["whole"])[len(runs[1:]) // 2]
    median |= {"prompt": median.pop("prefill", 0.0), "steps": median.pop("t3", 0.0)}
    return {
        "runtime": bench.runtime,
        "seconds": median,
        "rtf": median["whole"] / (bench.tokens / TOKENS_PER_S),
        "renderer": f"{plan.renderer.backend.name} {plan.renderer.precision}",
        "stream": profile.stream,
        "peak_gib": peak_gib(),
    }


def quality(bench: Bench) -> dict[str, Any]:
    """Compare the logits after CFG, and the greedy token, with float32 in torch on the same tokens."""
    near = bench.open_decoder().runner
    setup = setup_for(replace(bench.plan.profile, batched=False))
    plain = backend_named("torch").open_decoder(bench.source, setup).runner  # type: ignore[attr-defined]
    weight, decoding = bench.defaults.sampling.cfg_weight, bench.decoding()
    a, b = (runner.prefill(0, decoding.prompt, max_tokens=bench.tokens) for runner in (plain, near))
    errors, same, among, plain_s = [], 0, 0, []
    for position in range(1, QUALITY_TOKENS + 1):
        exact, int8 = guide(a, weight), guide(b, weight)
        errors.append(float(np.sqrt(np.mean((exact - int8) ** 2)) / exact.std(ddof=1)))
        token = int(exact.argmax())
        same += token == int(int8.argmax())
        among += token in np.argpartition(int8, -5)[-5:]
        given = [StepInput(slot=0, token=token, position=position)]
        started = time.perf_counter()
        a = plain.step(given)[0]
        plain_s.append(time.perf_counter() - started)
        b = near.step(given)[0]
    assert np.isfinite(b).all()
    return {
        "runtime": bench.runtime,
        "score_error_of_spread": statistics.mean(errors),
        "greedy_same": same / QUALITY_TOKENS,
        "greedy_among_five": among / QUALITY_TOKENS,
        "tokens": QUALITY_TOKENS,
        "plain_float32_step_ms": 1000 * statistics.median(plain_s),
    }


def mel(bench: Bench) -> dict[str, Any]:
    """Compare the mel of a renderer's flow with float32 in torch, for two seconds in a short voice."""
    from nightingale.backends.torch.mel_stream import render_mel
    from nightingale.backends.torch.weights import rendering_weights

    voice = random_voice(bench.preset, prompt_tokens=MEL_TOKENS)
    ids = bench.rng.integers(6561, size=MEL_TOKENS).tolist()
    exact = render_mel(rendering_weights(bench.source, "cpu")[0], ids, voice, seed=0).T.numpy()
    choice = bench.plan.renderer
    flow = choice.backend.open_renderer(bench.source, choice.setup)._flow  # type: ignore[attr-defined]
    near = render_mel(flow, ids, voice, seed=0).T.numpy() if hasattr(flow, "encode") else None
    near = flow.render(ids, voice, seed=0) if near is None else near
    error = float(np.sqrt(np.mean((near - exact) ** 2)) / exact.std())
    return {
        "renderer": f"{choice.backend.name} {choice.precision}",
        "error_of_spread": error,
        "tokens": MEL_TOKENS,
    }


def upstream(name: str, threads: int, folder: Path | None) -> dict[str, Any]:
    """Time upstream's networks, from the packages of this Python or from an unpacked folder of them."""
    torch.set_num_threads(threads)
    if folder is None:
        return upstream_times(RandomUpstream(FAMILIES[name]))
    from nightingale_lab.upstream.upstream_side import UpstreamPackages

    with UpstreamPackages(folder).active():
        return upstream_times(RandomUpstream(FAMILIES[name]))


def upstream_times(model: RandomUpstream) -> dict[str, Any]:
    """Time T3 when it is warm. S3Gen is called once, since it takes a minute."""

    def timed(call: Callable[..., Any], *args: Any) -> NDArray[np.float64]:
        """Return seconds, and those of the process on all cores."""
        return np.array(cost(partial(call, *args)))

    def decode(tokens: int) -> NDArray[np.float64]:
        return timed(model.decode, torch.randint(1, 255, (TEXT_IDS,)).tolist(), tokens)

    decode(2)
    two, several = decode(2), decode(UPSTREAM_TOKENS)
    step = (several - two) / (UPSTREAM_TOKENS - 2)
    t3, s3gen = two + step * (TOKENS - 2), timed(model.render, torch.randint(6561, (TOKENS,)))
    whole, cpu = (t3 + s3gen).tolist()
    seconds = {"whole": whole, "cpu": cpu, "t3": float(t3[0])}
    seconds |= {"t3_step": float(step[0]), "s3gen": float(s3gen[0])}
    return {"seconds": seconds, "peak_gib": peak_gib()}
