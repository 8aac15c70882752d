"""The steps of vocoder training as tensor operations: crop, render, loss, update.

All inputs of a step are on the device, with fixed address and shape: the bank, the random numbers (sampled in
place, outside the graph, from the stage's own generator), the learning rates, and the share of rows whose
excitation comes from predicted f0. So CUDA graphs can capture both steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from nightingale.errors import ConfigError
from nightingale.models.frame_vocoder.config import (
    BINS,
    COLUMNS_PER_STEP,
    DELAY_SAMPLES,
    FLUSH_FRAMES,
    HEAD_PARTS,
    LOOKAHEAD_FRAMES,
    MARGIN_SAMPLES,
    MEL_TAPS,
    SILENT_LOG_MEL,
    FrameVocoderConfig,
)
from nightingale.models.frame_vocoder.network import FrameVocoder
from nightingale.models.layers.mel_config import FLOW_MEL
from nightingale.models.layers.streaming_state import StreamingState
from nightingale_lab.train.bank import HOP, AudioBank, BankSampler, Crops
from nightingale_lab.train.corpus import LIMIT_HZ
from nightingale_lab.train.discriminators import (
    Discriminators,
    discriminator_loss,
    feature_loss,
    generator_loss,
)
from nightingale_lab.train.loop import Ema, Optimizer
from nightingale_lab.train.seeding import seeded
from nightingale_lab.train.vocoder_losses import (
    DISCRIMINATOR_RESOLUTIONS,
    LOG_FLOOR,
    MELS,
    Analysis,
    LowPass,
    f0_loss,
    mel_distances,
    pitch_error,
    voicing_error,
)

MEL_MARGIN = (FLOW_MEL.fft_samples - FLOW_MEL.hop_samples) // 2
START_CROPS = 64
"""Crops from which a fresh network's levels are measured."""
NOISE_BELOW_TONE = 1.0
"""Nepers by which a fresh network's noise lies below its harmonics."""
STATS = ("mel", "flow_mel", "f0", "unvoiced_err", "pitch_err", "g_adv", "g_feat", "d", "g_norm", "d_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class VocoderPlan:
    """Hyperparameters of the vocoder's training."""

    network: FrameVocoderConfig = field(default_factory=FrameVocoderConfig)
    batch: int = 64
    window_frames: int = 25
    before_frames: int = 24
    """Context of the causal network before the window of the losses."""
    after_frames: int = FLUSH_FRAMES
    period_channels: tuple[int, ...] = (32, 64, 192, 384, 384)
    spectral_channels: int = 64
    lr: float = 4e-4
    f0_lr: float = 1e-3
    discriminator_lr: float = 2e-4
    warmup_steps: int = 200
    mel_weight: float = 45.0
    """Loss weight of the mels of rows that are rendered from recorded mels."""
    flow_mel_weight: float = 12.0
    """The same for rows that are rendered from the flow's mels. These differ from the recorded ones, and a generator
    that is punished for each difference renders the mean of what is possible, which sounds noisy."""
    flow_share: float = 0.5
    """Share of the rows that are rendered from the flow's mels, if there are any."""
    feature_weight: float = 2.0
    ema_decay: float = 0.999
    mel_only_share: float = 0.1
    """Share of the plan that trains without discriminators, and with the recorded f0."""
    predicted_f0_share: float = 0.3
    """From this share of the plan on, every excitation comes from predicted f0, as at inference."""
    discriminator_share: float = 0.0
    """Share of the plan that trains the discriminators only, where they are new and the generator is not."""


class VocoderStage:
    """Networks, optimizers and the two steps. Call `sample()` before each step; `stats` sums its losses."""

    def __init__(
        self,
        bank: AudioBank,
        plan: VocoderPlan,
        *,
        device: torch.device,
        seed: int,
        mels: NDArray[np.float16] | None = None,
        limited: NDArray[np.bool_] | None = None,
    ) -> None:
        self.plan, self.device = plan, device
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.set_data(bank, mels, limited)
        self.low_pass = LowPass(LIMIT_HZ).to(device)
        with seeded(seed):
            net = FrameVocoder(plan.network)
            discriminators = Discriminators(
                resolutions=DISCRIMINATOR_RESOLUTIONS,
                period_channels=plan.period_channels,
                spectral_channels=plan.spectral_channels,
                dtype=dtype,
            )
        self.net, self.discriminators = net.to(device), discriminators.to(device)
        self.net.block_dtype = dtype
        frames = self.sampler.crop_frames + FLUSH_FRAMES
        self.analysis = Analysis().to(device)
        pitch = list(self.net.pitch_predictor.parameters())
        ids = {id(p) for p in pitch}
        # The predictor has its own optimizer: its gradient in Hz must not affect the clipping of the others.
        self.opt_f0 = Optimizer(pitch)
        self.opt_g = Optimizer(p for p in self.net.parameters() if id(p) not in ids)
        self.opt_d = Optimizer(self.discriminators.parameters())
        self.ema = Ema(self.net.parameters(), plan.ema_decay)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.pick = torch.zeros(plan.batch, dtype=torch.int64, device=device)
        self.noise = torch.zeros(plan.batch, frames * HOP, device=device)
        self.mix = torch.zeros(plan.batch, 1, device=device)
        self.flow_draw = torch.ones(plan.batch, device=device)
        """Rows where it is below `flow_share` are rendered from the flow's mels."""
        self.predicted_share = torch.zeros((), device=device)
        self.stats = torch.zeros(len(STATS), device=device)
        self.zero = torch.zeros((), device=device)
        self.window_frame_range = torch.arange(plan.window_frames, device=device)

    def set_data(
        self, bank: AudioBank, mels: NDArray[np.float16] | None, limited: NDArray[np.bool_] | None = None
    ) -> None:
        """Train on this bank from now on. A captured step must be captured again.

        limited: (clips,) mask of band-limited clips.
        """
        plan = self.plan
        self.sampler = BankSampler(
            bank,
            self.device,
            window_frames=plan.window_frames,
            before=plan.before_frames,
            after=plan.after_frames,
            margin_samples=MEL_MARGIN,
            limited=limited,
        )
        self.mels = None if mels is None else torch.from_numpy(_checked(mels, bank)).to(self.device)

    def sample(self) -> None:
        """Sample new random numbers in place."""
        self.pick.random_(0, self.sampler.total_windows, generator=self.generator)
        self.noise.normal_(generator=self.generator)
        self.mix.uniform_(generator=self.generator)
        if self.mels is None:
            self.flow_draw.fill_(1.0)
        else:
            self.flow_draw.uniform_(generator=self.generator)

    @property
    def from_flow(self) -> Tensor:
        """(batch,): 1.0 for the rows that are rendered from the flow's mels."""
        return (self.flow_draw < self.plan.flow_share).float()

    @torch.no_grad()
    def set_start_levels(self) -> None:
        """Set the head's bias such that a fresh network renders at the level of speech.

        It is the mean of the recorded log magnitudes over those of the mel, for each bin, and less for the noise.
        """
        pick = torch.linspace(0, self.sampler.total_windows - 1, START_CROPS, device=self.device).long()
        crops = self.sampler.crops(pick)
        frames = self.sampler.crop_frames - (MEL_TAPS - 1)
        prior = self.net._prior(self._recorded_mel(crops), frames)
        first = MEL_MARGIN + LOOKAHEAD_FRAMES * HOP - MARGIN_SAMPLES
        audio = crops.wide_audio[:, first : first + frames * HOP + 2 * MARGIN_SAMPLES]
        real, imaginary = self.net._windows(audio).chunk(2, dim=-1)
        logs = torch.log(torch.hypot(real, imaginary).clamp(min=LOG_FLOOR))
        levels = (logs - prior).mean((0, 1))
        bias = self.net.head.bias.view(COLUMNS_PER_STEP, HEAD_PARTS, BINS)
        bias[:, 0] = levels
        bias[:, 2] = levels - NOISE_BELOW_TONE
        self.ema.reset()

    def _recorded_mel(self, crops: Crops) -> Tensor:
        which = MELS.index(FLOW_MEL)
        return self.analysis.log_mel(self.analysis.spectrum(crops.wide_audio, which), which).transpose(1, 2)

    def mel_of(self, crops: Crops) -> Tensor:
        """Return mels (batch, bands, crop frames): those of the audio, in some rows those of the flow."""
        mel = self._recorded_mel(crops)
        if self.mels is None:
            return mel
        rendered = self.mels[crops.frame_index].float().transpose(1, 2)
        return torch.where(self.from_flow[:, None, None].bool(), rendered, mel)

    def _mel_loss(self, real: list[Tensor], fake: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weighted loss, and the mean distances of the rows with recorded mels and with the flow's."""
        distances, from_flow = mel_distances(real, fake), self.from_flow
        weights = torch.lerp(
            torch.full_like(from_flow, self.plan.mel_weight),
            torch.full_like(from_flow, self.plan.flow_mel_weight),
            from_flow,
        )
        recorded, rendered = (
            (distances * rows).sum() / rows.sum().clamp(min=1) for rows in (1 - from_flow, from_flow)
        )
        return (weights * distances).mean(), recorded, rendered

    def _rendered(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return real and fake windows (batch, samples), predicted and true f0 (batch, window frames)."""
        with torch.no_grad():
            crops = self.sampler.crops(self.pick)
            # A window at the end of a clip is followed by silence, as in the engine.
            mel = F.pad(self.mel_of(crops), (0, FLUSH_FRAMES), value=SILENT_LOG_MEL)
            frame = crops.start_frame + LOOKAHEAD_FRAMES + self.window_frame_range
            sample = crops.start_frame * HOP + DELAY_SAMPLES + self.sampler.window_range
            known_f0_hz = F.pad(crops.f0_hz, (LOOKAHEAD_FRAMES, FLUSH_FRAMES - LOOKAHEAD_FRAMES))
        state = StreamingState(self.net.initial_state(len(mel)))
        f0_hz = self.net.pitch_predictor(mel, state)
        # Where the pitch is not known, the predicted one is taken as true.
        true_f0_hz = torch.where(known_f0_hz < 0, f0_hz.detach(), known_f0_hz)
        chosen = torch.where(self.mix < self.predicted_share, f0_hz.detach(), true_f0_hz)
        rendered = self.net.synthesize(mel, chosen, self.noise, state)
        fake = self.low_pass(rendered.gather(1, sample), crops.limited)
        with torch.no_grad():
            real = self.low_pass(crops.audio, crops.limited)
        return real, fake, f0_hz.gather(1, frame), true_f0_hz.gather(1, frame)

    def mel_step(self) -> None:
        """Train the generator on mel and f0 losses, without discriminators."""
        real, fake, f0_hz, true_f0_hz = self._rendered()
        with torch.no_grad():
            real_mels = self.analysis.log_mels(self.analysis.spectra(real))
        loss, *mels = self._mel_loss(real_mels, self.analysis.log_mels(self.analysis.spectra(fake)))
        f0 = self._step_f0(f0_hz, true_f0_hz)
        norm = self.opt_g.step(loss)
        self.ema.update()
        self._note(*mels, *f0, self.zero, self.zero, self.zero, norm, self.zero)

    def gan_step(self) -> None:
        """Train the discriminators, then the generator against the updated discriminators."""
        real, fake, f0_hz, true_f0_hz = self._rendered()
        fake_spectra = self.analysis.spectra(fake)
        with torch.no_grad():
            real_spectra = self.analysis.spectra(real)
            real_mels = self.analysis.log_mels(real_spectra)
            real_inputs = self.analysis.for_discriminators(real_spectra)
            both = [
                torch.cat(pair)
                for pair in zip(real_inputs, self.analysis.for_discriminators(fake_spectra), strict=True)
            ]
        d, d_norm = self._step_discriminators(real, fake, both)
        with torch.no_grad():
            real_outputs = self.discriminators(real, real_inputs)
        fake_outputs = self.discriminators(fake, self.analysis.for_discriminators(fake_spectra))
        loss, *mels = self._mel_loss(real_mels, self.analysis.log_mels(fake_spectra))
        g_adv, g_feat = generator_loss(fake_outputs), feature_loss(real_outputs, fake_outputs)
        f0 = self._step_f0(f0_hz, true_f0_hz)
        norm = self.opt_g.step(loss + g_adv + self.plan.feature_weight * g_feat)
        self.ema.update()
        self._note(*mels, *f0, g_adv, g_feat, d, norm, d_norm)

    def discriminator_step(self) -> None:
        """Train the discriminators alone."""
        with torch.no_grad():
            real, fake, _, _ = self._rendered()
            spectra = [self.analysis.for_discriminators(self.analysis.spectra(x)) for x in (real, fake)]
            both = [torch.cat(pair) for pair in zip(*spectra, strict=True)]
        d, d_norm = self._step_discriminators(real, fake, both)
        zeros = [self.zero] * (len(STATS) - 3)
        self._note(*zeros, d, self.zero, d_norm)

    def _step_discriminators(self, real: Tensor, fake: Tensor, both: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the loss and the norm of its gradient. both: spectra of the recorded and the rendered windows."""
        outputs = self.discriminators(torch.cat([real, fake.detach()]), both)
        logits = [s.chunk(2) for s, _ in outputs]
        d = discriminator_loss([(r, []) for r, _ in logits], [(f, []) for _, f in logits])
        return d, self.opt_d.step(d)

    def _step_f0(self, f0_hz: Tensor, true_f0_hz: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss = f0_loss(f0_hz, true_f0_hz)
        self.opt_f0.step(loss)
        return loss, voicing_error(f0_hz, true_f0_hz), pitch_error(f0_hz, true_f0_hz)

    def _note(self, *values: Tensor) -> None:
        self.stats.add_(torch.stack([v.detach() for v in values]))

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "ema": self.ema.named(self.net),
            "discriminators": self.discriminators.state_dict(),
            "opt_f0": self.opt_f0.state_dict(),
            "opt_g": self.opt_g.state_dict(),
            "opt_d": self.opt_d.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        for name, average in self.ema.named(self.net).items():
            average.copy_(state["ema"][name])
        self.discriminators.load_state_dict(state["discriminators"])
        for name in ("opt_f0", "opt_g", "opt_d"):
            getattr(self, name).load_state_dict(state[name])
        self.generator.set_state(state["generator"].cpu())


def _checked(mels: NDArray[np.float16], bank: AudioBank) -> NDArray[np.float16]:
    if mels.shape != (len(bank.f0_hz), FLOW_MEL.bands):
        raise ConfigError(
            "the given mels do not match the bank",
            got=f"shape {mels.shape}",
            allowed=f"({len(bank.f0_hz)}, {FLOW_MEL.bands}), one row per frame of the bank",
            fix="Render them again from the same bank.",
        )
    return np.ascontiguousarray(mels)
