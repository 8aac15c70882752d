"""What a CPU may put in the place of a stage, what stands against it, and how it is put there.

The needs of these guests are measured or tried, by themselves, in accel/; those of the others are written
down in guests.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from nightingale.engine.guests import GUESTS
from nightingale.engine.plan import Guest, Machine, Plan, Sizes
from nightingale.engine.profiles import Profile
from nightingale.models.chatterbox.build import Networks
from nightingale.voices.home import cache_folder


def code_home() -> Path:
    """Where machine code is kept; safe to delete."""
    return cache_folder().parent / "code"


def _no_native(sizes: Sizes, machine: Machine, profile: Profile, dtype: str) -> str | None:  # noqa: ARG001
    from nightingale.backends.cpu.capabilities import unsupported_reason

    return _needs_floats(profile) or unsupported_reason(sizes.t3, cache_dir=code_home())


def _no_int8(sizes: Sizes, machine: Machine, profile: Profile, dtype: str) -> str | None:  # noqa: ARG001
    from nightingale.backends.onnx.capabilities import unsupported_reason

    return _needs_floats(profile) or unsupported_reason(sizes.t3)


def _no_onnx(sizes: Sizes, machine: Machine, profile: Profile, dtype: str) -> str | None:  # noqa: ARG001
    from nightingale.backends.onnx.capabilities import float32_unsupported_reason

    if dtype != "float32":
        return f"it computes in float32, not in {dtype}"
    return _needs_layers(profile) or float32_unsupported_reason(sizes.t3)


def _needs_floats(profile: Profile) -> str | None:
    if profile.draft:
        return (
            "in eight bits several tokens at once may score otherwise than one by one, so no draft is exact"
        )
    return _needs_layers(profile)


def _needs_layers(profile: Profile) -> str | None:
    if profile.cache or profile.keep < 100 or profile.draft.startswith("exit:"):
        return "what this profile switches on needs T3's layers in torch"
    return None


def _no_bytes(sizes: Sizes, machine: Machine, profile: Profile, dtype: str) -> str | None:  # noqa: ARG001
    from nightingale.backends.cpu.capabilities import layers_unsupported_reason

    return layers_unsupported_reason(code_home())


def _no_halves(sizes: Sizes, machine: Machine, profile: Profile, dtype: str) -> str | None:  # noqa: ARG001
    from nightingale.backends.cpu.bf16 import bf16_unsupported_reason

    return bf16_unsupported_reason(torch.get_num_threads())


NATIVE = Guest(
    way="native",
    stage="t3",
    kind="cpu",
    what="weights of eight bits, read by machine code made for this processor",
    refusal=_no_native,
    extra=True,
)
INT8 = Guest(
    way="int8", stage="t3", kind="cpu", what="weights of eight bits, read by onnxruntime", refusal=_no_int8
)
ONNX = Guest(
    way="onnx", stage="t3", kind="cpu", what="a step is one call of onnxruntime", refusal=_no_onnx, extra=True
)
HALVES = Guest(
    way="halves",
    stage="flow",
    kind="cpu",
    what="products in bfloat16, sums in float32",
    refusal=_no_halves,
    extra=True,
)
BYTES = Guest(
    way="native",
    stage="flow",
    kind="cpu",
    what="products of bytes by machine code made for this processor, sums in float32",
    refusal=_no_bytes,
    extra=True,
)
ROUNDED: Final = (NATIVE.way, INT8.way)
MEASURED: Final = (
    NATIVE,
    INT8,
    ONNX,
    HALVES,
    replace(HALVES, stage="vocoder"),
    BYTES,
    replace(BYTES, stage="vocoder"),
)
ALL_GUESTS: Final[Mapping[tuple[str, str], Guest]] = {**GUESTS, **{(g.stage, g.way): g for g in MEASURED}}


def swapped(networks: Networks, plan: Plan) -> Networks:
    """With flow and vocoder as the plan wants them; the networks given stay as they are."""
    flow, hift = networks.flow, networks.hift
    if HALVES.way in (plan.flow.way, plan.vocoder.way):
        from nightingale.backends.cpu.bf16 import bf16_flow, bf16_vocoder

        flow = bf16_flow(flow) if plan.flow.way == HALVES.way else flow
        hift = bf16_vocoder(hift) if plan.vocoder.way == HALVES.way else hift
    if BYTES.way in (plan.flow.way, plan.vocoder.way):
        from nightingale.backends.cpu.capabilities import kernel_context
        from nightingale.backends.cpu.int8_networks import int8_flow, int8_vocoder

        flow = int8_flow(flow, kernel_context(code_home())) if plan.flow.way == BYTES.way else flow
        hift = int8_vocoder(hift, kernel_context(code_home())) if plan.vocoder.way == BYTES.way else hift
    return replace(networks, flow=flow, hift=hift)
