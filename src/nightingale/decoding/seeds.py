"""Seeds of requests, and of the segments of a long request. Streams of numbers: decoding/philox.py."""

from __future__ import annotations

import hashlib
import secrets

SEED_LIMIT = 2**32


def fresh_seed() -> int:
    """Return a random seed for a request that names none."""
    return secrets.randbelow(SEED_LIMIT)


def nth_seed(seed: int, segment: int) -> int:
    """Return the seed of one segment of a long request. The first segment keeps the request's seed."""
    if segment == 0:
        return seed
    digest = hashlib.sha256(f"{seed}/segment/{segment}".encode()).digest()
    return int.from_bytes(digest[:4], "little")
