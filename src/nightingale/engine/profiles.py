"""How the engine trades: each profile is an explicit plan that can be printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nightingale.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    name: str
    streaming: bool
    """Render while tokens are still being written; otherwise each piece of text is rendered whole."""
    batched: bool
    """Decode all utterances in one pass; otherwise one by one, with the same bits in any company."""
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
BALANCED: Final = Profile(name="balanced", streaming=True, batched=True)
PROFILES: Final[Mapping[str, Profile]] = {profile.name: profile for profile in (EXACT, BALANCED)}


def profile_named(name: str) -> Profile:
    if name not in PROFILES:
        raise ConfigError(
            "unknown profile", got=repr(name), allowed=", ".join(PROFILES), fix="Choose one of these."
        )
    return PROFILES[name]
