"""The flow on MLX: speech tokens to mel, block by block. The whole is one block, first and last.

The counterpart of models/chatterbox/s3gen/flow.py. Sequences are (batch, time, channels); a guided flow has a
second row without conditions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import mlx.core as mx

from nightingale.backends.mlx.arrays import named_arrays, take_linear
from nightingale.backends.mlx.rendering.flow_encoder import FlowEncoder
from nightingale.backends.mlx.rendering.flow_estimator import FlowEstimator
from nightingale.backends.mlx.rendering.flow_state import BlockState, FlowPast, SavedArrays
from nightingale.backends.mlx.weight_files import NetworkWeights
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES, FlowConfig

GUIDANCE = 0.7
GUIDED_STEPS = 10
MEANFLOW_STEPS = 2


class MlxFlow:
    """The flow's weights. It keeps no state between calls."""

    def __init__(self, config: FlowConfig, weights: NetworkWeights, *, steps: int | None = None) -> None:
        """steps: of the solver; None for upstream's number."""
        self.config = config
        self.steps = steps or (MEANFLOW_STEPS if config.meanflow else GUIDED_STEPS)
        self.times = (linear_times if config.meanflow else cosine_times)(self.steps)
        self.tokens = weights.take("input_embedding.weight", SPEECH_CODES, config.encoder_width)
        self.speaker = take_linear(weights, "spk_embed_affine_layer", config.speaker_width, config.mel_bands)
        self.encoder = FlowEncoder(config, weights)
        self.projection = take_linear(weights, "encoder_proj", config.encoder_width, config.mel_bands)
        self.estimator = FlowEstimator(config, weights, self.times)
        parts = {"encoder": vars(self.encoder), "estimator": vars(self.estimator)}
        weights.finish(named_arrays({**vars(self), **parts}))

    def render_block(
        self,
        ids: Sequence[int],
        *,
        lookahead: int,
        prompt_mel: mx.array,
        speaker: mx.array,
        noise: mx.array,
        past: FlowPast | None,
        advance: Fraction = Fraction(1),
        store: bool = True,
    ) -> tuple[mx.array, FlowPast]:
        """Render one block; return its mel (1, 2·tokens, bands) and the past of the next block.

        `ids` end with `lookahead` tokens that are not rendered; `prompt_mel` (frames, bands) has those of the
        block's first frames that belong to the prompt; `speaker` is (speaker_width,), `noise` (frames, bands).
        `advance` and `store` are those of `BlockState`. All of a block attends to all of it and to the past.
        """

        def state(saved: SavedArrays | None) -> BlockState:
            limit = self.config.left_context
            return BlockState(saved, advance=advance, store=store, max_positions=limit)

        encoder = state(past.encoder if past else None)
        steps = [state(saved) for saved in (past.steps if past else (None,) * self.steps)]
        x = self.tokens[mx.array(list(ids), mx.int32)][None]
        mu = self.projection(self.encoder(x, lookahead=lookahead, state=encoder))
        mel = self._solve(mu, prompt_mel, speaker, noise, steps)
        return mel, FlowPast(encoder.saved(), tuple(step.saved() for step in steps))

    def _solve(
        self,
        mu: mx.array,
        prompt_mel: mx.array,
        speaker: mx.array,
        noise: mx.array,
        states: Sequence[BlockState],
    ) -> mx.array:
        """Integrate noise to mel with Euler's method, with one state for each step."""
        config, frames = self.config, mu.shape[1]
        known = (prompt_mel - config.mel_mean) / config.mel_std
        cond = mx.pad(known, [(0, frames - len(known)), (0, 0)])[None]
        vector = self.speaker((speaker / mx.maximum(mx.linalg.norm(speaker), 1e-12))[None, None])
        fixed = mx.concatenate([mu, mx.broadcast_to(vector, mu.shape), cond], axis=-1)
        if not config.meanflow:
            fixed = mx.concatenate([fixed, mx.zeros_like(fixed)])
        x = noise[None] * config.noise_scale
        for step, state in enumerate(states):
            rows = mx.broadcast_to(x, (len(fixed), *x.shape[1:]))
            velocity = self.estimator(mx.concatenate([rows, fixed], axis=-1), step, state)
            if not config.meanflow:
                velocity = (1 + GUIDANCE) * velocity[:1] - GUIDANCE * velocity[1:]
            x = x + (self.times[step + 1] - self.times[step]) * velocity
        return x * config.mel_std + config.mel_mean


def cosine_times(steps: int) -> list[float]:
    """Return times with fine steps early, where the guided flow changes direction most."""
    return [1 - math.cos(0.5 * math.pi * i / steps) for i in range(steps + 1)]


def linear_times(steps: int) -> list[float]:
    return [i / steps for i in range(steps + 1)]
