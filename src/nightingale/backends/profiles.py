"""Profiles: named trade-offs between reproducibility and speed.

A profile is a set of engine options and a table of preferences over backends and precisions.
`backends/selection.py` turns the preferences into a plan for one machine; `nightingale doctor --plan fast`
prints it. Options can be added after a profile's name: `balanced+stream=block+flow_steps=6`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast, get_args

from nightingale.errors import ConfigError
from nightingale.models.defaults import StreamMode


@dataclass(frozen=True, slots=True)
class Preference:
    """A backend that a profile would like to use for a role, and its precision."""

    backend: str
    precision: str
    warn: bool = True
    """Log a warning when the device fits and the backend still cannot be used."""
    models: tuple[str, ...] = ()
    """Names of the models that it is for; empty for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    name: str
    stream: StreamMode | None = None
    """"segment": render each text segment whole, as upstream does. "block": render a segment in blocks while its
    later tokens are still being decoded (docs/streaming.md). None: the model's default; `select` fills it in."""
    short_first_segment: bool = True
    """Begin a request with a short segment if segments are rendered whole, so that audio starts sooner."""
    flow_steps: int | None = None
    """Steps of the flow's solver. None: as many as upstream takes."""
    batched: bool
    """Decode all utterances in one pass; otherwise one by one, with the same bits at any concurrency."""
    decoder: tuple[Preference, ...] = ()
    renderer: tuple[Preference, ...] = ()
    """Preferences, best first. The reference backend is used where none of them is supported."""
    slots: int | None = None
    """Utterances that are decoded at once. None: as many as suit the device."""
    queue_limit: int = 64
    """Requests that may wait for a slot."""
    first_block_tokens: int | None = None
    """Size of the first block of a segment. None: the model's."""
    largest_block_tokens: int = 64
    """Blocks double in size up to this."""
    ahead_seconds: float = 30.0
    """A request with this much unread audio starts no further segment until its listener catches up."""
    stalled_limit: int = 256
    """Requests whose listeners are that far behind; beyond this, new requests are refused."""

    @property
    def in_blocks(self) -> bool:
        """True if a segment is rendered in blocks, not whole."""
        return self.stream != "segment"

    @property
    def smallest_block_tokens(self) -> int:
        """Size of the smallest block, where the model has no other."""
        return self.first_block_tokens or 8


OFFICIAL: Final = ("english", "multilingual", "turbo", "nano")
EXACT: Final = Profile(
    name="exact",
    stream="segment",
    short_first_segment=False,
    batched=False,
    decoder=(Preference("mlx", "float32", warn=False),),
    # Other backends give other samples, so a warning says when one of them renders.
    renderer=(Preference("mlx", "float32", warn=False), Preference("torch", "float32")),
)
BALANCED: Final = Profile(
    name="balanced",
    batched=True,
    decoder=(
        Preference("cuda", "bfloat16"),
        Preference("mlx", "float32", warn=False, models=("wren",)),
        Preference("mlx", "bfloat16"),
        # Wren's weights are stored in int8; here the inputs of its products are rounded too.
        Preference("onnx", "int8", warn=False, models=("wren",)),
        # Its logits must pass a self-test on this processor (docs/performance.md has the bounds).
        Preference("cpu", "int8", warn=False, models=OFFICIAL),
        Preference("onnx", "float32", warn=False),
    ),
    renderer=(
        # Only the flow's estimator: on wren's trained flow the mel differs by 0.1 dB from float32's.
        Preference("cuda", "bfloat16"),
        Preference("mlx", "float32"),
        # Judged beside float32 on wren's 200 sentences (docs/wren.md). With a warning, for wren only: the other
        # models never have this renderer.
        Preference("onnx", "int8", models=("wren",)),
        # Each network in int8 if its error with the loaded weights is small (docs/internals/kernels.md).
        Preference("cpu", "int8", warn=False, models=OFFICIAL),
        Preference("cpu", "float32", warn=False, models=OFFICIAL),
    ),
)
FAST: Final = Profile(
    name="fast",
    batched=True,
    decoder=(
        Preference("cuda", "bfloat16"),
        Preference("mlx", "int8"),
        Preference("cpu", "int8", warn=False),
        Preference("onnx", "int8"),
        Preference("onnx", "float32", warn=False),
    ),
    renderer=(
        Preference("cuda", "bfloat16"),
        Preference("mlx", "float32"),
        # Before the CPU backend, which imports PyTorch: that takes longer than a sentence of wren.
        Preference("onnx", "int8", warn=False, models=("wren",)),
        Preference("onnx", "float32", warn=False, models=("wren",)),
        Preference("cpu", "bfloat16", warn=False),
        Preference("cpu", "int8", warn=False),
        Preference("cpu", "float32", warn=False),
    ),
)
PROFILES: Final[Mapping[str, Profile]] = {profile.name: profile for profile in (EXACT, BALANCED, FAST)}
DEFAULT: Final = "default"
"""The name that stands for a model's default profile."""


def with_options(name: str | None, options: Mapping[str, object]) -> str:
    """Return the name of a profile with options after it; those that are None are left out."""
    return "+".join(
        [name or DEFAULT, *(f"{key}={value}" for key, value in options.items() if value is not None)]
    )


def profile_named(name: str | None, *, default: str = "balanced") -> Profile:
    """Return a profile by its name, with the options that follow the name applied.

    Args:
        name: Such as "fast", "balanced+stream=block" or "default+flow_steps=6"; None is "default".
        default: The profile that "default" stands for: `ModelDefaults.profile`.
    """
    plain, *options = (name or DEFAULT).split("+")
    plain = default if plain == DEFAULT else plain
    if plain not in PROFILES:
        allowed = ", ".join((DEFAULT, *PROFILES))
        raise ConfigError(
            "unknown profile", got=repr(plain), allowed=allowed, fix="Choose one of these.", param="profile"
        )
    if not options:
        return PROFILES[plain]
    changes: dict[str, Any] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key not in OPTIONS:
            raise _bad("unknown profile option", option, ", ".join(f"{k}=…" for k in OPTIONS), "flow_steps=6")
        field, read = OPTIONS[key]
        changes[field] = read(value)
    if PROFILES[plain].stream not in (None, changes.get("stream", PROFILES[plain].stream)):
        raise ConfigError(
            f"the profile {plain!r} renders whole segments, as upstream does",
            got="stream=block",
            allowed="stream=segment",
            fix="For audio in blocks, choose balanced+stream=block.",
            param="stream",
        )
    return replace(PROFILES[plain], **changes, name="+".join((plain, *options)))


def _stream(value: str) -> StreamMode:
    if value not in get_args(StreamMode):
        raise _bad("unknown stream mode", value, ", ".join(get_args(StreamMode)), "stream=block")
    return cast(StreamMode, value)


def _flow_steps(value: str) -> int:
    # A model may allow fewer: `selection.for_model`.
    return _whole_number("not a number of flow steps", value, FLOW_STEPS, "flow_steps=6")


def _first_block_tokens(value: str) -> int:
    return _whole_number(
        "not a size of the first block", value, FIRST_BLOCK_TOKENS, "stream=block+first_block_tokens=12"
    )


def _preference(value: str) -> tuple[Preference, ...]:
    if value not in PRECISIONS:
        raise _bad("unknown precision", value, ", ".join(PRECISIONS), "renderer=float32")
    return Preference("mlx", value), Preference("onnx", value)


def _decoder(value: str) -> tuple[Preference, ...]:
    if value == INT4:  # on a GPU, and where the kernels cannot run, as in the profile "fast"
        return (Preference("mlx", INT4), Preference("cpu", INT4), *FAST.decoder)
    if value not in PRECISIONS:
        raise _bad("unknown precision", value, ", ".join((INT4, *PRECISIONS)), "decoder=int8")
    return _preference(value)


def _slots(value: str) -> int:
    return _whole_number("not a number of slots", value, range(1, 4097), "slots=16")


def _whole_number(what: str, value: str, allowed: range, example: str) -> int:
    if not (value.isascii() and value.isdecimal()) or int(value) not in allowed:
        raise _bad(what, value, f"{allowed[0]} to {allowed[-1]}", example)
    return int(value)


def _bad(what: str, got: str, allowed: str, example: str) -> ConfigError:
    param = example.rpartition("+")[2].partition("=")[0]
    fix = f"For example: balanced+{example}"
    return ConfigError(what, got=repr(got), allowed=allowed, fix=fix, param=param)


FLOW_STEPS: Final = range(1, 51)
FIRST_BLOCK_TOKENS: Final = range(5, 33)
"""Fewer tokens would be less than the context that a bidirectional flow renders again with each block."""
PRECISIONS: Final = ("float32", "int8", "float16")
"""Precisions that can be asked for. MLX has all of them, and the onnx backend the first two."""
INT4: Final = "int4"
"""A precision of the decoder: of MLX, and of the CPU backend for models with a GPT-2 backbone."""
OPTIONS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "stream": ("stream", _stream),
    "flow_steps": ("flow_steps", _flow_steps),
    "first_block_tokens": ("first_block_tokens", _first_block_tokens),
    "slots": ("slots", _slots),
    "decoder": ("decoder", _decoder),
    "renderer": ("renderer", _preference),
}
"""Options that may follow a profile's name: the field each sets, and the reader of its value."""
