"""Stage `voice-encoder`: distill Resemblyzer into a speaker encoder of our own.

The architecture is the same, the weights are new; the teacher's weights are not shipped. Speed changes, which
shift pitch and formants together, give more speakers than the corpus has.

The student also learns the hidden states of each of the teacher's layers at every frame, which says far more than
one vector per window. At first each layer gets the teacher's states of the layer below, so that it need not wait
until that one is right; later the layers get each other's.

The network is an LSTM, whose time steps are sequential, so throughput comes from wide batches. Features and the
teacher's vectors are computed once for a pool of windows, from which the student takes several batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder
from nightingale_lab.train.corpus import Corpus, Windows, audio_of, clip_audio, whole_clips
from nightingale_lab.train.loop import (
    Ema,
    Every,
    JsonlLog,
    Optimizer,
    Schedule,
    TimeBudget,
    ignore_progress,
    load_state,
    save_state,
    save_weights,
)
from nightingale_lab.train.resample import To16k

WINDOW_TOKENS = 64
"""2.56 s, one and a half of the encoder's windows."""
POOL_BATCHES = 4
POOL_USES = 2
BATCH_TOKENS = 25_600
"""Tokens (17 minutes) per batch when whole clips are encoded."""
HIDDEN_WEIGHT = 1.0
"""Loss weight of the distance from the teacher's hidden states."""
FORCED_SHARE = 0.4
"""Share of the training in which each layer gets the teacher's states of the layer below."""
GAIN_POINTS, GAIN_DB, WARP = 6, 6.0, 0.12
"""Random filters: points of the curve over the bands, its standard deviation; and the largest shift of a band."""
HEAD_FRAMES = 8
"""Mel frames that are dropped at the start of a crop, since its edge affects them."""


def change_speed(wav: Tensor, rate: Tensor) -> Tensor:
    """Resample each row to its own speed, crops or padded to the same length; pitch and formants shift together."""
    samples = wav.shape[1]
    where = torch.arange(samples, device=wav.device)[None] * rate[:, None]
    left = where.floor().long()
    share = where - left
    padded = F.pad(wav, (0, 2))
    left = left.clamp(max=samples)
    return torch.gather(padded, 1, left) * (1 - share) + torch.gather(padded, 1, left + 1) * share


class LayerOutputs:
    """The hidden states of every layer of a voice encoder; nn.LSTM returns those of the last one only."""

    def __init__(self, net: VoiceEncoder) -> None:
        config, stacked = net.config, net.lstm
        self.net = net
        self.layers: list[nn.LSTM] = []
        for number in range(config.layers):
            width = config.mel_bands if number == 0 else config.width
            layer = nn.LSTM(width, config.width, batch_first=True, device=stacked.weight_ih_l0.device)
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                setattr(layer, f"{kind}_l0", getattr(stacked, f"{kind}_l{number}"))
            self.layers.append(layer)

    def __call__(self, mel: Tensor, given: Sequence[Tensor] = ()) -> tuple[list[Tensor], Tensor]:
        """Return (batch, frames, width) of each layer, and the unit vectors (batch, embedding).

        given: the states that the layers above the first, and the projection, get instead of these."""
        states, x = [], mel
        for number, layer in enumerate(self.layers):
            states.append(layer(x)[0])
            x = given[number] if given else states[-1]
        return states, F.normalize(F.relu(self.net.proj(x[:, -1])), dim=-1)


def hidden_distance(states: Sequence[Tensor], wanted: Sequence[Tensor]) -> Tensor:
    """Return the squared distance of hidden states as a fraction of their variance, the mean over layers."""
    return torch.stack([F.mse_loss(a, b) / b.var() for a, b in zip(states, wanted, strict=True)]).mean()


def vary(mel: Tensor) -> Tensor:
    """Return mel power (batch, frames, bands) with half of the rows filtered and their bands shifted.

    Rooms, microphones and vocal tracts differ so; the teacher says what it makes of each."""
    batch, _, bands = mel.shape
    some = (torch.rand(batch, 1, 1, device=mel.device) < 0.5).float()
    curve = torch.randn(batch, 1, GAIN_POINTS, device=mel.device) * (GAIN_DB / 10)
    gains = 10 ** (some * F.interpolate(curve, size=bands, mode="linear", align_corners=True))
    shift = 1 + some * WARP * (2 * torch.rand(batch, 1, 1, device=mel.device) - 1)
    where = (torch.arange(bands, device=mel.device) * shift).clamp(max=bands - 1).expand_as(mel)
    left = where.floor().long()
    right = (left + 1).clamp(max=bands - 1)
    warped = torch.lerp(mel.gather(2, left), mel.gather(2, right), where - left)
    return warped * gains


class Pool:
    """Random mel windows; `fill` samples new ones."""

    def __init__(self, corpus: Corpus, teacher: VoiceEncoder, *, size: int, device: torch.device) -> None:
        self.config, self.mel, self.size, self.device = teacher.config, teacher.mel, size, device
        self.windows = Windows(corpus, device, tokens=WINDOW_TOKENS, chosen=~corpus.held_out)
        self.audio = torch.from_numpy(corpus.bank.audio).to(device)
        self.to16k = To16k().to(device)

    @torch.no_grad()
    def fill(self) -> Tensor:
        """Return mels (size, frames, bands)."""
        mels = []
        for rows in torch.arange(self.size).split(1024):
            count = len(rows)
            _, start, real = self.windows.sample(count)
            wav = self.to16k(audio_of(self.windows, self.audio, start, real))
            plain = torch.rand(count, device=self.device) < 0.5
            rate = torch.where(plain, 1.0, 0.8 + 0.45 * torch.rand(count, device=self.device))
            wav = change_speed(wav, rate)
            # Some windows have noise, and some a second voice, which makes further speakers.
            level = wav.square().mean(1, keepdim=True).sqrt()
            wav = wav + self._some(count, 0.3) * 10 ** (
                -1 - 2 * self._uniform(count)
            ) * level * torch.randn_like(wav)
            wav = wav + self._some(count, 0.2) * self._uniform(count) * wav.roll(1, 0)
            wav = wav * 10 ** (self._uniform(count) - 0.7)
            frames = self.config.window_frames
            mels.append(vary(self.mel(wav)[:, HEAD_FRAMES : HEAD_FRAMES + frames]))
        return torch.cat(mels)

    def _uniform(self, count: int) -> Tensor:
        return torch.rand(count, 1, device=self.device)

    def _some(self, count: int, share: float) -> Tensor:
        return (self._uniform(count) < share).float()


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
    on_progress: Callable[[dict[str, Any]], None] = ignore_progress,
) -> VoiceEncoder:
    """Train for `budget_s` seconds, resuming from the state in `out`; the averaged weights are the result."""
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
    step, clock = int(done["step"]), TimeBudget(budget_s, plan_s=plan_s, elapsed_s=done["elapsed_s"])
    log_due, similarity = Every(5, clock.started_s), torch.zeros(2, device=device)
    own, wanted = LayerOutputs(net), LayerOutputs(teacher)
    while not clock.over():
        mels = pool.fill()
        for pick in torch.randperm(POOL_USES * len(mels), device=device).split(batch):
            optimizer.lr.fill_(schedule.at(step, clock.progress))
            # No autocast: cuDNN has no bfloat16 LSTM; this one runs in TF32.
            with torch.no_grad():
                target_states, target = wanted(mels[pick % len(mels)])
            forced = clock.progress < FORCED_SHARE
            states, output = own(mels[pick % len(mels)], target_states if forced else ())
            hidden = hidden_distance(states, target_states)
            cosine = (output * target).sum(1).mean()
            # For unit vectors the squared distance equals the cosine; the L1 term reduces small errors.
            vector_loss = 1 - cosine + 0.5 * (output - target).abs().sum(1).mean() / len(target[0]) ** 0.5
            optimizer.step(vector_loss + HIDDEN_WEIGHT * hidden)
            ema.update()
            similarity.lerp_(torch.stack([cosine.detach(), hidden.detach()]), 0.1)
            step += 1
            if clock.over():
                break
        if log_due(clock.started_s + clock.spent_s):
            record = {"step": step, "seconds": clock.elapsed_s}
            record |= dict(zip(("cosine", "hidden"), similarity.tolist(), strict=True))
            log.write(record)
            on_progress(record)
    done = {"step": step, "elapsed_s": clock.elapsed_s}
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "ema": ema.average, "done": done}
    save_state(state_path, state)
    with torch.no_grad():
        torch._foreach_copy_([p.data for p in trained], ema.average)
    save_weights(net.state_dict(), out / "voice_encoder.safetensors")
    return net.eval()


@torch.no_grad()
def _open_forget_gates(net: VoiceEncoder) -> None:
    """Set the forget gate biases to one, so that gradients reach the start of a window of 160 frames."""
    width = net.config.width
    for layer in range(net.config.layers):
        bias: Tensor = getattr(net.lstm, f"bias_ih_l{layer}")
        bias[width : 2 * width] = 1.0


@torch.no_grad()
def speaker_vectors(net: VoiceEncoder, corpus: Corpus, *, device: torch.device) -> Tensor:
    """Return one unit vector per clip, the mean over its windows: (clips, 256) float16."""
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
        crops = mel.unfold(1, size, step).transpose(2, 3)  # (rows, windows, frames, bands)
        each = net(crops.flatten(0, 1)).view(len(rows), -1, net.config.embedding)
        starts = torch.arange(each.shape[1], device=device) * step
        inside = (starts[None] + 0.75 * size <= real[:, None] * 4) | (starts[None] == 0)
        out[rows] = F.normalize((each * inside[..., None]).sum(1), dim=1).half().cpu()
    return out
