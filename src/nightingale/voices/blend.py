"""Blend voices: a weighted mean of speaker embeddings.

A point between two speaker embeddings is again a speaker, but a prompt is a recording, which cannot be
averaged. So a blend has the weighted embeddings of all parts and the prompts of its heaviest part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from nightingale.errors import VoiceError
from nightingale.voices.voice import Floats, Voice

MAX_BLEND_PARTS: Final = 8
_PART: Final = re.compile(r"\s*([a-z0-9_-]{1,64})\s*(?:\(\s*(\d{1,4}(?:\.\d{1,4})?)\s*\))?\s*")

_WEIGHT: Final = re.compile(r"\([^()]*\)")


def parse_blend(spec: str) -> list[tuple[str, float]]:
    """Parse "a(2)+b" into [("a", 2.0), ("b", 1.0)]; a plain name is a blend of one. Case does not matter."""
    matches = [_PART.fullmatch(part) for part in spec.lower().split("+")]
    parts = [(match[1], float(match[2] or 1.0)) for match in matches if match is not None]
    if not (len(parts) == len(matches) <= MAX_BLEND_PARTS and all(weight > 0 for _, weight in parts)):
        raise invalid_voice(spec)
    return parts


def is_blend(spec: str) -> bool:
    """Return whether a voice is written as a blend, which may still have a mistake, and not as the path of a file."""
    names = _WEIGHT.sub("", spec)
    return ("+" in spec or names != spec) and not {".", "/", "\\"} & set(names)


def invalid_voice(spec: object) -> VoiceError:
    return VoiceError(
        "invalid voice",
        got=repr(spec)[:100],
        allowed=f"a name (a-z, 0-9, _ and -), or up to {MAX_BLEND_PARTS} with weights: heart(2)+emma",
        fix="See `nightingale voices list`, or GET /v1/audio/voices.",
    )


def blend(parts: Sequence[tuple[Voice, float]]) -> Voice:
    """Return one voice made of several. Only the ratios of the weights matter; a single part is returned as is."""
    if not parts or not all(0 < weight < float("inf") for _, weight in parts):
        raise VoiceError(
            "not a blend",
            got=", ".join(f"{voice.name}({weight:g})" for voice, weight in parts) or "no voices",
            allowed="one voice or more, with weights above 0",
            fix="For example: heart(2)+emma.",
        )
    if len({voice for voice, _ in parts}) == 1:
        return parts[0][0]
    first = parts[0][0]
    for other, _ in parts[1:]:
        if other.family != first.family or other.speaker.shape != first.speaker.shape:
            raise VoiceError(
                "these voices cannot be blended",
                got=f"{first.name!r} for {first.family}, {other.name!r} for {other.family}",
                allowed="voices of one model family",
                fix="Make them again from their clips with the same model.",
            )
    heaviest = max(parts, key=lambda part: part[1])[0]
    return Voice.checked(
        name="+".join(voice.name if weight == 1 else f"{voice.name}({weight:g})" for voice, weight in parts),
        family=first.family,
        speaker=_between([(voice.speaker, weight) for voice, weight in parts]),
        prompt_ids=heaviest.prompt_ids,
        flow_prompt_ids=heaviest.flow_prompt_ids,
        flow_prompt_mel=heaviest.flow_prompt_mel,
        flow_speaker=_between([(voice.flow_speaker, weight) for voice, weight in parts]),
        provenance=f"a blend; prompts of {heaviest.name}",
    )


def _between(vectors: Sequence[tuple[Floats, float]]) -> Floats:
    """Return the weighted mean, scaled to the mean length: the networks only know vectors of that length."""
    total = sum(weight for _, weight in vectors)
    mean = np.sum([vector * np.float32(weight / total) for vector, weight in vectors], axis=0)
    length = sum(float(np.linalg.norm(vector)) * weight / total for vector, weight in vectors)
    scale = length / max(float(np.linalg.norm(mean)), 1e-12)
    return np.asarray(mean * scale, np.float32)
