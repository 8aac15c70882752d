"""Stage `single-speaker`, on CPUs: hours of one voice as speech tokens, made by the small teacher.

T3 learns pronunciation from the amount of text, and one voice is enough for that. On one core, Hibari speaks 40
times as fast as real time and wren's tokenizer reads 90 times as fast, so a core makes 30 hours of speech per
hour without a GPU. Only tokens are kept: a bank that `session --from` passes to T3. It is valid for as long as its
tokenizer is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.encoders.speech_tokenizer import SpeechTokenizer, fsq_ids
from nightingale_lab.train.alignment import UNKNOWN
from nightingale_lab.train.bank import offsets_of
from nightingale_lab.train.loop import ignore_progress
from nightingale_lab.train.prepare import MARK_PHONEMES
from nightingale_lab.train.resample import To16k
from nightingale_lab.train.speakers import SPEAKER_SHARES
from nightingale_lab.train.synthesize import PEAK, SPEEDS, trim
from nightingale_lab.train.token_bank import TokenBank

VOICE = "af_heart"
"""The voice that the small teacher was trained on."""
QUESTION_AND_EXCLAMATION_MARK = frozenset(MARK_PHONEMES[mark] for mark in "?!")


class SingleSpeakerTeacher(Protocol):
    """HibariTeacher, or a test's substitute."""

    def speak_ids(self, ids: Sequence[int], *, speed: float = 1.0, seed: int = 0) -> Tensor: ...


def lines_from_the_end(lines: int, *, seed: int, shard: int, shards: int) -> Iterator[int]:
    """Return line numbers in the reverse order of the stage `data`, so that the two overlap late."""
    order = np.random.default_rng(seed).permutation(lines)[::-1]
    return iter(order[shard::shards].tolist())


@torch.inference_mode()
def tokenize_utterance(net: SpeechTokenizer, to16k: To16k, samples: Tensor) -> NDArray[np.int16]:
    """Return the tokens of one utterance, trimmed as the stage `data` trims it."""
    audio = samples[None]
    start, tokens = trim(audio, torch.tensor([audio.shape[1]]))
    size = int(tokens) * CLOCKS.samples_per_token
    audio = F.pad(audio, (0, size))[:, int(start) : int(start) + size]
    audio = audio * (PEAK / audio.abs().amax().clamp(min=PEAK))
    hidden, _ = net.encoder(net.mel(to16k(audio)))
    return fsq_ids(net.quantizer(hidden))[0, : int(tokens)].to(torch.int16).numpy()


def synthesize_tokens(
    teacher: SingleSpeakerTeacher,
    net: SpeechTokenizer,
    phonemes: Sequence[NDArray[np.uint8]],
    numbers: Iterator[int],
    speaker: NDArray[np.float16],
    out: Path,
    *,
    budget_s: float,
    save_every_s: float = 120.0,
    seed: int = 0,
    on_progress: Callable[[dict[str, Any]], None] = ignore_progress,
) -> None:
    """Synthesize and tokenize lines until time is up; `out` is a complete bank after every save.

    phonemes: ids of every line of the text. Lines without ids are skipped, and so are questions and exclamations,
    because the teacher speaks them like statements.
    """
    to16k, rng = To16k(), np.random.default_rng(seed)
    tokens: list[NDArray[np.int16]] = []
    lines: list[int] = []
    speeds: list[float] = []
    started_s = saved_s = time.monotonic()

    def save() -> None:
        if not tokens:
            return
        bank = TokenBank(
            tokens=np.concatenate(tokens),
            word=np.full(sum(map(len, tokens)), UNKNOWN, dtype=np.int16),
            token_offsets=offsets_of(tokens),
            text_ids=np.zeros(0, np.int16),  # the file of a bank keeps line numbers only
            text_offsets=offsets_of([]),
            line=np.asarray(lines, dtype=np.int32),
            voice=np.full(len(lines), list(SPEAKER_SHARES).index(VOICE), dtype=np.int16),
            speed=np.asarray(speeds, dtype=np.float16),
            speaker=np.repeat(speaker[None], len(lines), axis=0),
        )
        bank.save(out)
        audio_s = len(bank.tokens) / CLOCKS.token_rate_hz
        speed = audio_s / (time.monotonic() - started_s)
        on_progress({"clips": bank.clips, "hours": audio_s / 3600, "times_real": speed})

    for number in numbers:
        now_s = time.monotonic()
        if now_s - started_s > budget_s:
            break
        if now_s - saved_s > save_every_s:
            save()
            saved_s = now_s
        speed = float(rng.uniform(*SPEEDS))
        ids = phonemes[number].tolist()
        if not ids or QUESTION_AND_EXCLAMATION_MARK.intersection(ids):
            continue
        samples = teacher.speak_ids(ids, speed=speed, seed=number)
        if len(samples) and bool(samples.isfinite().all()) and bool(samples.any()):
            tokens.append(tokenize_utterance(net, to16k, samples))
            lines.append(number)
            speeds.append(speed)
    save()
