"""Stage `t3`: text ids and a speaker vector to speech tokens.

Plain next-token training. What keeps a small model from running on or stopping short is what it is shown:
sentences of every length, pairs of sentences of one speaker joined, text with and without a final mark, and a
stop token that counts more than others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.nn.memory import NoMemory
from nightingale.train.corpus import Corpus
from nightingale.train.loop import (
    Ema,
    Every,
    GraphedStep,
    JsonlLog,
    Optimizer,
    Schedule,
    load_state,
    save_state,
    silent,
)
from nightingale.train.weights import save_half

BUCKETS = (64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 640)
BATCH_IDS = 24_576
"""Ids per step; a bucket's batch is as many rows as fill it."""
STOP_WEIGHT = 4.0
SPACE_ID = 2
NO_FINAL_MARK = 0.125
"""How often the last mark is left out: users leave it out too."""
SLIP = 0.03
"""Share of input speech tokens replaced by others: the model must go on after its own slips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Sequences of up to one length on the device: framed text, start token, speech, stop token, padding."""

    ids: Tensor
    """(rows, length) int16."""
    text_count: Tensor
    """(rows,) framed text ids at the front."""
    count: Tensor
    """(rows,) ids in all, the stop included."""
    clip: Tensor
    """(rows,) whose speaker vector."""


def build_buckets(
    corpus: Corpus,
    tokens: NDArray[np.int16],
    config: T3Config,
    *,
    marks: frozenset[int],
    joined_share: float,
    seed: int,
    device: torch.device,
) -> dict[int, Bucket]:
    """Every clip once, and `joined_share` as many pairs of clips of one voice, filed by length."""
    rng = np.random.default_rng(seed)
    filed: dict[int, list[tuple[NDArray[np.int16], int, int, int]]] = {}
    for plan in _plans(corpus, joined_share, rng):
        told = _text(corpus, plan)
        if int(told[-1]) in marks and len(told) > 1 and rng.random() < NO_FINAL_MARK:
            told = told[:-1]
        spoken = [tokens[corpus.token_offsets[i] : corpus.token_offsets[i + 1]] for i in plan]
        row = np.concatenate(
            [[config.start_text], told, [config.stop_text, START_SPEECH], *spoken, [STOP_SPEECH]]
        )
        size = next((bucket for bucket in BUCKETS if len(row) <= bucket), None)
        if size is not None:
            padded = np.pad(row.astype(np.int16), (0, size - len(row)))
            filed.setdefault(size, []).append((padded, len(told) + 2, len(row), plan[0]))

    def there(values: list[Any], dtype: type) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=dtype)).to(device)

    return {
        size: Bucket(
            ids=there([r[0] for r in rows], np.int16),
            text_count=there([r[1] for r in rows], np.int64),
            count=there([r[2] for r in rows], np.int64),
            clip=there([r[3] for r in rows], np.int64),
        )
        for size, rows in sorted(filed.items())
    }


def _plans(corpus: Corpus, joined_share: float, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Which clips make up each sequence."""
    clips = len(corpus.voice)
    by_voice: dict[int, list[int]] = {}
    for i in rng.permutation(clips):
        by_voice.setdefault(int(corpus.voice[i]), []).append(int(i))
    pairs = [(a, b) for mine in by_voice.values() for a, b in pairwise(mine)]
    chosen = rng.permutation(len(pairs))[: int(joined_share * clips)]
    return [(i,) for i in range(clips)] + [pairs[i] for i in chosen]


def _text(corpus: Corpus, plan: tuple[int, ...]) -> NDArray[np.int16]:
    parts: list[NDArray[np.int16]] = []
    for i in plan:
        if parts:
            parts.append(np.array([SPACE_ID], dtype=np.int16))
        parts.append(corpus.text_ids[corpus.text_offsets[i] : corpus.text_offsets[i + 1]])
    return np.concatenate(parts)


class T3Training:
    """Weights, optimizer, and one captured step per bucket."""

    def __init__(
        self,
        buckets: dict[int, Bucket],
        speaker: Tensor,
        config: T3Config,
        *,
        device: torch.device,
        eager: bool,
    ) -> None:
        self.device, self.buckets, self.speaker = device, buckets, speaker
        self.net = T3(config).to(device)
        _initialize(self.net, config.backbone.layers)
        self.memory = [NoMemory()] * config.backbone.layers
        self.optimizer = Optimizer(self.net.parameters(), betas=(0.9, 0.98))
        self.ema = Ema(self.net.parameters(), decay=0.9995)
        self.losses = torch.zeros(3, device=device)
        """Running loss, accuracy, and accuracy of the stop."""
        self.steps = {size: GraphedStep(self._step_of(size), eager=eager) for size in buckets}
        # Short buckets hold more rows a step, so drawing by ids shows every clip equally often.
        weight = np.array([len(b.ids) * size for size, b in buckets.items()], dtype=np.float64)
        self.chance = weight / weight.sum()

    def _step_of(self, size: int) -> Callable[[], None]:
        return lambda: self._step(
            self.buckets[size], max(1, min(BATCH_IDS // size, 4 * len(self.buckets[size].ids)))
        )

    def _step(self, bucket: Bucket, rows: int) -> None:
        loss, hit, stop_hit = self.loss(
            bucket, torch.randint(len(bucket.ids), (rows,), device=self.device), slip=SLIP
        )
        self.optimizer.step(loss)
        self.ema.update()
        self.losses.lerp_(torch.stack([loss.detach(), hit, stop_hit]), 0.02)

    def loss(self, bucket: Bucket, pick: Tensor, *, slip: float) -> tuple[Tensor, Tensor, Tensor]:
        """Mean loss over speech tokens, accuracy, and accuracy of the stop token."""
        ids, text_count, count = bucket.ids[pick].long(), bucket.text_count[pick], bucket.count[pick]
        place = torch.arange(ids.shape[1], device=self.device)[None]
        is_text = place < text_count[:, None]
        random = torch.randint(START_SPEECH, ids.shape, device=self.device)
        slipped = (torch.rand(ids.shape, device=self.device) < slip) & (place > text_count[:, None])
        speaker = self.speaker[bucket.clip[pick]].float()
        speaker = F.normalize(speaker + 0.02 * torch.randn_like(speaker), dim=1)
        with torch.autocast(self.device.type, torch.bfloat16):
            told = self.net.text_emb(torch.where(is_text, ids, 0))
            spoken = self.net.speech_emb(torch.where(is_text, 0, torch.where(slipped, random, ids)))
            x = torch.where(is_text[..., None], told, spoken)
            x = torch.cat([self.net.cond_enc.spkr_enc(speaker)[:, None].to(x.dtype), x[:, :-1]], dim=1)
            scores = self.net(x, self.memory)
        # The score after input i is of id i, because the speaker stands in front.
        counts = (place > text_count[:, None]) & (place < count[:, None])
        is_stop = ids == STOP_SPEECH
        weight = counts * torch.where(is_stop, STOP_WEIGHT, 1.0)
        each = F.cross_entropy(scores.float().flatten(0, 1), ids.flatten(), reduction="none").view_as(ids)
        right = (scores.detach().argmax(-1) == ids).float()
        stops = (counts & is_stop).float()
        return (
            (each * weight).sum() / weight.sum(),
            (right * counts).sum() / counts.sum(),
            (right * stops).sum() / stops.sum().clamp(min=1),
        )

    def averaged(self) -> dict[str, Tensor]:
        names = [name for name, _ in self.net.named_parameters()]
        return dict(zip(names, self.ema.average, strict=True))


def _initialize(net: nn.Module, layers: int) -> None:
    """Small normal weights; what is added to the residual stream is smaller the more layers add to it."""
    for name, weight in net.named_parameters():
        if weight.dim() > 1:
            inward = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(weight, std=0.02 / (2 * layers) ** 0.5 if inward else 0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(weight)


def train_t3(
    corpus: Corpus,
    tokens: NDArray[np.int16],
    out: Path,
    config: T3Config,
    *,
    marks: frozenset[int],
    budget_s: float,
    device: torch.device,
    eager: bool = False,
    seed: int = 0,
    peak_lr: float = 1.5e-3,
    say: Callable[[dict[str, Any]], None] = silent,
) -> None:
    """Train for `budget_s` seconds, resuming from what `out` holds; `t3.safetensors` is the average."""
    buckets = build_buckets(corpus, tokens, config, marks=marks, joined_share=0.3, seed=seed, device=device)
    speaker = torch.from_numpy(corpus.speaker).to(device)
    training = T3Training(buckets, speaker, config, device=device, eager=eager)
    log, state_path = JsonlLog(out / "t3.jsonl"), out / "t3.state.pt"
    schedule, rng, step, fresh = Schedule(peak=peak_lr, warmup_steps=400), np.random.default_rng(seed), 0, 0
    if state_path.exists():
        state = load_state(state_path, device)
        training.net.load_state_dict(state["net"])
        training.optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        training.ema.reset()
    elif (out / "t3.safetensors").exists():  # what travelled from another machine: weights, but no optimizer
        training.net.load_state_dict({k: v.float() for k, v in load_file(out / "t3.safetensors").items()})
        training.ema.reset()
    sizes = list(buckets)
    begun = time.monotonic()
    report, keep = Every(5, begun), Every(60, begun)
    while (spent := time.monotonic() - begun) < budget_s:
        training.optimizer.lr.fill_(schedule.at(fresh, spent / budget_s))
        training.steps[int(rng.choice(sizes, p=training.chance))]()
        step, fresh = step + 1, fresh + 1
        if report(time.monotonic()):
            loss, hit, stop_hit = training.losses.tolist()
            refusals = {r for s in training.steps.values() if (r := s.refusal)}
            record = {"step": step, "seconds": spent, "loss": loss, "hit": hit, "stop_hit": stop_hit}
            record["refusal"] = "; ".join(sorted(refusals)) or None
            log.write(record)
            say(record)
        if keep(time.monotonic()):
            save_half(training.averaged(), out / "t3.safetensors")
    save_half(training.averaged(), out / "t3.safetensors")
    save_state(
        state_path,
        {"net": training.net.state_dict(), "optimizer": training.optimizer.state_dict(), "step": step},
    )
