"""Seeds of requests, of their segments, and of attempts at a segment. Streams of numbers: decoding/philox.py."""

from __future__ import annotations

import hashlib
import secrets

SEED_LIMIT = 2**32


def fresh_seed() -> int:
    """Return a random seed for a request that names none."""
    return secrets.randbelow(SEED_LIMIT)


def nth_seed(seed: int, segment: int) -> int:
    """Return the seed of one segment of a long request. The first segment keeps the request's seed."""
    return _derived(seed, "segment", segment)


def retry_seed(seed: int, attempt: int) -> int:
    """Return the seed of an attempt, counted from 0. The first attempt keeps the segment's seed."""
    return _derived(seed, "attempt", attempt)


def _derived(seed: int, purpose: str, number: int) -> int:
    if number == 0:
        return seed
    digest = hashlib.sha256(f"{seed}/{purpose}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "little")
