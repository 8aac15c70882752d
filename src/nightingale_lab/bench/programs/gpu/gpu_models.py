"""Models, engines and tokens of gpu_engine.py: what its parts measure."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nightingale.backends import BACKENDS
from nightingale.backends.base import ModelInfo, ModelSource
from nightingale.backends.profiles import Profile, profile_named
from nightingale.backends.selection import Choice, Plan, find_machine, select
from nightingale.engine.load import Model
from nightingale.engine.tts import TTS
from nightingale.models.chatterbox.build import new_vocoder
from nightingale.models.chatterbox.presets import PRESETS, Preset
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.config import UNUSED_BY_T3
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.checkpoint import fold_weight_norm, load, part
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale_lab import reference
from nightingale_lab.bench.runner import report, run_child
from nightingale_lab.bench.speed.cold import empty_caches
from nightingale_lab.random_models import (
    Networks,
    random_model,
    random_networks,
    save_weights,
    tiny_preset,
)

TEXT = "This sentence stands for sixty text ids."
TEXTS = (TEXT, "This one stands for sixty others.")
THREE_SENTENCES = " ".join(
    f"This sentence, of about the length of many that are read aloud, is number {n} of three." for n in "123"
)
PLAIN: dict[str, Any] = {"decoder": (), "renderer": ()}


def upstream_networks(upstream: Any, preset: Preset, device: torch.device) -> Networks:
    """Return our networks with upstream's weights."""
    t3, s3gen, source = upstream.t3.state_dict(), upstream.s3gen.state_dict(), Path("upstream")
    vocoder = fold_weight_norm(part(s3gen, "mel2wav."))
    return Networks(
        t3=load(lambda: T3(preset.t3), t3, source=source, unused=UNUSED_BY_T3).to(device),
        flow=load(lambda: Flow(preset.flow), part(s3gen, "flow."), source=source).to(device),
        vocoder=load(lambda: new_vocoder(preset.vocoder), vocoder, source=source).to(device),
    )


def plan_for(model: Model, profile: Profile, device: torch.device, dtype: str = "auto") -> Plan:
    """Return the plan for this machine. Without a GPU, the functions of the CUDA graphs run eagerly."""
    machine = find_machine(BACKENDS, str(device))
    if device.type == "cuda":
        return select(BACKENDS, model.info, machine, profile, dtype=dtype)
    plan = select(BACKENDS, model.info, machine, replace(profile, **PLAIN))
    profile = replace(plan.profile, decoder=profile.decoder, renderer=profile.renderer)
    cuda, setup = reference.backend_named("cuda"), reference.setup_for(profile)
    in_graphs = profile.renderer and profile.in_blocks
    return replace(
        plan,
        profile=profile,
        decoder=Choice(role="decoder", backend=cuda, setup=setup) if profile.decoder else plan.decoder,
        renderer=Choice(role="renderer", backend=cuda, setup=setup) if in_graphs else plan.renderer,
    )


def open_engine(model: Model, profile: Profile, device: torch.device, **options: Any) -> TTS:
    return TTS.over(model, profile, plan=plan_for(model, profile, device), **options)


def greedy_tokens(
    model: Model, profile: Profile, device: torch.device, texts: list[str], voices: list[Any]
) -> list[list[int]]:
    """Return the greedy tokens of texts that are decoded in one batch in float32, each in its own voice."""
    profile = replace(profile, slots=len(texts))
    choice = plan_for(model, profile, device, "float32").decoder
    decoder = choice.backend.open_decoder(model.source, choice.setup)
    greedy = replace(reference.sampling_of(model, 0.0), repetition_penalty=1.0)
    model = model.with_defaults(sampling=greedy)
    decodings = [
        reference.decoding_of(model, text, voice=voice) for text, voice in zip(texts, voices, strict=True)
    ]
    try:
        return reference.decode_together(decoder, decodings)
    finally:
        getattr(decoder, "close", lambda: None)()


def load_times(family: str, options: Any) -> list[dict[str, float]]:
    """Return the seconds from a model's files to first audio in two processes: with empty caches, and again."""
    with tempfile.TemporaryDirectory(prefix="nightingale-load-") as name:
        folder = Path(name)
        preset = tiny_preset(PRESETS[family]) if options.tiny else PRESETS[family]
        save_weights(random_networks(preset, options.device), folder)
        command = [sys.executable, "-m", __name__, family, str(folder), options.device]
        command += ["tiny"] if options.tiny else []
        return [run_child(command, empty_caches(folder)) for _ in range(2)]


def load_once(family: str, folder: Path, device: torch.device, *, tiny: bool) -> dict[str, float]:
    """Load a model from files with its default profile, and time its first audio."""
    begun = time.perf_counter()
    preset = tiny_preset(PRESETS[family]) if tiny else PRESETS[family]
    info = ModelInfo(name=family, preset=preset, defaults=MODEL_DEFAULTS[family])
    source = ModelSource(info, {role: folder / f"{role}.safetensors" for role in ("t3", "s3gen")})
    model = random_model(family, tokens=12 if tiny else 102, tiny=tiny, source=source)
    with open_engine(model, profile_named(None, default=model.defaults.profile), device) as tts:
        loaded = time.perf_counter()
        next(tts.stream(TEXT, seed=1))
        return {"load_s": loaded - begun, "load_to_first_audio_s": time.perf_counter() - begun}


if __name__ == "__main__":
    found = load_once(sys.argv[1], Path(sys.argv[2]), torch.device(sys.argv[3]), tiny="tiny" in sys.argv)
    report(json.dumps(found))
