"""Request parameters: the numbers a caller may set, their ranges, and the `Request` they make."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypedDict, TypeVar

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
Method = TypeVar("Method", bound=Callable[..., Any])


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


def show_options(function: Method) -> Method:
    """Let `help` list the options of a method that takes `**request`."""
    shown = inspect.signature(function)
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=True if name == "normalize" else None,
            annotation=annotation.__forward_arg__,
        )
        for name, annotation in RequestOptions.__annotations__.items()
    ]
    own = [parameter for parameter in shown.parameters.values() if parameter.name != "request"]
    function.__signature__ = shown.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return function


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
    for name, value in {**controls, "seed": seed}.items():
        _check_control(name, value, defaults)
    chosen = {name: value for name, value in controls.items() if value is not None}
    exaggeration, speed = chosen.pop("exaggeration", defaults.exaggeration), chosen.pop("speed", 1.0)
    return Request(
        voice=voice,
        sampling=replace(defaults.sampling, **chosen),
        exaggeration=exaggeration,
        seed=fresh_seed() if seed is None else int(seed),
        speed=float(speed),
    )


def _check_control(name: str, value: Any, defaults: ModelDefaults) -> None:
    unknown = name not in RANGES
    if unknown or (name in defaults.ignored and value is not None):
        what = f"unknown control {name!r}" if unknown else f"this model has no {name}"
        known = RANGES.keys() - (() if unknown else defaults.ignored)
        raise ConfigError(what, allowed=", ".join(sorted(known)), param=name)
    if value is not None:
        check_range(name, value, *RANGES[name], integer=name in INTEGERS)
