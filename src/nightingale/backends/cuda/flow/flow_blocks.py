"""A streamed flow in CUDA graphs: blocks of a few sizes, of one utterance or several in one voice.

Only for a bidirectional flow, whose blocks attend to the voice's prompt and to a few tokens of context: its
state has a fixed size. One graph serves all voices whose prompts fit a bucket: keys and values of the prompt
are copied to buffers that the graph reads, padded at their start with positions that are masked. It also
serves the last block of an utterance, which is shorter: frames beyond its end are masked too.

Reference: `render_block` in models/chatterbox/s3gen/flow.py gives the same mel, to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from nightingale.backends.cuda.flow.flow_steps import FRAMES, FlowSteps, VoicePromptCache
from nightingale.backends.cuda.graphs import GraphCache, GraphedFunction, GraphMode, bucket_for
from nightingale.backends.cuda.random import normal
from nightingale.backends.cuda.triton_support import KernelChoice, TritonKernels
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.s3gen.token_encoder import run_layers
from nightingale.models.layers.streaming_state import SavedState, StreamingState


class _PromptState(StreamingState):
    """A state whose keys and values are the prompt's, shared by all utterances and not saved again."""

    def prepend_kv(self, x: Tensor) -> Tensor:
        assert self._past is not None
        past = self._past.pop()  # (1 or 2, heads, positions, width); x has that many rows per utterance
        own = x.reshape(len(past), -1, *x.shape[1:])
        shared = past[:, None].expand(-1, own.shape[1], -1, -1, -1)
        return torch.cat([shared, own], dim=-2).flatten(0, 1)


class FlowBlocks:
    """Blocks of utterances in one voice at a time.

    context: tokens of a block with which the next one starts again; tokens: the sizes of blocks; batches,
    prompts: buckets of utterances and of prompt tokens; kernels: "auto" is Triton on a GPU in bfloat16.
    """

    @torch.no_grad()
    def __init__(
        self,
        steps: FlowSteps,
        *,
        context: int,
        tokens: tuple[int, ...],
        batches: tuple[int, ...],
        prompts: tuple[int, ...] = (64, 128, 256, 512),
        mode: GraphMode | None = None,
        kernels: KernelChoice = "auto",
    ) -> None:
        if steps.flow.config.block_causal:
            raise ConfigError(
                "the state of a block-causal flow grows with each block", fix="Use the torch backend."
            )
        self.steps, self.context = steps, context
        self.tokens, self.batches, self.prompts = tokens, batches, prompts

        def load() -> Any:
            from nightingale.backends.cuda.flow.fused_estimator import FusedEstimator

            return FusedEstimator(steps)

        in_bf16 = steps.device.type == "cuda" and steps.precision == torch.bfloat16
        self.kernels = TritonKernels[Any](kernels, load, part="the flow", default=in_bf16)
        self._buffers: dict[int, list[Tensor]] = {}
        self._loaded: dict[int, VoicePromptCache] = {}
        self._graphs: GraphCache[tuple[Tensor, Tensor]] = GraphCache(steps.device, mode)

    @torch.inference_mode()
    def capture(self, prompt: VoicePromptCache) -> None:
        """Capture every size of block and batch for prompts as long as this one."""
        bucket = self._load(prompt)
        for tokens in self.tokens:
            for batch in self.batches:
                self._graph(bucket, tokens, batch, prompt)

    @torch.inference_mode()
    def __call__(self, prompt: VoicePromptCache, ids: Tensor, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mel (batch, bands, 2 · tokens) and the next `conv_state`, valid until the next call.

        Args:
            prompt: The voice's.
            ids: (batch, tokens + LOOKAHEAD_TOKENS).
            inputs: lengths (batch,), the number of real ids, fewer than all in the last block; cond (batch,
                bands, 2 · tokens), normalized mel, zero in frames that are not the prompt's; speaker (batch,
                width); key (batch,) of the noise; first_frame (batch,) of the block, by which the noise is
                addressed; conv_state (batch, values).
        """
        count, tokens = len(ids), ids.shape[1] - LOOKAHEAD_TOKENS
        if tokens not in self.tokens:
            raise ConfigError(
                "no graph was captured for a block of this size",
                got=f"{tokens} tokens",
                allowed=", ".join(map(str, self.tokens)),
                fix="Pad the block to one of these, and pass its length.",
            )
        bucket = self._load(prompt)
        batch = bucket_for(count, self.batches, what="utterances")
        padding = torch.full((1,), bucket - prompt.tokens, device=self.steps.device)
        mel, saved = self._graph(bucket, tokens, batch, prompt)(ids=ids, padding=padding, **inputs)
        return mel[:count], saved[:count]

    def _load(self, prompt: VoicePromptCache) -> int:
        """Copy the prompt to the buffers of its bucket, unless it is there; return the bucket."""
        bucket = bucket_for(prompt.tokens, self.prompts, what="tokens of the prompt")
        if self._loaded.get(bucket) is prompt:
            return bucket
        if bucket not in self._buffers:
            self._buffers[bucket] = [
                t.new_zeros(*t.shape[:2], t.shape[2] // prompt.tokens * bucket, t.shape[3])
                for t in prompt.keys_values
            ]
        # The start, which is masked, keeps finite values of an earlier voice.
        ends = [
            b[:, :, -t.shape[2] :] for b, t in zip(self._buffers[bucket], prompt.keys_values, strict=True)
        ]
        torch._foreach_copy_(ends, list(prompt.keys_values))
        self._loaded[bucket] = prompt
        return bucket

    def _graph(
        self, bucket: int, tokens: int, batch: int, prompt: VoicePromptCache
    ) -> GraphedFunction[tuple[Tensor, Tensor]]:
        size = (bucket, tokens, batch)
        if size not in self._graphs:
            config, dtype, buffers = self.steps.flow.config, self.steps.dtype, self._buffers[bucket]
            inputs = {
                "ids": torch.zeros(batch, tokens + LOOKAHEAD_TOKENS, dtype=torch.int64),
                "lengths": torch.full((batch,), tokens + LOOKAHEAD_TOKENS),
                "padding": torch.zeros(1, dtype=torch.int64),
                "cond": torch.zeros(batch, config.mel_bands, FRAMES * tokens, dtype=dtype),
                "speaker": torch.ones(batch, config.speaker_width, dtype=dtype),
                "key": torch.zeros(batch, dtype=torch.int64),
                "first_frame": torch.zeros(batch, dtype=torch.int64),
                "conv_state": prompt.conv_state.expand(batch, -1).contiguous(),
            }

            def capture() -> None:
                name = f"flow, {batch} blocks of {tokens} tokens after {bucket}, {self.kernels.name}"
                self._graphs.capture(
                    size, name, partial(self._render, buffers, prompt.shapes, bucket), inputs
                )

            self.kernels.retry(capture)
        return self._graphs[size]

    def _render(
        self,
        buffers: Sequence[Tensor],
        shapes: Sequence[Sequence[tuple[int, ...]]],
        bucket: int,
        ids: Tensor,
        lengths: Tensor,
        padding: Tensor,
        cond: Tensor,
        speaker: Tensor,
        key: Tensor,
        first_frame: Tensor,
        conv_state: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Render a bucket: the function that is captured. padding: (1,), masked tokens of the bucket."""
        steps, flow, fused = self.steps, self.steps.flow, self.kernels.loaded
        tokens = ids.shape[1] - LOOKAHEAD_TOKENS
        advance = Fraction(tokens - self.context, tokens)
        pasts, offsets = self._pasts(buffers, shapes, conv_state)
        states = [_PromptState(past, advance=advance) for past in pasts[: 1 if fused else None]]
        at = torch.arange(-bucket, tokens, device=ids.device)
        seen = (at >= padding - bucket) & (at < lengths[:, None])  # (batch, bucket + tokens)
        mu = _encode(steps, ids, lengths, seen, states[0])
        noise = normal(key, first_frame, cond.shape[2], cond.shape[1]).to(cond.dtype)
        given = steps.join_inputs(mu, speaker, cond)
        if fused is not None:
            saved = torch.empty_like(conv_state)
            mel = fused.solve(
                noise,
                given,
                lengths=lengths,
                padding=padding,
                conv_state=conv_state,
                next_conv_state=saved,
                offsets=iter(offsets),
                next_start=FRAMES * (tokens - self.context),
                keys_values=chain.from_iterable(pasts[1:]),
            )
            encoder = _flat(states[0].saved(), len(ids), cond.dtype)
            saved[:, : encoder.shape[1]] = encoder
            return flow.denormalize_mel(mel), saved
        frames = seen.repeat_interleave(FRAMES, dim=1)[:, None, None]
        # An additive mask, once for all layers and steps: each would convert a boolean one.
        mask = torch.zeros(frames.shape, dtype=steps.precision, device=ids.device)
        mask = mask.masked_fill(~frames, -torch.inf)
        mel = steps.solve(noise, given, mask, states[1:])
        return flow.denormalize_mel(mel), _flat([t for s in states for t in s.saved()], len(ids), cond.dtype)

    def _pasts(
        self, buffers: Sequence[Tensor], shapes: Sequence[Sequence[tuple[int, ...]]], conv_state: Tensor
    ) -> tuple[list[SavedState], list[int]]:
        """Return the past of the encoder and of each step, and where the steps' convolutions have theirs.

        Conditional rows come first in a batch.
        """
        keys_values, start, batch = iter(buffers), 0, len(conv_state)
        pasts: list[SavedState] = []
        offsets: list[int] = []
        for number, saved in enumerate(shapes):
            past = []
            for shape in saved:
                if len(shape) == 4:
                    past.append(next(keys_values))
                    continue
                size = shape[0] * shape[1] * shape[2]
                own = conv_state[:, start : start + size].view(batch, *shape).transpose(0, 1).flatten(0, 1)
                if number > 0:
                    offsets.append(start)
                start += size
                if number == 0 or self.kernels.loaded is None:  # else the kernels read it in place
                    past.append(own.to(self.steps.dtype if number == 0 else self.steps.precision))
            pasts.append(tuple(past))
        return pasts, offsets


def _flat(saved: Sequence[Tensor], batch: int, dtype: torch.dtype) -> Tensor:
    """Return the inputs that convolutions saved, concatenated for each utterance: (batch, values)."""
    own = [t.to(dtype).view(-1, batch, *t.shape[1:]).transpose(0, 1).reshape(batch, -1) for t in saved]
    return torch.cat(own, dim=1)


def _encode(steps: FlowSteps, ids: Tensor, lengths: Tensor, seen: Tensor, state: StreamingState) -> Tensor:
    """Run `Flow.encode` with a mask `seen` (batch, keys) over the prompt and the block."""
    flow, encoder = steps.flow, steps.flow.encoder
    real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    # Beyond the end the look-ahead reads zeros, as it does at the end of a sequence.
    x = encoder.embed(flow.input_embedding(ids)) * real[..., None]
    x = encoder.pre_lookahead_layer(x, lookahead=LOOKAHEAD_TOKENS, state=state)
    x = run_layers(encoder.encoders, x, seen[:, None, None], state)
    x = encoder.up_embed(encoder.up_layer(x, state))
    x = run_layers(encoder.up_encoders, x, seen.repeat_interleave(FRAMES, dim=1)[:, None, None], state)
    mu: Tensor = flow.encoder_proj(encoder.after_norm(x)).transpose(1, 2)
    return mu
