"""Stage `data`, on the GPU: synthesize lines of text with the teacher into a Corpus.

Besides audio, the teacher gives the phoneme and the pitch of every frame, so neither has to be estimated.
Silence at both ends is trimmed to a fixed margin, and every clip to whole tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from nightingale.clocks import CLOCKS
from nightingale_lab.train.bank import AudioBank, offsets_of
from nightingale_lab.train.corpus import Corpus
from nightingale_lab.train.loop import ignore_progress
from nightingale_lab.train.teachers.intonation import contours_of
from nightingale_lab.train.teachers.kokoro import Line
from nightingale_lab.train.teachers.kokoro_net import AlignedSpeech

Clip = tuple[NDArray[np.int16], NDArray[np.float16], NDArray[np.uint8]]
"""Samples, pitch and phonemes of one line."""

TRIM_HOP = 240
"""10 ms."""
TRIM_DB = 42.0
HEAD_HOPS, TAIL_HOPS = 6, 12
"""Silence that is kept before and after the speech, in hops."""
PEAK = 0.95
SPEEDS = (0.94, 1.08)
BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""A few sizes only, because cuDNN plans every new shape anew."""
PHONEME_SECONDS = 0.075
"""An estimate, used for batch sizes only."""
QUESTION_SHARE = 0.42
"""Share of questions and exclamations in the synthesized lines. With 9 %, T3 did not learn their intonation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisRequest:
    """One line to synthesize."""

    number: int
    """Number of the line in the text."""
    line: Line
    voice: int
    """Number of the voice, stored with the clip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerMix:
    """The shares of the speakers: named voices by share, the rest by random blends."""

    shares: Mapping[str, float]
    pool: Sequence[str]
    """Voices to blend."""
    blends: int
    """Number of different blends."""


def order_lines(texts: Sequence[str], count: int, *, seed: int) -> NDArray[np.int64]:
    """Return line numbers in random order, with QUESTION_SHARE of questions and exclamations in the first `count`."""
    order = np.random.default_rng(seed).permutation(len(texts))
    chosen = np.array([any(mark in texts[i] for mark in "?!") for i in order], dtype=bool)
    first = int(QUESTION_SHARE * count)
    return np.concatenate([order[chosen][:first], order[~chosen], order[chosen][first:]])


def assign_speakers(
    numbers: Sequence[int],
    texts: Sequence[str],
    readings: Sequence[Mapping[str, NDArray[np.uint8]]],
    mix: SpeakerMix,
    *,
    seed: int,
) -> list[SynthesisRequest]:
    """Assign a voice, a speed and the contours of its sentences to every line.

    numbers, texts: the lines. readings: phoneme ids of each line by accent, american and british.
    """
    rng = np.random.default_rng(seed)
    names = list(mix.shares)
    blends = [_blend(mix.pool, rng) for _ in range(mix.blends)]
    chance = np.array([mix.shares[n] for n in names] + [1 - sum(mix.shares.values())])
    picks = rng.choice(len(chance), size=len(numbers), p=chance / chance.sum())
    which, speeds = rng.integers(len(blends), size=len(numbers)), rng.uniform(*SPEEDS, size=len(numbers))
    requests = []
    rows = zip(numbers, texts, readings, picks, which, speeds, strict=True)
    for number, text, reading, pick, other, speed in rows:
        named = pick < len(names)
        voice: str | dict[str, float] = names[pick] if named else blends[other]
        accent = "british" if _is_british(voice) and len(reading["british"]) else "american"
        phonemes = reading[accent]
        if len(phonemes):
            line = Line(tuple(phonemes.tolist()), voice, float(speed), contours_of(text))
            speaker = int(pick) if named else len(names) + int(other)
            requests.append(SynthesisRequest(number=number, line=line, voice=speaker))
    return requests


def _blend(pool: Sequence[str], rng: np.random.Generator) -> dict[str, float]:
    count = int(rng.integers(1, 4))
    chosen = rng.choice(len(pool), size=count, replace=False)
    return {pool[int(i)]: float(w) for i, w in zip(chosen, rng.dirichlet([2.0] * count), strict=True)}


def _is_british(voice: str | Mapping[str, float]) -> bool:
    weights = {voice: 1.0} if isinstance(voice, str) else voice
    return sum(w for name, w in weights.items() if name.startswith("b")) > 0.5 * sum(weights.values())


def batch_by_length(
    requests: Sequence[SynthesisRequest], seconds: float, seed: int
) -> Iterator[list[SynthesisRequest]]:
    """Yield batches of lines of similar length, with about `seconds` of speech each, in random order."""
    order = sorted(range(len(requests)), key=lambda i: len(requests[i].line.ids))
    groups: list[list[SynthesisRequest]] = [[]]
    for i in order:
        size = (len(requests[i].line.ids) + 8) * PHONEME_SECONDS
        if groups[-1] and len(groups[-1]) >= max(n for n in BATCH_SIZES if n == 1 or n * size <= seconds):
            groups.append([])
        groups[-1].append(requests[i])
    for g in np.random.default_rng(seed).permutation(len(groups)):
        yield groups[int(g)]


class AligningTeacher(Protocol):
    """KokoroTeacher, or a test's substitute."""

    def render_aligned(self, lines: Sequence[Line], *, seed: int | None = 0) -> AlignedSpeech: ...


def synthesize(
    teacher: AligningTeacher,
    requests: Sequence[SynthesisRequest],
    encode: Callable[[int], Sequence[int]],
    *,
    budget_s: float,
    first_hours: float,
    part_hours: float,
    max_hours: float,
    seconds_per_batch: float = 400.0,
    seed: int = 0,
    on_progress: Callable[[dict[str, Any]], None] = ignore_progress,
) -> Iterator[Corpus]:
    """Synthesize until lines, hours or seconds run out, and yield each part of the corpus when it is full.

    encode: maps the number of a line to its text ids. The first part is smaller, so that other stages can start
    early. Speaker vectors are zeros; the caller computes them.
    """
    started_s, audio_s, part_s, full_s = time.monotonic(), 0.0, 0.0, 3600 * first_hours
    clips: list[Clip] = []
    kept: list[SynthesisRequest] = []
    for number, batch in enumerate(batch_by_length(requests, seconds_per_batch, seed)):
        spent = time.monotonic() - started_s
        if number and (spent > budget_s or audio_s >= 3600 * max_hours):
            break
        try:
            made = _synthesize_batch(teacher, batch, seed + number)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            continue
        clips += made
        kept += batch
        seconds = sum(len(clip[0]) for clip in made) / CLOCKS.sample_rate_hz
        audio_s, part_s = audio_s + seconds, part_s + seconds
        if number % 20 == 0:
            record = {"batches": number + 1, "seconds": spent, "hours": audio_s / 3600}
            on_progress(record | {"times_real": audio_s / (time.monotonic() - started_s)})
        if part_s >= full_s:
            yield _corpus(clips, kept, encode)
            clips, kept, part_s, full_s = [], [], 0.0, 3600 * part_hours
    if any(len(clip[0]) for clip in clips):
        yield _corpus(clips, kept, encode)


def _corpus(
    clips: Sequence[Clip], requests: Sequence[SynthesisRequest], encode: Callable[[int], Sequence[int]]
) -> Corpus:
    good = [i for i, clip in enumerate(clips) if len(clip[0])]
    kept = [requests[i] for i in good]
    text_ids = [np.asarray(encode(request.number), dtype=np.int16) for request in kept]
    return Corpus(
        bank=AudioBank.join((clips[i][0], clips[i][1]) for i in good),
        phones=np.concatenate([clips[i][2] for i in good]),
        text_ids=np.concatenate(text_ids),
        text_offsets=offsets_of(text_ids),
        line=np.array([request.number for request in kept], dtype=np.int32),
        voice=np.array([request.voice for request in kept], dtype=np.int16),
        speed=np.array([request.line.speed for request in kept], dtype=np.float16),
        speaker=np.zeros((len(good), 256), dtype=np.float16),
    )


def _synthesize_batch(teacher: AligningTeacher, batch: Sequence[SynthesisRequest], seed: int) -> list[Clip]:
    """Return samples, pitch and phonemes per mel frame of each line."""
    speech = teacher.render_aligned([request.line for request in batch], seed=seed)
    start, tokens = trim(speech.samples, speech.counts.to(speech.samples.device))
    longest = int(tokens.max())
    if not bool(torch.isfinite(speech.samples).all()):
        return [(np.zeros(0, np.int16), np.zeros(0, np.float16), np.zeros(0, np.uint8)) for _ in batch]
    device = speech.samples.device
    at = start[:, None] + torch.arange(longest * CLOCKS.samples_per_token, device=device)
    samples = F.pad(speech.samples, (0, longest * CLOCKS.samples_per_token)).gather(1, at)
    samples = samples * (PEAK / samples.abs().amax(1, keepdim=True).clamp(min=PEAK))
    centre = start[:, None] + CLOCKS.samples_per_frame * (
        torch.arange(longest * CLOCKS.frames_per_token, device=device) + 0.5
    )
    ids = speech.ids
    tick = (centre / 600).long()  # the teacher has phonemes at 40 Hz and pitch at 80 Hz
    place = torch.searchsorted(speech.ends, tick, right=True).clamp(max=ids.shape[1] - 1)
    phones = ids.gather(1, place).to(torch.uint8)
    f0 = speech.f0_hz.gather(1, (centre / 300).long().clamp(max=speech.f0_hz.shape[1] - 1))
    f0 = torch.where(f0 > 30, f0, 0.0).half()
    pcm, pitch, phone = (
        (samples * 32767).round().to(torch.int16).cpu().numpy(),
        f0.cpu().numpy(),
        phones.cpu().numpy(),
    )
    return [
        (
            pcm[i, : n * CLOCKS.samples_per_token],
            pitch[i, : n * CLOCKS.frames_per_token],
            phone[i, : n * CLOCKS.frames_per_token],
        )
        for i, n in enumerate(tokens.tolist())
    ]


def trim(samples: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first sample and the number of whole tokens of each row's speech with its margins, each (batch,)."""
    hops = samples.shape[1] // TRIM_HOP
    power = samples[:, : hops * TRIM_HOP].unflatten(1, (hops, TRIM_HOP)).square().mean(2)
    index = torch.arange(hops, device=samples.device)
    power = power * (index[None] < counts[:, None] // TRIM_HOP)
    loud = power > power.amax(1, keepdim=True) * 10 ** (-TRIM_DB / 10)
    first = torch.where(loud, index, hops).amin(1)
    last = torch.where(loud, index, 0).amax(1)
    begin = (first - HEAD_HOPS).clamp(min=0) * TRIM_HOP
    length = (last + 1 + TAIL_HOPS) * TRIM_HOP - begin
    return begin, torch.div(
        length + CLOCKS.samples_per_token - 1, CLOCKS.samples_per_token, rounding_mode="floor"
    )
