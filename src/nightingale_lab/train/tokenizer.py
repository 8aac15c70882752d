"""Stage `tokenizer`: train the network from speech to 25 tokens per second that carry words but not the speaker.

The network is the family's (a small SpeechTokenizer with 3^8 codes). It is trained through its quantizer by
straight-through gradients of two auxiliary heads that exist only in training:

- phonemes of each frame, with the teacher's alignment as the target: the tokens must carry the words;
- the mel, by a decoder that is given the speaker: the tokens must carry pitch and rhythm, but not timbre.

Without the first head, tokens become acoustic and hard to predict for T3; without the second, prosody is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.models.chatterbox.encoders.config import FSQ_SCALE, SpeechTokenizerConfig
from nightingale.models.chatterbox.encoders.speech_tokenizer import SpeechTokenizer, fsq_ids
from nightingale.models.layers.mel import FlowMel
from nightingale_lab.train.corpus import Corpus, Windows, audio_of, clip_audio, whole_clips
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
from nightingale_lab.train.resample import To16k
from nightingale_lab.train.seeding import seeded

PHONES = 178
SPEAKER_WIDTH = 256
WINDOW_TOKENS = 128
BATCH_TOKENS = 12_800
"""Tokens (8.5 minutes) per batch when whole clips are tokenized."""
MEL_MEAN, MEL_STD = -5.8, 2.6


def fsq_straight_through(raw: Tensor) -> Tensor:
    """Apply finite scalar quantization to -1, 0 or 1, with a gradient that ignores the rounding."""
    bounded = raw.float().tanh() * FSQ_SCALE
    return bounded + (bounded.round() - bounded).detach()


class AuxiliaryHeads(nn.Module):
    """The heads behind the codes: digits and a speaker -> phoneme logits and mel, at 50 Hz."""

    def __init__(self, digits: int, width: int = 384, layers: int = 4) -> None:
        super().__init__()
        self.enter = nn.Linear(digits, width)
        self.speaker = nn.Linear(SPEAKER_WIDTH, width)
        self.up = nn.ConvTranspose1d(width, width, 2, 2)
        self.shared = nn.ModuleList(nn.Conv1d(width, width, 5, padding=2) for _ in range(2))
        self.phones = nn.Conv1d(width, PHONES, 1)
        self.speaker_convs = nn.ModuleList(nn.Conv1d(width, width, 7, padding=3) for _ in range(layers))
        self.norms = nn.ModuleList(nn.GroupNorm(1, width) for _ in range(layers + 2))
        self.mel = nn.Conv1d(width, 80, 1)

    def forward(self, digits: Tensor, speaker: Tensor) -> tuple[Tensor, Tensor]:
        x = self.up(self.enter(digits).transpose(1, 2))
        for conv, norm in zip(self.shared, self.norms[:2], strict=True):
            x = x + F.gelu(conv(norm(x)))
        phones = self.phones(x)
        x = x + self.speaker(F.normalize(speaker, dim=1))[..., None]
        for conv, norm in zip(self.speaker_convs, self.norms[2:], strict=True):
            x = x + F.gelu(conv(norm(x)))
        return phones, self.mel(x)


class TokenizerTraining:
    """Weights, optimizer and one captured step."""

    def __init__(
        self,
        corpus: Corpus,
        config: SpeechTokenizerConfig,
        *,
        device: torch.device,
        batch: int,
        eager: bool,
        seed: int,
    ) -> None:
        self.device = device
        with seeded(seed):
            self.net = SpeechTokenizer(config).to(device)
            self.heads = AuxiliaryHeads(config.code_digits).to(device)
        self.to16k, self.flow_mel = To16k().to(device), FlowMel().to(device)
        self.windows = Windows(corpus, device, tokens=WINDOW_TOKENS, chosen=~corpus.held_out)
        self.audio = torch.from_numpy(corpus.bank.audio).to(device)
        self.phones = torch.from_numpy(corpus.phones).to(device)
        parameters = [p for net in (self.net, self.heads) for p in net.parameters()]
        self.optimizer = Optimizer(parameters, betas=(0.9, 0.98))
        self.ema = Ema(self.net.parameters(), decay=0.999)
        self.batch = batch
        self.losses = torch.zeros(3, device=device)
        """Running phoneme error rate, phoneme loss and mel loss."""
        self.step = GraphedStep(self._step, eager=eager)

    def _step(self) -> None:
        clip, start, real = self.windows.sample(self.batch)
        with torch.no_grad():
            audio = audio_of(self.windows, self.audio, start, real)
            mel_16k = self.net.mel(self.to16k(audio))
            mel = (self.flow_mel(audio) - MEL_MEAN) / MEL_STD
            phones = self.windows.gather(self.phones, start, real, per_token=2).long()
            inside = (torch.arange(phones.shape[1], device=self.device)[None] < 2 * real[:, None]).float()
        with torch.autocast(self.device.type, torch.bfloat16):
            hidden, _ = self.net.encoder(mel_16k)
            raw = self.net.quantizer(hidden)
            logits, predicted_mel = self.heads(fsq_straight_through(raw), self.windows.speaker[clip].float())
        logits, predicted_mel = logits.float(), predicted_mel.float()
        share = inside / inside.sum()
        phone_loss = (F.cross_entropy(logits, phones, reduction="none") * share).sum()
        mel_loss = ((predicted_mel - mel).abs().mean(1) * share).sum()
        # A penalty on values beyond ±2 keeps them where the quantizer has a gradient.
        penalty = (raw.float().abs() - 2).clamp(min=0).square().mean()
        self.optimizer.step(phone_loss + 2.0 * mel_loss + 0.05 * penalty)
        self.ema.update()
        wrong = ((logits.argmax(1) != phones).float() * share).sum()
        self.losses.lerp_(torch.stack([wrong, phone_loss.detach(), mel_loss.detach()]), 0.05)

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "heads": self.heads.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": self.ema.average,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.heads.load_state_dict(state["heads"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.ema.load(state["ema"])


@torch.no_grad()
def averaged(net: SpeechTokenizer, ema: Ema) -> SpeechTokenizer:
    """Return a copy of the tokenizer with averaged weights."""
    copy = SpeechTokenizer(net.config).to(ema.average[0].device)
    for target, source in zip(copy.parameters(), ema.average, strict=True):
        target.copy_(source)
    return copy.eval()


def train_tokenizer(
    corpus: Corpus,
    out: Path,
    config: SpeechTokenizerConfig,
    *,
    budget_s: float,
    plan_s: float | None = None,
    device: torch.device,
    batch: int = 192,
    eager: bool = False,
    seed: int = 0,
    peak_lr: float = 6e-4,
    start_from: Path | None = None,
    on_progress: Callable[[dict[str, Any]], None] = ignore_progress,
) -> SpeechTokenizer:
    """Train for `budget_s` seconds, resuming from the state in `out`; return the averaged tokenizer.

    start_from: weights to start from when `out` holds no state; the two heads start from scratch.
    """
    training = TokenizerTraining(corpus, config, device=device, batch=batch, eager=eager, seed=seed)
    schedule, log = Schedule(peak=peak_lr, warmup_steps=200), JsonlLog(out / "tokenizer.jsonl")
    state_path = out / "tokenizer.state.pt"
    done = {"step": 0, "elapsed_s": 0.0, **resume(training, state_path, start_from)}
    clock = TimeBudget(budget_s, plan_s=plan_s, elapsed_s=done["elapsed_s"])

    def step() -> None:
        training.optimizer.lr.fill_(schedule.at(done["step"], clock.progress))
        training.step()
        done["step"] += 1

    def save() -> None:
        done["elapsed_s"] = clock.elapsed_s
        save_state(state_path, {"done": done, **training.state_dict()})
        save_weights(
            averaged(training.net, training.ema).state_dict(), out / "tokenizer.safetensors", dtype=None
        )

    def log_progress() -> None:
        losses = dict(zip(("phone_error", "phone", "mel"), training.losses.tolist(), strict=True))
        record = {"step": done["step"], "seconds": clock.elapsed_s, **losses}
        log.write(record)
        on_progress(record)

    run_steps(step, clock, log=log_progress, save=save, log_every_s=5)
    return averaged(training.net, training.ema)


def load_tokenizer(path: Path, config: SpeechTokenizerConfig, device: torch.device) -> SpeechTokenizer:
    net = SpeechTokenizer(config).to(device)
    net.load_state_dict({k: v.float() for k, v in load_file(path).items()})
    return net.eval()


@torch.no_grad()
def tokenize_corpus(net: SpeechTokenizer, corpus: Corpus, *, device: torch.device) -> Tensor:
    """Return the tokens of the whole bank, (tokens,) int16. Clips are read whole, in order of length."""
    audio = torch.from_numpy(corpus.bank.audio).to(device)
    offsets = torch.from_numpy(corpus.token_offsets)
    counts = offsets.diff()
    out = torch.zeros(int(offsets[-1]), dtype=torch.int16, device=device)
    to16k = To16k().to(device)
    for rows, length in whole_clips(counts, batch_tokens=BATCH_TOKENS):
        start, real = offsets[rows].to(device), counts[rows].to(device)
        mel = net.mel(to16k(clip_audio(audio, start, real, length)))
        with torch.autocast(device.type, torch.bfloat16):
            hidden, _ = net.encoder(mel, real * 4)
        ids = fsq_ids(net.quantizer(hidden.float())).to(torch.int16)
        place = torch.arange(length, device=device)
        inside = place[None] < real[:, None]
        out[(start[:, None] + place)[inside]] = ids[:, :length][inside]
    return out


def code_entropy_bits(tokens: Tensor) -> float:
    """Return the entropy of the codes, a measure of codebook use: at most log2(6561) = 12.7 bits."""
    share = torch.bincount(tokens.long().flatten(), minlength=6561).float()
    share = share[share > 0] / share.sum()
    return float(-(share * share.log2()).sum())
