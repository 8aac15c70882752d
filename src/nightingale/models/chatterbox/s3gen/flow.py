"""The flow: encodes speech tokens once, then integrates noise to mel."""

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
from nightingale.models.layers.streaming_state import StreamingState

GUIDANCE = 0.7
GUIDED_STEPS = 10
MEANFLOW_STEPS = 2


class Flow(nn.Module):
    """Speech tokens and noise to mel. It keeps no state between calls."""

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
        lookahead: int = 0,
        state: StreamingState | None = None,
    ) -> Tensor:
        """Encode ids (batch, tokens) to mu (batch, mel, 2·tokens), without the last `lookahead` tokens."""
        x = self.input_embedding(ids)
        if valid is not None:
            x = x * valid[..., None]
        return self.encoder_proj(self.encoder(x, valid, blocks, lookahead=lookahead, state=state)).transpose(
            1, 2
        )

    def speaker(self, vector: Tensor) -> Tensor:
        """Project a speaker vector: (batch, speaker_width) -> (batch, mel)."""
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
        state: StreamingState | None = None,
    ) -> Tensor:
        """Return the velocity: averaged over the step for a meanflow, with guidance otherwise."""
        estimator = self.decoder["estimator"]
        if self.config.meanflow:
            t, r = t.expand(len(x)), r.expand(len(x))
            velocity: Tensor = estimator(
                x, mu=mu, speaker=speaker, cond=cond, t=t, r=r, mask=mask, state=state
            )
            return velocity

        def with_zeros(y: Tensor) -> Tensor:
            return torch.cat([y, torch.zeros_like(y)])

        both = estimator(
            torch.cat([x, x]),
            mu=with_zeros(mu),
            speaker=with_zeros(speaker),
            cond=with_zeros(cond),
            t=t.expand(2 * len(x)),
            mask=mask if mask is None or len(mask) == 1 else torch.cat([mask, mask]),
            state=state,
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
        """Render everything after the prompt: (batch, mel, 2·tokens - prompt frames).

        Args:
            ids: (batch, tokens), the prompt's tokens first.
            prompt_mel: (batch, mel, prompt frames).
            speaker: (batch, speaker_width).
            noise: (batch, mel, 2·tokens), addressed by absolute frame.
            steps: Solver steps; None takes the model's default.
            valid: (batch, tokens), false on padding.
            blocks: Streaming blocks, see `attention_mask`.
        """
        mu = self.encode(ids, valid, blocks)
        cond = F.pad(self.normalize_mel(prompt_mel), (0, mu.shape[2] - prompt_mel.shape[2]))
        mask = attention_mask(
            None if valid is None else valid.repeat_interleave(2, dim=1),
            None if blocks is None else blocks.repeat_interleave(2, dim=1),
            self.config.left_context,
        )
        mel = self.solve(noise, mu=mu, speaker=self.speaker(speaker), cond=cond, steps=steps, mask=mask)
        return self.denormalize_mel(mel[:, :, prompt_mel.shape[2] :])

    def solve(
        self,
        noise: Tensor,
        *,
        mu: Tensor,
        speaker: Tensor,
        cond: Tensor,
        steps: int | None = None,
        mask: Tensor | None = None,
        states: Sequence[StreamingState | None] | None = None,
    ) -> Tensor:
        """Integrate noise to normalized mel; a stream has one state for each step."""
        steps = steps or self.steps
        times = (linear_times if self.config.meanflow else cosine_times)(steps)
        state = iter(states or [None] * steps)
        return integrate(
            lambda x, t, r: self.estimate(
                x, mu=mu, speaker=speaker, cond=cond, t=t, r=r, mask=mask, state=next(state)
            ),
            noise * self.config.noise_scale,
            times,
        )

    @property
    def steps(self) -> int:
        """The default number of solver steps."""
        return MEANFLOW_STEPS if self.config.meanflow else GUIDED_STEPS

    def normalize_mel(self, mel: Tensor) -> Tensor:
        return (mel - self.config.mel_mean) / self.config.mel_std

    def denormalize_mel(self, mel: Tensor) -> Tensor:
        return mel * self.config.mel_std + self.config.mel_mean
