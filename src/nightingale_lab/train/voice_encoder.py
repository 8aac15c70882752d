"""Stage `voice-encoder`: our own speaker encoder, taught to give Resemblyzer's vectors.

Same architecture, fresh weights; the teacher's weights are a training-time tool and are not shipped. Speed
changes (which shift pitch and formants together) widen the range of speakers it hears beyond the corpus.

The network is one LSTM: its steps in time cannot be made parallel, so speed comes from wide batches. Features
and the teacher's answers are made once for a pool of windows; the student then takes several batches from the
pool before the next is made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder
from nightingale_lab.train.corpus import Corpus, Windows, audio_of, clip_audio, whole_clips
from nightingale_lab.train.loop import (
    Ema,
    Every,
    JsonlLog,
    Optimizer,
    Schedule,
    Watch,
    load_state,
    save_state,
    silent,
)
from nightingale_lab.train.resample import To16k
from nightingale_lab.train.weights import save_half

WINDOW_TOKENS = 64
"""2.56 s, one and a half of the encoder's windows."""
POOL_BATCHES = 4
POOL_USES = 2
BATCH_TOKENS = 25_600
"""Whole clips are heard so many tokens (17 minutes) at a time."""
HEAD_FRAMES = 8
"""Of the mel before the window: the first frames of a cut see its edge."""


def warped(wav: Tensor, rate: Tensor) -> Tensor:
    """Each row at its own speed, cut or padded to the same length: pitch and formants move together."""
    samples = wav.shape[1]
    where = torch.arange(samples, device=wav.device)[None] * rate[:, None]
    left = where.floor().long()
    share = where - left
    padded = F.pad(wav, (0, 2))
    left = left.clamp(max=samples)
    return torch.gather(padded, 1, left) * (1 - share) + torch.gather(padded, 1, left + 1) * share


class Pool:
    """Mel windows and the teacher's vectors for them, drawn anew by `fill`."""

    def __init__(self, corpus: Corpus, teacher: VoiceEncoder, *, size: int, device: torch.device) -> None:
        self.teacher, self.size, self.device = teacher, size, device
        self.windows = Windows(corpus, device, tokens=WINDOW_TOKENS, chosen=~corpus.held_out)
        self.audio = torch.from_numpy(corpus.bank.audio).to(device)
        self.to16k = To16k().to(device)

    @torch.no_grad()
    def fill(self) -> tuple[Tensor, Tensor]:
        """(size, frames, bands) and (size, embedding)."""
        mels, wanted = [], []
        for rows in torch.arange(self.size).split(1024):
            count = len(rows)
            _, start, real = self.windows.draw(count)
            wav = self.to16k(audio_of(self.windows, self.audio, start, real))
            plain = torch.rand(count, device=self.device) < 0.5
            rate = torch.where(plain, 1.0, 0.8 + 0.45 * torch.rand(count, device=self.device))
            wav = warped(wav, rate) * 10 ** (torch.rand(count, 1, device=self.device) - 0.7)
            frames = self.teacher.config.window_frames
            mel = self.teacher.mel(wav)[:, HEAD_FRAMES : HEAD_FRAMES + frames]
            mels.append(mel)
            wanted.append(self.teacher(mel))
        return torch.cat(mels), torch.cat(wanted)


def train_voice_encoder(
    corpus: Corpus,
    teacher: VoiceEncoder,
    out: Path,
    *,
    budget_s: float,
    plan_s: float | None = None,
    device: torch.device,
    batch: int = 1024,
    peak_lr: float = 2e-3,
    say: Callable[[dict[str, Any]], None] = silent,
) -> VoiceEncoder:
    """Train for `budget_s` seconds, resuming from `out`; `voice_encoder.safetensors` is the average."""
    teacher = teacher.to(device).eval()
    net = VoiceEncoder(teacher.config).to(device)
    _open_forget_gates(net)
    pool = Pool(corpus, teacher, size=POOL_BATCHES * batch, device=device)
    trained = [p for name, p in net.named_parameters() if not name.startswith("similarity")]
    optimizer, ema = Optimizer(trained, betas=(0.9, 0.98)), Ema(trained, decay=0.995)
    schedule, log = Schedule(peak=peak_lr, warmup_steps=200), JsonlLog(out / "voice_encoder.jsonl")
    state_path, done = out / "voice_encoder.state.pt", {"step": 0, "elapsed_s": 0.0}
    if state_path.exists():
        state = load_state(state_path, device)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        ema.load(state["ema"])
        done = state["done"]
    step, watch = int(done["step"]), Watch(budget_s, plan_s=plan_s, elapsed_s=done["elapsed_s"])
    report, similarity = Every(5, watch.begun_s), torch.zeros((), device=device)
    while not watch.over():
        mels, wanted = pool.fill()
        for pick in torch.randperm(POOL_USES * len(mels), device=device).split(batch):
            optimizer.lr.fill_(schedule.at(step, watch.progress))
            goal = wanted[pick % len(mels)]
            # No autocast: cuDNN has no bfloat16 LSTM, and runs this one in TF32 as it is.
            got = net(mels[pick % len(mels)])
            cosine = (got * goal).sum(1).mean()
            # Both have length one, so squared distance is cosine again; the absolute one mends small errors.
            optimizer.step(1 - cosine + 0.5 * (got - goal).abs().sum(1).mean() / len(goal[0]) ** 0.5)
            ema.update()
            similarity.lerp_(cosine.detach(), 0.1)
            step += 1
            if watch.over():
                break
        if report(watch.begun_s + watch.spent_s):
            record = {"step": step, "seconds": watch.elapsed_s, "cosine": float(similarity)}
            log.write(record)
            say(record)
    done = {"step": step, "elapsed_s": watch.elapsed_s}
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "ema": ema.average, "done": done}
    save_state(state_path, state)
    with torch.no_grad():
        torch._foreach_copy_([p.data for p in trained], ema.average)
    save_half(dict(net.state_dict()), out / "voice_encoder.safetensors")
    return net.eval()


@torch.no_grad()
def _open_forget_gates(net: VoiceEncoder) -> None:
    """A bias of one: what a window's beginning said must last 160 frames before training can use it."""
    width = net.config.width
    for layer in range(net.config.layers):
        bias: Tensor = getattr(net.lstm, f"bias_ih_l{layer}")
        bias[width : 2 * width] = 1.0


@torch.no_grad()
def speaker_vectors(net: VoiceEncoder, corpus: Corpus, *, device: torch.device) -> Tensor:
    """One unit vector per clip, the mean over its windows: (clips, 256) float16."""
    audio = torch.from_numpy(corpus.bank.audio).to(device)
    to16k = To16k().to(device)
    offsets = torch.from_numpy(corpus.token_offsets)
    counts = offsets.diff()
    size, step = net.config.window_frames, net.config.step_frames
    out = torch.zeros(len(counts), net.config.embedding, dtype=torch.float16)
    for rows, length in whole_clips(counts, batch_tokens=BATCH_TOKENS):
        real = counts[rows].to(device)
        mel = net.mel(to16k(clip_audio(audio, offsets[rows].to(device), real, length)))
        mel = F.pad(mel, (0, 0, 0, max(0, size - mel.shape[1])))
        cut = mel.unfold(1, size, step).transpose(2, 3)  # (rows, windows, frames, bands)
        each = net(cut.flatten(0, 1)).view(len(rows), -1, net.config.embedding)
        begins = torch.arange(each.shape[1], device=device) * step
        heard = (begins[None] + 0.75 * size <= real[:, None] * 4) | (begins[None] == 0)
        out[rows] = F.normalize((each * heard[..., None]).sum(1), dim=1).half().cpu()
    return out
