"""T3 with fixed shapes: a step of one token, and a prefill of several.

    x = table[ids], or the speaker where an id is the speaker's         (1, tokens, width)
    for each layer:
        q, k, v = rotate(norm(x) · Wq), rotate(norm(x) · Wk), norm(x) · Wv
        x += softmax(q · [cached keys ‖ k] + mask) · [cached values ‖ v] · Wo
        x += (silu(norm(x) · Wgate) * (norm(x) · Wup)) · Wdown
    logits = norm(x[last]) · Whead

The KV cache is an input, which the program does not change: it returns the keys and values of its own tokens,
and the host writes them at their positions. A program that returned the whole cache would copy all of it for
each token. Positions from `position` on are masked, so what they hold does not matter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nightingale.export.phone.static_layers import MASKED, StaticRmsNorm, silu, softmax
from nightingale.models.chatterbox.t3.backbone import LlamaAttention, LlamaBackbone, LlamaLayer
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.rope import rotations


class StaticT3(nn.Module):
    """Inputs:

    ids        (1, tokens) int64       text ids; speech tokens from `speech_offset` on; `speaker_id`
    position   (1,) int64              the position of the first id
    last       (1,) int64              the index in `ids` whose logits are wanted
    speaker    (1, width)              of the voice
    keys.N, values.N                   (heads, capacity, head width), for each layer

    Outputs: logits (1, speech_vocab), then keys.N and values.N of these tokens, (heads, tokens, head width).
    """

    cos: Tensor
    sin: Tensor
    causal: Tensor

    def __init__(self, t3: T3, *, tokens: int, capacity: int) -> None:
        super().__init__()
        assert isinstance(t3.tfmr, LlamaBackbone)
        backbone = t3.config.backbone
        self.tokens, self.capacity, self.heads = tokens, capacity, backbone.heads
        self.head_width, self.layers = backbone.width // backbone.heads, backbone.layers
        self.speech_offset = t3.config.text_vocab
        self.speaker_id = t3.config.text_vocab + t3.config.speech_vocab
        table = torch.cat(
            [t3.text_emb.weight, t3.speech_emb.weight, t3.text_emb.weight.new_zeros(1, backbone.width)]
        )
        self.table = nn.Embedding.from_pretrained(table.detach())
        self.blocks, self.head = t3.tfmr.layers, t3.speech_head
        blocks: Any = t3.tfmr.layers
        self.norms = nn.ModuleList(
            StaticRmsNorm(norm.weight.detach())
            for layer in blocks
            for norm in (layer.input_layernorm, layer.post_attention_layernorm)
        )
        self.norm = StaticRmsNorm(t3.tfmr.norm.weight.detach())
        cos, sin = rotations(t3.tfmr.inverse, torch.arange(capacity + tokens), torch.float32)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        self.register_buffer("causal", torch.full((tokens, tokens), MASKED).triu(1))

    def example(self) -> tuple[Tensor, ...]:
        """Return inputs of the right shapes: an empty cache."""
        cache = torch.zeros(self.heads, self.capacity, self.head_width)
        one = torch.zeros(1, dtype=torch.int64)
        ids = torch.zeros(1, self.tokens, dtype=torch.int64)
        width = self.heads * self.head_width
        return (ids, one, one, torch.zeros(1, width), *[cache] * (2 * self.layers))

    def names(self) -> tuple[list[str], list[str]]:
        """Return the names of the inputs and of the outputs."""
        kv = [f"{part}.{layer}" for layer in range(self.layers) for part in ("keys", "values")]
        return ["ids", "position", "last", "speaker", *kv], ["logits", *kv]

    def forward(
        self, ids: Tensor, position: Tensor, last: Tensor, speaker: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        is_speaker = (ids == self.speaker_id).to(torch.float32)[..., None]
        return self.read(self.table(ids) + is_speaker * speaker, position, last, *caches)

    def read(self, x: Tensor, position: Tensor, last: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs for embedded ids, (1, tokens, width)."""
        at = position + torch.arange(self.tokens)
        rope = self.cos.index_select(0, at), self.sin.index_select(0, at)
        unknown = (torch.arange(self.capacity) >= position).to(torch.float32) * MASKED
        new: list[Tensor] = []
        for number, layer in enumerate(self.blocks):
            assert isinstance(layer, LlamaLayer)
            keys, values = caches[2 * number : 2 * number + 2]
            attended, k, v = self._attend(
                layer.self_attn, self.norms[2 * number](x), rope, unknown, keys, values
            )
            new += [k, v]
            x = x + attended
            normed, mlp = self.norms[2 * number + 1](x), layer.mlp
            x = x + mlp.down_proj(silu(mlp.gate_proj(normed)) * mlp.up_proj(normed))
        x = self.norm(x[0].index_select(0, last) if self.tokens > 1 else x[0])
        return self.head(x), *new

    def _attend(
        self,
        layer: LlamaAttention,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        unknown: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output (1, tokens, width), and the keys and values of these tokens."""
        q, k, v = (
            project(x).view(self.tokens, self.heads, self.head_width).transpose(0, 1)
            for project in (layer.q_proj, layer.k_proj, layer.v_proj)
        )
        q, k = _rotate(q * self.head_width**-0.5, rope), _rotate(k, rope)
        past = torch.bmm(q, keys.transpose(1, 2)) + unknown
        own = torch.bmm(q, k.transpose(1, 2)) + self.causal
        weights = softmax(torch.cat([past, own], dim=-1))
        out = torch.bmm(weights[..., : self.capacity], values) + torch.bmm(weights[..., self.capacity :], v)
        return layer.o_proj(out.transpose(0, 1).reshape(1, self.tokens, -1)), k, v


def _rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    half = x.shape[-1] // 2
    return x * rope[0] + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * rope[1]
