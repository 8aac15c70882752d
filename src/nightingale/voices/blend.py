"""Blend voices: a weighted mean of speaker embeddings.

A point between two speaker embeddings is again a speaker, but a prompt is a recording, which cannot be
averaged. So a blend has the weighted embeddings of all parts and the prompts of its heaviest part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nightingale.errors import VoiceError
from nightingale.voices.voice import Floats, Voice


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
