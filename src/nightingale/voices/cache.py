"""Voices of reference clips, computed once and cached by content.

The key holds the bytes of the clip, the family, and a fingerprint of the encoders' weights. So an edited clip or
another checkpoint never finds an outdated voice, and a renamed clip finds its own.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

from nightingale.errors import BadReference, OutputError, VoiceError
from nightingale.voices.home import cache_folder
from nightingale.voices.voice import Voice


def enrolled(clip: Path | bytes, family: str, fingerprint: str, make: Callable[[], Voice]) -> Voice:
    """Return the voice of a clip, a file or its contents, from the cache, or make it and cache it."""
    try:
        contents = clip if isinstance(clip, bytes) else clip.read_bytes()
    except OSError as error:
        got = f"{error.strerror or error} for {error.filename}"
        raise BadReference("the reference clip cannot be read", got=got, fix="Check the path.") from error
    digest = hashlib.sha256(hashlib.sha256(contents).digest())
    digest.update(f"|{family}|{fingerprint}".encode())
    path = cache_folder() / f"{digest.hexdigest()}.safetensors"
    if path.is_file():
        with contextlib.suppress(VoiceError):  # a damaged entry is made again
            return Voice.load(path)
    voice = make()
    # A full or read-only disk only costs the time that the cache would have saved.
    with contextlib.suppress(OSError, OutputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        voice.save(path)
    return voice
