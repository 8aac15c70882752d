"""How the engine trades: each profile says what it does and what it wishes for.

What a machine grants of the wishes is a plan (plan.py): `nightingale doctor --plan fast` prints it. Wherever
a profile is named, what it leaves off may be switched on: `balanced+cache=int8+keep=50+draft=lookup`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from nightingale.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Wish:
    """A faster way for one stage, and the precision it shall run in."""

    way: str
    """A name of guests.py."""
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    name: str
    streaming: bool
    """Render while tokens are still being written; otherwise each piece of text is rendered whole."""
    batched: bool
    """Decode all utterances in one pass; otherwise one by one, with the same bits in any company."""
    t3: tuple[Wish, ...] = ()
    flow: tuple[Wish, ...] = ()
    vocoder: tuple[Wish, ...] = ()
    """The best first; what the machine does not grant is done the plain way."""
    draft: str = ""
    """What guesses T3's next tokens (docs/speculative.md), where T3 is run by torch: "lookup", "exit:3" for
    its own first three layers, a file of weights with fewer layers, or another model. Empty: nothing."""
    cache: str = ""
    """How T3 remembers, where it is run by torch (docs/kv-cache.md): "int8" or "fp8". Empty: in the precision
    of its weights."""
    keep: int = 100
    """Percent of what was spoken that T3 keeps in memory, by the model's table of attention; its prompt is
    always kept."""
    memory_bytes: int = 0
    """Of T3's memory for all who speak: who does not fit in waits. 0: every slot has room for the longest."""
    slots: int = 8
    """Utterances decoded at a time."""
    queue_limit: int = 64
    """Requests that may wait for a slot."""
    first_block_tokens: int = 8
    largest_block_tokens: int = 64
    """A block of speech tokens is rendered at a time; each is twice as long as the last, up to this."""
    ahead_seconds: float = 30.0
    """A request whose listener is this far behind begins no other piece of its text until it catches up."""
    sleepers_limit: int = 256
    """Requests whose listeners are that far behind; with so many, no other is taken. Each holds ahead_seconds
    of audio and a piece: 7 MB."""


EXACT: Final = Profile(name="exact", streaming=False, batched=False)
BALANCED: Final = Profile(
    name="balanced",
    streaming=True,
    batched=True,
    t3=(Wish("graphs", "bfloat16"), Wish("onnx", "float32")),
    flow=(Wish("graphs", "float32"),),
    vocoder=(Wish("graphs", "float32"),),
)
FAST: Final = Profile(
    name="fast",
    streaming=True,
    batched=True,
    t3=(
        Wish("graphs", "bfloat16"),
        Wish("native", "int8"),
        Wish("int8", "int8"),
        Wish("onnx", "float32"),
    ),
    flow=(Wish("graphs", "bfloat16"), Wish("halves", "bfloat16"), Wish("native", "int8")),
    vocoder=(Wish("graphs", "float32"), Wish("halves", "bfloat16"), Wish("native", "int8")),
)
PROFILES: Final[Mapping[str, Profile]] = {profile.name: profile for profile in (EXACT, BALANCED, FAST)}


CACHES: Final = ("int8", "fp8")


def profile_named(name: str) -> Profile:
    """A profile by its name, with what follows the name switched on; its own name says both."""
    plain, *switches = name.split("+")
    if plain not in PROFILES:
        raise ConfigError(
            "unknown profile", got=repr(plain), allowed=", ".join(PROFILES), fix="Choose one of these."
        )
    if not switches:
        return PROFILES[plain]
    changes: dict[str, Any] = {}
    for switch in switches:
        key, _, value = switch.partition("=")
        if key not in SWITCHES:
            raise ConfigError(
                "unknown switch of a profile",
                got=repr(switch),
                allowed=", ".join(f"{known}=…" for known in SWITCHES),
                fix="For example: balanced+cache=int8",
            )
        field, read = SWITCHES[key]
        changes[field] = read(value)
    return replace(PROFILES[plain], **changes, name=name)


def _cache(value: str) -> str:
    if value not in CACHES:
        raise ConfigError(
            "unknown kind of cache",
            got=repr(value),
            allowed=", ".join(CACHES),
            fix="Choose one of these, or leave it out.",
        )
    return value


def _keep(value: str) -> int:
    if not value.isdecimal() or not 10 <= int(value) <= 100:
        raise ConfigError(
            "not a share of the cache to keep",
            got=repr(value),
            allowed="10 to 100, in percent",
            fix="For example: keep=50",
        )
    return int(value)


def _slots(value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= 4096:
        raise ConfigError(
            "not a number of slots", got=repr(value), allowed="1 to 4096", fix="For example: slots=16"
        )
    return int(value)


def _bytes(value: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)", value)
    if found is None or not float(found[1]):
        raise ConfigError(
            "not an amount of memory",
            got=repr(value),
            allowed="bytes, or a number with K, M or G",
            fix="For example: memory=40G",
        )
    return int(float(found[1]) * 1024 ** " KMG".index(found[2] or " "))


SWITCHES: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "cache": ("cache", _cache),
    "keep": ("keep", _keep),
    "memory": ("memory_bytes", _bytes),
    "draft": ("draft", str),
    "slots": ("slots", _slots),
}
"""What may follow a profile's name: the field it sets, and how its value is read."""
