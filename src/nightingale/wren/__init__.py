"""Wren, the model in the package: its weights, vocabulary and voices (docs/wren.md).

    t3.safetensors, s3gen.safetensors, ve.safetensors   compact weights (nightingale.models.compact)
    vocoder.onnx                                        the vocoder's graph for ONNX Runtime, without weights
    tokenizer.json                                      wren's own BPE vocabulary
    card.json                                           name, voices and default sampling of this copy
    voices/<name>.safetensors, voices/<name>.md         built-in voices and their origins

`nightingale train export` writes all of it but the graph, which `nightingale train graphs` writes.
"""

from __future__ import annotations

import json
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
"""Role -> file name; the roles are those of nightingale.hub.cards where both have one."""
VOCODER_GRAPH: Final = "vocoder.onnx"
VOICES: Final = "voices"
SAMPLING: Final = Sampling(temperature=0.3, min_p=0.05, repetition_penalty=1.0, cfg_weight=0.0)
"""The default sampling that an export writes into the card."""


def folder() -> Path:
    """Return the folder of the packaged copy."""
    return Path(__file__).parent


def vocoder_graph() -> Path:
    """Return the vocoder's graph, which fits all vocoders of the same sizes."""
    return folder() / VOCODER_GRAPH


def default_voice() -> str | None:
    """Return the name of the voice of requests that name none; None if this copy has no card."""
    card = folder() / FILES["card"]
    return json.loads(card.read_text(encoding="utf-8")).get("default_voice") if card.is_file() else None


def missing(place: Path) -> list[str]:
    """Return the names of files that a copy of wren in `place` lacks."""
    return [name for name in FILES.values() if not (place / name).is_file()]
