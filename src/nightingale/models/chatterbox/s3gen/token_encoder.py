"""Speech tokens to mel-rate features: a Transformer-XL style encoder that doubles the rate halfway.

Besides attention, only `pre_lookahead_layer` looks ahead, by three tokens.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS, FlowConfig
from nightingale.models.layers.attention import attention
from nightingale.models.layers.conv import PaddedConv1d
from nightingale.models.layers.streaming_state import StreamingState


class RelativeAttention(nn.Module):
    """Attention with relative position encodings, as in Transformer-XL."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.linear_q = nn.Linear(width, width)
        self.linear_k = nn.Linear(width, width)
        self.linear_v = nn.Linear(width, width)
        self.linear_out = nn.Linear(width, width)
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(heads, self.head_width))
        self.pos_bias_v = nn.Parameter(torch.zeros(heads, self.head_width))

    def forward(
        self, x: Tensor, distances: Tensor, mask: Tensor | None, state: StreamingState | None = None
    ) -> Tensor:
        q, k, v = (self._heads(project(x)) for project in (self.linear_q, self.linear_k, self.linear_v))
        if state is not None:
            k, v = state.prepend_kv(k), state.prepend_kv(v)
        # (1, heads, head, keys + queries - 1); copied, because products with a transposed operand are slow. The scale,
        # a power of two for heads of 64, changes no bit of the product.
        p = (self._heads(self.linear_pos(distances)) * self.head_width**-0.5).transpose(2, 3).contiguous()
        by_distance = _align_distances((q + self.pos_bias_v[:, None]) @ p)
        if mask is not None:
            by_distance = by_distance.masked_fill(~mask, -torch.inf)
        out = attention(q + self.pos_bias_u[:, None], k, v, by_distance)
        return self.linear_out(out.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)


def _align_distances(scores: Tensor) -> Tensor:
    """Convert scores by distance, farthest first, to scores by key.

    (…, queries, keys + queries - 1) -> (…, queries, keys), a view. Row i begins at distance queries - 1 - i, so rows
    lie one score less apart.
    """
    queries, spans = scores.shape[-2:]
    if queries == 1:
        return scores
    rows = scores.flatten(-2)[..., queries - 1 : -1].unflatten(-1, (queries, spans - 1))
    return rows[..., : spans - queries + 1]


class EncoderBlock(nn.Module):
    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        width = config.encoder_width
        self.self_attn = RelativeAttention(width, config.encoder_heads)
        self.feed_forward = nn.ModuleDict(
            {"w_1": nn.Linear(width, config.encoder_ffn), "w_2": nn.Linear(config.encoder_ffn, width)}
        )
        self.norm_mha = nn.LayerNorm(width, eps=1e-12)
        self.norm_ff = nn.LayerNorm(width, eps=1e-12)

    def forward(
        self, x: Tensor, distances: Tensor, mask: Tensor | None, state: StreamingState | None = None
    ) -> Tensor:
        x = x + self.self_attn(self.norm_mha(x), distances, mask, state)
        return x + self.feed_forward["w_2"](F.silu(self.feed_forward["w_1"](self.norm_ff(x))))


class EncoderEmbedding(nn.Module):
    """A linear layer and a norm, scaled by √width as in the original positional encoding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width, eps=1e-5))
        self.scale = math.sqrt(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x) * self.scale


class PreLookahead(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = PaddedConv1d(width, width, LOOKAHEAD_TOKENS + 1, left=0, right=LOOKAHEAD_TOKENS)
        self.conv2 = PaddedConv1d(width, width, 3, left=2, right=0)

    def forward(self, x: Tensor, *, lookahead: int = 0, state: StreamingState | None = None) -> Tensor:
        """Return no output for the last `lookahead` tokens."""
        tokens = x.shape[1] - lookahead
        y = F.leaky_relu(self.conv1(x.transpose(1, 2))[..., :tokens])
        return x[:, :tokens] + self.conv2(y, state).transpose(1, 2)


class Upsample(nn.Module):
    """Repeats each token, then applies a causal convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = PaddedConv1d(width, width, 5, left=4, right=0)

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        return self.conv(x.repeat_interleave(2, dim=1).transpose(1, 2), state).transpose(1, 2)


class TokenEncoder(nn.Module):
    """(batch, tokens, width) -> (batch, 2·tokens, width); lookahead tokens give no output."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        width = config.encoder_width
        self.left_context = config.left_context
        self.embed = EncoderEmbedding(width)
        self.pre_lookahead_layer = PreLookahead(width)
        self.encoders = nn.ModuleList(EncoderBlock(config) for _ in range(config.encoder_blocks))
        self.up_layer = Upsample(width)
        self.up_embed = EncoderEmbedding(width)
        self.up_encoders = nn.ModuleList(EncoderBlock(config) for _ in range(config.encoder_up_blocks))
        self.after_norm = nn.LayerNorm(width, eps=1e-5)

    def forward(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        blocks: Tensor | None = None,
        *,
        lookahead: int = 0,
        state: StreamingState | None = None,
    ) -> Tensor:
        x = self.embed(x)
        if valid is not None:
            x = x * valid[..., None]  # lookahead past the end must read zeros, as without padding
        x = self.pre_lookahead_layer(x, lookahead=lookahead, state=state)
        x = run_layers(self.encoders, x, attention_mask(valid, blocks, self.left_context), state)
        x = self.up_embed(self.up_layer(x, state))
        x = run_layers(
            self.up_encoders, x, attention_mask(valid, blocks, self.left_context, repeats=2), state
        )
        return self.after_norm(x)


def run_layers(layers: nn.ModuleList, x: Tensor, mask: Tensor | None, state: StreamingState | None) -> Tensor:
    """Apply encoder blocks to x (batch, time, width), after what the state has cached."""
    known = 0 if state is None else state.cached_positions
    distances = distance_encoding(x.shape[1], known + x.shape[1], x.shape[2], like=x)
    for layer in layers:
        x = layer(x, distances, mask, state)
    return x


def attention_mask(
    valid: Tensor | None, blocks: Tensor | None, left_context: int | None = None, *, repeats: int = 1
) -> Tensor | None:
    """Return where a query attends to a key, (batch or 1, 1, queries, keys); None if everywhere.

    `valid` (batch, time) is false on padding. `blocks` (batch or 1, time) are block numbers: a position attends
    to no later block, and to `left_context` positions before its own (None: all). Each position of both stands
    for `repeats` positions of the sequence.
    """
    mask = None
    if blocks is not None:
        blocks = blocks.repeat_interleave(repeats, dim=1)
        mask = blocks[:, None, None, :] <= blocks[:, None, :, None]
        if left_context is not None:
            # (batch, time): the position where each one's block begins
            begins = (blocks[:, None, :] < blocks[:, :, None]).sum(-1)
            at = torch.arange(blocks.shape[1], device=blocks.device)
            mask &= at >= begins[:, None, :, None] - left_context
    if valid is not None:
        keys = valid.repeat_interleave(repeats, dim=1)[:, None, None, :]
        mask = keys if mask is None else mask & keys
    return mask


def distance_encoding(queries: int, keys: int, width: int, *, like: Tensor) -> Tensor:
    """Return sinusoids of the distances keys-1 … -(queries-1): (1, keys + queries - 1, width).

    The queries are the last of the keys. Sines are on even channels.
    """
    distance = torch.arange(keys - 1, -queries, -1, device=like.device, dtype=torch.float32)
    channel = torch.arange(0, width, 2, device=like.device, dtype=torch.float32)
    angle = distance[:, None] * torch.exp(channel * -(math.log(10000.0) / width))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[None].to(like.dtype)
