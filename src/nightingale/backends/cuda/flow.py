"""The flow as graphs: encoder and all solver steps in one, for a bucket of tokens or a piece of a stream.

What the plain flow (models/chatterbox/s3gen) computes again at each step and need not is computed once: the
time embeddings, which depend on nothing but the number of steps; everything that the network sees besides x.
The times are tensors made beforehand, so the loop never brings a number from the host.

precision: the estimator, in which nearly all the work is, may run in bfloat16; the encoder, the time
embeddings and the sum along the steps stay in float32. How much that changes is for the quality gate to say.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nightingale.backends.cuda.graphs import GraphReport, How, Replay, bucket_for, how_on
from nightingale.backends.cuda.random import normal
from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.s3gen.estimator import Estimator
from nightingale.models.chatterbox.s3gen.flow import GUIDANCE, Flow
from nightingale.models.chatterbox.s3gen.solver import cosine_times, linear_times
from nightingale.models.layers.masks import attention_mask
from nightingale.models.layers.streaming_state import SavedState, StreamingState

FRAMES = CLOCKS.frames_per_token


class FlowSteps:
    """The solver's steps of one flow, ready to be recorded."""

    @torch.no_grad()
    def __init__(
        self,
        flow: Flow,
        *,
        steps: int | None = None,
        precision: torch.dtype | None = None,
        compile_mode: str | None = None,
    ) -> None:
        """precision: the estimator's; None leaves it in the flow's. compile_mode: a mode of torch.compile for
        the estimator's transformer blocks, or None."""
        weight = flow.encoder_proj.weight
        self.device, self.dtype = weight.device, weight.dtype
        self.flow, self.precision = flow, precision or self.dtype
        self.compiled = compile_mode is not None
        self.guided = not flow.config.meanflow
        self.count = steps or flow.steps
        times = (cosine_times if self.guided else linear_times)(self.count)
        grid = torch.tensor(times, dtype=self.dtype, device=self.device)
        self.widths = grid.diff()
        estimator = flow.decoder["estimator"]
        assert isinstance(estimator, Estimator)
        embedded = estimator.time_mlp(grid)
        self.times = embedded[:-1]
        if not self.guided:
            self.times = estimator.time_embed_mixer(torch.cat([embedded[:-1], embedded[1:]], dim=1))
        self.times = self.times.to(self.precision)[:, None]  # (steps, 1, width)
        self.estimator = estimator
        if self.precision != self.dtype or compile_mode is not None:
            # A copy: the plain path keeps its own.
            self.estimator = copy.deepcopy(estimator).to(self.precision)
        if compile_mode is not None:
            for stage in (*self.estimator.down_blocks, *self.estimator.mid_blocks, *self.estimator.up_blocks):
                for block in stage[1]:
                    block.compile(mode=compile_mode, dynamic=False)

    def solve(
        self,
        noise: Tensor,
        *,
        mu: Tensor,
        speaker: Tensor,
        cond: Tensor,
        mask: Tensor | None = None,
        states: Sequence[StreamingState | None] | None = None,
    ) -> Tensor:
        """As `Flow.solve`: noise (batch, mel, frames) moved to scaled mel."""
        seen = torch.cat([mu, speaker[..., None].expand_as(mu), cond], dim=1)
        if self.guided:
            seen = torch.cat([seen, torch.zeros_like(seen)])
            if mask is not None and len(mask) > 1:
                mask = torch.cat([mask, mask])
        seen = seen.to(self.precision)
        x = noise * self.flow.config.noise_scale
        for step, state in enumerate(states or [None] * self.count):
            x = x + self.widths[step] * self._velocity(x, seen, self.times[step], mask, state)
        return x

    def _velocity(
        self, x: Tensor, seen: Tensor, time: Tensor, mask: Tensor | None, state: StreamingState | None
    ) -> Tensor:
        net = self.estimator
        given = torch.cat([x, x]) if self.guided else x
        h = torch.cat([given.to(self.precision), seen], dim=1)
        down, up = net.down_blocks[0], net.up_blocks[0]
        skip = down(h, time, mask, state)
        h = down[2](skip, state)  # type: ignore[index]
        for stage in net.mid_blocks:
            h = stage(h, time, mask, state)
        h = up[2](up(torch.cat([h, skip], dim=1), time, mask, state), state)  # type: ignore[index]
        velocity: Tensor = net.final_proj(net.final_block(h, state)).to(x.dtype)
        if not self.guided:
            return velocity
        told, free = velocity.chunk(2)
        return (1 + GUIDANCE) * told - GUIDANCE * free


def flow_noise(key: Tensor, first_frame: Tensor, frames: int, bands: int) -> Tensor:
    """(batch, bands, frames) of noise, by the number of the frame, counted from the prompt's first."""
    return normal(key, first_frame, frames, bands)


class WholeFlow:
    """Ids to mel, an utterance at a time or several: one graph for each bucket of (utterances, tokens)."""

    def __init__(
        self,
        steps: FlowSteps,
        *,
        batches: tuple[int, ...] = (1, 2, 4, 8, 16),
        tokens: tuple[int, ...] = (128, 192, 256, 320, 384, 512, 768, 1280),
        how: How | None = None,
    ) -> None:
        self.steps, self.flow, self.batches, self.tokens = steps, steps.flow, batches, tokens
        self.how: How = how or how_on(steps.device)
        self._graphs: dict[tuple[int, int], Replay[Tensor]] = {}
        self._pool: Any = torch.cuda.graph_pool_handle() if self.how == "graph" else None

    @property
    def reports(self) -> list[GraphReport]:
        return [graph.report for graph in self._graphs.values()]

    @torch.inference_mode()
    def __call__(
        self,
        ids: Tensor,
        lengths: Tensor,
        *,
        prompt_mel: Tensor,
        prompt_frames: Tensor,
        speaker: Tensor,
        key: Tensor,
    ) -> Tensor:
        """Mel (batch, bands, 2 · tokens), the prompt's included; it lives until the next call.

        ids: (batch, tokens), the prompt's first; lengths: (batch,), how many are real; prompt_mel: (batch,
        bands, frames), of which each row's first `prompt_frames` (batch,) are real; speaker: (batch, width);
        key: (batch,), of the noise.
        """
        batch = bucket_for(len(ids), self.batches, what="utterances")
        tokens = bucket_for(ids.shape[1], self.tokens, what="tokens, prompt included")
        more = batch - len(ids)
        beyond = torch.arange(prompt_mel.shape[2], device=self.steps.device) >= prompt_frames[:, None, None]
        cond = self.flow.normalize_mel(prompt_mel).masked_fill(beyond, 0.0)
        mel = self._graph(batch, tokens)(
            ids=F.pad(ids, (0, tokens - ids.shape[1], 0, more)),
            # A row of padding reads one token, so that its attention has something to look at.
            lengths=F.pad(lengths, (0, more), value=1),
            cond=F.pad(cond, (0, FRAMES * tokens - cond.shape[2], 0, 0, 0, more)),
            speaker=F.pad(speaker, (0, 0, 0, more)),
            key=F.pad(key, (0, more)),
        )
        return mel[: len(ids), :, : FRAMES * ids.shape[1]]

    def _graph(self, batch: int, tokens: int) -> Replay[Tensor]:
        if (batch, tokens) not in self._graphs:
            config, dtype = self.flow.config, self.steps.dtype
            self._graphs[batch, tokens] = Replay(
                f"flow, {batch} of {tokens} tokens",
                self.render,
                {
                    "ids": torch.zeros(batch, tokens, dtype=torch.int64),
                    "lengths": torch.full((batch,), tokens),
                    "cond": torch.zeros(batch, config.mel_bands, FRAMES * tokens, dtype=dtype),
                    "speaker": torch.ones(batch, config.speaker_width, dtype=dtype),
                    "key": torch.zeros(batch, dtype=torch.int64),
                },
                how=self.how,
                device=self.steps.device,
                pool=self._pool,
            )
        return self._graphs[batch, tokens]

    def render(self, ids: Tensor, lengths: Tensor, cond: Tensor, speaker: Tensor, key: Tensor) -> Tensor:
        """What is recorded."""
        flow, frames = self.flow, FRAMES * ids.shape[1]
        valid = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        heard = torch.arange(frames, device=ids.device) < FRAMES * lengths[:, None]
        noise = flow_noise(key, torch.zeros_like(lengths), frames, flow.config.mel_bands)
        mel = self.steps.solve(
            noise.to(cond.dtype),
            mu=flow.encode(ids, valid),
            speaker=flow.speaker(speaker),
            cond=cond,
            mask=attention_mask(heard, None),
        )
        return flow.denormalize_mel(mel)


def piece(
    steps: FlowSteps,
    ids: Tensor,
    cond: Tensor,
    noise: Tensor,
    speaker: Tensor,
    pasts: Sequence[SavedState] | None,
    *,
    ahead: int,
    advance: Fraction,
    remember: bool,
) -> tuple[Tensor, list[SavedState]]:
    """Scaled mel of a piece, and what the next one must know: the encoder's, then each step's.

    The twin of `render_block` in models/chatterbox/s3gen/incremental.py.
    """
    states = [
        StreamingState(None if pasts is None else pasts[i], advance=advance, store=remember)
        for i in range(steps.count + 1)
    ]
    mu = steps.flow.encode(ids, lookahead=ahead, state=states[0])
    mel = steps.solve(noise, mu=mu, speaker=steps.flow.speaker(speaker), cond=cond, states=states[1:])
    return mel, [state.saved() for state in states]
