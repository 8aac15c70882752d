"""Stage `draft --hidden-states`: train a draft head for any T3 from its captured hidden states.

The files (hidden_states.py) hold hidden states, tokens and T3's own tables, so training needs neither the
model nor texts and voices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from nightingale.errors import ConfigError
from nightingale.models.chatterbox.t3.config import SPEECH_VOCAB_KEY, TAPS
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale_lab.train.draft_head import DEPTH_WEIGHTS, RECIPE, draft_ahead, new_head
from nightingale_lab.train.loop import (
    Ema,
    Every,
    JsonlLog,
    Optimizer,
    Schedule,
    TimeBudget,
    ignore_progress,
    save_weights,
)

BATCH = 512
"""Positions per step."""
TABLES = ("head.weight", "head.bias", "embedding", "positions")
HELD_OUT = 10
"""One utterance in so many is used for validation only."""
VALIDATE_EVERY_S = 15.0
MAX_DECAY = 0.998
"""Decay of the averaged weights after the first steps."""


@dataclass(frozen=True)
class HiddenStateDataset:
    """Captured hidden states of one T3, and the positions to train and to validate on."""

    states: Tensor
    """(tokens, width + TAPS * width): T3's state before each token."""
    tokens: Tensor
    index: Tensor
    """(tokens,): index of each token in its utterance."""
    training: Tensor
    validation: Tensor
    """Positions that are followed by as many tokens as are drafted in a row."""
    tables: dict[str, Tensor]

    @classmethod
    def load(cls, paths: Sequence[Path], device: torch.device) -> HiddenStateDataset:
        """Read files of the same T3, for example one for each language."""
        files = [{name: value.to(device) for name, value in load_file(path).items()} for path in paths]
        tables = {name: files[0][name] for name in TABLES if name in files[0]}
        for path, file in zip(paths, files, strict=True):
            if any(name not in file or not torch.equal(file[name], tables[name]) for name in tables):
                raise ConfigError(
                    "hidden states of two models",
                    got=f"{paths[0]} and {path}, with other output heads or embeddings",
                    allowed="files of one T3",
                    fix="Train a draft head for each model.",
                )
        counts = torch.cat([file["counts"] for file in files]).tolist()
        index = torch.cat([torch.arange(count, device=device) for count in counts])
        # The rows of a guided utterance have the same tokens, so they are held out together.
        rows = int(files[0]["rows"]) if "rows" in files[0] else 1
        utterance = torch.cat(
            [torch.full((count,), n // rows, device=device) for n, count in enumerate(counts)]
        )
        following = torch.cat([torch.arange(count, 0, -1, device=device) for count in counts]) - 1
        usable, held_out = following >= len(DEPTH_WEIGHTS), utterance % HELD_OUT == HELD_OUT - 1
        training, validation = (usable & ~held_out).nonzero()[:, 0], (usable & held_out).nonzero()[:, 0]
        if not len(training) or not len(validation):
            raise ConfigError(
                "too few hidden states to train on",
                got=f"{len(counts) // rows} utterances in {', '.join(map(str, paths))}",
                allowed=f"{HELD_OUT} or more, of more than {len(DEPTH_WEIGHTS)} tokens each",
                fix="Capture more lines: nightingale train capture --texts FILE.",
            )
        states, tokens = (torch.cat([file[name] for file in files]) for name in ("hidden_states", "tokens"))
        return cls(states, tokens.long(), index, training, validation, tables)

    @property
    def width(self) -> int:
        return self.states.shape[1] // (1 + TAPS)

    def output_head(self, state: Tensor) -> Tensor:
        return F.linear(state, self.tables["head.weight"], self.tables.get("head.bias"))

    def embed(self, positions: Tensor) -> Tensor:
        """Return the embeddings of the tokens at these positions, as T3 reads them in its next step."""
        x = self.tables["embedding"][self.tokens[positions]]
        return x + self.tables["positions"][self.index[positions] + 1] if "positions" in self.tables else x

    def loss(self, net: DraftHead, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted KL divergence of all drafted steps, and the accuracy of the first one."""
        ahead = range(1, len(DEPTH_WEIGHTS) + 1)
        steps = draft_ahead(
            net,
            self.output_head,
            self.states[positions].float(),
            tokens=[self.embed(positions + n - 1) for n in ahead],
            targets=[self.states[positions + n, : self.width].float() for n in ahead],
        )
        total = sum(s * step.divergence.mean() for s, step in zip(DEPTH_WEIGHTS, steps, strict=True))
        return torch.as_tensor(total), steps[0].correct.mean()


def train_from_hidden_states(
    hidden_states: Sequence[Path],
    out: Path,
    *,
    budget_s: float,
    device: torch.device,
    seed: int = 0,
    on_progress: Callable[[dict[str, Any]], None] = ignore_progress,
) -> None:
    """Train for `budget_s` seconds; `draft_head.safetensors` is the average that validated best."""
    dataset, rng = HiddenStateDataset.load(hidden_states, device), torch.Generator(device).manual_seed(seed)
    net = new_head(dataset.width).to(device)
    optimizer = Optimizer(net.parameters(), betas=(0.9, 0.98), weight_decay=RECIPE.weight_decay)
    ema, best, step = Ema(net.parameters(), decay=0.0), float("inf"), 0
    schedule = Schedule(peak=RECIPE.peak_lr, warmup_steps=RECIPE.warmup_steps)
    clock, log = TimeBudget(budget_s), JsonlLog(out / "draft_head.jsonl")
    validation_due = Every(VALIDATE_EVERY_S, clock.started_s)

    def validate(loss: float) -> float:
        positions = dataset.validation[:: max(1, len(dataset.validation) // (4 * BATCH))]
        with torch.no_grad(), ema.swapped_in():
            validation_loss, accuracy = (float(value) for value in dataset.loss(net, positions))
            if validation_loss < best:
                fits = {SPEECH_VOCAB_KEY: str(len(dataset.tables["head.weight"]))}
                save_weights(net.state_dict(), out / "draft_head.safetensors", metadata=fits)
        record = {"step": step, "seconds": clock.spent_s, "loss": loss}
        record |= {"validation_loss": validation_loss, "validation_accuracy": accuracy}
        log.write(record)
        on_progress(record)
        return min(best, validation_loss)

    while True:
        optimizer.lr.fill_(schedule.at(step, clock.progress))
        pick = torch.randint(len(dataset.training), (BATCH,), device=device, generator=rng)
        loss, _ = dataset.loss(net, dataset.training[pick])
        optimizer.step(loss)
        # The average is short at first, so that a brief training does not average its initial weights.
        ema.decay = min(MAX_DECAY, step / (step + 10))
        ema.update()
        step += 1
        over = clock.over()
        if over or validation_due(clock.started_s + clock.spent_s):
            best = validate(float(loss.detach()))
        if over:
            return
