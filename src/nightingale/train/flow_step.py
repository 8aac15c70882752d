"""The two kinds of step that train the flow, in tensors only; flow.py says what they are for."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nightingale.models.chatterbox.s3gen.config import FlowConfig
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.nn.masks import attention_mask
from nightingale.nn.mel import FlowMel
from nightingale.train.corpus import Corpus, Windows, audio_of
from nightingale.train.loop import Ema, GraphedStep, Optimizer

WINDOW_TOKENS = 128
BLOCK_TOKENS = (6, 8, 12, 16, 25, 50, 128, 128)
"""Streaming block sizes to draw from; the last two are the whole window."""
GUIDANCE = 0.7
TEACHER_STEPS = 4
"""Guided steps of the teacher for each half of the way."""
NEAR_WEIGHT = 0.2
"""Of the token encoder's own guess of the mel."""
MEASURED_WINDOWS = 64


class FlowTraining:
    """Weights, optimizer, and the two kinds of step."""

    def __init__(
        self,
        corpus: Corpus,
        tokens: Tensor,
        config: FlowConfig,
        *,
        device: torch.device,
        batch: int,
        eager: bool,
    ) -> None:
        self.config, self.device, self.batch = config, device, batch
        self.net = Flow(config).to(device)
        with torch.no_grad():
            for name, weight in self.net.decoder["estimator"].named_parameters():
                if name.startswith("final_proj"):
                    weight.zero_()  # the first guess is no motion at all
        self.teacher: Flow | None = None
        out = corpus.held_out
        self.windows = Windows(corpus, device, tokens=WINDOW_TOKENS, chosen=~out)
        self.tokens = tokens.to(device)
        self.audio = torch.from_numpy(corpus.bank.audio).to(device)
        self.flow_mel = FlowMel().to(device)
        self.sizes = torch.tensor(BLOCK_TOKENS, device=device)
        self.optimizer = Optimizer(self.net.parameters(), betas=(0.9, 0.98))
        self.ema = Ema(self.net.parameters(), decay=0.999)
        self.losses = torch.zeros(2, device=device)
        self.probe: dict[str, Tensor] | None = None
        if out.any():
            with torch.no_grad():
                unseen = Windows(corpus, device, tokens=WINDOW_TOKENS, chosen=out)
                self.probe = self._draw(unseen, min(MEASURED_WINDOWS, batch))
                self.probe["noise"] = torch.randn_like(self.probe["mel"])
        self.match = GraphedStep(self._match, eager=eager)
        self.distill = GraphedStep(self._distill, eager=eager)

    def _draw(self, windows: Windows, batch: int) -> dict[str, Tensor]:
        """A batch: ids, valid, blocks, normalized mel, cond, each frame's share of the loss, speaker."""
        clip, start, real = windows.draw(batch)
        audio = audio_of(windows, self.audio, start, real)
        mel = (self.flow_mel(audio) - self.config.mel_mean) / self.config.mel_std
        place = torch.arange(WINDOW_TOKENS, device=self.device)
        valid = place[None] < real[:, None]
        size = self.sizes[torch.randint(len(BLOCK_TOKENS), (batch, 1), device=self.device)]
        shift = (torch.rand(batch, 1, device=self.device) * size).long()
        blocks = (place[None] + shift) // size
        speaker = windows.speaker[clip].float()
        # A speaker vector measured on another clip differs a little; so does our own encoder's.
        speaker = F.normalize(speaker + 0.02 * torch.randn_like(speaker), dim=1)
        # Half of the time the first part of the window is shown, as a voice's prompt would be.
        shown = torch.rand(batch, 1, device=self.device) * 0.6 - 0.3
        frames = torch.arange(2 * WINDOW_TOKENS, device=self.device)[None]
        prompt = frames < shown.clamp(min=0) * 2 * real[:, None]
        frame_valid = valid.repeat_interleave(2, dim=1)
        return {
            "ids": windows.gather(self.tokens, start, real, per_token=1).long(),
            "valid": valid,
            "blocks": blocks,
            "mel": mel * frame_valid[:, None],
            "cond": mel * prompt[:, None],
            "share": (frame_valid / frame_valid.sum())[:, None],
            "speaker": speaker,
        }

    def _mask(self, b: dict[str, Tensor]) -> Tensor:
        mask = attention_mask(b["valid"].repeat_interleave(2, 1), b["blocks"].repeat_interleave(2, 1))
        assert mask is not None
        return mask

    def _match(self) -> None:
        with torch.no_grad():
            b = self._draw(self.windows, self.batch)
            noise = torch.randn_like(b["mel"])
            t = torch.sigmoid(torch.randn(self.batch, device=self.device))
            t = torch.where(torch.rand_like(t) < 0.2, torch.rand_like(t), t)
            told = (torch.rand(self.batch, 1, 1, device=self.device) > 0.1).float()
            along = t[:, None, None]
            x = (1 - along) * noise + along * b["mel"]
        with torch.autocast(self.device.type, torch.bfloat16):
            mu = self.net.encode(b["ids"], b["valid"], b["blocks"])
            guess = self.net.decoder["estimator"](
                x,
                mu=mu * told,
                speaker=self.net.speaker(b["speaker"]) * told[:, :, 0],
                cond=b["cond"] * told,
                t=t,
                r=t,
                mask=self._mask(b),
            )
        flow_loss = ((guess.float() - (b["mel"] - noise)).square() * b["share"]).sum() / self.config.mel_bands
        near_loss = ((mu.float() - b["mel"]).abs() * b["share"]).sum() / self.config.mel_bands
        self.optimizer.step(flow_loss + NEAR_WEIGHT * near_loss)
        self.ema.update()
        self.losses.lerp_(torch.stack([flow_loss.detach(), near_loss.detach()]), 0.05)

    def begin_distillation(self) -> None:
        """The averaged weights become the teacher, and the student's beginning."""
        with torch.no_grad():
            torch._foreach_copy_([p.data for p in self.net.parameters()], self.ema.average)
        self.teacher = copy.deepcopy(self.net).eval().requires_grad_(False)

    def _guided(
        self, x: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor, mask: Tensor, t: float, r: float
    ) -> Tensor:
        """Where the guided teacher gets from t to r in TEACHER_STEPS steps."""
        assert self.teacher is not None

        def twice(y: Tensor) -> Tensor:
            return torch.cat([y, torch.zeros_like(y)])

        both_mask = torch.cat([mask, mask])
        for i in range(TEACHER_STEPS):
            now = t + (r - t) * i / TEACHER_STEPS
            at = torch.full((2 * len(x),), now, device=self.device)
            both = self.teacher.decoder["estimator"](
                torch.cat([x, x]),
                mu=twice(mu),
                speaker=twice(speaker),
                cond=twice(cond),
                t=at,
                r=at,
                mask=both_mask,
            ).float()
            guided, free = both.chunk(2)
            x = x + (r - t) / TEACHER_STEPS * ((1 + GUIDANCE) * guided - GUIDANCE * free)
        return x

    def _distill(self) -> None:
        assert self.teacher is not None
        zero, half, one = (torch.full((self.batch,), v, device=self.device) for v in (0.0, 0.5, 1.0))
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16):
            b = self._draw(self.windows, self.batch)
            mask = self._mask(b)
            x0 = torch.randn_like(b["mel"])
            mu, speaker = (
                self.teacher.encode(b["ids"], b["valid"], b["blocks"]),
                self.teacher.speaker(b["speaker"]),
            )
            half_way = self._guided(x0, mu, speaker, b["cond"], mask, 0.0, 0.5)
        with torch.autocast(self.device.type, torch.bfloat16):
            own_mu = self.net.encode(b["ids"], b["valid"], b["blocks"])
            told = {"mu": own_mu, "speaker": self.net.speaker(b["speaker"]), "cond": b["cond"], "mask": mask}
            first = self.net.decoder["estimator"](x0, t=zero, r=half, **told).float()
            own_half = (x0 + 0.5 * first).detach()
            second = self.net.decoder["estimator"](own_half, t=half, r=one, **told).float()
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16):
            end = self._guided(own_half, mu, speaker, b["cond"], mask, 0.5, 1.0)
        share = b["share"]
        first_loss = ((first - (half_way - x0) / 0.5).square() * share).sum() / self.config.mel_bands
        second_loss = ((second - (end - own_half) / 0.5).square() * share).sum() / self.config.mel_bands
        near_loss = ((own_mu.float() - b["mel"]).abs() * share).sum() / self.config.mel_bands
        self.optimizer.step(first_loss + second_loss + NEAR_WEIGHT / 2 * near_loss)
        self.ema.update()
        self.losses.lerp_(torch.stack([first_loss.detach(), second_loss.detach()]), 0.05)

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Mean distance of the averaged model's mel from the true one, true tokens given, on unseen lines.

        In units of the scaled mel. The first model goes in small unguided steps, the second in its two.
        """
        b = self.probe
        if b is None:
            return {}
        x, cond = b["noise"], torch.zeros_like(b["mel"])
        steps = 2 * TEACHER_STEPS if self.teacher is None else 2
        with self.ema.swapped_in(), torch.autocast(self.device.type, torch.bfloat16):
            mu = self.net.encode(b["ids"], b["valid"], b["blocks"])
            told = {"mu": mu, "speaker": self.net.speaker(b["speaker"]), "cond": cond, "mask": self._mask(b)}
            for i in range(steps):
                t, r = (torch.full((len(x),), n / steps, device=self.device) for n in (i, i + 1))
                r = t if self.teacher is None else r
                x = x + self.net.decoder["estimator"](x, t=t, r=r, **told).float() / steps
        bands = self.config.mel_bands
        distances = [((y.float() - b["mel"]).abs() * b["share"]).sum() / bands for y in (x, mu)]
        return dict(zip(("unseen_mel", "unseen_prior"), torch.stack(distances).tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": self.ema.average,
            "teacher": None if self.teacher is None else self.teacher.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["teacher"] is not None:
            self.begin_distillation()
            assert self.teacher is not None
            self.teacher.load_state_dict(state["teacher"])
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.ema.load(state["ema"])

    @torch.no_grad()
    def averaged(self) -> dict[str, Tensor]:
        names = [name for name, _ in self.net.named_parameters()]
        return dict(zip(names, self.ema.average, strict=True))
