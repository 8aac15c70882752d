"""Stage `voice_encoder`: our own speaker encoder, taught to give Resemblyzer's vectors.

Same architecture, fresh weights; the teacher's weights are a training-time tool and are not shipped. Speed
changes (which shift pitch and formants together) widen the range of speakers it hears beyond the corpus.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder
from nightingale.train.corpus import Corpus, Windows, audio_of
from nightingale.train.loop import Ema, Every, JsonlLog, Optimizer, Schedule, silent
from nightingale.train.resample import To16k
from nightingale.train.weights import save_half

WINDOW_TOKENS = 64
"""2.56 s, one and a half of the encoder's windows."""


def warped(wav: Tensor, rate: Tensor) -> Tensor:
    """Each row at its own speed, cut or padded to the same length: pitch and formants move together."""
    samples = wav.shape[1]
    where = torch.arange(samples, device=wav.device)[None] * rate[:, None]
    left = where.floor().long()
    share = where - left
    padded = F.pad(wav, (0, 2))
    left = left.clamp(max=samples)
    return torch.gather(padded, 1, left) * (1 - share) + torch.gather(padded, 1, left + 1) * share


def train_voice_encoder(
    corpus: Corpus,
    teacher: VoiceEncoder,
    out: Path,
    *,
    budget_s: float,
    device: torch.device,
    batch: int = 256,
    peak_lr: float = 1e-3,
    say: Callable[[dict[str, Any]], None] = silent,
) -> VoiceEncoder:
    """Train for `budget_s` seconds; `voice_encoder.safetensors` is the average."""
    teacher = teacher.to(device).eval()
    net = VoiceEncoder(teacher.config).to(device)
    to16k = To16k().to(device)
    windows = Windows(corpus, device, tokens=WINDOW_TOKENS)
    audio = torch.from_numpy(corpus.bank.audio).to(device)
    trained = [p for name, p in net.named_parameters() if not name.startswith("similarity")]
    optimizer, ema = Optimizer(trained, betas=(0.9, 0.98)), Ema(trained, decay=0.998)
    schedule, log = Schedule(peak=peak_lr, warmup_steps=100), JsonlLog(out / "voice_encoder.jsonl")
    frames = teacher.config.window_frames
    begun, step = time.monotonic(), 0
    report = Every(5, begun)
    while (spent := time.monotonic() - begun) < budget_s:
        optimizer.lr.fill_(schedule.at(step, spent / budget_s))
        with torch.no_grad():
            _, start, real = windows.draw(batch)
            wav = to16k(audio_of(windows, audio, start, real))
            rate = torch.where(
                torch.rand(batch, device=device) < 0.5, 1.0, 0.8 + 0.45 * torch.rand(batch, device=device)
            )
            wav = warped(wav, rate) * 10 ** (torch.rand(batch, 1, device=device) - 0.7)
            mel = net.mel(wav)[:, 8 : 8 + frames]
            wanted = teacher(mel)
        got = net(mel)
        similarity = (got * wanted).sum(1).mean().detach()
        optimizer.step((got - wanted).square().sum(1).mean())
        ema.update()
        step += 1
        if report(time.monotonic()):
            record = {"step": step, "seconds": spent, "cosine": float(similarity)}
            log.write(record)
            say(record)
    with torch.no_grad():
        torch._foreach_copy_([p.data for p in trained], ema.average)
    save_half(dict(net.state_dict()), out / "voice_encoder.safetensors")
    return net.eval()


@torch.no_grad()
def speaker_vectors(net: VoiceEncoder, corpus: Corpus, *, device: torch.device, batch: int = 256) -> Tensor:
    """One unit vector per clip, the mean over its windows: (clips, 256) float16."""
    audio = torch.from_numpy(corpus.bank.audio).to(device)
    to16k = To16k().to(device)
    offsets = torch.from_numpy(corpus.token_offsets)
    counts = offsets.diff()
    size, step = net.config.window_frames, net.config.step_frames
    out = torch.zeros(len(counts), net.config.embedding, dtype=torch.float16)
    for rows in counts.argsort().split(batch):
        longest = int(counts[rows].max())
        steps = torch.arange(longest * 960, device=device)
        start, real = offsets[rows].to(device), counts[rows].to(device)
        inside = steps[None] < real[:, None] * 960
        wav = audio[(start[:, None] * 960 + steps).clamp(max=len(audio) - 1)].float() / 32768 * inside
        mel = net.mel(to16k(wav))
        mel = F.pad(mel, (0, 0, 0, max(0, size - mel.shape[1])))
        cut = mel.unfold(1, size, step).transpose(2, 3)  # (rows, windows, frames, bands)
        each = net(cut.flatten(0, 1)).view(len(rows), -1, net.config.embedding)
        begins = torch.arange(each.shape[1], device=device) * step
        heard = (begins[None] + 0.75 * size <= real[:, None] * 4) | (begins[None] == 0)
        out[rows] = F.normalize((each * heard[..., None]).sum(1), dim=1).half().cpu()
    return out
