"""Stage `tokenizer-people`: train the speech tokenizer further, so that it reads people's recordings too.

A tokenizer that has learned from the teacher alone lost the words of people's recordings (dev/LOG.md). Its codes
keep their meaning here, since T3 and the flow were trained on them:

- For the teacher's speech, also with noise, echoes and another spectrum, its codes must be those of the tokenizer
  that there is.
- The heads behind the codes learn from the teacher's speech alone. For people's recordings they stay as they are,
  and only the tokenizer learns, so people's words get the codes that the same words have in the teacher's speech.

The phonemes of people's recordings come from transcripts (`human_texts.py`). Where each of them is spoken is found
again every `ALIGN_EVERY_STEPS` by the network that is being trained (`forced_alignment.py`). The stage keeps no state:
when it is interrupted, it begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.encoders.config import FSQ_SCALE, SpeechTokenizerConfig
from nightingale.models.chatterbox.encoders.speech_tokenizer import SpeechTokenizer
from nightingale.models.layers.mel import FlowMel
from nightingale_lab.train.corpus import LIMIT_HZ, Corpus, Windows, audio_of, clip_audio
from nightingale_lab.train.forced_alignment import align
from nightingale_lab.train.loop import (
    Ema,
    GraphedStep,
    JsonlLog,
    Optimizer,
    Schedule,
    TimeBudget,
    ignore_progress,
    run_steps,
    save_weights,
)
from nightingale_lab.train.mel_speaker import bands_below
from nightingale_lab.train.recording_changes import change_recordings
from nightingale_lab.train.resample import To16k
from nightingale_lab.train.seeding import seeded
from nightingale_lab.train.tokenizer import (
    MEL_MEAN,
    MEL_STD,
    WINDOW_TOKENS,
    AuxiliaryHeads,
    averaged,
    fsq_straight_through,
    load_tokenizer,
)

PEOPLE_TOKENIZER: Final = "tokenizer_people.safetensors"
HEADS_SHARE: Final = 0.15
"""Share of the time in which only the heads are trained, on the codes that there are."""
ALIGN_EVERY_STEPS: Final = 300
ALIGN_CLIPS: Final = 256
"""Clips that are aligned at once."""
CODES_WEIGHT: Final = 4.0
"""Loss weight of the codes that the teacher's speech has so far."""
PEOPLE_WEIGHT: Final = 1.0
CHANGED_SHARE: Final = 0.7
"""Share of the recordings that are changed as rooms, microphones and noise do it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """Recordings of people, and the phonemes of each clip in order; none where they are not known."""

    corpus: Corpus
    phonemes: Sequence[NDArray[np.uint8]]


class PeopleTokenizerTraining:
    """Weights, optimizer and one captured step, for the teacher's speech and people's recordings together."""

    def __init__(
        self,
        teacher: Corpus,
        people: People,
        start_from: Path,
        config: SpeechTokenizerConfig,
        *,
        device: torch.device,
        batch: int,
        eager: bool,
        seed: int,
    ) -> None:
        self.device, self.batch, self.people = device, batch, people
        self.net, self.before = (load_tokenizer(start_from, config, device) for _ in range(2))
        with seeded(seed):
            self.heads = AuxiliaryHeads(config.code_digits).to(device)
        self.to16k, self.flow_mel = To16k().to(device), FlowMel().to(device)
        self.bands = bands_below(LIMIT_HZ).to(device)[None, :, None]
        self.teacher = _Speech(teacher, device, ~teacher.held_out)
        known = np.array([len(ids) > 0 for ids in people.phonemes])
        self.humans = _Speech(people.corpus, device, known & ~people.corpus.held_out)
        self.optimizer = Optimizer([*self.net.parameters(), *self.heads.parameters()], betas=(0.9, 0.98))
        self.ema = Ema(self.net.parameters(), decay=0.999)
        self.net_scale = torch.zeros((), device=device)
        """0 while only the heads are trained."""
        self.losses = torch.zeros(5, device=device)
        self.step = GraphedStep(self._step, eager=eager)

    def _step(self) -> None:
        audio, phones, speaker, inside = self.teacher.sample(self.batch)
        people_audio, people_phones, people_speaker, people_inside = self.humans.sample(self.batch)
        with torch.no_grad():
            mel, people_mel = (self._normalized_mel(each) for each in (audio, people_audio))
            own_16k, changed = (
                self._mel_16k(each) for each in (audio, self._changed(torch.cat([audio, people_audio])))
            )
            with torch.autocast(self.device.type, torch.bfloat16):
                hidden, _ = self.before.encoder(own_16k)
                wanted = self.before.quantizer(hidden).float().tanh() * FSQ_SCALE
        with torch.autocast(self.device.type, torch.bfloat16):
            raw = self.net.quantizer(self.net.encoder(changed)[0])
            # The backward pass reaches the network only once the heads have learned the codes.
            raw = raw.detach() + self.net_scale * (raw - raw.detach())
            digits, people_digits = fsq_straight_through(raw).split(self.batch)
            logits, predicted = self.heads(digits, speaker)
            fixed = {name: parameter.detach() for name, parameter in self.heads.named_parameters()}
            people_logits, people_predicted = functional_call(
                self.heads, fixed, (people_digits, people_speaker)
            )
        phone_loss, wrong = _phoneme_loss(logits.float(), phones, inside)
        people_loss, people_wrong = _phoneme_loss(people_logits.float(), people_phones, people_inside)
        mel_loss = _mel_loss(predicted.float() - mel, inside, torch.ones_like(self.bands))
        people_mel_loss = _mel_loss(people_predicted.float() - people_mel, people_inside, self.bands)
        bounded = raw[: self.batch].float().tanh() * FSQ_SCALE
        per_token = inside[:, :: CLOCKS.frames_per_token, None]
        codes_loss = ((bounded - wanted).square() * per_token).sum() / (per_token.sum() * wanted.shape[2])
        penalty = (raw.float().abs() - 2).clamp(min=0).square().mean()
        self.optimizer.step(
            phone_loss
            + 2.0 * mel_loss
            + PEOPLE_WEIGHT * (people_loss + people_mel_loss)
            + CODES_WEIGHT * codes_loss
            + 0.05 * penalty
        )
        self.ema.update()
        same = ((bounded.round() == wanted.round()).all(2) * inside[:, :: CLOCKS.frames_per_token]).sum()
        same = same / per_token.sum()
        now = torch.stack([wrong, people_wrong, mel_loss.detach(), people_mel_loss.detach(), same])
        self.losses.lerp_(now, 0.05)

    def _changed(self, audio: Tensor) -> Tensor:
        changed = torch.rand(len(audio), 1, device=self.device) < CHANGED_SHARE
        return torch.where(changed, change_recordings(audio, CLOCKS.sample_rate_hz), audio)

    def _mel_16k(self, audio: Tensor) -> Tensor:
        return self.net.mel(self.to16k(audio))

    def _normalized_mel(self, audio: Tensor) -> Tensor:
        return (self.flow_mel(audio) - MEL_MEAN) / MEL_STD

    @torch.no_grad()
    def align(self) -> dict[str, float]:
        """Find anew where people speak each phoneme; return the mean log-probability, and errors in held-out clips."""
        corpus, known = self.people.corpus, [n for n, ids in enumerate(self.people.phonemes) if len(ids)]
        offsets = torch.from_numpy(corpus.token_offsets)
        counts, likely, wrong = offsets.diff(), [], []
        known.sort(key=lambda n: int(counts[n]))
        for at in range(0, len(known), ALIGN_CLIPS):
            rows = torch.tensor(known[at : at + ALIGN_CLIPS])
            start, real, length = (
                offsets[rows].to(self.device),
                counts[rows].to(self.device),
                int(counts[rows].max()),
            )
            mel = self._mel_16k(clip_audio(self.humans.audio, start, real, length))
            hidden, _ = self.net.encoder(mel, 4 * real)
            digits = fsq_straight_through(self.net.quantizer(hidden))
            speaker = torch.from_numpy(corpus.speaker)[rows].to(self.device).float()
            log_probs = self.heads(digits, speaker)[0].float().log_softmax(1).transpose(1, 2)
            phonemes = [self.people.phonemes[int(n)] for n in rows]
            found, probability = align(log_probs, 2 * real, phonemes)
            frame = torch.arange(found.shape[1], device=self.device)
            inside = frame[None] < 2 * real[:, None]
            self.humans.phones[(2 * start[:, None] + frame)[inside]] = found[inside].to(torch.uint8)
            likely += probability.tolist()
            errors = ((log_probs.argmax(2) != found) & inside).sum(1) / (2 * real)
            wrong += errors[torch.from_numpy(corpus.held_out)[rows].to(self.device)].tolist()
        return {"likely": float(np.mean(likely)), "unseen_phone_error": float(np.mean(wrong or [np.nan]))}


class _Speech:
    """A corpus on the GPU, from which random windows are drawn."""

    def __init__(self, corpus: Corpus, device: torch.device, chosen: NDArray[np.bool_]) -> None:
        self.windows = Windows(corpus, device, tokens=WINDOW_TOKENS, chosen=chosen)
        self.audio = torch.from_numpy(corpus.bank.audio).to(device)
        self.phones = torch.from_numpy(corpus.phones.copy()).to(device)

    def sample(self, batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return audio, phonemes, speakers, and 1 for each frame that is real."""
        windows = self.windows
        clip, start, real = windows.sample(batch)
        phones = windows.gather(self.phones, start, real, per_token=CLOCKS.frames_per_token).long()
        frame = torch.arange(phones.shape[1], device=phones.device)
        inside = (frame[None] < CLOCKS.frames_per_token * real[:, None]).float()
        audio = audio_of(windows, self.audio, start, real)
        return audio, phones, windows.speaker[clip].float(), inside


def _phoneme_loss(logits: Tensor, phones: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of (batch, phonemes, frames), and the share of wrong frames."""
    share = inside / inside.sum()
    wrong = ((logits.argmax(1) != phones).float() * share).sum()
    return (F.cross_entropy(logits, phones, reduction="none") * share).sum(), wrong


def _mel_loss(difference: Tensor, inside: Tensor, bands: Tensor) -> Tensor:
    return ((difference.abs() * bands).sum(1) / bands.sum() * inside).sum() / inside.sum()


def train_tokenizer_on_people(
    teacher: Corpus,
    people: People,
    start_from: Path,
    out: Path,
    config: SpeechTokenizerConfig,
    *,
    budget_s: float,
    device: torch.device,
    batch: int = 96,
    eager: bool = False,
    seed: int = 0,
    peak_lr: float = 4e-4,
    on_progress: Callable[[dict[str, Any]], None] = ignore_progress,
) -> tuple[SpeechTokenizer, NDArray[np.uint8]]:
    """Train for `budget_s` seconds; return the averaged tokenizer, and the phoneme of each frame of the people."""
    training = PeopleTokenizerTraining(
        teacher, people, start_from, config, device=device, batch=batch, eager=eager, seed=seed
    )
    schedule, log = Schedule(peak=peak_lr, warmup_steps=200), JsonlLog(out / "tokenizer_people.jsonl")
    clock, done, aligned = TimeBudget(budget_s), 0, dict[str, float]()

    def step() -> None:
        nonlocal done, aligned
        heads_only = clock.progress < HEADS_SHARE
        if not heads_only and (not aligned or done % ALIGN_EVERY_STEPS == 0):
            aligned = training.align()
            training.net_scale.fill_(1.0)
        training.optimizer.lr.fill_(schedule.at(done, clock.progress))
        training.step()
        done += 1

    def log_progress() -> None:
        names = ("phone_error", "people_phone_error", "mel", "people_mel", "same_codes")
        record = {"step": done, "seconds": clock.elapsed_s}
        record |= dict(zip(names, training.losses.tolist(), strict=True)) | aligned
        log.write(record)
        on_progress(record)

    def save() -> None:
        save_weights(averaged(training.net, training.ema).state_dict(), out / PEOPLE_TOKENIZER, dtype=None)

    run_steps(step, clock, log=log_progress, save=save, log_every_s=5)
    aligned = training.align()
    log_progress()
    return averaged(training.net, training.ema), training.humans.phones.cpu().numpy()
