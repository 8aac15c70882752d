"""A stored baseline: what a model with certain backends says for one sentence and seed.

It holds counts and hashes of tokens, samples and the WAV file. Those of wren and of tiny models with seeded
random weights are in `baselines.jsonl` beside this file; those of other models are stored in the user's cache
after their first `nightingale verify`.

Hashes of audio are promised for the same kind of machine only: processor, cores, threads, and versions of the
packages that compute. Tokens in float32 are promised everywhere. On another kind of machine, the rest is listed as
missing, with what differs.

    python -m nightingale_lab.bench.verify.baseline     # measure the models of baselines.jsonl again, and store
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from nightingale.audio.samples import wav_bytes
from nightingale.engine.load import Model
from nightingale_lab.bench.store import cpu_name
from nightingale_lab.bench.verify.check import Check, missing

STORED = Path(__file__).with_name("baselines.jsonl")
GROUP = "baseline"
check = partial(Check, GROUP)
TEXT = "The quick brown fox jumps over the lazy dog, and nobody minds."
SEED = 7
COMPUTING = {
    "torch": ("torch",),
    "cuda": ("torch", "triton"),
    "cpu": ("torch", "llvmlite"),
    "onnx": ("onnxruntime",),
    "noise": (),
}
"""Packages on which the bits of each backend depend, besides numpy."""
SAMPLED_BYTES = 2**20
SHOWN = ("decoder", "renderer", "stream", "slots")
"""Options of a profile that the rest of a plan shows, or that do not matter to one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    model: str
    weights: str
    """Digest of the model's files."""
    plan: str
    """Backends, precisions and stream mode."""
    machine: dict[str, str]
    """Processor, cores and versions."""
    tokens: int
    tokens_sha256: str
    samples: int
    wav_bytes: int
    wav_sha256: str

    @property
    def exact_tokens(self) -> bool:
        """True if the tokens must be these on every machine."""
        return " float32, " in self.plan.partition("renderer")[0]

    def is_of(self, other: Baseline) -> bool:
        return (self.model, self.weights, self.plan) == (other.model, other.weights, other.plan)


def measure_baseline(tts: Any, model: Model) -> Baseline:
    """tts: a `nightingale.TTS` over the model."""
    taken: list[int] = []
    renderer = tts._worker.renderer
    render = renderer.render

    def capture(blocks: Any) -> Any:
        taken.extend(token for block in blocks for token in block.tokens)
        return render(blocks)

    renderer.render = capture
    try:
        audio = tts.say(TEXT, seed=SEED)
    finally:
        renderer.render = render
    wav = wav_bytes(audio.samples, audio.sample_rate_hz)
    return Baseline(
        model=model.name,
        weights=weights_digest(model),
        plan=plan_name(tts.plan),
        machine=machine_kind(tts.plan),
        tokens=len(taken),
        tokens_sha256=_digest(np.asarray(taken, dtype="<i4").tobytes()),
        samples=len(audio.samples),
        wav_bytes=len(wav),
        wav_sha256=_digest(wav),
    )


def plan_name(plan: Any) -> str:
    """Return backends, precisions and stream mode of a plan in words."""
    parts = [f"{choice.role} {choice.backend.name} {choice.precision}" for choice in plan.choices]
    options = plan.profile.name.split("+")[1:]
    others = [option for option in options if option.partition("=")[0] not in SHOWN]
    return ", ".join([*parts, f"by {plan.profile.stream}", *others])


def machine_kind(plan: Any) -> dict[str, str]:
    """Return what the bits of a result depend on besides the model: processor, cores, device and versions."""
    kind = {"arch": platform.machine(), "cpu": cpu_name(), "cores": str(os.cpu_count())}
    if plan.machine.device != "cpu":
        kind["device"] = plan.machine.name
    backends = {choice.backend.name for choice in plan.choices}
    for package in sorted({"numpy", *(name for backend in backends for name in COMPUTING.get(backend, ()))}):
        try:
            kind[package] = version(package).partition("+")[0]
        except PackageNotFoundError:
            continue
    if "torch" in kind:  # it splits sums between its threads
        kind["threads"] = str(importlib.import_module("torch").get_num_threads())
    return kind


def weights_digest(model: Model) -> str:
    """Return a digest of names, sizes, beginnings and ends of a model's files, or its fingerprint without."""
    digest = hashlib.sha256(model.fingerprint.encode())
    for role, path in sorted(model.source.files.items()):
        size = path.stat().st_size
        digest.update(f"{role} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(SAMPLED_BYTES))
            file.seek(max(0, size - SAMPLED_BYTES))
            digest.update(file.read(SAMPLED_BYTES))
    return digest.hexdigest()[:16]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def read_baselines(*paths: Path) -> list[Baseline]:
    """Return the baselines of files that exist, without lines that a full disk cut short."""
    found = []
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                found.append(Baseline(**json.loads(line)))
            except (ValueError, TypeError):
                continue
    return found


def write_baselines(path: Path, baselines: Sequence[Baseline]) -> None:
    """Write one line each; of several for the same model, plan and kind of machine, the last one is kept."""
    kept = {(one.model, one.weights, one.plan, str(sorted(one.machine.items()))): one for one in baselines}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(asdict(one), sort_keys=True) + "\n" for one in kept.values())
    path.write_text(text, encoding="utf-8")


def baseline_checks(now: Baseline, own: Path, *, accept: bool = False, stored: Path = STORED) -> list[Check]:
    """Compare with the stored baseline, or store this one in `own` if there is none for this kind of machine.

    accept: store this one in any case, for later runs.
    """
    mine = read_baselines(own)
    known = [one for one in [*mine, *read_baselines(stored)] if one.is_of(now)]
    same = next((one for one in known if one.machine == now.machine), None)
    if accept or same is None:
        write_baselines(own, [*mine, now])
    if accept:
        return [missing(GROUP, now.plan, f"stored in {own}: the next run compares with it")]
    if same is not None:
        return compared(now, same)
    if known:
        return compared(now, known[-1])
    return [missing(GROUP, now.plan, f"none was stored; this one is now, in {own}: the next run compares")]


def compared(now: Baseline, then: Baseline) -> list[Check]:
    """Return the checks of one baseline against a stored one, perhaps of another kind of machine."""
    differs = [
        f"{name} {then.machine.get(name, 'none')} there, {now.machine.get(name, 'none')} here"
        for name in sorted({*then.machine, *now.machine})
        if then.machine.get(name) != now.machine.get(name)
    ]
    elsewhere = f"it was stored on another kind of machine: {'; '.join(differs)}"
    promised = {"tokens": not differs or now.exact_tokens, "audio": not differs}

    def counted(name: str, field: str, of: str, unit: str) -> Check:
        ours, theirs = getattr(now, field), getattr(then, field)
        if not promised[of]:
            return missing(GROUP, name, f"{ours} here, {theirs} stored; {elsewhere}")
        return check(name, float(ours), low=float(theirs), high=float(theirs), unit=unit)

    def hashed(name: str, field: str, of: str) -> Check:
        ours, theirs = getattr(now, field), getattr(then, field)
        if not promised[of]:
            return missing(GROUP, name, elsewhere)
        return check(name, float(ours != theirs), high=0, detail=f"{ours} here, {theirs} stored")

    return [
        counted("tokens", "tokens", "tokens", ""),
        hashed("tokens, other sha256", "tokens_sha256", "tokens"),
        counted("samples", "samples", "tokens", ""),
        counted("WAV file", "wav_bytes", "tokens", "bytes"),
        hashed("WAV file, other sha256", "wav_sha256", "audio"),
    ]


PROFILES = {
    "wren": (
        "exact",
        "balanced",
        "fast",
        "balanced+decoder=float32+renderer=float32",
        "balanced+decoder=int8+renderer=int8",
    ),
    "tiny": ("exact", "balanced", "balanced+stream=block", "fast+stream=block"),
}
"""Profiles that are stored; between them they use every backend of a CPU."""
TINY_FAMILIES = ("english", "multilingual", "turbo", "nano")


def stored_models() -> Iterator[tuple[Model, str]]:
    """Yield the models of the stored baselines with their profiles: wren, and tiny ones of each family."""
    from nightingale.engine.load import default_model
    from nightingale_lab.random_models import seeded_model
    from nightingale_lab.reference import load

    if default_model() == "wren":
        for profile in PROFILES["wren"]:
            yield load("wren"), profile
    for family in TINY_FAMILIES:
        for profile in PROFILES["tiny"]:
            yield seeded_model(family, tokens=24), profile


def measure_stored() -> Iterator[Baseline]:
    """Yield what this machine makes of every stored model and profile that it supports."""
    from nightingale.engine.tts import TTS

    for model, profile in stored_models():
        with TTS.over(model, profile, device="cpu") as tts:
            yield measure_baseline(tts, model)


if __name__ == "__main__":
    measured = list(measure_stored())
    weights = {(one.model, one.weights) for one in measured}
    kept = [one for one in read_baselines(STORED) if (one.model, one.weights) in weights]
    write_baselines(STORED, [*kept, *measured])
