"""Stage `t3`: text ids and a speaker vector to speech tokens.

Plain next-token training. What keeps a small model from running on or stopping short is what it is shown:
sentences of every length, pairs of sentences of one speaker joined, text with and without a final mark, and a
stop token that counts more than others. What keeps it from learning its clips by heart: dropout, smoothed
targets, slips in what it hears of itself, and lines it never sees, on which the average is measured; the best
average is the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale_lab.no_kv_cache import NoKVCache
from nightingale_lab.train.codes import begin_with_digits
from nightingale_lab.train.loop import (
    Ema,
    Every,
    GraphedStep,
    JsonlLog,
    Optimizer,
    Schedule,
    Watch,
    load_state,
    save_state,
    silent,
)
from nightingale_lab.train.t3_rows import Bucket, build_buckets
from nightingale_lab.train.token_bank import TokenBank
from nightingale_lab.train.weights import save_half

BATCH_IDS = 24_576
"""Ids per step; a bucket's batch is as many rows as fill it."""
STOP_WEIGHT = 4.0
MEASURE_EVERY_S = 15.0
RESIDUAL_OUTPUTS = ("o_proj", "down_proj")
"""What is added to the residual stream: initialized small, and dropped out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class T3Recipe:
    """How, apart from how long."""

    peak_lr: float = 1.5e-3
    warmup_steps: int = 400
    joined_share: float = 0.15
    """Pairs of clips, as a share of the clips."""
    slip: float = 0.05
    """Share of input speech tokens replaced by others: the model must go on after its own slips."""
    dropout: float = 0.1
    smoothing: float = 0.05
    weight_decay: float = 0.05


class T3Training:
    """Weights, optimizer, and one captured step per bucket."""

    def __init__(
        self,
        bank: TokenBank,
        config: T3Config,
        recipe: T3Recipe,
        *,
        marks: frozenset[int],
        device: torch.device,
        eager: bool,
        seed: int,
    ) -> None:
        self.device, self.recipe = device, recipe
        out = bank.held_out
        self.buckets, self.unseen = (
            build_buckets(
                bank, config, chosen=chosen, marks=marks, joined_share=share, seed=seed, device=device
            )
            for chosen, share in ((~out, recipe.joined_share), (out, 0.0))
        )
        self.speaker = torch.from_numpy(bank.speaker).to(device)
        self.net = self.make_net(config).to(device)
        self.dropping = True
        for name, module in self.net.named_modules():
            if name.endswith(RESIDUAL_OUTPUTS):
                module.register_forward_hook(self._drop)
        self.optimizer = Optimizer(self.net.parameters(), betas=(0.9, 0.98), weight_decay=recipe.weight_decay)
        self.ema = Ema(self.net.parameters(), decay=0.9995)
        self.best = [p.clone() for p in self.ema.average]
        self.best_loss = float("inf")
        self.losses = torch.zeros(3, device=device)
        """Running loss, accuracy, and accuracy of the stop."""
        self.steps = {size: GraphedStep(self._step_of(size), eager=eager) for size in self.buckets}
        # Short buckets hold more rows a step, so drawing by ids shows every clip equally often.
        weight = np.array([len(b.ids) * size for size, b in self.buckets.items()], dtype=np.float64)
        self.chance = weight / weight.sum()

    def make_net(self, config: T3Config) -> nn.Module:
        """What is trained, as it begins."""
        net = T3(config)
        _initialize(net, config.backbone.layers)
        for table in (net.speech_emb, net.speech_head):
            begin_with_digits(table.weight)
        return net

    def _drop(self, module: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> Tensor:
        del module, given
        return F.dropout(result, self.recipe.dropout, self.dropping)

    def _step_of(self, size: int) -> Callable[[], None]:
        return lambda: self._step(self.buckets[size], _rows(self.buckets[size], size))

    def _step(self, bucket: Bucket, rows: int) -> None:
        loss, hit, stop_hit = self.loss(
            bucket,
            torch.randint(len(bucket.ids), (rows,), device=self.device),
            slip=self.recipe.slip,
            smoothing=self.recipe.smoothing,
        )
        self.optimizer.step(loss)
        self.ema.update()
        self.losses.lerp_(torch.stack([loss.detach(), hit, stop_hit]), 0.02)

    def loss(
        self, bucket: Bucket, pick: Tensor, *, slip: float, smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mean loss over speech tokens, accuracy, and accuracy of the stop token."""
        ids = bucket.ids[pick].long()
        given, counts = self.shown(bucket, pick, slip=slip)
        assert isinstance(self.net, T3)
        scores = self.scores(self.net, *given)
        is_stop = ids == STOP_SPEECH
        weight = counts * torch.where(is_stop, STOP_WEIGHT, 1.0)
        each = self.error(scores, ids, given, smoothing)
        right = (scores.detach().argmax(-1) == ids).float()
        stops = (counts & is_stop).float()
        return (
            (each * weight).sum() / weight.sum(),
            (right * counts).sum() / counts.sum(),
            (right * stops).sum() / stops.sum().clamp(min=1),
        )

    def shown(
        self, bucket: Bucket, pick: Tensor, *, slip: float
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """What is text, ids with slips and speakers of these rows; and which ids count, the spoken ones."""
        ids, text_count, count = bucket.ids[pick].long(), bucket.text_count[pick], bucket.count[pick]
        place = torch.arange(ids.shape[1], device=self.device)[None]
        random = torch.randint(START_SPEECH, ids.shape, device=self.device)
        slipped = (torch.rand(ids.shape, device=self.device) < slip) & (place > text_count[:, None])
        speaker = self.speaker[bucket.clip[pick]].float()
        speaker = F.normalize(speaker + 0.02 * torch.randn_like(speaker), dim=1)
        counts = (place > text_count[:, None]) & (place < count[:, None])
        return (place < text_count[:, None], torch.where(slipped, random, ids), speaker), counts

    def inputs(self, net: T3, is_text: Tensor, ids: Tensor, speaker: Tensor) -> Tensor:
        """(rows, time, width). What follows input i is id i, because the speaker stands in front."""
        told = net.text_emb(torch.where(is_text, ids, 0))
        spoken = net.speech_emb(torch.where(is_text, 0, ids))
        x = torch.where(is_text[..., None], told, spoken)
        return torch.cat([net.cond_enc.spkr_enc(speaker)[:, None].to(x.dtype), x[:, :-1]], dim=1)

    def scores(self, net: T3, is_text: Tensor, ids: Tensor, speaker: Tensor) -> Tensor:
        """(rows, time, vocab)."""
        with torch.autocast(self.device.type, torch.bfloat16):
            return net(self.inputs(net, is_text, ids, speaker), [NoKVCache()] * net.config.backbone.layers)

    def error(
        self,
        scores: Tensor,
        ids: Tensor,
        given: tuple[Tensor, Tensor, Tensor],  # noqa: ARG002, what a distilled one asks its target about
        smoothing: float,
    ) -> Tensor:
        """Of each id, (rows, time)."""
        return F.cross_entropy(
            scores.float().flatten(0, 1), ids.flatten(), reduction="none", label_smoothing=smoothing
        ).view_as(ids)

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Loss and accuracy of the average on lines it never saw; the best average so far is kept."""
        if not self.unseen:
            self.best = [p.clone() for p in self.ema.average]
            return {}
        self.dropping, results = False, []
        with self.ema.swapped_in():
            for size, bucket in self.unseen.items():
                rows = torch.arange(min(len(bucket.ids), _rows(bucket, size)), device=self.device)
                results.append(torch.stack(self.loss(bucket, rows, slip=0.0, smoothing=0.0)))
        self.dropping = True
        loss, hit, stop_hit = torch.stack(results).mean(0).tolist()
        if loss < self.best_loss:
            self.best_loss = loss
            torch._foreach_copy_(self.best, self.ema.average)
        return {"unseen_loss": loss, "unseen_hit": hit, "unseen_stop_hit": stop_hit}

    def best_average(self) -> dict[str, Tensor]:
        return dict(zip((name for name, _ in self.net.named_parameters()), self.best, strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": self.ema.average,
            "best": self.best,
            "best_loss": self.best_loss,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.ema.load(state["ema"])
        torch._foreach_copy_(self.best, state["best"])
        self.best_loss = state["best_loss"]


def _rows(bucket: Bucket, size: int) -> int:
    return max(1, min(BATCH_IDS // size, 4 * len(bucket.ids)))


def _initialize(net: nn.Module, layers: int) -> None:
    """Small normal weights; what is added to the residual stream is smaller the more layers add to it."""
    for name, weight in net.named_parameters():
        if weight.dim() > 1:
            inward = name.removesuffix(".weight").endswith(RESIDUAL_OUTPUTS)
            nn.init.normal_(weight, std=0.02 / (2 * layers) ** 0.5 if inward else 0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(weight)


def train_t3(
    bank: TokenBank,
    out: Path,
    config: T3Config,
    *,
    marks: frozenset[int],
    budget_s: float,
    plan_s: float | None = None,
    device: torch.device,
    eager: bool = False,
    seed: int = 0,
    recipe: T3Recipe | None = None,
    start_from: Path | None = None,
    say: Callable[[dict[str, Any]], None] = silent,
    make: Callable[..., T3Training] = T3Training,
    name: str = "t3",
) -> None:
    """Train for `budget_s` seconds, resuming from what `out` holds; `t3.safetensors` is the best average.

    start_from: a t3.safetensors of another machine, used when `out` holds no state. make, name: what is
    trained, and what its files are called.
    """
    recipe = recipe or T3Recipe()
    training = make(bank, config, recipe, marks=marks, device=device, eager=eager, seed=seed)
    log, state_path = JsonlLog(out / f"{name}.jsonl"), out / f"{name}.state.pt"
    done = {"step": 0, "elapsed_s": 0.0}
    if state_path.exists():
        state = load_state(state_path, device)
        training.load_state_dict(state)
        done = state["done"]
    elif start_from is not None and start_from.exists():
        training.net.load_state_dict({k: v.float() for k, v in load_file(start_from).items()})
        training.ema.reset()
    schedule = Schedule(peak=recipe.peak_lr, warmup_steps=recipe.warmup_steps)
    rng, sizes = np.random.default_rng(seed + int(done["step"])), list(training.buckets)
    watch = Watch(budget_s, plan_s=plan_s, elapsed_s=done["elapsed_s"])
    step = int(done["step"])
    report, keep = Every(MEASURE_EVERY_S, watch.begun_s), Every(60, watch.begun_s)

    def save() -> None:
        save_half(training.best_average(), out / f"{name}.safetensors")
        save_state(
            state_path,
            {"done": {"step": step, "elapsed_s": watch.elapsed_s}, **training.state_dict()},
        )

    def note() -> None:
        loss, hit, stop_hit = training.losses.tolist()
        refusals = {r for s in training.steps.values() if (r := s.refusal)}
        record = {"step": step, "seconds": watch.elapsed_s, "loss": loss, "hit": hit, "stop_hit": stop_hit}
        record |= training.measure() | {"refusal": "; ".join(sorted(refusals)) or None}
        log.write(record)
        say(record)

    while not watch.over():
        training.optimizer.lr.fill_(schedule.at(step, watch.progress))
        training.steps[int(rng.choice(sizes, p=training.chance))]()
        step += 1
        now = watch.begun_s + watch.spent_s
        if report(now):
            note()
        if keep(now):
            save()
    note()
    save()
