"""Whether OpenVINO shall run T3 in eight bits here. No clock is asked: ONNX Runtime rounds other sums, so the
answer must be the same at every start, or the same seed would not speak the same words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from torch import Tensor

from nightingale.accel.cpu.able import EXTRA, MOST_EXACT, broken, odd_width, weights_of
from nightingale.accel.cpu.packed import Packed, pack
from nightingale.models.chatterbox.t3.config import MULTILINGUAL, LlamaConfig, T3Config
from nightingale.models.chatterbox.t3.model import T3

PACKAGE = "openvino"
FASTER_WITH = "AVX512"
"""Where it was measured to be faster than ONNX Runtime (docs/performance.md)."""
TRIAL = replace(MULTILINGUAL, text_vocab=8, backbone=LlamaConfig(layers=1, width=128, heads=2, ffn=256))
LOUDER = 6.0
"""What attention hears in the trial, so that it matters where it listens."""
NEAR = 0.06
"""Of the scores' spread: eight bits change 0.02 there, one position less 0.15."""


def refusal(config: T3Config) -> str | None:
    """Why OpenVINO should not run this T3; None if it should. The first call tries it out: half a second."""
    instructions = torch.backends.cpu.get_cpu_capability()
    if instructions != FASTER_WITH:
        return f"it is faster than onnxruntime with {FASTER_WITH}, and this CPU has {instructions}"
    if (odd := odd_width(config)) is not None:
        return odd
    if weights_of(config) <= MOST_EXACT:
        return "onnxruntime starts sooner with so small a model"
    if find_spec(PACKAGE) is None:
        return f"{PACKAGE} is not installed (pip install '{EXTRA}')"
    return _tried()


@cache
def _tried() -> str | None:
    try:
        error = trial_error()
    except Exception as problem:  # whatever another version of a private operator raises
        return broken(PACKAGE, problem)
    # Written so that what is not a number is refused too.
    if not error < NEAR:
        return f"{PACKAGE} is off by {error:.2f} of the scores' spread in a trial; {NEAR} is allowed"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    slot: int
    token: int
    position: int


ROOM: Final[dict[str, Any]] = {"slots": 1, "rows_per_slot": 2, "capacity": 48, "batched": True, "threads": 1}


def open_trial(t3: T3, packed: Packed) -> Any:
    from nightingale.accel.cpu.vino import VinoRunner

    return VinoRunner(t3, packed, **ROOM)


@torch.inference_mode()
def trial_error(opened: Callable[[T3, Packed], Any] = open_trial) -> float:
    """How far a small T3 in eight bits is from its exact twin after a prompt and two tokens, at most."""
    rng = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        t3 = T3(TRIAL).eval().requires_grad_(False)
    for name, weight in t3.named_parameters():
        if weight.ndim == 2:
            loud = LOUDER if "o_proj." in name else 1.0
            weight.copy_(torch.randn(weight.shape, generator=rng) * loud * weight.shape[1] ** -0.5)
    prompt = torch.randn(2, 40, TRIAL.backbone.width, generator=rng)
    memory = t3.new_memory(rows=2, capacity=48)
    exact = [t3.next_scores(prompt, memory)]
    with TemporaryDirectory(prefix="nightingale-trial-") as home:
        runner = opened(t3, pack(TRIAL, t3.state_dict(), home=Path(home), source="trial"))
        near = [runner.begin(0, prompt)]
        for position, token in enumerate((7, 4000), 1):
            exact.append(t3.next_scores(t3.embed_speech(torch.full((2, 1), token), position), memory))
            near.append(runner.step([_Turn(slot=0, token=token, position=position)])[0])
    return max(_off(a, b) for a, b in zip(near, exact, strict=True))


def _off(scores: Tensor, exact: Tensor) -> float:
    return float((scores - exact).square().mean().sqrt() / exact.std())
