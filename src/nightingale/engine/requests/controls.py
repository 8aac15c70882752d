"""What a caller may turn, and how far."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

from nightingale.models.defaults import ModelDefaults
from nightingale.decoding.random import SEED_LIMIT, fresh_seed
from nightingale.engine.session import Request
from nightingale.engine.rendering.time_stretch import FASTEST, SLOWEST
from nightingale.errors import ConfigError
from nightingale.types import Sampling
from nightingale.voices.voice import Voice

RANGES = {
    "temperature": (0.0, 5.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "top_k": (0, 1_000_000),
    "repetition_penalty": (0.1, 10.0),
    "cfg_weight": (0.0, 10.0),
    "exaggeration": (0.0, 5.0),
    "speed": (SLOWEST, FASTEST),
    "seed": (0, SEED_LIMIT - 1),
}
WHOLE = frozenset({"top_k", "seed"})
"""Controls that count; the others measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A number that a caller may set."""

    low: float
    high: float
    default: float


def offered(defaults: ModelDefaults) -> dict[str, Control]:
    """What a model can be told, by name."""
    values = {**asdict(defaults.sampling), "exaggeration": defaults.exaggeration, "speed": 1.0}
    return {
        name: Control(low=RANGES[name][0], high=RANGES[name][1], default=default)
        for name, default in values.items()
        if name not in defaults.ignored
    }


def settle(defaults: ModelDefaults, voice: Voice, seed: int | None, controls: dict[str, Any]) -> Request:
    """A request with every default filled in; unknown or impossible controls are refused by name."""
    check_controls({**controls, "seed": seed}, defaults)
    chosen = {name: value for name, value in controls.items() if value is not None}
    exaggeration = chosen.pop("exaggeration", defaults.exaggeration)
    speed = chosen.pop("speed", 1.0)
    return Request(
        voice=voice,
        sampling=replace(defaults.sampling, **chosen),
        exaggeration=exaggeration,
        seed=fresh_seed() if seed is None else int(seed),
        speed=float(speed),
    )


def check_controls(controls: dict[str, Any], defaults: ModelDefaults) -> None:
    known = {*(f.name for f in fields(Sampling)), "exaggeration", "seed", "speed"}
    for name, value in controls.items():
        if name not in known:
            raise ConfigError(
                "unknown control",
                got=repr(name),
                allowed=", ".join(sorted(known)),
                fix="Check the spelling.",
                param=name,
            )
        if value is None:
            continue
        if name in defaults.ignored:
            raise ConfigError(
                f"this model has no {name}",
                got=f"{name}={value}",
                allowed=", ".join(sorted(known - defaults.ignored)),
                fix="Leave it out, or choose a model that has it.",
                param=name,
            )
        low, high = RANGES[name]
        # By kind and not by type: numpy's numbers are as good as Python's.
        number = isinstance(value, Integral if name in WHOLE else Real) and not isinstance(value, bool)
        # Written so that NaN, too, is refused.
        if not (number and low <= value <= high):
            raise ConfigError(
                f"{name} is out of range",
                got=repr(value),
                allowed=f"a {'whole ' if name in WHOLE else ''}number from {low} to {high}",
                fix="Choose a value inside the range.",
                param=name,
            )
