"""Does the same request give the same sound, and as much of it as its tokens say?"""

from __future__ import annotations

from nightingale_lab.bench.verify.check import Check
from nightingale_lab.bench.verify.subject import GREEDY_TEMPERATURE, Spoken, Subject
from nightingale.audio.encoders.wav import wav_bytes

GROUP = "determinism"
WAV_HEADER_BYTES = 44
SEED = 11


def determinism(subject: Subject, text: str) -> list[Check]:
    first, second = (subject.say(text, seed=SEED) for _ in range(2))
    other = subject.say(text, seed=SEED + 1)
    cold = [subject.tokens(text, seed=seed, temperature=GREEDY_TEMPERATURE) for seed in (SEED, SEED + 1)]
    return [
        Check(
            group=GROUP,
            name="same seed, other sha256",
            value=float(first.sha256 != second.sha256),
            high=0,
            detail=first.sha256[:16],
        ),
        Check(
            group=GROUP,
            name="other seed, same sha256",
            value=float(first.sha256 == other.sha256),
            high=0,
            detail="a seed that changes nothing is not used",
        ),
        Check(
            group=GROUP,
            name=f"tokens that differ at temperature {GREEDY_TEMPERATURE:g}",
            value=float(difference(*cold)),
            high=0,
            detail=f"{len(cold[0])} tokens, two seeds",
        ),
        *counts([first, second, other]),
    ]


def difference(left: list[int], right: list[int]) -> int:
    """Places at which two runs of tokens differ; those that only one has count too."""
    apart = sum(one != other for one, other in zip(left, right, strict=False))
    return apart + abs(len(left) - len(right))


def counts(clips: list[Spoken]) -> list[Check]:
    """Tokens, samples and bytes must tell the same story."""
    off = max((abs(len(clip.samples) - clip.expected_samples) for clip in clips), default=0)
    sizes = [
        len(wav_bytes(clip.samples, clip.rate_hz)) - WAV_HEADER_BYTES - 2 * len(clip.samples)
        for clip in clips
    ]
    return [
        Check(
            group=GROUP,
            name="fewest tokens of an utterance",
            value=float(min(clip.tokens for clip in clips)),
            low=1,
        ),
        Check(
            group=GROUP,
            name="samples off 960 × tokens",
            value=float(off),
            high=0,
            unit="samples",
            detail="pauses between pieces counted in",
        ),
        Check(
            group=GROUP,
            name="bytes off 44 + 2 × samples",
            value=float(max((abs(size) for size in sizes), default=0)),
            high=0,
            unit="bytes",
        ),
    ]
