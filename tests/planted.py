"""A healthy subject made of numbers, into which the tests of `verify` plant one defect at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from nightingale.types import Samples
from nightingale_lab.bench.verify.baseline import Baseline
from nightingale_lab.bench.verify.subject import RecordedUtterance, RenderedTwice
from nightingale_lab.bench.voicelike import voicelike

RATE_HZ = 24_000
TOKENS = 75
TEXT = "The farmer sold his apples at the village market, and walked home."
"""A text of about the length of the sound below."""
BOUNDARIES = (7680, 23_040, 53_760)
Damage = Callable[[Samples], Samples]


def sound(seed: int = 0) -> Samples:
    """Return three seconds of a voice with pauses and hiss that fades out. Neighbouring seeds differ."""
    return _sound(seed % 4)


@cache
def _sound(seed: int) -> Samples:
    rng = np.random.default_rng(seed)
    x = voicelike(seconds=3, seed=seed).astype(np.float64)
    t = np.arange(len(x)) / RATE_HZ
    hush = np.clip(
        20 * (np.abs((t + 0.03 * seed) % 1.0 - 0.5) - 0.1), 0.001, 1.0
    )  # 0.2 s of pause each second
    hiss = np.diff(rng.standard_normal(len(x) + 1)) * 0.03 * (np.sin(2 * np.pi * 1.7 * t + seed) > 0.9)
    fade = np.clip((2.9 - t) / 0.15, 0.0, 1.0) ** 2
    return ((x * hush + hiss * np.clip(hush, 0, 1) + 1e-5 * rng.standard_normal(len(x))) * fade).astype(
        np.float32
    )


@dataclass
class PlantedSubject:
    """Healthy by default; each field plants a defect."""

    name: str = "planted"
    profile: str = "balanced"
    voice: str = "default"
    languages: tuple[str, ...] = ("en",)
    damage: Damage = lambda samples: samples
    """Applied to every utterance."""
    damage_to: Mapping[int, Damage] = field(default_factory=dict)
    """Applied to the utterance of one seed."""
    forgets_seed: bool = False
    nondeterministic: bool = False
    """Repeating a request gives other samples."""
    greedy_slips: int = 0
    token_slip: int = 0
    """Tokens it reports beyond those it rendered."""
    says_other: bool = False
    """`say` and `stream` do not agree."""
    lost_samples: int = 0
    """Lost in its third block."""
    other_whole: bool = False
    unknown: int = 0
    same_tokens: bool = False
    """The seed changes the sound, but not the tokens."""
    drops_sentence: int | None = None
    """A text of several sentences is spoken without this one."""
    misreads: str = ""
    """The text front end reads each of these characters as another."""
    likelihood: float = -1.3
    """Log probability of every token that the subject says, by its own T3."""
    t3_noise: float = 0.0
    """Added to the log probabilities."""
    _said: int = 0

    def say(self, text: str, *, seed: int, language: str | None = None) -> RecordedUtterance:
        self._said += 1
        kind = 0 if self.forgets_seed else self._said if self.nondeterministic else seed
        sentences = len(re.findall(r"[.!?]( |$)", text))
        numbers = [number for number in range(max(1, sentences)) if number != self.drops_sentence]
        healthy = np.concatenate([sound(kind + number) for number in numbers])
        samples = self.damage_to.get(seed, lambda x: x)(self.damage(healthy))
        return RecordedUtterance(
            text=text,
            seed=seed,
            samples=samples,
            boundaries=tuple(n for n in BOUNDARIES if n < len(samples)),
            tokens=TOKENS + self.token_slip,
            expected_samples=960 * (TOKENS + self.token_slip) if self.token_slip else len(samples),
            language=language,
            blocks=((*range(TOKENS), 0 if self.same_tokens else seed),),
        )

    def render_again(self, clip: RecordedUtterance) -> Samples:
        return sound(0 if self.forgets_seed else clip.seed)

    def log_probabilities(self, text: str, tokens: Sequence[int]) -> list[float]:
        noise = np.random.default_rng(0).standard_normal(len(tokens)) * self.t3_noise
        return [float(self.likelihood + each) for each in noise]

    def whole(self, text: str, *, seed: int) -> Samples:
        return self.say(text, seed=seed + self.says_other).samples

    def tokens(self, text: str, *, seed: int, temperature: float) -> list[int]:
        return [*range(TOKENS - self.greedy_slips), *[seed] * self.greedy_slips]

    def render_twice(self, text: str, *, seed: int) -> RenderedTwice:
        whole = sound(seed)
        stream = np.delete(whole, slice(BOUNDARIES[1], BOUNDARIES[1] + self.lost_samples))
        other = sound(seed + 3)[::-1].copy() if self.other_whole else whole
        return RenderedTwice(stream=stream, boundaries=BOUNDARIES, at_once=whole, whole=other)

    def baseline(self) -> Baseline:
        return Baseline(
            model=self.name,
            weights="planted",
            plan="decoder noise float32, renderer noise float32, by block",
            machine={},
            tokens=TOKENS + self.token_slip,
            tokens_sha256=f"{self.token_slip}",
            samples=960 * TOKENS,
            wav_bytes=44 + 2 * 960 * TOKENS,
            wav_sha256=f"{self._said if self.nondeterministic else 0}",
        )

    def text_ids(self, text: str, language: str) -> list[int]:
        read = [ord(character) + (character in self.misreads) for character in text]
        return [0] * self.unknown + read

    @property
    def unknown_text_id(self) -> int | None:
        return 0


@dataclass
class PlantedJudges:
    """Judges with prepared answers. The mappings are by number of the clip."""

    words: Mapping[int, str] = field(default_factory=dict)
    only_one_misses: bool = False
    cosines: Mapping[int, float] = field(default_factory=dict)
    dnsmos: Mapping[int, float] = field(default_factory=dict)
    distill_mos: Mapping[int, float] = field(default_factory=dict)
    profile: str | None = None
    """Only clips of this profile get the prepared answers."""

    def __call__(self, jobs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterable[dict[str, Any]]:
        for job in jobs:
            path = Path(job["wav"])
            faulty = self.profile is None or path.parent.name == self.profile
            number = int(path.stem) if faulty else -1
            transcript = self.words.get(number, job["text"])
            answers: dict[str, dict[str, Any]] = {
                "tiny": {"transcript": transcript},
                "moonshine": {"transcript": job["text"] if self.only_one_misses else transcript},
                "dnsmos": {"ovrl": self.dnsmos.get(number, 3.3)},
                "distillmos": {"mos": self.distill_mos.get(number, 4.3)},
                "speaker": {"cosine": self.cosines.get(number, 0.93)},
            }
            yield {"wav": job["wav"], **{name: answers[name] for name in names}}
