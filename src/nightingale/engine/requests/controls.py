"""Request parameters: the options that a caller may set, and the `Request` they make."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeVar

from nightingale.decoding.philox import fresh_seed
from nightingale.engine.faults import check_range, check_types
from nightingale.engine.lexicon_files import LexiconSource
from nightingale.engine.session import Request
from nightingale.engine.voice_lookup import VoiceReference
from nightingale.errors import ConfigError
from nightingale.models.defaults import ModelDefaults
from nightingale.request_options import CONTROLS, NUMBERS, OPTIONS, SWITCHES, PlainOptions
from nightingale.voices.voice import Voice

Method = TypeVar("Method", bound=Callable[..., Any])


class RequestOptions(PlainOptions, total=False):
    """Keyword arguments of a request: those of request_options.py, and those that have another form elsewhere.

    Type checkers read them here, and `show_options` makes the signatures and docstrings of the methods from them.
    """

    voice: Voice | VoiceReference | None
    ssml_voices: Mapping[str, Voice] | None
    lexicon: LexiconSource
    timestamps: bool


PYTHON_OPTIONS: Final = {
    "voice": "A `Voice`, its name, a voice file, or a clip to clone: a path, bytes, a file object, an `Audio` "
    "or (samples, sample rate). None is the model's own voice.",
    "ssml_voices": "Voices that SSML may name (docs/text.md), before those of the library; names in lower case.",
    "lexicon": "A TOML file, or words and their respellings (docs/text.md).",
    "timestamps": "Time the words: `audio.words`, or `chunk.words` of each chunk (docs/captions.md).",
}
"""Help for the options that `RequestOptions` adds."""
TEXT_OPTIONS: Final = frozenset({*PYTHON_OPTIONS, *OPTIONS} - CONTROLS.keys())
"""Options that are not controls of the model."""


def show_options(function: Method) -> Method:
    """Let `help` show the options of a method that takes `**request`: its signature and its docstring."""
    annotations = {name: RequestOptions.__annotations__[name].__forward_arg__ for name in PYTHON_OPTIONS}
    for name, option in OPTIONS.items():
        annotations[name] = "bool" if name in SWITCHES else f"{option.kind.__name__} | None"
    defaults = {"timestamps": False, **{name: option.default for name, option in SWITCHES.items()}}
    options = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=annotation
        )
        for name, annotation in annotations.items()
    ]
    shown = inspect.signature(function)
    own = [parameter for parameter in shown.parameters.values() if parameter.name != "request"]
    function.__signature__ = shown.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    about = PYTHON_OPTIONS | {name: option.full for name, option in OPTIONS.items()}
    lines = [f"    {name}: {text}" for name, text in about.items()]
    function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Keyword arguments:", *lines])
    return function


def check_request(request: RequestOptions) -> None:
    """Raise ConfigError for an option of a request that has a wrong type and is not a number."""
    switches = ("timestamps", *SWITCHES)
    check_types(
        language=(request.get("language"), str | None, "a language code, or None"),
        ssml_voices=(request.get("ssml_voices"), Mapping | None, "a mapping of names to voices, or None"),
        **{name: (request.get(name, False), bool, "True or False") for name in switches},
    )


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
        name: Control(low=option.limits[0], high=option.limits[1], default=values[name])
        for name, option in CONTROLS.items()
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
        check_control(name, value, defaults.ignored)
    chosen = {name: value for name, value in controls.items() if value is not None}
    exaggeration, speed = chosen.pop("exaggeration", defaults.exaggeration), chosen.pop("speed", 1.0)
    return Request(
        voice=voice,
        sampling=replace(defaults.sampling, **chosen),
        exaggeration=exaggeration,
        seed=fresh_seed() if seed is None else int(seed),
        speed=float(speed),
    )


def check_control(name: str, value: Any, ignored: Collection[str] = ()) -> None:
    """Raise ConfigError if a control is unknown, is one that the model ignores, or is out of range."""
    option = NUMBERS.get(name)
    if option is None or (name in ignored and value is not None):
        what = f"unknown control {name!r}" if option is None else f"this model has no {name}"
        known = NUMBERS.keys() - (set(ignored) if option else set())
        raise ConfigError(what, allowed=", ".join(sorted(known)), param=name)
    if value is not None:
        check_range(name, value, *option.limits, integer=option.kind is int)
