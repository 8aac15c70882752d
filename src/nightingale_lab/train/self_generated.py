"""Stage `self-generate`: speech tokens that a T3 generates itself, as training data for its draft head.

T3 overfits the clips that it was trained on, so its hidden states there differ from those at inference. A
draft head is used at inference, so it also learns from T3's own output: the lines of the bank, sampled at
usual temperatures, from the second pass on with other speakers.
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
from nightingale_lab.train.alignment import UNKNOWN
from nightingale_lab.train.bank import offsets_of
from nightingale_lab.train.token_bank import TokenBank

BATCH = 384
"""Lines decoded in one batch, all with the same number of text ids."""
TEMPERATURES, MIN_P = (0.8, 0.8, 0.3), 0.05
MIN_TOKENS, MAX_TOKENS = 4, 360
"""Length of an utterance that is kept."""
BASE_BUDGET, BUDGET_PER_TEXT_ID = 30, 4.2
"""Utterances without a stop token within this token budget are dropped."""
CHECK_EVERY = 16
"""Steps between two checks whether all rows have ended: each check waits for the device."""


def generate_speech(
    bank: TokenBank,
    config: T3Config,
    *,
    target: Path,
    budget_s: float,
    device: torch.device,
    seed: int = 0,
    batch: int = BATCH,
) -> TokenBank:
    """Decode the bank's lines with the T3 in the file `target`, again and again until the time is up."""
    t3 = T3(config)
    t3.load_state_dict({name: value.float() for name, value in unpack(load_file(target)).items()})
    t3.to(device).eval().requires_grad_(False)
    rng, generator = np.random.default_rng(seed), torch.Generator(device).manual_seed(seed)
    started_s, tokens = time.monotonic(), list[NDArray[np.int16]]()
    lines, speakers = list[int](), list[int]()
    first_pass = True
    while not tokens or time.monotonic() - started_s < budget_s:
        for clips in _batches(bank, batch, rng):
            others = clips if first_pass else rng.integers(bank.clips, size=len(clips))
            temperature = TEMPERATURES[rng.integers(len(TEMPERATURES))]
            decoded = _decode(t3, bank, clips, others, temperature, generator)
            for clip, speaker, ids in zip(clips, others, decoded, strict=True):
                if len(ids) >= MIN_TOKENS:
                    tokens.append(ids)
                    lines.append(int(clip))
                    speakers.append(int(speaker))
            if tokens and time.monotonic() - started_s >= budget_s:
                break
        first_pass = False
    texts = [_text(bank, clip) for clip in lines]
    return replace(
        bank,
        tokens=np.concatenate(tokens),
        word=np.full(sum(map(len, tokens)), UNKNOWN, dtype=np.int16),
        token_offsets=offsets_of(tokens),
        text_ids=np.concatenate(texts),
        text_offsets=offsets_of(texts),
        **{name: getattr(bank, name)[lines] for name in ("line", "speed")},
        **{name: getattr(bank, name)[speakers] for name in ("voice", "speaker")},
    )


def _batches(bank: TokenBank, size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield batches of clips whose texts have the same number of ids, in random order."""
    lengths = np.diff(bank.text_offsets)
    batches: list[NDArray[np.int64]] = []
    for length in np.unique(lengths):
        clips = rng.permutation(np.flatnonzero(lengths == length))
        batches += [clips[start : start + size] for start in range(0, len(clips), size)]
    yield from (batches[i] for i in rng.permutation(len(batches)))


def _text(bank: TokenBank, clip: int) -> NDArray[np.int16]:
    return bank.text_ids[bank.text_offsets[clip] : bank.text_offsets[clip + 1]]


@torch.inference_mode()
def _decode(
    t3: T3,
    bank: TokenBank,
    clips: NDArray[np.int64],
    speakers: NDArray[np.int64],
    temperature: float,
    generator: torch.Generator,
) -> list[NDArray[np.int16]]:
    """Return the tokens of each clip's line, none where there is no stop token or an id that is no speech."""
    device = generator.device
    text = torch.tensor(
        np.stack([t3.config.frame_text(_text(bank, clip).tolist()) for clip in clips]), device=device
    )
    limit = int(min(MAX_TOKENS, BASE_BUDGET + BUDGET_PER_TEXT_ID * text.shape[1]))
    speaker = F.normalize(torch.from_numpy(bank.speaker[speakers]).to(device).float(), dim=1)
    start = torch.full((len(clips), 1), START_SPEECH, device=device)
    conditioning = t3.cond_enc.spkr_enc(speaker)[:, None]
    x = torch.cat([conditioning, t3.text_emb(text), t3.embed_speech(start, 0)], dim=1)
    cache: Any = t3.new_kv_cache(rows=len(clips), capacity=x.shape[1] + limit)
    generated = torch.full((len(clips), limit), STOP_SPEECH, device=device)
    done = torch.zeros(len(clips), dtype=torch.bool, device=device)
    for step in range(limit):
        token = _sample(t3.next_logits(x, cache).float() / temperature, generator)
        generated[:, step] = torch.where(done, STOP_SPEECH, token)
        done |= token == STOP_SPEECH
        if step % CHECK_EVERY == CHECK_EVERY - 1 and bool(done.all()):
            break
        x = t3.embed_speech(token[:, None], step + 1)
    ids, ended = generated.cpu().numpy(), done.cpu().numpy()
    ends = (ids == STOP_SPEECH).argmax(1)
    rows = [row[:end] if over else row[:0] for row, end, over in zip(ids, ends, ended, strict=True)]
    return [row.astype(np.int16) if (row < START_SPEECH).all() else row[:0].astype(np.int16) for row in rows]


def _sample(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Sample with min-p by the exponential race, computed in logarithms (decoding/sampling.py)."""
    probabilities = logits.softmax(-1)
    logits = logits.masked_fill(probabilities < MIN_P * probabilities.amax(-1, keepdim=True), -torch.inf)
    return (logits - torch.empty_like(logits).exponential_(generator=generator).log()).argmax(-1)
