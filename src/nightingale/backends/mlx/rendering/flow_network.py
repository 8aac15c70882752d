"""The flow on MLX: speech tokens to mel, block by block. The whole is one block, first and last.

The counterpart of models/chatterbox/s3gen/flow.py. Sequences are (batch, time, channels); a guided flow has a
second row without conditions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import mlx.core as mx

from nightingale.backends.mlx.arrays import CompiledFunctions, compiles, named_arrays, take_linear
from nightingale.backends.mlx.rendering.block_state import BlockState, FlowPast
from nightingale.backends.mlx.rendering.flow_encoder import FlowEncoder
from nightingale.backends.mlx.rendering.flow_estimator import FlowEstimator
from nightingale.backends.mlx.weight_files import NetworkWeights
from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES, FlowConfig

GUIDANCE = 0.7
GUIDED_STEPS = 10
MEANFLOW_STEPS = 2
FRAMES = CLOCKS.frames_per_token
BUCKET_TOKENS = 32
"""The last block of an utterance is padded to a multiple of this where functions are compiled for each size."""


class BlockOptions(NamedTuple):
    """The options, besides shapes, that a function that renders blocks is compiled for."""

    lookahead: int
    advance: Fraction
    store: bool
    continued: bool
    """There is a past."""
    padded: bool


class MlxFlow:
    """The flow's weights. It keeps no state between calls."""

    def __init__(
        self,
        config: FlowConfig,
        weights: NetworkWeights,
        *,
        steps: int | None = None,
        dtype: mx.Dtype = mx.float32,
    ) -> None:
        """steps: of the solver; None for upstream's number. dtype: of the layers; the solver has float32."""
        self.config = config
        self.dtype = weights.dtype = dtype
        self.steps = steps or (MEANFLOW_STEPS if config.meanflow else GUIDED_STEPS)
        self.times = (linear_times if config.meanflow else cosine_times)(self.steps)
        self.tokens = weights.take("input_embedding.weight", SPEECH_CODES, config.encoder_width)
        self.speaker = take_linear(weights, "spk_embed_affine_layer", config.speaker_width, config.mel_bands)
        self.encoder = FlowEncoder(config, weights)
        self.projection = take_linear(weights, "encoder_proj", config.encoder_width, config.mel_bands)
        self.estimator = FlowEstimator(config, weights, self.times)
        parts = {"encoder": vars(self.encoder), "estimator": vars(self.estimator)}
        weights.finish(named_arrays({**vars(self), **parts}))
        self._render = CompiledFunctions(self._render_block)

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
        final: bool = False,
    ) -> tuple[mx.array, FlowPast]:
        """Render one block; return its mel (1, 2·tokens, bands) and the past of the next block.

        `ids` end with `lookahead` tokens that are not rendered; `prompt_mel` (frames, bands) has those of the
        block's first frames that belong to the prompt; `speaker` is (speaker_width,), `noise` (frames, bands).
        `advance` and `store` are those of `BlockState`. All of a block attends to all of it and to the past. The
        last block has any length: where functions are compiled it is padded, and the past is of no use.
        """
        tokens, frames = len(ids), len(noise)
        size = -(-tokens // BUCKET_TOKENS) * BUCKET_TOKENS if final and compiles() else tokens
        known = (prompt_mel - self.config.mel_mean) / self.config.mel_std
        more = size * FRAMES - frames if final else 0
        options = BlockOptions(lookahead, advance, store, past is not None, size != tokens)
        (mel, encoder, steps), _ = self._render(
            options,
            mx.array([*ids, *[0] * (size - tokens)], mx.int32),
            mx.array(tokens),
            mx.pad(known, [(0, frames + more - len(known)), (0, 0)]),
            speaker,
            mx.pad(noise, [(0, more), (0, 0)]),
            list(past.encoder) if past else [],
            [list(saved) for saved in past.steps] if past else [],
        )
        return mel[:, :frames], FlowPast(tuple(encoder), tuple(tuple(saved) for saved in steps))

    def _render_block(
        self,
        options: BlockOptions,
        ids: mx.array,
        tokens: mx.array,
        known: mx.array,
        speaker: mx.array,
        noise: mx.array,
        encoder_past: list[mx.array],
        step_pasts: list[list[mx.array]],
    ) -> tuple[Any, None]:
        def state(saved: list[mx.array] | None) -> BlockState:
            return BlockState(
                None if saved is None else tuple(saved),
                advance=options.advance,
                store=options.store,
                max_positions=self.config.left_context,
                padded=(len(ids), tokens) if options.padded else None,
            )

        encoder = state(encoder_past if options.continued else None)
        steps = [state(saved) for saved in (step_pasts if options.continued else [None] * self.steps)]
        mu = self.projection(self.encoder(self.tokens[ids][None], lookahead=options.lookahead, state=encoder))
        mel = self._solve(mu, known, speaker, noise, steps)
        return (mel, list(encoder.saved()), [list(step.saved()) for step in steps]), None

    def _solve(
        self,
        mu: mx.array,
        known: mx.array,
        speaker: mx.array,
        noise: mx.array,
        states: Sequence[BlockState],
    ) -> mx.array:
        """Integrate noise to mel with Euler's method, with one state for each step."""
        config = self.config
        vector = self.speaker((speaker / mx.maximum(mx.linalg.norm(speaker), 1e-12))[None, None])
        parts = [mu, mx.broadcast_to(vector, mu.shape), known[None]]
        fixed = mx.concatenate([part.astype(self.dtype) for part in parts], axis=-1)
        if not config.meanflow:
            fixed = mx.concatenate([fixed, mx.zeros_like(fixed)])
        x = noise[None] * config.noise_scale
        for step, state in enumerate(states):
            rows = mx.broadcast_to(x.astype(self.dtype), (len(fixed), *x.shape[1:]))
            velocity = self.estimator(mx.concatenate([rows, fixed], axis=-1), step, state)
            velocity = velocity.astype(mx.float32)
            if not config.meanflow:
                velocity = (1 + GUIDANCE) * velocity[:1] - GUIDANCE * velocity[1:]
            x = x + (self.times[step + 1] - self.times[step]) * velocity
        return x * config.mel_std + config.mel_mean


def cosine_times(steps: int) -> list[float]:
    """Return times with fine steps early, where the guided flow changes direction most."""
    return [1 - math.cos(0.5 * math.pi * i / steps) for i in range(steps + 1)]


def linear_times(steps: int) -> list[float]:
    return [i / steps for i in range(steps + 1)]
