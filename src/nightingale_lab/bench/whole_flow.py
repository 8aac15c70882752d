"""The flow of whole utterances in CUDA graphs, for benchmarks/gpu.py: the backend renders blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nightingale.backends.cuda.flow.flow_steps import FRAMES, FlowSteps
from nightingale.backends.cuda.graphs import GraphCache, GraphedFunction, GraphMode, bucket_for
from nightingale.backends.cuda.random import normal
from nightingale.models.chatterbox.s3gen.token_encoder import attention_mask


class WholeFlow:
    """Ids to mel, one utterance or several at a time: one graph for each bucket of (utterances, tokens)."""

    def __init__(
        self,
        steps: FlowSteps,
        *,
        batches: tuple[int, ...],
        tokens: tuple[int, ...],
        mode: GraphMode | None = None,
    ) -> None:
        self.steps, self.flow, self.batches, self.tokens = steps, steps.flow, batches, tokens
        self._graphs: GraphCache[Tensor] = GraphCache(steps.device, mode)

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
        """Return mel (batch, bands, 2 · tokens), the prompt's included; it lives until the next call.

        Args:
            ids: (batch, tokens), the prompt's first.
            lengths: (batch,), the number of real ids.
            prompt_mel: (batch, bands, frames).
            prompt_frames: (batch,), the number of real frames in it.
            speaker: (batch, width).
            key: (batch,), of the noise.
        """
        batch = bucket_for(len(ids), self.batches, what="utterances")
        tokens = bucket_for(ids.shape[1], self.tokens, what="tokens, prompt included")
        beyond = torch.arange(prompt_mel.shape[2], device=self.steps.device) >= prompt_frames[:, None, None]
        cond = self.flow.normalize_mel(prompt_mel).masked_fill(beyond, 0.0)
        mel = self._graph(batch, tokens)(
            ids=F.pad(ids, (0, tokens - ids.shape[1])),
            lengths=lengths,
            cond=F.pad(cond, (0, FRAMES * tokens - cond.shape[2])),
            speaker=speaker,
            key=key,
        )
        return mel[: len(ids), :, : FRAMES * ids.shape[1]]

    def _graph(self, batch: int, tokens: int) -> GraphedFunction[Tensor]:
        if (batch, tokens) not in self._graphs:
            config, dtype = self.flow.config, self.steps.dtype
            inputs = {
                "ids": torch.zeros(batch, tokens, dtype=torch.int64),
                "lengths": torch.full((batch,), tokens),
                "cond": torch.zeros(batch, config.mel_bands, FRAMES * tokens, dtype=dtype),
                "speaker": torch.ones(batch, config.speaker_width, dtype=dtype),
                "key": torch.zeros(batch, dtype=torch.int64),
            }
            name = f"flow, {batch} of {tokens} tokens"
            self._graphs.capture((batch, tokens), name, self.render, inputs)
        return self._graphs[batch, tokens]

    def render(self, ids: Tensor, lengths: Tensor, cond: Tensor, speaker: Tensor, key: Tensor) -> Tensor:
        """Render a bucket: the function that is captured."""
        flow, frames = self.flow, FRAMES * ids.shape[1]
        valid = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        valid_frames = torch.arange(frames, device=ids.device) < FRAMES * lengths[:, None]
        noise = normal(key, torch.zeros_like(lengths), frames, flow.config.mel_bands)
        given = self.steps.join_inputs(flow.encode(ids, valid), speaker, cond)
        mel = self.steps.solve(noise.to(cond.dtype), given, attention_mask(valid_frames, None))
        return flow.denormalize_mel(mel)
