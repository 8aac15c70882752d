"""Choose a backend and a precision for each role: once, when a model is loaded, as a value that can be printed.

`select` holds a profile's preferences against each backend's `unsupported_reason`. No weights are needed, so
`nightingale doctor --plan` can answer for a model that is not on this machine.
"""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from nightingale.backends.base import (
    DEFAULT_SLOTS,
    Backend,
    Decoder,
    Machine,
    ModelInfo,
    ModelSource,
    Renderer,
    Role,
    Setup,
    how_to_install_torch,
)
from nightingale.backends.profiles import INT4, Preference, Profile
from nightingale.errors import ConfigError, DeviceError
from nightingale.models.chatterbox.t3.config import Gpt2Config
from nightingale.voices.voice import Voice

FLOAT_PRECISIONS = ("float32", "bfloat16")
X86 = ("x86_64", "amd64")
GPU_SLOTS, GPU_SLOTS_SHARE = 128, 1 / 5
"""Utterances that a GPU decodes at once, and the share of its free memory that they may take: a step of 64 takes
less than three times as long as one alone."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A backend that was considered before the chosen one."""

    backend: str
    precision: str
    reason: str
    warn: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The backend of one role."""

    role: Role
    backend: Backend
    setup: Setup
    skipped: tuple[Skipped, ...] = ()

    @property
    def precision(self) -> str:
        return self.setup.precision

    def __str__(self) -> str:
        return f"{self.backend.name} {self.precision}"

    def __repr__(self) -> str:
        return f"<Choice {self.role} {self}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The backend of each role of a model, and the reasons."""

    model: str
    profile: Profile
    machine: Machine
    decoder: Choice
    renderer: Choice

    def __repr__(self) -> str:
        return f"<Plan {self.summary}>"

    @property
    def heading(self) -> str:
        """Model, profile and device, in words."""
        machine = self.machine
        return (
            f"{self.model}, {self.profile.name}, on {machine.device} ({machine.name}, {machine.instructions})"
        )

    @property
    def summary(self) -> str:
        """The plan in one line."""
        backends = (f"{choice.role} {choice}" for choice in self.choices)
        return "; ".join((self.heading, *backends, f"stream {self.profile.stream}"))

    @property
    def choices(self) -> tuple[Choice, Choice]:
        return self.decoder, self.renderer

    @property
    def warnings(self) -> list[str]:
        """Return what is slower here than the profile promises, one line each."""
        problem = [self.machine.problem] if self.machine.problem else []
        return problem + [
            f"{choice.role}: {choice.backend.name} {choice.precision} is used, not {skipped.backend} "
            f"{skipped.precision}: {skipped.reason}"
            for choice in self.choices
            for skipped in choice.skipped
            if skipped.warn
        ]


def open_plan(plan: Plan, source: ModelSource, *, voice: Voice | None) -> tuple[Decoder, Renderer]:
    """Open the backends of a plan, both at the same time where the threads of the decoder are known before."""
    renderer_backend, setup = plan.renderer.backend, replace(plan.renderer.setup, voice=voice)

    def open_decoder(threads: int | None) -> Decoder:
        decoder_setup = replace(plan.decoder.setup, threads=threads)
        return plan.decoder.backend.open_decoder(source, decoder_setup)

    threads = renderer_backend.decoder_threads()
    if threads is None:
        renderer = renderer_backend.open_renderer(source, setup)
        return open_decoder(renderer.decoder_threads), renderer
    with ThreadPoolExecutor(max_workers=1) as pool:
        opening = pool.submit(renderer_backend.open_renderer, source, setup)
        decoder = open_decoder(threads)
        return decoder, opening.result()


def find_machine(backends: Sequence[Backend], device: str, model: ModelInfo | None = None) -> Machine:
    """Describe the device a user asked for.

    Args:
        backends: All backends; the first one that brings the device describes it.
        device: Its name. "auto" is the first device of a backend that is measured to be faster than the CPU for the
            model, and else the CPU.
        model: What will run on it. None: "auto" is the first device that any backend brings.
    """
    let_idle_threads_sleep()
    cpu = Machine(device="cpu", name="cpu", instructions=platform.machine())
    allowed = model.defaults.auto_devices if model is not None and device == "auto" else None
    if model is not None and allowed is not None and not allowed:
        # No GPU is looked for, which would import PyTorch.
        return replace(cpu, auto_reason=f"no GPU path is measured faster for {model.name}")
    for backend in backends:
        machine = backend.probe(device)
        if machine is not None and (allowed is None or machine.kind in ("cpu", *allowed)):
            return machine
    if device in ("auto", "cpu"):
        return cpu
    raise DeviceError(
        "the device cannot be used",
        got=repr(device),
        allowed="auto, cpu, or a device that an installed backend has",
        fix="See `nightingale doctor`.",
    )


def let_idle_threads_sleep() -> None:
    """Let the threads of PyTorch's OpenMP sleep between two products, on x86 and unless the user has set a policy.

    By default they spin, on the cores that the CPU backend's own threads need (docs/internals/kernels.md). OpenMP
    reads the policy when PyTorch is imported. ARM showed no difference.
    """
    if platform.machine().lower() in X86 and "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def machine_for(backend: Backend, machine: Machine) -> Machine:
    """Return the machine as a backend sees it: where MLX's device is asked for, others may use the CPU beside it."""
    if machine.kind == "mlx" and "mlx" not in backend.device_kinds:
        return replace(machine, device="cpu")
    return machine


def check_precision(asked: str) -> None:
    """Raise ConfigError unless `asked` is "auto" or a floating-point precision for T3."""
    allowed = ("auto", *FLOAT_PRECISIONS)
    if asked not in allowed:
        raise ConfigError("unknown dtype", got=repr(asked), allowed=", ".join(allowed))


def select(
    backends: Sequence[Backend], model: ModelInfo, machine: Machine, profile: Profile, *, dtype: str = "auto"
) -> Plan:
    """Choose the backend of each role.

    Args:
        backends: All backends, in the order in which they are tried after the profile's preferences.
        model: The model's description.
        machine: The device.
        profile: Its preferences are tried first. The plan has it with the model's defaults filled in.
        dtype: T3's floating-point precision if the user chose one; "auto" leaves it to the profile.
    """
    by_name = {backend.name: backend for backend in backends}
    profile = for_model(profile, model, machine.kind)
    profile = replace(profile, slots=profile.slots or default_slots(model, machine))

    def choose(role: Role, preferences: Sequence[Preference], fallback: str) -> Choice:
        skipped: list[Skipped] = []
        tried = [p for p in preferences if p.backend in by_name and (not p.models or model.name in p.models)]
        named = {(p.backend, p.precision) for p in tried}
        tried += [
            Preference(backend.name, fallback, warn=False)
            for backend in reversed(backends)
            if (backend.name, fallback) not in named
        ]
        for preference in tried:
            backend = by_name[preference.backend]
            own = machine_for(backend, machine)
            setup = Setup(profile=profile, machine=own, precision=preference.precision)
            if backend.device_kinds and own.kind not in backend.device_kinds:
                reason = f"it runs on {' or '.join(backend.device_kinds)}, not on {machine.kind}"
                skipped.append(Skipped(preference.backend, preference.precision, reason, warn=False))
                continue
            unsupported = backend.unsupported_reason(role, model, setup)
            if unsupported is None:
                return Choice(role=role, backend=backend, setup=setup, skipped=tuple(skipped))
            warn = preference.warn and not model.synthetic
            skipped.append(Skipped(preference.backend, preference.precision, unsupported, warn))
        raise ConfigError(
            f"no backend can run the {role} of the model {model.name!r} here",
            got="; ".join(f"{s.backend}: {s.reason}" for s in skipped),
            fix=how_to_install_torch(),
        )

    fallback = "float32" if dtype == "auto" else dtype
    decoder = profile.decoder
    if dtype != "auto":  # then not in integers either
        decoder = tuple(replace(p, precision=dtype) for p in decoder if p.precision in FLOAT_PRECISIONS)
    return Plan(
        model=model.name,
        profile=profile,
        machine=machine,
        decoder=choose("decoder", decoder, fallback),
        renderer=choose("renderer", profile.renderer, "float32"),
    )


def default_slots(model: ModelInfo, machine: Machine) -> int:
    """Return how many utterances a device decodes at once: on a GPU many, if it has the memory for them."""
    slots = GPU_SLOTS if machine.kind == "cuda" else DEFAULT_SLOTS
    free = math.inf if machine.free_bytes is None else machine.free_bytes
    while slots > DEFAULT_SLOTS and model.kv_cache_bytes(slots, itemsize=2) > GPU_SLOTS_SHARE * free:
        slots //= 2
    return slots


def for_model(profile: Profile, model: ModelInfo, device_kind: str = "cpu") -> Profile:
    """Return a profile with a model's defaults in place of what it leaves open.

    Raises:
        ConfigError: An option of the profile cannot be used with this model.
    """
    profile, steps = replace(profile, stream=profile.stream or model.defaults.stream), profile.flow_steps
    if profile.first_block_tokens is not None and not profile.in_blocks:
        raise ConfigError(
            "a segment that is rendered whole has no first block",
            got=f"first_block_tokens={profile.first_block_tokens} and stream=segment",
            allowed="first_block_tokens with stream=block",
            fix="Add stream=block, or leave first_block_tokens out.",
            param="first_block_tokens",
        )
    is_gpt2 = isinstance(model.preset.t3.backbone, Gpt2Config)
    if (
        not is_gpt2
        and device_kind != "mlx"
        and any(preference.precision == INT4 for preference in profile.decoder)
    ):
        raise ConfigError(
            "int4 weights are for models with a GPT-2 backbone, whose steps have one row",
            got=f"decoder=int4 and the model {model.name!r}",
            allowed="decoder=int4 with turbo or nano",
            fix="Leave decoder=int4 out.",
            param="decoder",
        )
    allowed = model.preset.flow.step_counts
    if steps is not None and steps not in allowed:
        raise ConfigError(
            f"the flow of the model {model.name!r} cannot take so many steps",
            got=f"flow_steps={steps}",
            allowed=f"{allowed[0]} to {allowed[-1]}" if len(allowed) > 1 else str(allowed[0]),
            fix="Leave flow_steps out for upstream's number.",
            param="flow_steps",
        )
    return profile
