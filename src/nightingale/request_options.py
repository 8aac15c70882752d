"""The options of a request, each declared once.

Made from `OPTIONS`: the flags of the command line (cli/options.py), the fields of HTTP and WebSocket messages
(server/request_fields.py), the columns of batches, the controls that a model reports and the page shows, and the
generated pages of the documentation. The keyword arguments of Python's methods are made from
`engine.requests.controls.RequestOptions`, which adds the options whose form depends on the interface.

A new option is an entry of `PlainOptions`, where type checkers read it too; a parameter of sampling also has its
default in `Sampling`. It is used where its name is, for sampling in decoding/sampling.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Any, Final, TypedDict, get_args, get_type_hints

SEED_LIMIT: Final = 2**32
MIN_SPEED: Final = 0.25
MAX_SPEED: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Parameters of sampling the next speech token. A request that leaves one out has the model's default."""

    temperature: float = 0.8
    top_p: float = 1.0
    min_p: float = 0.05
    top_k: int = 0
    """0 keeps every id."""
    repetition_penalty: float = 1.2
    cfg_weight: float = 0.5
    """Classifier-free guidance; 0 decodes a single row."""


@dataclass(frozen=True, slots=True)
class RequestOption:
    """The description of an option."""

    help: str
    """One sentence about what it is or does."""
    more: str = ""
    """Sentences for readers of the reference."""
    limits: tuple[float, float] = (-inf, inf)
    """The least and the greatest value of a number, or length of a word."""
    default: bool | float | str | None = "the model's"
    """The value that holds if the option is left out, or that value in words."""
    off: str = ""
    """Help for the flag --no-NAME of an option that is on by default."""
    short: str | None = None
    """The short flag of the command line."""
    not_of: frozenset[str] = frozenset()
    """Families of models that do not have it."""
    kind: type = str
    """The type of its values, which its entry is annotated with."""

    @property
    def brief(self) -> str:
        """Its help, with the range of a number."""
        if self.kind is not float:
            return self.help
        return f"{self.help} {self.limits[0]:g} to {self.limits[1]:g}."

    @property
    def full(self) -> str:
        """The brief help and what else readers of the reference need."""
        return f"{self.brief} {self.more}".rstrip()


class PlainOptions(TypedDict, total=False):
    """The options whose value is a number, a word or a switch on every interface."""

    language: Annotated[
        str | None,
        RequestOption("Language code, for multilingual models.", limits=(0, 35), short="-l", default=None),
    ]
    seed: Annotated[
        int | None,
        RequestOption(
            "The same seed gives the same audio.",
            more='With the same text, voice and controls, that is: in the profile "exact" always, in others if the '
            "engine runs no other request meanwhile. Without one, it is chosen at random.",
            limits=(0, SEED_LIMIT - 1),
            default="random",
        ),
    ]
    temperature: Annotated[
        float | None, RequestOption("Sampling temperature: how random the speech is.", limits=(0.0, 5.0))
    ]
    top_p: Annotated[
        float | None,
        RequestOption("Nucleus sampling: total probability of the tokens kept.", limits=(0.0, 1.0)),
    ]
    min_p: Annotated[
        float | None,
        RequestOption(
            "Minimum probability of the tokens kept, relative to the best token.",
            limits=(0.0, 1.0),
            not_of=frozenset({"turbo"}),
        ),
    ]
    top_k: Annotated[int | None, RequestOption("Number of tokens kept; 0 keeps all.", limits=(0, 1_000_000))]
    repetition_penalty: Annotated[
        float | None, RequestOption("Penalty for tokens that occurred before; 1 is none.", limits=(0.1, 10.0))
    ]
    cfg_weight: Annotated[
        float | None,
        RequestOption(
            "Weight of classifier-free guidance; 0 is off and faster.",
            limits=(0.0, 10.0),
            not_of=frozenset({"turbo", "wren"}),
        ),
    ]
    exaggeration: Annotated[
        float | None,
        RequestOption("Strength of emotion.", limits=(0.0, 5.0), not_of=frozenset({"turbo", "wren"})),
    ]
    speed: Annotated[
        float | None,
        RequestOption(
            "Speed of the finished speech; the pitch stays.", limits=(MIN_SPEED, MAX_SPEED), default=1.0
        ),
    ]
    normalize: Annotated[
        bool,
        RequestOption(
            "Write digits, symbols and abbreviations out in words first, where the model has that step "
            "(docs/text.md).",
            more='In the profile "exact", the multilingual model has it only if this is given.',
            off="Leave digits, symbols and abbreviations as they are written.",
            default=True,
        ),
    ]
    strict: Annotated[
        bool,
        RequestOption(
            "Refuse text of which a part would not be spoken.",
            more="Otherwise it is left out, with a warning.",
            default=False,
        ),
    ]
    read_code: Annotated[
        bool, RequestOption("Read code blocks, which are left out otherwise.", default=False)
    ]


def _describe(options: Any) -> dict[str, RequestOption]:
    """Return the descriptions in a TypedDict of options, with their types."""
    found = {}
    for name, hint in get_type_hints(options, include_extras=True).items():
        annotation, option = get_args(hint)
        kind = next(iter(get_args(annotation)), annotation)
        found[name] = replace(option, kind=kind)
    return found


OPTIONS: Final[Mapping[str, RequestOption]] = _describe(PlainOptions)
NUMBERS: Final = {name: option for name, option in OPTIONS.items() if option.kind in (int, float)}
CONTROLS: Final = {name: option for name, option in NUMBERS.items() if name != "seed"}
"""Numbers that change how a model speaks; each model has some of them."""
SWITCHES: Final = {name: option for name, option in OPTIONS.items() if option.kind is bool}


def missing_in(family: str) -> frozenset[str]:
    """Return the names of the options that a family of models does not have."""
    return frozenset(name for name, option in OPTIONS.items() if family in option.not_of)
