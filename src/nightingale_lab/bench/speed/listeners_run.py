"""A run of `nightingale bench --listeners` or `--capacity`: listeners with their own voices, one engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from nightingale.errors import ConfigError
from nightingale.voices.voice import Voice
from nightingale_lab.bench.speed.bench_texts import SENTENCES
from nightingale_lab.bench.speed.capacity import CapacityLimits, find_capacity
from nightingale_lab.bench.speed.listeners import Arrivals, measure_listeners
from nightingale_lab.bench.speed.request import Target, time_request
from nightingale_lab.bench.speed.targets import engine_target
from nightingale_lab.bench.speed.voices import NEW_VOICES, derived_voice, new_voice_cost


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenersPlan:
    levels: Sequence[int] = ()
    """Numbers of listeners at once."""
    voices: str = "own"
    """"own": one for each listener; "one": the same for all; or a number."""
    arrivals: Arrivals = "together"
    rounds: int = 5
    """Sentences of each listener."""
    capacity: bool = False
    limits: CapacityLimits = field(default_factory=CapacityLimits)
    most: int = 512
    """The most listeners that the search of the capacity tries."""

    def __post_init__(self) -> None:
        if self.voices not in ("own", "one") and not (self.voices.isdecimal() and int(self.voices) > 0):
            raise ConfigError(
                "not a number of voices", got=repr(self.voices), allowed="own, one, or a number"
            )

    def voices_of(self, listeners: int) -> int:
        return {"own": listeners, "one": 1}.get(self.voices) or int(self.voices)


class VoiceTargets:
    """The engine as a target for each of many voices: those given, then derived ones."""

    def __init__(self, tts: Any, voices: Sequence[Voice], *, ten_seconds: bool = False) -> None:
        """ten_seconds: derived voices have prompts as long as those of ten-second clips."""
        self._tts, self._voices = tts, list(voices)
        self._derived = partial(derived_voice, voices[0], ten_seconds=ten_seconds)

    def __call__(self, count: int) -> list[Target]:
        self._voices += [self._derived(number) for number in range(len(self._voices), count)]
        return [engine_target(self._tts, voice) for voice in self._voices[:count]]

    def unused(self, count: int) -> list[Voice]:
        """Return derived voices that no request has used."""
        return [self._derived(1_000_000 + number) for number in range(count)]


def measure_voices(
    result: dict[str, Any],
    tts: Any,
    plan: ListenersPlan,
    *,
    who: str,
    voices: Sequence[Voice],
    on_request: Callable[[], object] = lambda: None,
) -> None:
    """Add the rows of one engine to the result: listeners, capacity, and the cost of a new voice."""
    targets = VoiceTargets(tts, voices, ten_seconds=True)
    measure_levels(result, targets, plan, who=who, on_request=on_request)
    cost = new_voice_cost(
        lambda voice: engine_target(tts, voice), targets.unused(NEW_VOICES), SENTENCES[0], voices[0]
    )
    result["new_voice"].append({"who": who, **cost})


def measure_levels(
    result: dict[str, Any],
    targets: Callable[[int], list[Target]],
    plan: ListenersPlan,
    *,
    who: str,
    on_request: Callable[[], object] = lambda: None,
) -> None:
    """Add the rows of listeners and of the capacity. targets: returns so many voices of what is measured."""
    time_request(targets(1)[0], SENTENCES[0], 0)  # warm up

    def row_of(listeners: int, rounds: int) -> dict[str, Any]:
        return measure_listeners(
            targets(plan.voices_of(listeners)),
            SENTENCES,
            listeners,
            arrivals=plan.arrivals,
            rounds=rounds,
            on_request=on_request,
        )

    for level in plan.levels:
        result["listeners"].append({"who": who, **row_of(level, plan.rounds)})
    if plan.capacity:
        found = find_capacity(lambda level: row_of(level, 2), plan.limits, most=plan.most)
        about = {"who": who, "voices": plan.voices, "arrivals": plan.arrivals}
        result["capacity"].append({**about, **found})
