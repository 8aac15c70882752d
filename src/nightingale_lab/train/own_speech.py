"""Stage `own-speech`: what a T3 says itself, as a bank of tokens for its guess to learn from (guess.py).

A T3 knows the clips it was trained on by heart, and thinks about them as about nothing else. A guess is asked
while T3 speaks, so it should learn from that: the bank's lines again, spoken at the temperatures people
use, the second time in other voices.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.compact import unpack
from nightingale_lab.train.token_bank import TokenBank

ROWS = 384
"""Lines spoken at a time, all with as many text ids."""
TEMPERATURES, MIN_P = (0.8, 0.8, 0.3), 0.05
SHORTEST, LONGEST = 4, 360
"""Tokens of an utterance that is kept."""
FLOOR, PER_TEXT_ID = 30, 4.2
"""Who has said more than so many and is not done is left out."""
LOOK_EVERY = 16
"""Steps between two looks whether all are done: each waits for the device."""


def speak_lines(
    bank: TokenBank,
    config: T3Config,
    *,
    target: Path,
    budget_s: float,
    device: torch.device,
    seed: int = 0,
    rows: int = ROWS,
) -> TokenBank:
    """The bank's lines in the words of the T3 in the file `target`, again and again until the time is up."""
    t3 = T3(config)
    t3.load_state_dict({name: value.float() for name, value in unpack(load_file(target)).items()})
    t3.to(device).eval().requires_grad_(False)
    rng, draws = np.random.default_rng(seed), torch.Generator(device).manual_seed(seed)
    begun, tokens, lines, voices = time.monotonic(), list[NDArray[np.int16]](), list[int](), list[int]()
    again = False
    while not tokens or time.monotonic() - begun < budget_s:
        for clips in _alike(bank, rows, rng):
            who = rng.integers(bank.clips, size=len(clips)) if again else clips
            warmth = TEMPERATURES[rng.integers(len(TEMPERATURES))]
            said = _speak(t3, bank, clips, who, warmth, draws)
            for clip, speaker, ids in zip(clips, who, said, strict=True):
                if len(ids) >= SHORTEST:
                    tokens.append(ids)
                    lines.append(int(clip))
                    voices.append(int(speaker))
            if tokens and time.monotonic() - begun >= budget_s:
                break
        again = True
    counts = [len(ids) for ids in tokens]
    told = {name: getattr(bank, name)[lines] for name in ("line", "speed")}
    return replace(
        bank,
        tokens=np.concatenate(tokens),
        token_offsets=np.cumsum([0, *counts]).astype(np.int64),
        text_ids=np.concatenate([_text(bank, clip) for clip in lines]),
        text_offsets=np.cumsum([0, *(len(_text(bank, clip)) for clip in lines)]).astype(np.int64),
        **told,
        **{name: getattr(bank, name)[voices] for name in ("voice", "speaker")},
    )


def _alike(bank: TokenBank, rows: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Clips in groups whose texts have as many ids, in any order."""
    lengths = np.diff(bank.text_offsets)
    groups: list[NDArray[np.int64]] = []
    for length in np.unique(lengths):
        mine = rng.permutation(np.flatnonzero(lengths == length))
        groups += [mine[start : start + rows] for start in range(0, len(mine), rows)]
    yield from (groups[i] for i in rng.permutation(len(groups)))


def _text(bank: TokenBank, clip: int) -> NDArray[np.int16]:
    return bank.text_ids[bank.text_offsets[clip] : bank.text_offsets[clip + 1]]


@torch.inference_mode()
def _speak(
    t3: T3,
    bank: TokenBank,
    clips: NDArray[np.int64],
    who: NDArray[np.int64],
    warmth: float,
    draws: torch.Generator,
) -> list[NDArray[np.int16]]:
    """Tokens of each clip's line; none of who did not come to an end or said what is no sound."""
    device = draws.device
    framed = torch.tensor(
        np.stack([t3.config.frame_text(_text(bank, clip).tolist()) for clip in clips]), device=device
    )
    most = int(min(LONGEST, FLOOR + PER_TEXT_ID * framed.shape[1]))
    speaker = F.normalize(torch.from_numpy(bank.speaker[who]).to(device).float(), dim=1)
    start = torch.full((len(clips), 1), START_SPEECH, device=device)
    voice = t3.cond_enc.spkr_enc(speaker)[:, None]
    x = torch.cat([voice, t3.text_emb(framed), t3.embed_speech(start, 0)], dim=1)
    memory: Any = t3.new_kv_cache(rows=len(clips), capacity=x.shape[1] + most)
    said = torch.full((len(clips), most), STOP_SPEECH, device=device)
    done = torch.zeros(len(clips), dtype=torch.bool, device=device)
    for step in range(most):
        token = _draw(t3.next_logits(x, memory).float() / warmth, draws)
        said[:, step] = torch.where(done, STOP_SPEECH, token)
        done |= token == STOP_SPEECH
        if step % LOOK_EVERY == LOOK_EVERY - 1 and bool(done.all()):
            break
        x = t3.embed_speech(token[:, None], step + 1)
    ids, ended = said.cpu().numpy(), done.cpu().numpy()
    ends = (ids == STOP_SPEECH).argmax(1)
    whole = [row[:end] if over else row[:0] for row, end, over in zip(ids, ends, ended, strict=True)]
    return [row.astype(np.int16) if (row < START_SPEECH).all() else row[:0].astype(np.int16) for row in whole]


def _draw(scores: Tensor, draws: torch.Generator) -> Tensor:
    """The first in a race among ids that are not too unlikely (decoding/sampling.py), by logarithms."""
    likely = scores.softmax(-1)
    scores = scores.masked_fill(likely < MIN_P * likely.amax(-1, keepdim=True), -torch.inf)
    return (scores - torch.empty_like(scores).exponential_(generator=draws).log()).argmax(-1)
