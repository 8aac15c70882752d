"""Stage `draft --thoughts`: a draft head for any T3, from its captured hidden states (hidden_states.py).

The file holds thoughts, tokens and T3's own tables, so nothing here knows of families, texts or voices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from nightingale.errors import ConfigError
from nightingale.models.chatterbox.t3.draft_head import TAPS, DraftHead
from nightingale_lab.train.guess import DEPTH_WEIGHTS, RECIPE, guess_ahead, new_head
from nightingale_lab.train.loop import Ema, Every, JsonlLog, Optimizer, Schedule, Watch, silent
from nightingale_lab.train.weights import save_half

PLACES = 512
"""Looked at in a step."""
HELD_OUT = 10
"""One utterance in so many is only measured on."""
MEASURE_EVERY_S = 15.0
SLOWEST = 0.998
"""Decay of the average, in the end."""


@dataclass(frozen=True)
class Overheard:
    thoughts: Tensor
    """(tokens, width + TAPS * width), as T3 stood before each token."""
    tokens: Tensor
    at: Tensor
    """(tokens,) which draw of its utterance each was."""
    taught: Tensor
    unseen: Tensor
    """Places from which as many tokens follow as are guessed in a row."""
    tables: dict[str, Tensor]

    @classmethod
    def load(cls, path: Path, device: torch.device) -> Overheard:
        held = {name: value.to(device) for name, value in load_file(path).items()}
        counts = held["counts"].tolist()
        at = torch.cat([torch.arange(count, device=device) for count in counts])
        which = torch.cat([torch.full((count,), n, device=device) for n, count in enumerate(counts)])
        left = torch.cat([torch.arange(count, 0, -1, device=device) for count in counts]) - 1
        fits, out = left >= len(DEPTH_WEIGHTS), which % HELD_OUT == HELD_OUT - 1
        taught, unseen = (fits & ~out).nonzero()[:, 0], (fits & out).nonzero()[:, 0]
        if not len(taught) or not len(unseen):
            raise ConfigError(
                "too little was overheard",
                got=f"{len(counts)} utterances in {path}",
                allowed=f"{HELD_OUT} or more, of more than {len(DEPTH_WEIGHTS)} tokens each",
                fix="Let the model say more lines: nightingale train think --texts FILE.",
            )
        tables = {
            k: v for k, v in held.items() if k in ("head.weight", "head.bias", "embedding", "positions")
        }
        return cls(held["thoughts"], held["tokens"].long(), at, taught, unseen, tables)

    @property
    def width(self) -> int:
        return self.thoughts.shape[1] // (1 + TAPS)

    def head(self, thought: Tensor) -> Tensor:
        return F.linear(thought, self.tables["head.weight"], self.tables.get("head.bias"))

    def said(self, places: Tensor) -> Tensor:
        """Embeddings of the tokens that were drawn there, as T3 would read them next."""
        x = self.tables["embedding"][self.tokens[places]]
        return x + self.tables["positions"][self.at[places] + 1] if "positions" in self.tables else x

    def distance(self, net: DraftHead, places: Tensor) -> tuple[Tensor, Tensor]:
        """Of all guesses from these places, and how often the first one's likeliest id is T3's."""
        ahead = range(1, len(DEPTH_WEIGHTS) + 1)
        guesses = guess_ahead(
            net,
            self.head,
            self.thoughts[places].float(),
            said=[self.said(places + n - 1) for n in ahead],
            came=[self.thoughts[places + n, : self.width].float() for n in ahead],
        )
        total = sum(s * g.distance.mean() for s, g in zip(DEPTH_WEIGHTS, guesses, strict=True))
        return torch.as_tensor(total), guesses[0].same.mean()


def train_overheard(
    thoughts: Path,
    out: Path,
    *,
    budget_s: float,
    device: torch.device,
    seed: int = 0,
    say: Callable[[dict[str, Any]], None] = silent,
) -> None:
    """Train for `budget_s` seconds; `draft_head.safetensors` is the average that was best on unseen utterances."""
    heard, rng = Overheard.load(thoughts, device), torch.Generator(device).manual_seed(seed)
    net = new_head(heard.width).to(device)
    optimizer = Optimizer(net.parameters(), betas=(0.9, 0.98), weight_decay=RECIPE.weight_decay)
    ema, best, step = Ema(net.parameters(), decay=0.0), float("inf"), 0
    schedule = Schedule(peak=RECIPE.peak_lr, warmup_steps=RECIPE.warmup_steps)
    watch, log = Watch(budget_s), JsonlLog(out / "draft_head.jsonl")
    report = Every(MEASURE_EVERY_S, watch.begun_s)

    def note(loss: float) -> float:
        shown = heard.unseen[:: max(1, len(heard.unseen) // (4 * PLACES))]
        with torch.no_grad(), ema.swapped_in():
            unseen, hit = (float(value) for value in heard.distance(net, shown))
            if unseen < best:
                save_half(net.state_dict(), out / "draft_head.safetensors")
        record = {"step": step, "seconds": watch.spent_s, "loss": loss}
        record |= {"unseen_loss": unseen, "unseen_hit": hit}
        log.write(record)
        say(record)
        return min(best, unseen)

    while True:
        optimizer.lr.fill_(schedule.at(step, watch.progress))
        lot = torch.randint(len(heard.taught), (PLACES,), device=device, generator=rng)
        loss, _ = heard.distance(net, heard.taught[lot])
        optimizer.step(loss)
        # Of few steps, few are averaged: a short training would be that of its beginning.
        ema.decay = min(SLOWEST, step / (step + 10))
        ema.update()
        step += 1
        over = watch.over()
        if over or report(watch.begun_s + watch.spent_s):
            best = note(float(loss.detach()))
        if over:
            return
