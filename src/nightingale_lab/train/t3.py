"""Stage `t3`: train the network from text ids and a speaker vector to speech tokens.

This is next-token prediction. Against runaways and early stops, the data has sentences of every length, joined
pairs of sentences of one speaker, and text with and without a final mark, and the stop token has a higher
weight. Against overfitting there are dropout, label smoothing, corrupted input tokens, and validation on
held-out lines: the averaged weights with the lowest validation loss are the result. Against skipped and repeated
words, some heads are guided (alignment.py). The last tokens of questions and exclamations have a higher weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale_lab.no_kv_cache import NoKVCache
from nightingale_lab.train.alignment import UNKNOWN, GuidedAttention
from nightingale_lab.train.code_init import init_from_digits
from nightingale_lab.train.loop import (
    Ema,
    GraphedStep,
    JsonlLog,
    Optimizer,
    Schedule,
    TimeBudget,
    ignore_progress,
    resume,
    run_steps,
    save_state,
    save_weights,
)
from nightingale_lab.train.prepare import MARK_IDS
from nightingale_lab.train.t3_rows import Bucket, build_buckets
from nightingale_lab.train.token_bank import TokenBank

BATCH_IDS = 24_576
"""Ids per step; the batch of a bucket has as many rows as fit."""
STOP_WEIGHT = 4.0
VALIDATE_EVERY_S = 15.0
GUIDED_HEADS: Mapping[int, tuple[int, ...]] = {1: (4,), 2: (4,), 3: (2,)}
"""Guided heads by layer: one that attends to the spoken word without guidance (with 75 % of its weight), and two
later ones, which can read the result of the first and so tell a word from its repetition."""
QUESTION_OR_EXCLAMATION = (MARK_IDS["?"], MARK_IDS["!"])
FINAL_TOKENS = 18
"""The last 0.7 s, which carry the intonation of a question or an exclamation."""
RESIDUAL_OUTPUTS = ("o_proj", "down_proj")
"""Projections whose output is added to the residual stream: they get small initial weights and dropout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class T3Recipe:
    """Hyperparameters of T3's training."""

    peak_lr: float = 1.5e-3
    warmup_steps: int = 400
    joined_share: float = 0.15
    """Number of joined pairs of clips, as a share of the clips."""
    corruption: float = 0.05
    """Share of input speech tokens that are replaced at random, so that the model recovers from its own errors."""
    dropout: float = 0.1
    smoothing: float = 0.05
    weight_decay: float = 0.05
    guidance: float = 0.0
    """Weight of the loss of the guided heads."""
    final_weight: float = 3.0
    """Weight of the last tokens of questions and exclamations: they are few, and all that differs from statements."""


class T3Training:
    """Weights, optimizer, and one captured step per bucket of sequence lengths."""

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
        self.buckets, self.validation = (
            build_buckets(
                bank, config, chosen=chosen, marks=marks, joined_share=share, seed=seed, device=device
            )
            for chosen, share in ((~out, recipe.joined_share), (out, 0.0))
        )
        self.speaker = torch.from_numpy(bank.speaker).to(device)
        self.net = self.make_net(config).to(device)
        self.dropout_on = True
        for name, module in self.net.named_modules():
            if name.endswith(RESIDUAL_OUTPUTS):
                module.register_forward_hook(self._drop)
        self.optimizer = Optimizer(self.net.parameters(), betas=(0.9, 0.98), weight_decay=recipe.weight_decay)
        self.ema = Ema(self.net.parameters(), decay=0.999)
        self.best = [p.clone() for p in self.ema.average]
        self.best_loss = float("inf")
        self.losses = torch.zeros(3, device=device)
        """Running loss, accuracy, and accuracy of the stop."""
        self.guided_loss = torch.zeros((), device=device)
        self.final_loss = torch.zeros(2, device=device)
        """Sum and number of the validation losses at the last tokens of questions and exclamations."""
        self.steps = {size: GraphedStep(self._step_of(size), eager=eager) for size in self.buckets}
        # A step of a short bucket has more rows, so sampling buckets by ids uses every clip equally often.
        weight = np.array([len(b.ids) * size for size, b in self.buckets.items()], dtype=np.float64)
        self.chance = weight / weight.sum()

    def make_net(self, config: T3Config) -> nn.Module:
        """Return the initialized network."""
        net = T3(config)
        _initialize(net, config.backbone.layers)
        for table in (net.speech_emb, net.speech_head):
            init_from_digits(table.weight)
        return net

    def _drop(self, module: nn.Module, inputs: tuple[Tensor, ...], result: Tensor) -> Tensor:
        del module, inputs
        return F.dropout(result, self.recipe.dropout, self.dropout_on)

    def _step_of(self, size: int) -> Callable[[], None]:
        return lambda: self._step(self.buckets[size], _rows(self.buckets[size], size))

    def _step(self, bucket: Bucket, rows: int) -> None:
        loss, accuracy, stop_accuracy = self.loss(
            bucket,
            torch.randint(len(bucket.ids), (rows,), device=self.device),
            corruption=self.recipe.corruption,
            smoothing=self.recipe.smoothing,
        )
        self.optimizer.step(loss)
        self.ema.update()
        self.losses.lerp_(torch.stack([loss.detach(), accuracy, stop_accuracy]), 0.02)

    def loss(
        self, bucket: Bucket, pick: Tensor, *, corruption: float, smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean loss over speech tokens, the accuracy, and the accuracy of the stop token."""
        ids = bucket.ids[pick].long()
        inputs, counts = self.batch(bucket, pick, corruption=corruption)
        assert isinstance(self.net, T3)
        guides = self._guides(bucket, pick, inputs[0], counts) if self.dropout_on else {}
        logits = self.logits(self.net, *inputs, guides=guides)
        is_stop = ids == STOP_SPEECH
        weight = counts * torch.where(is_stop, STOP_WEIGHT, 1.0)
        each = self.token_loss(logits, ids, inputs, smoothing)
        final = counts & ~is_stop & self._final_tokens(bucket, pick, ids)
        if self.dropout_on:
            weight = weight * torch.where(final, self.recipe.final_weight, 1.0)
        else:
            self.final_loss += torch.stack([(each * final).sum(), final.sum().float()])
        guided = sum((guide.loss for guide in guides.values()), torch.zeros((), device=self.device))
        if guides:
            self.guided_loss.lerp_(guided.detach(), 0.02)
        right = (logits.detach().argmax(-1) == ids).float()
        stops = (counts & is_stop).float()
        return (
            (each * weight).sum() / weight.sum() + self.recipe.guidance * guided,
            (right * counts).sum() / counts.sum(),
            (right * stops).sum() / stops.sum().clamp(min=1),
        )

    def _final_tokens(self, bucket: Bucket, pick: Tensor, ids: Tensor) -> Tensor:
        """Return a mask of the last tokens of questions and exclamations, (rows, time)."""
        mark = ids.gather(1, (bucket.text_count[pick] - 2)[:, None])
        chosen = (mark == QUESTION_OR_EXCLAMATION[0]) | (mark == QUESTION_OR_EXCLAMATION[1])
        place = torch.arange(ids.shape[1], device=self.device)[None]
        return chosen & (place >= (bucket.count[pick] - 1 - FINAL_TOKENS)[:, None])

    def _guides(
        self, bucket: Bucket, pick: Tensor, is_text: Tensor, counts: Tensor
    ) -> dict[int, GuidedAttention]:
        """Return the guided attention of each layer. Input i is id i - 1, since the speaker comes first."""
        if not self.recipe.guidance:
            return {}
        word = bucket.word[pick].long()
        queries = torch.where(counts, word, UNKNOWN)
        keys = F.pad(torch.where(is_text, word, UNKNOWN)[:, :-1], (1, 0), value=UNKNOWN)
        return {layer: GuidedAttention(heads, queries, keys) for layer, heads in GUIDED_HEADS.items()}

    def batch(
        self, bucket: Bucket, pick: Tensor, *, corruption: float
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Return the inputs of these rows, and where the loss counts: at speech tokens.

        The inputs are a mask of text positions, the ids, partly corrupted, and the speaker vectors.
        """
        ids, text_count, count = bucket.ids[pick].long(), bucket.text_count[pick], bucket.count[pick]
        place = torch.arange(ids.shape[1], device=self.device)[None]
        random = torch.randint(START_SPEECH, ids.shape, device=self.device)
        corrupted = (torch.rand(ids.shape, device=self.device) < corruption) & (place > text_count[:, None])
        speaker = self.speaker[bucket.clip[pick]].float()
        speaker = F.normalize(speaker + 0.02 * torch.randn_like(speaker), dim=1)
        counts = (place > text_count[:, None]) & (place < count[:, None])
        return (place < text_count[:, None], torch.where(corrupted, random, ids), speaker), counts

    def logits(
        self,
        net: T3,
        is_text: Tensor,
        ids: Tensor,
        speaker: Tensor,
        *,
        guides: Mapping[int, GuidedAttention] | None = None,
    ) -> Tensor:
        """Return logits, (rows, time, vocab). guides: the attention of guided layers."""
        caches = [(guides or {}).get(layer, NoKVCache()) for layer in range(net.config.backbone.layers)]
        with torch.autocast(self.device.type, torch.bfloat16):
            return net(embed_rows(net, is_text, ids, speaker), caches)

    def token_loss(
        self,
        logits: Tensor,
        ids: Tensor,
        inputs: tuple[Tensor, Tensor, Tensor],  # noqa: ARG002, the inputs of the target in distillation
        smoothing: float,
    ) -> Tensor:
        """Return the loss of each id, (rows, time)."""
        return F.cross_entropy(
            logits.float().flatten(0, 1), ids.flatten(), reduction="none", label_smoothing=smoothing
        ).view_as(ids)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Validate the averaged weights on held-out lines, and keep them if they are the best so far."""
        if not self.validation:
            self.best = [p.clone() for p in self.ema.average]
            return {}
        self.dropout_on, results = False, []
        self.final_loss.zero_()
        with self.ema.swapped_in():
            for size, bucket in self.validation.items():
                rows = torch.arange(min(len(bucket.ids), _rows(bucket, size)), device=self.device)
                results.append(torch.stack(self.loss(bucket, rows, corruption=0.0, smoothing=0.0)))
        self.dropout_on = True
        loss, accuracy, stop_accuracy = torch.stack(results).mean(0).tolist()
        total, number = self.final_loss.tolist()
        if loss < self.best_loss:
            self.best_loss = loss
            torch._foreach_copy_(self.best, self.ema.average)
        return {
            "validation_loss": loss,
            **({"validation_final_loss": total / number} if number else {}),
            "validation_accuracy": accuracy,
            "validation_stop_accuracy": stop_accuracy,
        }

    def best_average(self) -> dict[str, Tensor]:
        return dict(zip((name for name, _ in self.net.named_parameters()), self.best, strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": self.ema.average,
            "best": self.best,
            "best_loss": self.best_loss,
            "validation_rows": self._validation_rows(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.ema.load(state["ema"])
        torch._foreach_copy_(self.best, state["best"])
        # Losses on different validation sets do not compare.
        same = state.get("validation_rows") == self._validation_rows()
        self.best_loss = state["best_loss"] if same else float("inf")

    def _validation_rows(self) -> int:
        return sum(len(bucket.ids) for bucket in self.validation.values())


def embed_rows(net: T3, is_text: Tensor, ids: Tensor, speaker: Tensor) -> Tensor:
    """Return input embeddings (rows, time, width); input i predicts id i, since the speaker comes first."""
    text = net.text_emb(torch.where(is_text, ids, 0))
    speech = net.speech_emb(torch.where(is_text, 0, ids))
    x = torch.where(is_text[..., None], text, speech)
    return torch.cat([net.cond_enc.spkr_enc(speaker)[:, None].to(x.dtype), x[:, :-1]], dim=1)


def _rows(bucket: Bucket, size: int) -> int:
    return max(1, min(BATCH_IDS // size, 4 * len(bucket.ids)))


def _initialize(net: nn.Module, layers: int) -> None:
    """Initialize with small normal weights; residual outputs are smaller the more layers there are."""
    for name, weight in net.named_parameters():
        if weight.dim() > 1:
            residual = name.removesuffix(".weight").endswith(RESIDUAL_OUTPUTS)
            nn.init.normal_(weight, std=0.02 / (2 * layers) ** 0.5 if residual else 0.02)
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
    on_progress: Callable[[dict[str, Any]], None] = ignore_progress,
    make: Callable[..., T3Training] = T3Training,
    name: str = "t3",
) -> None:
    """Train for `budget_s` seconds, resuming from the state in `out`; `t3.safetensors` is the best average.

    start_from: weights to start from when `out` holds no state. make, name: the kind of training, and the
    stem of its files.
    """
    recipe = recipe or T3Recipe()
    training = make(bank, config, recipe, marks=marks, device=device, eager=eager, seed=seed)
    log, state_path = JsonlLog(out / f"{name}.jsonl"), out / f"{name}.state.pt"
    done = {"step": 0, "elapsed_s": 0.0, **resume(training, state_path, start_from)}
    schedule = Schedule(peak=recipe.peak_lr, warmup_steps=recipe.warmup_steps)
    rng, sizes = np.random.default_rng(seed + done["step"]), list(training.buckets)
    clock = TimeBudget(budget_s, plan_s=plan_s, elapsed_s=done["elapsed_s"])

    def step() -> None:
        training.optimizer.lr.fill_(schedule.at(done["step"], clock.progress))
        training.steps[int(rng.choice(sizes, p=training.chance))]()
        done["step"] += 1

    def save() -> None:
        done["elapsed_s"] = clock.elapsed_s
        save_weights(training.best_average(), out / f"{name}.safetensors")
        save_state(state_path, {"done": done, **training.state_dict()})

    def log_progress() -> None:
        errors = {r for s in training.steps.values() if (r := s.capture_error)}
        losses = dict(zip(("loss", "accuracy", "stop_accuracy"), training.losses.tolist(), strict=True))
        losses["guided_loss"] = float(training.guided_loss)
        record = {"step": done["step"], "seconds": clock.elapsed_s, **losses, **training.validate()}
        record["capture_error"] = "; ".join(sorted(errors)) or None
        log.write(record)
        on_progress(record)

    run_steps(step, clock, log=log_progress, save=save, log_every_s=VALIDATE_EVERY_S)
