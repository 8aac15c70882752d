"""Plans that run the CUDA backend eagerly on a CPU: the functions of its graphs, without capturing them."""

from __future__ import annotations

from dataclasses import replace

from nightingale.backends import BACKENDS
from nightingale.backends.base import Machine, Setup
from nightingale.backends.profiles import PROFILES, Profile
from nightingale.backends.selection import Choice, Plan, select
from nightingale.engine.load import Model

CPU = Machine(device="cpu", name="cpu", instructions="")
FAST = replace(PROFILES["fast"], slots=4)
TEXTS = ["Hello there.", "A second voice, a little longer.", "Three.", "And the fourth one speaks as well."]


def eager_plan(
    model: Model,
    profile: Profile = FAST,
    *,
    decoder: bool = False,
    renderer: bool = False,
    precision: str = "float32",
) -> Plan:
    """Return a plan with the CUDA backend in the given roles and the reference in the others."""
    reference = select(BACKENDS, model.info, CPU, replace(profile, decoder=(), renderer=()))
    setup = Setup(profile=profile, machine=CPU, precision=precision)
    (cuda,) = [backend for backend in BACKENDS if backend.name == "cuda"]
    (torch,) = [backend for backend in BACKENDS if backend.name == "torch"]
    return replace(
        reference,
        profile=profile,
        decoder=Choice(
            role="decoder", backend=cuda if decoder else torch, setup=replace(setup, precision="float32")
        ),
        renderer=Choice(role="renderer", backend=cuda if renderer else torch, setup=setup),
    )
