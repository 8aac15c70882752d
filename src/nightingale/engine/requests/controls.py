"""Request parameters: the numbers a caller may set, their ranges, and the `Request` they make."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypedDict

from nightingale.decoding.philox import SEED_LIMIT, fresh_seed
from nightingale.engine.faults import check_range
from nightingale.engine.rendering.time_stretch import MAX_SPEED, MIN_SPEED
from nightingale.engine.session import Request
from nightingale.errors import ConfigError
from nightingale.models.defaults import ModelDefaults
from nightingale.voices.voice import Voice

RANGES: Final[dict[str, tuple[float, float]]] = {
    "temperature": (0.0, 5.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "top_k": (0, 1_000_000),
    "repetition_penalty": (0.1, 10.0),
    "cfg_weight": (0.0, 10.0),
    "exaggeration": (0.0, 5.0),
    "speed": (MIN_SPEED, MAX_SPEED),
    "seed": (0, SEED_LIMIT - 1),
}
INTEGERS: Final = frozenset({"top_k", "seed"})
NOT_CONTROLS: Final = frozenset({"voice", "language", "seed", "normalize"})
"""Options of a request besides its controls."""


class RequestOptions(TypedDict, total=False):
    """Keyword arguments of a request. A control that is None or left out has the model's default."""

    voice: Voice | str | Path | None
    """A voice, its name, a voice file, or a clip to clone. None is the model's own voice."""
    language: str | None
    """A language code, for multilingual models."""
    seed: int | None
    """The same text, voice, seed and controls give the same samples: in the profile "exact" always, in others
    if the engine runs no other request meanwhile."""
    normalize: bool
    """Write digits and symbols out in words first, where the model has that step."""
    temperature: float | None
    top_p: float | None
    min_p: float | None
    top_k: float | None
    repetition_penalty: float | None
    cfg_weight: float | None
    exaggeration: float | None
    speed: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Range and default of a number that a caller may set."""

    low: float
    high: float
    default: float


def available_controls(defaults: ModelDefaults) -> dict[str, Control]:
    """Return the controls that a model has, by name; the seed is not among them."""
    values = {**asdict(defaults.sampling), "exaggeration": defaults.exaggeration, "speed": 1.0}
    return {
        name: Control(low=RANGES[name][0], high=RANGES[name][1], default=default)
        for name, default in values.items()
        if name not in defaults.ignored
    }


def build_request(
    defaults: ModelDefaults, voice: Voice, seed: int | None, controls: dict[str, Any]
) -> Request:
    """Return a request with every default filled in. A control that is None counts as not given.

    Raises:
        ConfigError: A control is unknown, not a feature of this model, or out of range.
    """
    check_controls({**controls, "seed": seed}, defaults)
    chosen = {name: value for name, value in controls.items() if value is not None}
    exaggeration, speed = chosen.pop("exaggeration", defaults.exaggeration), chosen.pop("speed", 1.0)
    return Request(
        voice=voice,
        sampling=replace(defaults.sampling, **chosen),
        exaggeration=exaggeration,
        seed=fresh_seed() if seed is None else int(seed),
        speed=float(speed),
    )


def check_controls(controls: dict[str, Any], defaults: ModelDefaults) -> None:
    """Raise ConfigError for the first control that this model cannot take."""
    for name, value in controls.items():
        if name not in RANGES:
            raise _unsupported(f"unknown control {name!r}", name, RANGES.keys())
        if value is None:
            continue
        if name in defaults.ignored:
            raise _unsupported(f"this model has no {name}", name, RANGES.keys() - defaults.ignored)
        check_range(name, value, *RANGES[name], integer=name in INTEGERS)


def _unsupported(what: str, name: str, known: Any) -> ConfigError:
    return ConfigError(what, allowed=", ".join(sorted(known)), param=name)
