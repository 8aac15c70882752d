"""Wren, the voice in the box. This folder holds its weights, its vocabulary and its voices (docs/wren.md).

    t3.safetensors, s3gen.safetensors, ve.safetensors   compact weights (nightingale.models.compact)
    tokenizer.json                                      wren's own byte pairs
    guess.safetensors                                   compact; guesses T3's next tokens, if wanted
    card.json                                           what this copy is, and how it likes to be sampled
    voices/<name>.safetensors, voices/<name>.md         built-in voices and where each came from

`nightingale train export` writes all of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nightingale.types import Sampling

FILES: Final = {
    "t3": "t3.safetensors",
    "s3gen": "s3gen.safetensors",
    "voice_encoder": "ve.safetensors",
    "tokenizer": "tokenizer.json",
    "card": "card.json",
}
"""role -> file name; the roles of nightingale.hub.cards where both have one."""
VOICES: Final = "voices"
DRAFT_FILE: Final = "guess.safetensors"
"""Layers that guess T3's next tokens (docs/speculative.md); a copy may lack them."""
SAMPLING: Final = Sampling(temperature=0.3, min_p=0.05, repetition_penalty=1.0, cfg_weight=0.0)
"""What an export writes into the card unless told otherwise."""


def folder() -> Path:
    return Path(__file__).parent


def missing(place: Path) -> list[str]:
    """Names of files that a copy of wren in `place` lacks."""
    return [name for name in FILES.values() if not (place / name).is_file()]
