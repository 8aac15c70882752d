"""Profiles: named trade-offs between reproducibility, streaming and speed.

A profile is a set of engine options and a table of preferences over backends and precisions.
`backends/selection.py` turns the preferences into a plan for one machine; `nightingale doctor --plan fast`
prints it. Options can be added after a profile's name: `balanced+cache=int8+keep=50+draft=guess`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from nightingale.errors import ConfigError


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
    streaming: bool
    """Render blocks while later tokens are still being decoded; otherwise render each segment whole."""
    batched: bool
    """Decode all utterances in one pass; otherwise one by one, with the same bits at any concurrency."""
    decoder: tuple[Preference, ...] = ()
    renderer: tuple[Preference, ...] = ()
    """Preferences, best first. The reference backend is used where none of them is supported."""
    draft: str = ""
    """Draft for speculative decoding (docs/speculative.md): "guess" for the draft head that came
    with the model, "lookup", a file of weights, or another model. Empty: none."""
    cache: str = ""
    """Precision of the KV cache (docs/kv-cache.md): "int8" or "fp8". Empty: that of the weights."""
    keep: int = 100
    """Percent of the generated positions that stay in the KV cache; the prompt is always kept."""
    memory_bytes: int = 0
    """Limit of the KV cache over all utterances; requests that do not fit wait. 0: limited by slots only."""
    slots: int = 8
    """Utterances that are decoded at once."""
    queue_limit: int = 64
    """Requests that may wait for a slot."""
    first_block_tokens: int = 8
    largest_block_tokens: int = 64
    """Blocks double in size from the first to the largest."""
    ahead_seconds: float = 30.0
    """A request with this much unread audio starts no further segment until its listener catches up."""
    stalled_limit: int = 256
    """Requests whose listeners are that far behind; beyond this, new requests are refused."""

    @property
    def needs_torch_kv_cache(self) -> bool:
        """True if T3's KV cache must be one of the PyTorch backend's compressed ones."""
        return bool(self.cache) or self.keep < 100


EXACT: Final = Profile(
    name="exact",
    streaming=False,
    batched=False,
    decoder=(Preference("mlx", "float32", warn=False),),
    # Other backends give other samples, so a warning says when one of them renders.
    renderer=(Preference("mlx", "float32", warn=False), Preference("torch", "float32")),
)
BALANCED: Final = Profile(
    name="balanced",
    streaming=True,
    batched=True,
    decoder=(
        Preference("cuda", "bfloat16"),
        Preference("mlx", "float32", warn=False, models=("wren",)),
        Preference("mlx", "bfloat16"),
        # Wren's weights are stored in int8; here the inputs of its products are rounded too.
        Preference("onnx", "int8", warn=False, models=("wren",)),
        Preference("onnx", "float32", warn=False),
    ),
    renderer=(
        Preference("cuda", "float32"),
        Preference("mlx", "float32"),
        # Judged beside float32 on wren's 200 sentences (docs/wren.md); float16 is fast on ARM only.
        Preference("onnx", "int8-float16", warn=False, models=("wren",)),
        # With a warning, for wren only: the other models never have this renderer.
        Preference("onnx", "int8", models=("wren",)),
    ),
)
FAST: Final = Profile(
    name="fast",
    streaming=True,
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
        Preference("onnx", "int8-float16", warn=False),
        Preference("onnx", "int8", warn=False),
        Preference("onnx", "float32", warn=False),
        Preference("cpu", "bfloat16", warn=False),
        Preference("cpu", "int8", warn=False),
    ),
)
PROFILES: Final[Mapping[str, Profile]] = {profile.name: profile for profile in (EXACT, BALANCED, FAST)}


def profile_named(name: str) -> Profile:
    """Return a profile by its name, with the options that follow the name applied."""
    plain, *options = name.split("+")
    if plain not in PROFILES:
        raise ConfigError(
            "unknown profile", got=repr(plain), allowed=", ".join(PROFILES), fix="Choose one of these."
        )
    if not options:
        return PROFILES[plain]
    changes: dict[str, Any] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key not in OPTIONS:
            raise _bad("unknown profile option", option, ", ".join(f"{k}=…" for k in OPTIONS), "cache=int8")
        field, read = OPTIONS[key]
        changes[field] = read(value)
    return replace(PROFILES[plain], **changes, name=name)


def _cache(value: str) -> str:
    if value not in ("int8", "fp8"):
        raise _bad("unknown KV cache precision", value, "int8, fp8", "cache=int8")
    return value


def _keep(value: str) -> int:
    if not value.isdecimal() or not 10 <= int(value) <= 100:
        raise _bad("not a share of the KV cache", value, "10 to 100, in percent", "keep=50")
    return int(value)


def _preference(value: str) -> tuple[Preference, ...]:
    if value not in ONNX_PRECISIONS:
        raise _bad("unknown precision", value, ", ".join(ONNX_PRECISIONS), "renderer=float16")
    return (Preference("onnx", value),)


def _slots(value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= 4096:
        raise _bad("not a number of slots", value, "1 to 4096", "slots=16")
    return int(value)


def _bytes(value: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)", value)
    if found is None or not float(found[1]):
        raise _bad("not an amount of memory", value, "bytes, or a number with K, M or G", "memory=40G")
    return int(float(found[1]) * 1024 ** " KMG".index(found[2] or " "))


def _bad(what: str, got: str, allowed: str, example: str) -> ConfigError:
    return ConfigError(what, got=repr(got), allowed=allowed, fix=f"For example: balanced+{example}")


ONNX_PRECISIONS: Final = ("float32", "int8", "float16", "int8-float16")
"""Precisions of the onnx backend. In a renderer, int8 is the flow's and float16 the vocoder's."""
OPTIONS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "cache": ("cache", _cache),
    "keep": ("keep", _keep),
    "memory": ("memory_bytes", _bytes),
    "draft": ("draft", str),
    "slots": ("slots", _slots),
    "decoder": ("decoder", _preference),
    "renderer": ("renderer", _preference),
}
"""Options that may follow a profile's name: the field each sets, and the reader of its value."""
