"""Stage `bulk`, on CPUs: hours of one voice as speech tokens, by the small teacher, beside everything else.

T3 learns pronunciation from how much it reads, and one voice is enough for that. Hibari speaks 40 times as
fast as real time on one core, and wren's tokenizer hears 90 times as fast: so a core makes 30 hours an hour,
which cost the GPU nothing. Only tokens are kept: a bank that `session --from` shows to T3. It serves as long
as its tokenizer does.
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
from nightingale_lab.train.bank import chain_offsets
from nightingale_lab.train.cast import SHARES
from nightingale_lab.train.loop import silent
from nightingale_lab.train.resample import To16k
from nightingale_lab.train.synthesize import PACES, PEAK, trim
from nightingale_lab.train.token_bank import TokenBank

VOICE = "af_heart"
"""Whose speech the small teacher was made of."""


class Teacher(Protocol):
    """What speaks: HibariTeacher, or a test's stand-in."""

    def speak_ids(self, ids: Sequence[int], *, speed: float = 1.0, seed: int = 0) -> Tensor: ...


def lines_from_the_end(lines: int, *, seed: int, shard: int, shards: int) -> Iterator[int]:
    """Line numbers, last first, in the order in which the stage `data` takes them first first: the two
    meet late."""
    order = np.random.default_rng(seed).permutation(lines)[::-1]
    return iter(order[shard::shards].tolist())


@torch.inference_mode()
def hear(net: SpeechTokenizer, to16k: To16k, samples: Tensor) -> NDArray[np.int16]:
    """The tokens of one utterance, cut as the stage `data` cuts it."""
    sound = samples[None]
    start, tokens = trim(sound, torch.tensor([sound.shape[1]]))
    size = int(tokens) * CLOCKS.samples_per_token
    sound = F.pad(sound, (0, size))[:, int(start) : int(start) + size]
    sound = sound * (PEAK / sound.abs().amax().clamp(min=PEAK))
    hidden, _ = net.encoder(net.mel(to16k(sound)))
    return fsq_ids(net.quantizer(hidden))[0, : int(tokens)].to(torch.int16).numpy()


def make_bulk(
    teacher: Teacher,
    net: SpeechTokenizer,
    phonemes: Sequence[NDArray[np.uint8]],
    numbers: Iterator[int],
    speaker: NDArray[np.float16],
    out: Path,
    *,
    budget_s: float,
    save_every_s: float = 120.0,
    seed: int = 0,
    say: Callable[[dict[str, Any]], None] = silent,
) -> None:
    """Speak and hear lines until time is up; `out` always holds a whole bank.

    phonemes: ids of every line of the text; where they are empty the line is passed over.
    """
    to16k, rng = To16k(), np.random.default_rng(seed)
    made: list[NDArray[np.int16]] = []
    said: list[int] = []
    paces: list[float] = []
    begun = saved = time.monotonic()

    def save() -> None:
        if not made:
            return
        counts = np.asarray([len(tokens) for tokens in made])
        TokenBank(
            tokens=np.concatenate(made),
            token_offsets=np.cumsum([0, *counts]).astype(np.int64),
            text_ids=np.zeros(0, np.int16),  # a bank's file keeps line numbers only
            text_offsets=chain_offsets([]),
            line=np.asarray(said, dtype=np.int32),
            voice=np.full(len(said), list(SHARES).index(VOICE), dtype=np.int16),
            speed=np.asarray(paces, dtype=np.float16),
            speaker=np.repeat(speaker[None], len(said), axis=0),
        ).save(out)
        spent = time.monotonic() - begun
        hours = counts.sum() / CLOCKS.token_rate_hz / 3600
        say({"clips": len(made), "hours": float(hours), "times_real": float(hours * 3600 / spent)})

    for number in numbers:
        now = time.monotonic()
        if now - begun > budget_s:
            break
        if now - saved > save_every_s:
            save()
            saved = now
        pace = float(rng.uniform(*PACES))
        ids = phonemes[number].tolist()
        samples = teacher.speak_ids(ids, speed=pace, seed=number) if ids else torch.zeros(0)
        if len(samples) and bool(samples.isfinite().all()) and bool(samples.any()):
            made.append(hear(net, to16k, samples))
            said.append(number)
            paces.append(pace)
    save()
