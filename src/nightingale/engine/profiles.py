"""How the engine trades: each profile says what it does and what it wishes for.

What a machine grants of the wishes is a plan (plan.py): `nightingale doctor --plan fast` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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
    t3=(Wish("graphs", "bfloat16"),),
    flow=(Wish("graphs", "float32"),),
    vocoder=(Wish("graphs", "float32"),),
)
FAST: Final = Profile(
    name="fast",
    streaming=True,
    batched=True,
    t3=(Wish("graphs", "bfloat16"), Wish("int8", "int8")),
    flow=(Wish("graphs", "bfloat16"),),
    vocoder=(Wish("graphs", "float32"),),
)
PROFILES: Final[Mapping[str, Profile]] = {profile.name: profile for profile in (EXACT, BALANCED, FAST)}


def profile_named(name: str) -> Profile:
    if name not in PROFILES:
        raise ConfigError(
            "unknown profile", got=repr(name), allowed=", ".join(PROFILES), fix="Choose one of these."
        )
    return PROFILES[name]
