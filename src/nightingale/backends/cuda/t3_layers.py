"""T3's backbones as functions of tensors: the arithmetic of models/chatterbox/t3, arranged for one token.

Written as functions because a compiler then compiles one layer and uses it thirty times. Llama's three input
products are one, and its two of the MLP are one: the same weights, read in two passes instead of five. The
joined weights replace the module's own storage, so nothing is held twice and the plain path goes on working.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.errors import ConfigError
from nightingale.models.chatterbox.t3.backbone_gpt2 import Gpt2Backbone
from nightingale.models.chatterbox.t3.backbone_llama import LlamaBackbone
from nightingale.models.chatterbox.t3.config import LlamaConfig
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.rope import inverse_frequencies, rotate, rotations

log = logging.getLogger(__name__)

Way = Literal["auto", "sdpa", "sums", "triton"]
"""How a step's layer attends: by torch's kernel, by plain sums for a compiler to fuse, or by those in
kernels.py, which do the whole layer. auto: by those, where they can be used."""
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q, k, v, each (rows, heads, time, head width) -> like q."""
Norm = Callable[[Tensor, Tensor], Tensor]
"""x (rows, time, width) and a weight (width,) -> like x."""


class LlamaWeights(NamedTuple):
    norm_1: Tensor
    qkv: Tensor
    out: Tensor
    norm_2: Tensor
    gate_up: Tensor
    down: Tensor


class Gpt2Weights(NamedTuple):
    norm_1: Tensor
    norm_1_bias: Tensor
    qkv: Tensor
    qkv_bias: Tensor
    out: Tensor
    out_bias: Tensor
    norm_2: Tensor
    norm_2_bias: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor


Weights = LlamaWeights | Gpt2Weights


def pack(t3: T3) -> list[Weights]:
    """Each layer's weights, joined where one product can do the work of several."""
    if isinstance(t3.tfmr, LlamaBackbone):
        return [_pack_llama(layer) for layer in t3.tfmr.layers]
    assert isinstance(t3.tfmr, Gpt2Backbone)
    return [_pack_gpt2(layer) for layer in t3.tfmr.h]


def _pack_llama(layer: Any) -> LlamaWeights:
    attention, mlp = layer.self_attn, layer.mlp
    return LlamaWeights(
        norm_1=layer.input_layernorm.weight,
        qkv=_joined(attention.q_proj, attention.k_proj, attention.v_proj),
        out=attention.o_proj.weight,
        norm_2=layer.post_attention_layernorm.weight,
        gate_up=_joined(mlp.gate_proj, mlp.up_proj),
        down=mlp.down_proj.weight,
    )


def _pack_gpt2(layer: Any) -> Gpt2Weights:
    attention, mlp = layer.attn, layer.mlp
    return Gpt2Weights(
        norm_1=layer.ln_1.weight,
        norm_1_bias=layer.ln_1.bias,
        qkv=_by_output(attention.c_attn),
        qkv_bias=attention.c_attn.bias,
        out=_by_output(attention.c_proj),
        out_bias=attention.c_proj.bias,
        norm_2=layer.ln_2.weight,
        norm_2_bias=layer.ln_2.bias,
        up=_by_output(mlp.c_fc),
        up_bias=mlp.c_fc.bias,
        down=_by_output(mlp.c_proj),
        down_bias=mlp.c_proj.bias,
    )


def _joined(*linears: nn.Linear) -> Tensor:
    """(all outputs, inputs); the layers' own weights become views of it."""
    whole = torch.cat([linear.weight.detach() for linear in linears])
    start = 0
    for linear in linears:
        end = start + linear.out_features
        linear.weight = nn.Parameter(whole[start:end], requires_grad=False)
        start = end
    return whole


def _by_output(projection: Any) -> Tensor:
    """(outputs, inputs), each output's weights side by side, as one token is multiplied fastest; the layer's
    own, stored (inputs, outputs), become a view of it."""
    whole: Tensor = projection.weight.detach().t().contiguous()
    projection.weight = nn.Parameter(whole.t(), requires_grad=False)
    return whole


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def layer(
    x: Tensor,
    w: Weights,
    turn: tuple[Tensor, Tensor] | None,
    heads: int,
    attend: Attend,
    norm: Norm = rms_norm,
) -> Tensor:
    """(rows, time, width) through one layer. turn: Llama's cosines and sines; norm: what does Llama's."""
    if isinstance(w, LlamaWeights):
        assert turn is not None
        q, k, v = _heads(F.linear(norm(x, w.norm_1), w.qkv), heads)
        x = x + F.linear(_beside(attend(rotate(q, *turn), rotate(k, *turn), v)), w.out)
        gate, up = F.linear(norm(x, w.norm_2), w.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, w.down)
    width = x.shape[-1]
    q, k, v = _heads(
        F.linear(F.layer_norm(x, (width,), w.norm_1, w.norm_1_bias, 1e-5), w.qkv, w.qkv_bias), heads
    )
    x = x + F.linear(_beside(attend(q, k, v)), w.out, w.out_bias)
    hidden = F.linear(F.layer_norm(x, (width,), w.norm_2, w.norm_2_bias, 1e-5), w.up, w.up_bias)
    return x + F.linear(F.gelu(hidden, approximate="tanh"), w.down, w.down_bias)


def _heads(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """(rows, time, 3 · width) -> three of (rows, heads, time, head width)."""
    q, k, v = qkv.view(*qkv.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
    return q, k, v


def _beside(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)


def step_layer(
    x: Tensor,
    w: Weights,
    turn: tuple[Tensor, Tensor] | None,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    lengths: Tensor,
    bias: Tensor,
    heads: int,
    way: Way,
) -> Tensor:
    """One token of each row: remembered at `lengths`, then attending to all up to there.

    x: (rows, 1, width); keys, values: (rows, heads, span, head width); rows: 0, 1, 2, …; bias: (rows, 1, 1,
    span), zero up to `lengths` and minus infinity beyond.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys[rows, :, lengths] = k[:, :, 0]
        values[rows, :, lengths] = v[:, :, 0]
        if way == "sdpa":
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=bias)
        # One query: two sums over what is remembered, which a compiler fuses with all around them.
        scores = (q * keys).float().sum(-1) * q.shape[-1] ** -0.5  # (rows, heads, span)
        share = torch.softmax(scores + bias[:, 0], dim=-1).to(q.dtype)
        return (share[..., None] * values).float().sum(2, keepdim=True).to(q.dtype)

    return layer(x, w, turn, heads, attend)


def _fused(device: torch.device) -> Any:
    """What does a step by Triton's kernels, where it can be used."""
    try:
        from nightingale.backends.cuda import t3_fused as fused

        if device.type == "cuda":
            fused.trial(device)
    except Exception as error:  # whatever a compiler may come up with
        raise ConfigError(
            "the kernels need Triton",
            got=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            allowed="an installation of torch with a Triton that works",
            fix="Choose another way, or install Triton and a C compiler.",
        ) from error
    return fused


def compiler_room(compile_mode: str | None) -> AbstractContextManager[None]:
    """Each bucket is a shape of its own, and compiled once; torch by default gives up after eight."""
    if compile_mode is None:
        return nullcontext()
    room: AbstractContextManager[None] = torch._dynamo.config.patch(
        recompile_limit=256, accumulated_recompile_limit=1024
    )
    return room


def _chosen(way: Way, device: torch.device) -> tuple[Way, Any]:
    """The way to go, and what goes it if that is Triton's."""
    if way not in ("auto", "triton"):
        return way, None
    if way == "auto" and device.type != "cuda":
        return "sdpa", None
    try:
        return "triton", _fused(device)
    except ConfigError as error:
        if way == "triton":
            raise
        log.warning("T3 steps by library calls, more slowly: %s", error)
        return "sdpa", None


class PackedT3:
    """T3 as these functions see it."""

    def __init__(
        self,
        t3: T3,
        *,
        positions: int,
        compile_mode: str | None = None,
        way: Way = "sdpa",
        tuning: tuple[int, ...] | None = None,
    ) -> None:
        """positions: as many as will ever be remembered; compile_mode: a mode of torch.compile for a step's
        layer; None leaves it to the eager kernels. tuning: of the Triton kernels, `kernels.Tuning`."""
        self.t3, self.heads = t3, t3.config.backbone.heads
        device, dtype = t3.speech_head.weight.device, t3.speech_head.weight.dtype
        self.way, fused = _chosen(way, device)
        self.layers = pack(t3)
        self._inverse: Tensor | None = None
        if isinstance(t3.config.backbone, LlamaConfig):
            # Made anew: the module's own was rounded with its weights, and angles cannot bear that.
            backbone = t3.config.backbone
            self._inverse = inverse_frequencies(
                backbone.width // backbone.heads, theta=backbone.rope_theta, scaling=backbone.rope_scaling
            ).to(device)
        self._fused: Any = None
        if fused is not None:
            every = torch.arange(positions, device=device)
            turn = None if self._inverse is None else rotations(self._inverse, every, dtype)
            self._fused = fused.FusedSteps(t3, self.layers, turn, tuning and fused.Tuning(*tuning))
        self._step_layer: Callable[..., Tensor] = step_layer
        if compile_mode is not None:
            self._step_layer = torch.compile(step_layer, mode=compile_mode, fullgraph=True, dynamic=False)

    def without_kernels(self, reason: Exception) -> bool:
        """Go on by library calls from now on; False if that is done already."""
        if self._fused is None:
            return False
        log.warning("T3 steps by library calls, more slowly: %s", reason)
        self._fused, self.way = None, "sdpa"
        return True

    def step(
        self, tokens: Tensor, at: Tensor, caches: Sequence[tuple[Tensor, Tensor]], lengths: Tensor
    ) -> Tensor:
        """Logits after one more token of each row: (rows, vocab).

        tokens, at: (rows,) speech ids and where they stand after the start; lengths: (rows,), what is
        remembered before them. The caches, (rows, heads, span, head width) of each layer, are written to.
        """
        x = self.t3.embed_speech_at(tokens, at)
        if self._fused is not None:
            scores: Tensor = self._fused(self._placed_by_table(x, lengths), caches, lengths)
            return scores
        x, turn = self._placed(x[:, None], lengths[:, None])
        rows = torch.arange(len(tokens), device=tokens.device)
        beyond = torch.arange(caches[0][0].shape[2], device=tokens.device) > lengths[:, None]
        bias = x.new_zeros(beyond.shape).masked_fill(beyond, -torch.inf)[:, None, None]
        for w, (keys, values) in zip(self.layers, caches, strict=True):
            x = self._step_layer(x, w, turn, keys, values, rows, lengths, bias, self.heads, self.way)
        return self._scores(x[:, 0])

    def prefill(
        self, x: Tensor, last: Tensor, caches: Sequence[tuple[Tensor, Tensor]], rows: Tensor
    ) -> Tensor:
        """Logits after position `last` (1,) of a prompt (rows, time, width); the caches' `rows` remember it.

        What stands after `last` is padding: nobody before it sees it, and the tokens to come write over it.
        """
        time, norm = x.shape[1], rms_norm if self._fused is None else self._fused.norm
        x, turn = self._placed(x, torch.arange(time, device=x.device)[None])
        for w, (keys, values) in zip(self.layers, caches, strict=True):

            def attend(
                q: Tensor, k: Tensor, v: Tensor, keys: Tensor = keys, values: Tensor = values
            ) -> Tensor:
                keys[:, :, :time].index_copy_(0, rows, k)
                values[:, :, :time].index_copy_(0, rows, v)
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)

            x = layer(x, w, turn, self.heads, attend, norm)
        return self._scores(x.index_select(1, last)[:, 0])

    def _placed(self, x: Tensor, positions: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Positions (rows or 1, time), told in the backbone's way."""
        x = self._placed_by_table(x, positions)
        if isinstance(self.t3.tfmr, Gpt2Backbone):
            return x, None
        assert self._inverse is not None
        cos, sin = rotations(self._inverse, positions, x.dtype)
        return x, (cos[:, None], sin[:, None])

    def _placed_by_table(self, x: Tensor, positions: Tensor) -> Tensor:
        backbone = self.t3.tfmr
        return x + backbone.wpe(positions) if isinstance(backbone, Gpt2Backbone) else x

    def _scores(self, x: Tensor) -> Tensor:
        backbone = self.t3.tfmr
        norm = backbone.ln_f if isinstance(backbone, Gpt2Backbone) else backbone.norm
        scores: Tensor = self.t3.speech_head(norm(x))
        return scores.float()
