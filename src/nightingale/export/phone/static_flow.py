"""The flow with fixed shapes: a block of speech tokens is encoded, then integrated to mel frames.

    conditioning = encode(ids)
    x = 0;  for each solver step:  x = x + length · velocity(x ‖ conditioning, time)

The two are methods of their own, so that the estimator's weights are in memory once. The arithmetic is that of
models/chatterbox/s3gen, over (1, time, channels), with `left_context` cached positions in every attention layer.
Positions that are not filled yet, and tokens after the end of an utterance, are masked. Each cache is an input,
and an output that is the input of the next block; all are zeros at first.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.export.phone.static_layers import (
    MASKED,
    StaticCausalConv,
    StaticLayerNorm,
    StaticMish,
    silu,
    softmax,
)
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.s3gen.estimator import (
    HEAD_WIDTH,
    ConvBlock,
    EstimatorStage,
    ResnetBlock,
    TransformerBlock,
)
from nightingale.models.chatterbox.s3gen.flow import Flow, linear_times
from nightingale.models.chatterbox.s3gen.token_encoder import (
    EncoderBlock,
    EncoderEmbedding,
    distance_encoding,
)

FRAMES = 2
"""Mel frames of a token."""


class PositionCaches:
    """The caches of one call: inputs in the order of the forward pass, outputs in the same order."""

    def __init__(self, past: tuple[Tensor, ...] | None = None) -> None:
        """past: None to record the shapes that a first call needs."""
        self._past = None if past is None else list(reversed(past))
        self.saved: list[Tensor] = []

    def join(self, x: Tensor, size: int) -> Tensor:
        """Return x (rows, time, channels) after the `size` positions before it, and save the last `size`."""
        past = x.new_zeros(x.shape[0], size, x.shape[2]) if self._past is None else self._past.pop()
        joined = torch.cat([past, x], dim=1)
        self.saved.append(joined[:, joined.shape[1] - size :])
        return joined


class StaticAttention(nn.Module):
    """Attention over `reach` cached positions and the block itself; (1, time, width) -> (1, time, width)."""

    def __init__(
        self, q: nn.Linear, k: nn.Linear, v: nn.Linear, out: nn.Linear, heads: int, reach: int
    ) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = q, k, v, out
        self.heads, self.reach = heads, reach
        self.head_width = q.out_features // heads

    def forward(self, x: Tensor, mask: Tensor, caches: PositionCaches) -> Tensor:
        """mask: (1 or time, reach + time)."""
        q = self.split(self.q(x))
        k, v = (caches.join(self.split(project(x)), self.reach) for project in (self.k, self.v))
        scores = self.scores(q, k) + mask
        out = torch.bmm(softmax(scores), v)
        return self.out(out.transpose(0, 1).reshape(1, x.shape[1], -1))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.bmm(q * self.head_width**-0.5, k.transpose(1, 2))

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[1], self.heads, self.head_width).transpose(0, 1)


class StaticRelativeAttention(StaticAttention):
    """Add a score by distance to the score by content. Shapes are fixed, so the distances are constants."""

    distances: Tensor

    def __init__(self, layer: Any, time: int, reach: int) -> None:
        super().__init__(layer.linear_q, layer.linear_k, layer.linear_v, layer.linear_out, layer.heads, reach)
        scale = self.head_width**-0.5
        # Distances from reach + time - 1 down to -time: one more than needed, see `_align`.
        encoded = distance_encoding(
            time + 1, reach + time, layer.linear_pos.in_features, like=layer.pos_bias_u
        )
        table = self.split(layer.linear_pos(encoded).detach()).transpose(1, 2) * scale
        self.register_buffer("distances", table.contiguous())
        self.by_content = nn.Parameter(layer.pos_bias_u.detach()[:, None] * scale, requires_grad=False)
        self.by_distance = nn.Parameter(layer.pos_bias_v.detach()[:, None], requires_grad=False)
        self.scale = scale

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        content = torch.bmm(q * self.scale + self.by_content, k.transpose(1, 2))
        return content + _align(torch.bmm(q + self.by_distance, self.distances), k.shape[1])


def _align(scores: Tensor, keys: int) -> Tensor:
    """Convert scores by distance, farthest first, to scores by key: row i starts at column queries - 1 - i.

    (heads, queries, keys + queries) -> (heads, queries, keys). In memory, score (i, j) is at
    i·(spans - 1) + (queries - 1) + j: rows that are one shorter, from queries - 1 on.
    """
    heads, queries, spans = scores.shape
    flat = scores.reshape(heads, queries * spans)
    first = queries - 1
    rows = flat[:, first : first + queries * (spans - 1)].reshape(heads, queries, spans - 1)
    return rows[..., :keys]


class StaticEncoderBlock(nn.Module):
    """A block of the token encoder."""

    def __init__(self, block: EncoderBlock, time: int, reach: int) -> None:
        super().__init__()
        self.norm_mha, self.norm_ff = StaticLayerNorm(block.norm_mha), StaticLayerNorm(block.norm_ff)
        self.attention = StaticRelativeAttention(block.self_attn, time, reach)
        self.up, self.down = block.feed_forward["w_1"], block.feed_forward["w_2"]

    def forward(self, x: Tensor, mask: Tensor, caches: PositionCaches) -> Tensor:
        x = x + self.attention(self.norm_mha(x), mask, caches)
        return x + self.down(silu(self.up(self.norm_ff(x))))


class StaticTransformer(nn.Module):
    """A transformer block of the estimator."""

    def __init__(self, block: TransformerBlock, reach: int) -> None:
        super().__init__()
        attn: Any = block.attn1
        self.norm1, self.norm3 = StaticLayerNorm(block.norm1), StaticLayerNorm(block.norm3)
        self.attention = StaticAttention(attn.to_q, attn.to_k, attn.to_v, attn.to_out[0], attn.heads, reach)
        assert self.attention.head_width == HEAD_WIDTH
        net: Any = block.ff.net
        self.up, self.down = net["0"]["proj"], net["2"]

    def forward(self, x: Tensor, mask: Tensor, caches: PositionCaches) -> Tensor:
        x = x + self.attention(self.norm1(x), mask, caches)
        return x + self.down(F.gelu(self.up(self.norm3(x))))


class StaticNormedConv(nn.Module):
    """A causal convolution, a norm and Mish."""

    def __init__(self, block: ConvBlock) -> None:
        super().__init__()
        conv, norm = block.block["0"], block.block["2"]
        assert isinstance(conv, nn.Conv1d)
        assert isinstance(norm, nn.LayerNorm)
        self.conv, self.norm, self.activation = StaticCausalConv(conv), StaticLayerNorm(norm), StaticMish()

    def forward(self, x: Tensor, caches: PositionCaches) -> Tensor:
        return self.activation(self.norm(self.conv(caches.join(x, self.conv.taps - 1))))


class StaticStage(nn.Module):
    """A stage of the estimator: a resnet block, transformer blocks and, at the ends of the U, a convolution."""

    times: Tensor

    def __init__(self, stage: EstimatorStage, times: list[Tensor], reach: int) -> None:
        super().__init__()
        resnet, blocks = stage[0], stage[1]
        assert isinstance(resnet, ResnetBlock)
        assert isinstance(blocks, nn.ModuleList)
        self.block1, self.block2 = StaticNormedConv(resnet.block1), StaticNormedConv(resnet.block2)
        self.residual = StaticCausalConv(resnet.res_conv)
        self.blocks = nn.ModuleList(StaticTransformer(block, reach) for block in blocks)  # type: ignore[arg-type]
        self.conv = StaticCausalConv(stage[2]) if len(stage) > 2 else None  # type: ignore[arg-type]
        self.register_buffer("times", torch.cat([resnet.mlp["1"](F.mish(time)).detach() for time in times]))

    def forward(self, x: Tensor, step: Tensor, mask: Tensor, caches: PositionCaches) -> Tensor:
        h = self.block1(x, caches) + self.times.index_select(0, step)
        x = self.block2(h, caches) + self.residual(x)
        for block in self.blocks:
            x = block(x, mask, caches)
        return x

    def close(self, x: Tensor, caches: PositionCaches) -> Tensor:
        """Apply the convolution at the end of the stage."""
        assert self.conv is not None
        return self.conv(caches.join(x, self.conv.taps - 1))


class StaticTokenEncoder(nn.Module):
    """Inputs:

    ids       (1, tokens + 3) int64   speech tokens of the block, and those that are looked ahead to
    known     (1,) int64              how many of them are in the utterance; those after it may be any id
    position  (1,) int64              tokens of the utterance before this block
    speaker   (1, 1, mel)             of the voice
    cache.N                           zeros at first, later the outputs of the previous block

    Outputs: conditioning (1, 2 · tokens, 3 · mel), then the caches.
    """

    def __init__(self, flow: Flow, *, tokens: int) -> None:
        super().__init__()
        config, encoder = flow.config, flow.encoder
        assert config.left_context is not None
        self.tokens, self.reach, self.bands = tokens, config.left_context, config.mel_bands
        self.embedding = flow.input_embedding
        self.embed, self.up_embed = self._embed(encoder.embed), self._embed(encoder.up_embed)
        lookahead: Any = encoder.pre_lookahead_layer
        self.ahead, self.after = StaticCausalConv(lookahead.conv1), StaticCausalConv(lookahead.conv2)
        self.encoders = nn.ModuleList(StaticEncoderBlock(b, tokens, self.reach) for b in encoder.encoders)  # type: ignore[arg-type]
        self.up_conv = StaticCausalConv(encoder.up_layer.conv)
        self.up_encoders = nn.ModuleList(
            StaticEncoderBlock(b, FRAMES * tokens, self.reach)  # type: ignore[arg-type]
            for b in encoder.up_encoders
        )
        self.after_norm, self.project = StaticLayerNorm(encoder.after_norm), flow.encoder_proj
        with torch.no_grad():
            _, *self.start_caches = self(*self._inputs(), record=True)

    @staticmethod
    def _embed(embedding: EncoderEmbedding) -> nn.Sequential:
        linear, norm = embedding.out
        assert isinstance(norm, nn.LayerNorm)
        return nn.Sequential(linear, StaticLayerNorm(norm, embedding.scale))

    def _inputs(self) -> tuple[Tensor, ...]:
        one = torch.zeros(1, dtype=torch.int64)
        ids = torch.zeros(1, self.tokens + LOOKAHEAD_TOKENS, dtype=torch.int64)
        return ids, one, one, torch.zeros(1, 1, self.bands)

    def example(self) -> tuple[Tensor, ...]:
        """Return the inputs of a first block, all zeros."""
        return (*self._inputs(), *(torch.zeros_like(cache) for cache in self.start_caches))

    def names(self) -> tuple[list[str], list[str]]:
        """Return the names of the inputs and of the outputs."""
        caches = [f"cache.{number}" for number in range(len(self.start_caches))]
        return ["ids", "known", "position", "speaker", *caches], ["conditioning", *caches]

    def forward(
        self,
        ids: Tensor,
        known: Tensor,
        position: Tensor,
        speaker: Tensor,
        *past: Tensor,
        record: bool = False,
    ) -> tuple[Tensor, ...]:
        caches = PositionCaches(None if record else past)
        return self.encode(self.embedding(ids), known, position, speaker, caches), *caches.saved

    def encode(
        self, x: Tensor, known: Tensor, position: Tensor, speaker: Tensor, caches: PositionCaches
    ) -> Tensor:
        """Return the conditioning for embedded ids, (1, tokens + 3, width)."""
        # Lookahead past the end of the utterance reads zeros.
        inside = (torch.arange(x.shape[1]) < known).to(torch.float32)[None, :, None]
        x = self.embed(x) * inside
        ahead = F.leaky_relu(self.ahead(x))
        x = x[:, : self.tokens] + self.after(caches.join(ahead, self.after.taps - 1))
        mask = _mask(self.reach, self.tokens, known, position)
        for block in self.encoders:
            x = block(x, mask, caches)
        twice = torch.cat([x, x], dim=-1).view(1, FRAMES * self.tokens, -1)
        x = self.up_embed(self.up_conv(caches.join(twice, self.up_conv.taps - 1)))
        mask = _mask(self.reach, FRAMES * self.tokens, FRAMES * known, FRAMES * position)
        for block in self.up_encoders:
            x = block(x, mask, caches)
        mu = self.project(self.after_norm(x))
        zeros = mu * 0  # in place of the prompt's mel
        return torch.cat([mu, zeros + speaker, zeros], dim=-1)


class StaticEstimator(nn.Module):
    """One solver step. Inputs:

    x             (1, 2 · tokens, mel)      zeros, then the output of the previous step
    conditioning  (1, 2 · tokens, 3 · mel)  of the token encoder
    known, position                         as those of the token encoder
    step          (1,) int64                the number of the step
    cache.N                                 of this step: zeros at first, later its outputs in the previous block

    Outputs: x, mel (1, 2 · tokens, mel), then the caches. The mel of the last step is the block's; the frames of
    unknown tokens have no meaning.
    """

    def __init__(self, flow: Flow, *, tokens: int) -> None:
        super().__init__()
        config = flow.config
        assert config.left_context is not None
        self.frames, self.reach, self.config = FRAMES * tokens, config.left_context, config
        estimator: Any = flow.decoder["estimator"]
        steps = list(pairwise(torch.tensor(linear_times(flow.steps))))
        times = [estimator.times(t[None], r[None]).detach() for t, r in steps]
        self.length = 1 / flow.steps
        self.stages = nn.ModuleList(
            StaticStage(stage, times, self.reach)
            for stage in (*estimator.down_blocks, *estimator.mid_blocks, *estimator.up_blocks)
        )
        self.final, self.velocity = (
            StaticNormedConv(estimator.final_block),
            StaticCausalConv(estimator.final_proj),
        )
        with torch.no_grad():
            _, _, *self.start_caches = self(*self._inputs(), record=True)

    def _inputs(self) -> tuple[Tensor, ...]:
        one, bands = torch.zeros(1, dtype=torch.int64), self.config.mel_bands
        return torch.zeros(1, self.frames, bands), torch.zeros(1, self.frames, 3 * bands), one, one, one

    def example(self) -> tuple[Tensor, ...]:
        """Return the inputs of a first block, all zeros."""
        return (*self._inputs(), *(torch.zeros_like(cache) for cache in self.start_caches))

    def names(self) -> tuple[list[str], list[str]]:
        """Return the names of the inputs and of the outputs."""
        caches = [f"cache.{number}" for number in range(len(self.start_caches))]
        return ["x", "conditioning", "known", "position", "step", *caches], ["x", "mel", *caches]

    def forward(
        self,
        x: Tensor,
        conditioning: Tensor,
        known: Tensor,
        position: Tensor,
        step: Tensor,
        *past: Tensor,
        record: bool = False,
    ) -> tuple[Tensor, ...]:
        caches = PositionCaches(None if record else past)
        x = self.advance(x, conditioning, known, position, step, caches)
        return x, self.mel(x), *caches.saved

    def advance(
        self,
        x: Tensor,
        conditioning: Tensor,
        known: Tensor,
        position: Tensor,
        step: Tensor,
        caches: PositionCaches,
    ) -> Tensor:
        """Return x after this step."""
        mask = _mask(self.reach, self.frames, FRAMES * known, FRAMES * position)
        down, *middle, up = self.stages
        skip = down(torch.cat([x, conditioning], dim=-1), step, mask, caches)
        h = down.close(skip, caches)  # type: ignore[operator]
        for stage in middle:
            h = stage(h, step, mask, caches)
        h = up.close(up(torch.cat([h, skip], dim=-1), step, mask, caches), caches)  # type: ignore[operator]
        return x + self.length * self.velocity(self.final(h, caches))

    def mel(self, x: Tensor) -> Tensor:
        return x * self.config.mel_std + self.config.mel_mean


def _mask(reach: int, time: int, known: Tensor, position: Tensor) -> Tensor:
    """Return (1, reach + time): hide cached positions before the start, and those after the end."""
    at = torch.arange(-reach, time)
    hidden = (at + position < 0).to(torch.float32) + (at >= known).to(torch.float32)
    return hidden[None] * MASKED
