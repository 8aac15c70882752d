"""Speech ids to mel: encode the tokens once, then move noise along the flow."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES, FlowConfig
from nightingale.models.chatterbox.s3gen.estimator import Estimator
from nightingale.models.chatterbox.s3gen.solver import cosine_times, integrate, linear_times
from nightingale.models.chatterbox.s3gen.token_encoder import TokenEncoder
from nightingale.models.layers.masks import attention_mask
from nightingale.models.layers.streaming_state import Carry

GUIDANCE = 0.7
GUIDED_STEPS = 10
MEANFLOW_STEPS = 2


class Flow(nn.Module):
    """The flow's weights. Noise is an argument; nothing here remembers a call."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.input_embedding = nn.Embedding(SPEECH_CODES, config.encoder_width)
        self.spk_embed_affine_layer = nn.Linear(config.speaker_width, config.mel_bands)
        self.encoder = TokenEncoder(config)
        self.encoder_proj = nn.Linear(config.encoder_width, config.mel_bands)
        self.decoder = nn.ModuleDict({"estimator": Estimator(config)})

    def encode(
        self,
        ids: Tensor,
        valid: Tensor | None = None,
        blocks: Tensor | None = None,
        *,
        ahead: int = 0,
        carry: Carry | None = None,
    ) -> Tensor:
        """(batch, tokens) ids below SPEECH_CODES -> mu (batch, mel, 2·tokens), without the last `ahead`."""
        x = self.input_embedding(ids)
        if valid is not None:
            x = x * valid[..., None]
        return self.encoder_proj(self.encoder(x, valid, blocks, ahead=ahead, carry=carry)).transpose(1, 2)

    def speaker(self, vector: Tensor) -> Tensor:
        """(batch, speaker_width) -> (batch, mel)."""
        return self.spk_embed_affine_layer(F.normalize(vector, dim=1))

    def estimate(
        self,
        x: Tensor,
        *,
        mu: Tensor,
        speaker: Tensor,
        cond: Tensor,
        t: Tensor,
        r: Tensor,
        mask: Tensor | None,
        carry: Carry | None = None,
    ) -> Tensor:
        """One velocity: averaged over the step for a meanflow, guided for a plain one."""
        estimator = self.decoder["estimator"]
        if self.config.meanflow:
            t, r = t.expand(len(x)), r.expand(len(x))
            velocity: Tensor = estimator(
                x, mu=mu, speaker=speaker, cond=cond, t=t, r=r, mask=mask, carry=carry
            )
            return velocity

        def with_none(y: Tensor) -> Tensor:
            return torch.cat([y, torch.zeros_like(y)])

        both = estimator(
            torch.cat([x, x]),
            mu=with_none(mu),
            speaker=with_none(speaker),
            cond=with_none(cond),
            t=t.expand(2 * len(x)),
            mask=mask if mask is None or len(mask) == 1 else torch.cat([mask, mask]),
            carry=carry,
        )
        guided, free = both.chunk(2)
        return (1 + GUIDANCE) * guided - GUIDANCE * free

    def forward(
        self,
        ids: Tensor,
        *,
        prompt_mel: Tensor,
        speaker: Tensor,
        noise: Tensor,
        steps: int | None = None,
        valid: Tensor | None = None,
        blocks: Tensor | None = None,
    ) -> Tensor:
        """Mel of everything after the prompt: (batch, mel, 2·tokens - prompt frames).

        ids: (batch, tokens), the prompt's tokens first; prompt_mel: (batch, mel, prompt frames);
        noise: (batch, mel, 2·tokens), addressed by absolute frame.
        """
        mu, spoken = self.encode(ids, valid, blocks), self.speaker(speaker)
        cond = F.pad(self.scaled(prompt_mel), (0, mu.shape[2] - prompt_mel.shape[2]))
        mask = attention_mask(
            None if valid is None else valid.repeat_interleave(2, dim=1),
            None if blocks is None else blocks.repeat_interleave(2, dim=1),
            self.config.remembered,
        )
        mel = self.solve(noise, mu=mu, speaker=spoken, cond=cond, steps=steps, mask=mask)
        return self.unscaled(mel[:, :, prompt_mel.shape[2] :])

    def solve(
        self,
        noise: Tensor,
        *,
        mu: Tensor,
        speaker: Tensor,
        cond: Tensor,
        steps: int | None = None,
        mask: Tensor | None = None,
        carries: Sequence[Carry | None] | None = None,
    ) -> Tensor:
        """Noise moved to scaled mel. `carries`: one for each step, where the frames continue a stream."""
        steps = steps or self.steps
        times = (linear_times if self.config.meanflow else cosine_times)(steps)
        turn = iter(carries or [None] * steps)
        return integrate(
            lambda x, t, r: self.estimate(
                x, mu=mu, speaker=speaker, cond=cond, t=t, r=r, mask=mask, carry=next(turn)
            ),
            noise * self.config.noise_scale,
            times,
        )

    @property
    def steps(self) -> int:
        """How many steps this flow takes unless told otherwise."""
        return MEANFLOW_STEPS if self.config.meanflow else GUIDED_STEPS

    def scaled(self, mel: Tensor) -> Tensor:
        return (mel - self.config.mel_mean) / self.config.mel_std

    def unscaled(self, mel: Tensor) -> Tensor:
        return mel * self.config.mel_std + self.config.mel_mean
