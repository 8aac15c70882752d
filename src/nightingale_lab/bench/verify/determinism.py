"""Check that the same request gives the same audio, and as much of it as its tokens require."""

from __future__ import annotations

from functools import partial

from nightingale.audio.samples import wav_bytes
from nightingale_lab.bench.verify.check import Check
from nightingale_lab.bench.verify.subject import GREEDY_TEMPERATURE, RecordedUtterance, Subject

check = partial(Check, "determinism")
WAV_HEADER_BYTES = 44
SEED = 11


def determinism(subject: Subject, text: str) -> list[Check]:
    first, second = (subject.say(text, seed=SEED) for _ in range(2))
    other = subject.say(text, seed=SEED + 1)
    greedy = [subject.tokens(text, seed=seed, temperature=GREEDY_TEMPERATURE) for seed in (SEED, SEED + 1)]
    both = [clip.token_ids for clip in (first, other)]
    changed, unchanged = first.sha256 != second.sha256, first.sha256 == other.sha256
    differing = f"tokens that differ at temperature {GREEDY_TEMPERATURE:g}"
    return [
        check("same seed, other sha256", float(changed), high=0, detail=first.sha256[:16]),
        check("other seed, same sha256", float(unchanged), high=0, detail="the seed has no effect"),
        check("other seed, same tokens", float(bool(both[0]) and both[0] == both[1]), high=0),
        check(differing, float(difference(*greedy)), high=0, detail=f"{len(greedy[0])} tokens, two seeds"),
        *counts([first, second, other]),
    ]


def difference(left: list[int], right: list[int]) -> int:
    """Return in how many places two token sequences differ, including those that only one has."""
    apart = sum(one != other for one, other in zip(left, right, strict=False))
    return apart + abs(len(left) - len(right))


def counts(clips: list[RecordedUtterance]) -> list[Check]:
    """Check that the numbers of tokens, samples and bytes agree."""
    samples = [abs(len(clip.samples) - clip.expected_samples) for clip in clips]
    sizes = [
        abs(len(wav_bytes(clip.samples, clip.rate_hz)) - WAV_HEADER_BYTES - 2 * len(clip.samples))
        for clip in clips
    ]
    note = "including the pauses between segments"
    return [
        check("fewest tokens of an utterance", float(min(clip.tokens for clip in clips)), low=1),
        check(
            "samples off 960 × tokens", float(max(samples, default=0)), high=0, unit="samples", detail=note
        ),
        check("bytes off 44 + 2 × samples", float(max(sizes, default=0)), high=0, unit="bytes"),
    ]
