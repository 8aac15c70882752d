"""Access to the inside of a running engine, for GPU benchmarks: its decoder, its renderer and its tokens.

These functions reach into private attributes. They are kept here so that a change of the engine breaks one
module and not every script.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from nightingale.engine.load import plan_for
from nightingale.engine.model import Model, Once
from nightingale.engine.plan import Plan
from nightingale.engine.profiles import Profile
from nightingale.engine.rendering import utterance
from nightingale.engine.tts import TTS
from nightingale.models.chatterbox.build import UNUSED_BY_T3, Networks
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.presets import PRESETS, Preset
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.checkpoint import fold_weight_norm, load, part
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.text.frontend import Frontend
from nightingale_lab.random_models import PROMPT_TOKENS, random_voice, tiny_preset
from nightingale_lab.upstream.networks import RandomUpstream

TEXT = "This sentence stands for sixty text ids."
TEXT_IDS, TINY_TEXT_IDS, TINY_PROMPT_TOKENS = 60, 6, 20


class FixedLengthTokenizer:
    """Encodes every text to the same number of ids."""

    vocab_size = 256

    def __init__(self, ids: int) -> None:
        self._ids = ids

    def encode(self, text: str, language: str | None = None) -> list[int]:  # noqa: ARG002, a protocol
        return [1 + (7 * i + len(text)) % 200 for i in range(self._ids)]  # neither start nor stop of text


def preset_of(family: str, *, tiny: bool) -> Preset:
    return tiny_preset(PRESETS[family]) if tiny else PRESETS[family]


def random_networks(preset: Preset, device: torch.device) -> Networks:
    """Return networks with random weights, made on the device. Control ids are never the most likely."""
    with torch.device(device):
        t3, flow, hift = T3(preset.t3), Flow(preset.flow), Hift(preset.hift)
    with torch.no_grad():
        t3.speech_head.weight[:SPEECH_CODES] *= 10
        t3.speech_head.weight[SPEECH_CODES:] = 0
    for network in (t3, flow, hift):
        network.to(device).eval().requires_grad_(False)
    return Networks(t3=t3, flow=flow, hift=hift)


def networks_of(upstream: RandomUpstream, preset: Preset, device: torch.device) -> Networks:
    """Return our networks with upstream's weights."""
    t3, s3gen, source = upstream.t3.state_dict(), upstream.s3gen.state_dict(), Path("upstream")
    vocoder = fold_weight_norm(part(s3gen, "mel2wav."))
    return Networks(
        t3=load(lambda: T3(preset.t3), t3, source=source, unused=UNUSED_BY_T3).to(device),
        flow=load(lambda: Flow(preset.flow), part(s3gen, "flow."), source=source).to(device),
        hift=load(lambda: Hift(preset.hift), vocoder, source=source).to(device),
    )


def random_model(
    family: str, device: torch.device, *, tiny: bool, tokens: int, upstream: RandomUpstream | None = None
) -> Model:
    """Return a model with random weights, or upstream's, whose every utterance has that many tokens."""
    preset = preset_of(family, tiny=tiny)
    voice = random_voice(preset, prompt_tokens=TINY_PROMPT_TOKENS if tiny else PROMPT_TOKENS)

    def no_encoders() -> Any:
        raise RuntimeError("a random model clones no voices")

    return Model(
        name=family,
        voice_family=voice.family,
        frontend=Frontend(tokenizer=FixedLengthTokenizer(TINY_TEXT_IDS if tiny else TEXT_IDS)),
        networks=networks_of(upstream, preset, device) if upstream else random_networks(preset, device),
        encoders=Once(no_encoders),
        defaults=replace(MODEL_DEFAULTS[family], max_new_tokens=tokens, guarded=False, tail_silence_tokens=0),
        default_voice=voice,
        fingerprint="random",
    )


def make_control_ids_audible() -> None:
    """Render control ids, which random weights may draw, so that a sentence has its full length."""
    utterance.audible = lambda ids: [token % SPEECH_CODES for token in ids]


def graphs_plan(model: Model, profile: Profile, device: torch.device) -> Plan:
    """Return the plan for this machine. Without a GPU, the code of the graphs runs eagerly."""
    made = plan_for(model, profile)
    if device.type == "cuda":
        return made
    stages: dict[str, Any] = {
        stage: replace(getattr(made, stage), way="graphs")
        for stage in ("t3", "flow", "vocoder")
        if getattr(profile, stage)
    }
    return replace(made, **stages)


def cuda_decoder(tts: TTS) -> Any:
    return tts._worker.draws._decoder  # type: ignore[attr-defined]


def cuda_renderer(tts: TTS) -> Any:
    """Return the renderer, or None if it is not the one with CUDA graphs."""
    return getattr(tts._worker.studio, "_renderer", None)


@dataclass
class Captured:
    """Tokens and text ids of the utterances, by seed."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    text_ids: dict[int, list[int]] = field(default_factory=dict)


@contextmanager
def captured_tokens() -> Iterator[Captured]:
    """Capture the tokens that every engine of this process draws."""
    captured, accept = Captured(), utterance.Utterance.accept

    def capture(spoken: Any, token: int) -> None:
        captured.tokens.setdefault(spoken.request.seed, []).append(token)
        captured.text_ids[spoken.request.seed] = list(spoken.piece.text_ids)
        accept(spoken, token)

    utterance.Utterance.accept = capture  # type: ignore[method-assign]
    try:
        yield captured
    finally:
        utterance.Utterance.accept = accept  # type: ignore[method-assign]


@contextmanager
def delayed_rendering(tts: TTS) -> Iterator[list[float]]:
    """Delay the host before every render by the seconds in the list that is returned."""
    renderer, delay = cuda_renderer(tts), [0.0]
    plain = getattr(renderer, "launch", None)

    def launch(blocks: Any) -> Any:
        time.sleep(delay[0])
        assert plain is not None
        return plain(blocks)

    if renderer is not None:
        renderer.launch = launch
    try:
        yield delay
    finally:
        if renderer is not None:
            del renderer.launch
