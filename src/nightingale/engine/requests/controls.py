"""Request parameters: the numbers a caller may set, their ranges, and the `Request` they make."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypedDict, TypeVar

from nightingale.decoding.philox import SEED_LIMIT, fresh_seed
from nightingale.engine.faults import check_range, check_types
from nightingale.engine.lexicon_files import LexiconSource
from nightingale.engine.rendering.time_stretch import MAX_SPEED, MIN_SPEED
from nightingale.engine.session import Request
from nightingale.engine.voice_lookup import VoiceReference
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
SWITCHES: Final = {"normalize": True, "strict": False, "read_code": False, "timestamps": False}
"""Options that are on or off, and their defaults."""
TEXT_OPTIONS: Final = frozenset({"voice", "ssml_voices", "language", "seed", "lexicon", *SWITCHES})
"""Options that are not controls of the model."""
INTEGERS: Final = frozenset({"top_k", "seed"})
Method = TypeVar("Method", bound=Callable[..., Any])


class RequestOptions(TypedDict, total=False):
    """Keyword arguments of a request; `OPTION_HELP` describes them. Type checkers read them here, and
    `show_options` makes the signatures and docstrings of the methods from them: they are declared once."""

    voice: Voice | VoiceReference | None
    ssml_voices: Mapping[str, Voice] | None
    language: str | None
    seed: int | None
    normalize: bool
    strict: bool
    read_code: bool
    lexicon: LexiconSource
    timestamps: bool
    temperature: float | None
    top_p: float | None
    min_p: float | None
    top_k: int | None
    repetition_penalty: float | None
    cfg_weight: float | None
    exaggeration: float | None
    speed: float | None


OPTION_HELP: Final = {
    "voice": "A `Voice`, its name, a voice file, or a clip to clone: a path, bytes, a file object, an `Audio` "
    "or (samples, sample rate). None is the model's own voice.",
    "ssml_voices": "Voices that SSML may name (docs/text.md), before those of the library; names in lower case.",
    "language": "A language code, for multilingual models.",
    "seed": 'The same text, voice, seed and controls give the same samples: in the profile "exact" always, in '
    "others if the engine runs no other request meanwhile. None chooses one at random.",
    "normalize": "Write digits, symbols and abbreviations out in words first, where the model has that step "
    '(docs/text.md). In the profile "exact", the multilingual model has it only if this is given.',
    "strict": "Refuse a text of which a part would not be spoken; otherwise it is left out, with a warning.",
    "read_code": "Read code blocks, which are left out otherwise.",
    "lexicon": "A TOML file, or words and their respellings (docs/text.md).",
    "timestamps": "Time the words: `audio.words`, or `chunk.words` of each chunk (docs/captions.md).",
    "temperature": "Randomness of sampling, 0 to 5. For this and all that follow, None is the model's default.",
    "top_p": "Nucleus sampling: the total probability of the tokens that are kept.",
    "min_p": "The smallest probability that is kept, relative to the best token's.",
    "top_k": "The number of tokens that are kept; 0 keeps all.",
    "repetition_penalty": "Penalty for tokens that occurred before; 1 is none.",
    "cfg_weight": "Weight of classifier-free guidance; 0 is off and faster.",
    "exaggeration": "Strength of emotion.",
    "speed": "Speed of the finished speech, 0.25 to 4; the pitch stays.",
}
"""One or two sentences about each keyword argument of a request."""


def show_options(function: Method) -> Method:
    """Let `help` show the options of a method that takes `**request`: its signature and its docstring."""
    shown = inspect.signature(function)
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=SWITCHES.get(name),
            annotation=annotation.__forward_arg__,
        )
        for name, annotation in RequestOptions.__annotations__.items()
    ]
    own = [parameter for parameter in shown.parameters.values() if parameter.name != "request"]
    function.__signature__ = shown.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    about = [f"    {name}: {OPTION_HELP[name]}" for name in RequestOptions.__annotations__]
    function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Keyword arguments:", *about])
    return function


def check_request(request: RequestOptions) -> None:
    """Raise ConfigError for an option of a request that has a wrong type and is not a number."""
    check_types(
        language=(request.get("language"), str | None, "a language code, or None"),
        ssml_voices=(request.get("ssml_voices"), Mapping | None, "a mapping of names to voices, or None"),
        **{name: (request.get(name, default), bool, "True or False") for name, default in SWITCHES.items()},
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
    unknown = name not in RANGES
    if unknown or (name in ignored and value is not None):
        what = f"unknown control {name!r}" if unknown else f"this model has no {name}"
        known = RANGES.keys() - (() if unknown else set(ignored))
        raise ConfigError(what, allowed=", ".join(sorted(known)), param=name)
    if value is not None:
        check_range(name, value, *RANGES[name], integer=name in INTEGERS)
