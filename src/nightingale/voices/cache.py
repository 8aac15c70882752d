"""Reference clips are turned into voices once: the result is kept under the clip's content hash.

The key holds the bytes of the clip, the family, and a fingerprint of the weights that listened, so an edited
clip or another checkpoint never meets a stale voice, and a renamed clip meets its own again.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

from nightingale.errors import BadReference, OutputError, VoiceError
from nightingale.voices.home import cache_folder
from nightingale.voices.voice import Voice


def cache_key(clip: Path, family: str, fingerprint: str) -> str:
    try:
        contents = clip.read_bytes()
    except OSError as error:
        raise BadReference(
            "the reference clip cannot be read",
            got=f"{error.strerror or error} for {clip}",
            allowed="a readable wav, flac, ogg or mp3 file",
            fix="Check the path.",
        ) from error
    digest = hashlib.sha256(hashlib.sha256(contents).digest())
    digest.update(f"|{family}|{fingerprint}".encode())
    return digest.hexdigest()


def enrolled(clip: Path, family: str, fingerprint: str, make: Callable[[], Voice]) -> Voice:
    """The voice of a clip: from the cache, or made now and remembered."""
    path = cache_folder() / f"{cache_key(clip, family, fingerprint)}.safetensors"
    if path.is_file():
        with contextlib.suppress(VoiceError):  # a damaged entry is made again
            return Voice.load(path)
    voice = make()
    # The cache saves time; a full or read-only disk must not cost the user the voice itself.
    with contextlib.suppress(OSError, OutputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        voice.save(path)
    return voice
