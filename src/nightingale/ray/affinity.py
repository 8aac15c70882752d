"""The replica that a request prefers: that of its session or, if it names none, that of its voice.

A replica keeps the prompts of the voices that it speaks, so a request whose voice it knows starts sooner. This
module has no dependency on Ray: the middleware in the proxy finds the key of a request, the router ranks replicas.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

SESSION_HEADER: Final = b"x-session-id"
"""The header that Ray Serve hands to its router; clients may send one of their own."""
VOICE_KEY: Final = "voice:"
"""Prefix of the key of a request that has no session."""
VOICE_SHARE: Final = 0.5
"""A voice prefers its replica up to this share of its capacity; a session, up to all of it."""
# At the end of a path, which may begin with the prefix of the application.
_OPENAI: Final = re.compile(r"/v1/audio/speech(?:/captions)?$")
_ELEVENLABS: Final = re.compile(r"/v1/text-to-speech/([^/]+)(?:/[a-z-]+)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """A replica as the router sees it."""

    id: str
    listeners: int
    capacity: int
    """Listeners that it can supply."""

    @property
    def share(self) -> float:
        return self.listeners / self.capacity


def is_speech(method: str, path: str) -> bool:
    """Return whether a request is one for speech, whose body is small and which can be sent again."""
    return method == "POST" and any(pattern.search(path) for pattern in (_OPENAI, _ELEVENLABS))


def voice_key(path: str, body: bytes) -> str | None:
    """Return the key of the voice that a request names in its path or its JSON body; None for the default voice."""
    if (found := _ELEVENLABS.search(path)) is not None:
        return VOICE_KEY + unquote(found[1]).lower()
    if _OPENAI.search(path) is None:
        return None
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return None  # the server says what is wrong with it
    voice = parsed.get("voice") if isinstance(parsed, Mapping) else None
    voice = voice.get("id") if isinstance(voice, Mapping) else voice
    return VOICE_KEY + voice.strip().lower() if isinstance(voice, str) and voice.strip() else None


def rank_replicas(key: str | None, replicas: Sequence[ReplicaLoad]) -> list[str]:
    """Return ids of replicas in the order in which a request prefers them.

    With a key, the first is always the same one while it has capacity, whichever others there are: the one with the
    highest hash of key and id (rendezvous hashing). The others, or all without a key, follow by their load.
    """
    shuffled = random.sample(replicas, len(replicas))  # so that equal ones take turns
    by_load = sorted(shuffled, key=lambda replica: replica.share)
    ranked = [replica.id for replica in by_load]
    if key and replicas:
        home = max(replicas, key=lambda replica: _weight(key, replica.id))
        limit = home.capacity * (VOICE_SHARE if key.startswith(VOICE_KEY) else 1.0)
        if home.listeners < limit:
            ranked.remove(home.id)
            ranked.insert(0, home.id)
    return ranked


def _weight(key: str, replica: str) -> bytes:
    return hashlib.blake2b(f"{key}\n{replica}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
