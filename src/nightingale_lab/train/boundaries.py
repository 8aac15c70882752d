"""Stage `boundaries`, on CPUs: teach a trained T3 clear word boundaries, and nothing else.

A final d before another stop, nt before a vowel, and two vowels that meet are easily missed (articulation.py). A T3
that was trained on speech without clear boundaries can learn them without a new training on everything: hibari speaks
sentences that have such boundaries with edited durations, and the loss has two parts,

    cross-entropy   at the tokens of an edited boundary, against hibari's tokens
    KL divergence   at all other tokens, from the T3 that there was: what it does there is kept

half of the rows with the vectors of other built-in voices than hibari's. hibari does not raise questions, so the end
of a question is never learned from it. Minutes on two cores are enough.
"""

from __future__ import annotations

import multiprocessing
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from nightingale.backends.torch.devices import use_threads
from nightingale.clocks import CLOCKS
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.encoders.speech_tokenizer import SpeechTokenizer
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.checkpoint import part, read_tensors
from nightingale.models.compact import unpack
from nightingale_lab.no_kv_cache import NoKVCache
from nightingale_lab.train.asset_files import Assets
from nightingale_lab.train.bpe import BpeEncoder
from nightingale_lab.train.loop import (
    Ema,
    JsonlLog,
    Optimizer,
    Schedule,
    TimeBudget,
    ignore_progress,
    run_steps,
    save_weights,
)
from nightingale_lab.train.prepare import MARK_PHONEMES
from nightingale_lab.train.resample import To16k
from nightingale_lab.train.single_speaker import tokenize_utterance
from nightingale_lab.train.synthesize import SPEEDS, trim
from nightingale_lab.train.t3 import FINAL_TOKENS, embed_rows
from nightingale_lab.train.teachers.articulation import clear_boundaries
from nightingale_lab.train.teachers.hibari_durations import TICK_SAMPLES, EditableHibari

FINAL_D_BEFORE_STOP = re.compile(r"'d [td]")
SENTENCES_PER_S = 10
"""More than hibari speaks in one process."""
WITH_BOUNDARY, WITHOUT = 12, 4
"""Rows of a step, with and without an edited boundary."""
OWN_VOICE_SHARE = 0.55
"""Share of the rows with the vector of hibari's voice."""
TOKENS_BEFORE, TOKENS_AFTER = 2, 2
"""Tokens around an edited phoneme that belong to the boundary."""
MAX_IDS = 300
HELD_OUT = 150
PLAIN_SHARE = 0.5
"""Lines without an edited boundary, as a share of those with one."""


class EditableTeacher(Protocol):
    """EditableHibari, or a test's substitute."""

    def durations(self, ids: Sequence[int], *, speed: float = 1.0) -> NDArray[np.int64]: ...

    def speak(
        self, ids: Sequence[int], durations: NDArray[np.int64], *, speed: float = 1.0, seed: int = 0
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenLine:
    """One spoken sentence."""

    text: Sequence[int]
    """Text ids, without start and stop."""
    tokens: NDArray[np.int16]
    edited: NDArray[np.bool_]
    """Marks the tokens of boundaries whose durations are not those that the teacher predicts."""


def choose_lines(
    texts: Sequence[str], phonemes: Sequence[NDArray[np.uint8]], *, seed: int
) -> NDArray[np.int64]:
    """Return line numbers in random order: in turn one with a final d before a stop, a question, and a statement.

    Where one of these has no more lines, the others go on.
    """
    rng = np.random.default_rng(seed)
    groups: tuple[list[int], list[int], list[int]] = ([], [], [])
    for i in rng.permutation(len(texts)).tolist():
        if len(phonemes[i]) and texts[i].endswith((".", "?")):
            kind = 0 if FINAL_D_BEFORE_STOP.search(texts[i]) else 1 if texts[i].endswith("?") else 2
            groups[kind].append(i)
    turns = zip_longest(*groups)
    return np.array([i for turn in turns for i in turn if i is not None], dtype=np.int64)


def speak_in_processes(
    assets: Assets, hibari: Path, model: Path, *, processes: int, budget_s: float, seed: int = 0
) -> list[SpokenLine]:
    """Let hibari speak the lines of the assets for so many seconds in every process, on one core each."""
    bpe, lines = BpeEncoder(model / "tokenizer.json"), assets.lines
    chosen = choose_lines(lines.texts, lines.american, seed=seed)[
        : int(SENTENCES_PER_S * processes * budget_s)
    ]
    sentences = [(bpe.encode(lines.texts[i]), [0, *lines.american[i].tolist(), 0]) for i in chosen]
    shares = [
        (sentences[i::processes], hibari, model / "s3gen.safetensors", budget_s, seed + i)
        for i in range(processes)
    ]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return [line for found in pool.map(_speak_share, shares) for line in found]


def _speak_share(
    share: tuple[list[tuple[list[int], list[int]]], Path, Path, float, int],
) -> list[SpokenLine]:
    sentences, hibari, weights, budget_s, seed = share
    use_threads(1)
    net = SpeechTokenizer(PRESETS["wren"].speech_tokenizer).eval()
    net.load_state_dict(part(unpack(read_tensors(weights)), "tokenizer."))
    return list(speak_sentences(EditableHibari(hibari), net, sentences, budget_s=budget_s, seed=seed))


@torch.inference_mode()
def speak_sentences(
    teacher: EditableTeacher,
    tokenizer: SpeechTokenizer,
    sentences: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    budget_s: float,
    seed: int = 0,
) -> Iterator[SpokenLine]:
    """Yield the sentences, each given by its text ids and its phonemes with their pads, until time is up."""
    to16k, rng, started_s = To16k(), np.random.default_rng(seed), time.monotonic()
    clear = plain = 0
    for number, (text, phonemes) in enumerate(sentences):
        if time.monotonic() - started_s > budget_s:
            return
        speed = float(rng.uniform(*SPEEDS))
        own = teacher.durations(phonemes, speed=speed)
        ticks = clear_boundaries(torch.tensor([phonemes]), torch.from_numpy(own[None]))[0].numpy()
        changed = np.flatnonzero(ticks != own)
        if not len(changed) and plain > PLAIN_SHARE * clear:
            continue
        clear, plain = clear + bool(len(changed)), plain + (not len(changed))
        samples = teacher.speak(phonemes, ticks, speed=speed, seed=number)
        tokens = tokenize_utterance(tokenizer, to16k, samples)
        start = int(trim(samples[None], torch.tensor([len(samples)]))[0])
        edges = np.concatenate([[0], np.cumsum(ticks)]) * TICK_SAMPLES - start
        edited = np.zeros(len(tokens), dtype=np.bool_)
        for phoneme in changed:
            first, last = edges[phoneme : phoneme + 2] // CLOCKS.samples_per_token
            edited[max(0, first - TOKENS_BEFORE) : last + TOKENS_AFTER + 1] = True
        if MARK_PHONEMES["?"] in phonemes:
            edited[-FINAL_TOKENS:] = False
        yield SpokenLine(text=text, tokens=tokens, edited=edited)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows of one step; all but the speakers are (rows, length)."""

    ids: Tensor
    is_text: Tensor
    at_boundary: Tensor
    elsewhere: Tensor
    """The other speech tokens, the stop token included."""
    speakers: Tensor
    """(rows, 256)"""


class BoundaryTraining:
    """The network, the one that it starts from, and the lines."""

    def __init__(
        self,
        weights: dict[str, Tensor],
        config: T3Config,
        lines: Sequence[SpokenLine],
        speakers: Tensor,
        *,
        peak_lr: float,
        seed: int = 0,
    ) -> None:
        """speakers: (voices, 256), hibari's own voice first."""
        self.config, self.speakers = config, F.normalize(speakers.float(), dim=1)
        self.net, self.before = T3(config), T3(config)
        for net in (self.net, self.before):
            net.load_state_dict(weights)
        self.before.requires_grad_(False)
        short = [line for line in lines if len(line.text) + len(line.tokens) < MAX_IDS]
        held_out = min(HELD_OUT, len(short) // 5)
        self.held_out, rest = short[:held_out], short[held_out:]
        self.clear = [line for line in rest if line.edited.any()]
        self.plain = [line for line in rest if not line.edited.any()]
        if not self.clear or not self.held_out:
            raise ConfigError(
                "there is too little speech with word boundaries to train on",
                got=f"{len(self.clear)} lines with one, {len(self.held_out)} held out",
                allowed="at least one of both; thousands are needed in practice",
                fix="Let hibari speak longer: --speak-s.",
            )
        self.schedule = Schedule(peak=peak_lr, warmup_steps=20)
        self.optimizer = Optimizer(self.net.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
        self.ema = Ema(self.net.parameters(), decay=0.98)
        self.rng = np.random.default_rng(seed)
        self.steps = 0

    def step(self, progress: float) -> None:
        rows = [
            group[i]
            for group, count in ((self.clear, WITH_BOUNDARY), (self.plain, WITHOUT))
            for i in (self.rng.integers(len(group), size=count) if group else ())
        ]
        other = self.rng.integers(len(self.speakers), size=len(rows))
        voices = np.where(self.rng.random(len(rows)) < OWN_VOICE_SHARE, 0, other)
        self.optimizer.lr.fill_(self.schedule.at(self.steps, progress))
        crossed, kept = self.losses(self.batch(rows, voices), corruption=0.03)
        self.optimizer.step(crossed + kept)
        self.ema.update()
        self.steps += 1

    def batch(self, rows: Sequence[SpokenLine], voices: NDArray[np.int64]) -> Batch:
        framed = [self.config.frame_text(list(row.text)) for row in rows]
        shape = (len(rows), max(len(t) + len(row.tokens) + 2 for t, row in zip(framed, rows, strict=True)))
        ids = np.zeros(shape, np.int64)
        is_text, at_boundary, speech = (np.zeros(shape, np.bool_) for _ in range(3))
        for i, (text, row) in enumerate(zip(framed, rows, strict=True)):
            first = len(text) + 1
            whole = [*text, START_SPEECH, *row.tokens, STOP_SPEECH]
            ids[i, : len(whole)] = whole
            is_text[i, : len(text)] = True
            speech[i, first : len(whole)] = True
            at_boundary[i, first : first + len(row.tokens)] = row.edited
        return Batch(
            ids=torch.from_numpy(ids),
            is_text=torch.from_numpy(is_text),
            at_boundary=torch.from_numpy(at_boundary),
            elsewhere=torch.from_numpy(speech & ~at_boundary),
            speakers=self.speakers[torch.from_numpy(voices)],
        )

    def losses(self, batch: Batch, *, corruption: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy at boundaries and the divergence elsewhere, both per token."""
        speech = batch.at_boundary | batch.elsewhere
        corrupted = (torch.rand(batch.ids.shape) < corruption) & speech
        ids = torch.where(corrupted, torch.randint(START_SPEECH, batch.ids.shape), batch.ids)
        logits = self.logits(self.net, ids, batch)
        with torch.no_grad():
            before = self.logits(self.before, ids, batch)[batch.elsewhere].log_softmax(-1)
        here = batch.at_boundary
        crossed = F.cross_entropy(logits[here], batch.ids[here], reduction="sum") / here.sum().clamp(min=1)
        kept = F.kl_div(
            logits[batch.elsewhere].log_softmax(-1), before, log_target=True, reduction="batchmean"
        )
        return crossed, kept

    def logits(self, net: T3, ids: Tensor, batch: Batch) -> Tensor:
        """Return logits, (rows, length, vocab)."""
        x = embed_rows(net, batch.is_text, ids, batch.speakers)
        return net(x, [NoKVCache() for _ in range(self.config.backbone.layers)])

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return both losses of the averaged weights on held-out lines in hibari's voice."""
        found = []
        with self.ema.swapped_in():
            for first in range(0, len(self.held_out), 30):
                rows = self.held_out[first : first + 30]
                found.append(torch.stack(self.losses(self.batch(rows, np.zeros(len(rows), np.int64)))))
        crossed, kept = torch.stack(found).mean(0).tolist()
        return {"validation_boundaries": crossed, "validation_divergence": kept}


def train_boundaries(
    training: BoundaryTraining,
    out: Path,
    *,
    budget_s: float,
    on_progress: Callable[[dict[str, Any]], None] = ignore_progress,
) -> None:
    """Train for `budget_s` seconds; `t3.safetensors` in `out` has the averaged weights."""
    log, clock = JsonlLog(out / "boundaries.jsonl"), TimeBudget(budget_s)

    def log_progress() -> None:
        record = {"step": training.steps, "seconds": clock.elapsed_s, **training.validate()}
        log.write(record)
        on_progress(record)

    run_steps(
        lambda: training.step(clock.progress),
        clock,
        log=log_progress,
        save=lambda: save_weights(training.ema.named(training.net), out / "t3.safetensors"),
        log_every_s=60.0,
    )
