"""Many voices for a measurement, and the cost of one that the engine has not seen."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nightingale.voices.voice import SPEECH_CODES, Voice
from nightingale_lab.bench.speed.memory import memory_now_mb
from nightingale_lab.bench.speed.request import Target, time_request

PROMPT_TOKENS = 250
"""A reference of ten seconds, the longest that a clip gives."""
NEW_VOICES = 5


def derived_voice(voice: Voice, number: int, *, ten_seconds: bool = False) -> Voice:
    """Return another voice of the same family, which costs what one of another speaker costs.

    It is not for listening: its prompts are those of the voice in another order. ten_seconds: its prompt is as
    long as that of a ten-second clip; wren's are shorter and keep their length.
    """
    rng = np.random.default_rng(number)
    longer = ten_seconds and voice.family != "wren"
    tokens = PROMPT_TOKENS if longer else len(voice.flow_prompt_ids)
    shift = int(rng.integers(1, SPEECH_CODES))
    speaker = np.abs(voice.speaker + 0.02 * rng.standard_normal(voice.speaker.shape))
    mel = np.resize(voice.flow_prompt_mel, (2 * tokens, voice.flow_prompt_mel.shape[1]))
    return Voice.checked(
        name=f"derived-{number}",
        family=voice.family,
        speaker=speaker / np.linalg.norm(speaker),
        prompt_ids=(voice.prompt_ids + shift) % SPEECH_CODES,
        flow_prompt_ids=(np.resize(voice.flow_prompt_ids, tokens) + shift) % SPEECH_CODES,
        flow_prompt_mel=np.roll(mel, shift, axis=0),
        flow_speaker=voice.flow_speaker + 0.1 * rng.standard_normal(voice.flow_speaker.shape),
        provenance=f"derived from {voice.name} for a measurement",
    )


def new_voice_cost(
    target_for: Callable[[Voice], Target], voices: Sequence[Voice], text: str, seen: Voice
) -> dict[str, Any]:
    """Compare the first audio of voices that were never used with that of one that was, one at a time."""
    seeds = range(len(voices))
    time_request(target_for(seen), text, 0)
    before = memory_now_mb()
    known = [time_request(target_for(seen), text, seed).ttfa_ms for seed in seeds]
    fresh = [
        time_request(target_for(voice), text, seed).ttfa_ms for seed, voice in zip(seeds, voices, strict=True)
    ]
    kept = {name: (mb - before[name]) / len(voices) for name, mb in memory_now_mb().items()}
    known_ms, fresh_ms = statistics.median(known), statistics.median(fresh)
    return {
        "voices": len(voices),
        "ttfa_ms_seen": round(known_ms, 1),
        "ttfa_ms_new": round(fresh_ms, 1),
        "extra_ms": round(fresh_ms - known_ms, 1),
        "kept_mb_per_voice": round(next(iter(kept.values()), 0.0), 1),
    }
