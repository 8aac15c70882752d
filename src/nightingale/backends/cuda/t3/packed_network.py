"""T3's prefill and decode step as functions of fixed tensors, by library calls or by Triton kernels.

The arithmetic is that of models/chatterbox/t3, arranged for one token per row and for graphs: positions and
lengths are tensors, and KV caches are written in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.backends.cuda.t3 import batched_sampling
from nightingale.backends.cuda.t3.batched_sampling import DecodeState, SamplerOrder
from nightingale.backends.cuda.t3.packed_weights import KVCaches, pack_weights
from nightingale.backends.cuda.triton_support import KernelChoice, TritonKernels, Tuning
from nightingale.models.chatterbox.t3.backbone import Gpt2Backbone, LlamaBackbone
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.rope import rotate, rotations

Attention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""q, k, v, each (rows, heads, time, head width), and a layer's cached keys and values -> like q."""


class PackedT3:
    """T3 with packed weights, in the precision of `t3`, whose weights are joined in place.

    positions: the capacity of the KV caches; kernels: for decode steps.
    """

    def __init__(
        self, t3: T3, *, positions: int, kernels: KernelChoice = "library", tuning: Tuning | None = None
    ) -> None:
        self.t3, self._backbone = t3, t3.tfmr
        self._final_norm: Any = t3.tfmr.ln_f if isinstance(t3.tfmr, Gpt2Backbone) else t3.tfmr.norm
        device, dtype = t3.speech_head.weight.device, t3.speech_head.weight.dtype
        self.layers = pack_weights(t3)
        # float32, also beside weights in bfloat16: angles must stay exact.
        self._inverse = t3.tfmr.inverse if isinstance(t3.tfmr, LlamaBackbone) else None

        def load() -> Any:
            from nightingale.backends.cuda.t3 import fused_step

            if device.type == "cuda":
                fused_step.check_kernels(device)
            table = None
            if self._inverse is not None:
                table = rotations(self._inverse, torch.arange(positions, device=device), dtype)
            return fused_step.FusedStep(t3, self.layers, table, tuning)

        self.kernels = TritonKernels[Any](kernels, load, part="T3", default=device.type == "cuda")

    @property
    def position_embeddings(self) -> Tensor | None:
        """GPT-2's, (positions, width)."""
        return self._backbone.wpe.weight if isinstance(self._backbone, Gpt2Backbone) else None

    def embed(self, tokens: Tensor, position: Tensor, lengths: Tensor) -> Tensor:
        """Embed one token of each row: all (rows,); position: after the start token."""
        return self._add_positions(self.t3.embed_speech_at(tokens, position), lengths)

    def sample(self, state: DecodeState, *, order: SamplerOrder, sorting: bool) -> tuple[Tensor, Tensor]:
        """Sample the next token of each slot and append it; return the embedding and the length of each row."""
        if self.kernels.loaded is not None:
            from nightingale.backends.cuda.t3 import sampling_kernels as kernels

            drawn = kernels.draw(state, order=order, cuts=sorting)
            return kernels.append(self.t3, drawn, state, self.position_embeddings, order=order)
        logits = batched_sampling.apply_guidance(state.logits, state.cfg_weight)
        processed = batched_sampling.process_logits(logits, state, order=order, sorting=sorting)
        tokens = batched_sampling.sample(processed, state)
        state.append(tokens, ~processed.amax(dim=-1).isfinite(), order)

        def per_row(value: Tensor) -> Tensor:
            return value[:, None].expand(-1, state.logits.shape[1]).flatten()

        lengths = per_row(state.lengths).clone()
        # A slot that has stopped writes to the same position again, which is never read.
        state.lengths.add_(state.running)
        x = self.t3.embed_speech_at(per_row(tokens), per_row(state.sampled))
        return self._add_positions(x, lengths), lengths

    def step(self, x: Tensor, caches: KVCaches, lengths: Tensor, *, out: Tensor) -> None:
        """Decode one embedded token of each row, (rows, width), which may be overwritten.

        caches: views of the positions that are attended to, which are written at `lengths` (rows,), those
        cached before; out: the logits after the token, (rows, vocab) float32, contiguous.
        """
        if self.kernels.loaded is not None:
            self.kernels.loaded(x, caches, lengths, out=out)
            return
        rows = torch.arange(len(x), device=x.device)
        masked = torch.arange(caches[0][0].shape[2], device=x.device) > lengths[:, None]
        mask = x.new_zeros(masked.shape).masked_fill(masked, -torch.inf)[:, None, None]

        def attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            keys[rows, :, lengths] = k[:, :, 0]
            values[rows, :, lengths] = v[:, :, 0]
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)

        hidden = self._layers(x[:, None], lengths[:, None], caches, attend)
        out.copy_(self._logits(hidden[:, 0]))

    def prefill(self, x: Tensor, last: Tensor, caches: KVCaches, rows: Tensor) -> Tensor:
        """Fill the caches' `rows` with prompts (rows, time, width); return the logits after `last` (rows,).

        Positions after `last` are padding: no position before them attends to them, and decode steps
        overwrite them.
        """
        time = x.shape[1]

        def attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            keys[:, :, :time].index_copy_(0, rows, k)
            values[:, :, :time].index_copy_(0, rows, v)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        positions = torch.arange(time, device=x.device)[None]
        x = self._layers(self._add_positions(x, positions), positions, caches, attend)
        return self._logits(x[torch.arange(len(x), device=x.device), last])

    def _layers(self, x: Tensor, positions: Tensor, caches: KVCaches, attend: Attention) -> Tensor:
        """Apply all layers to x (rows, time, width) at positions (rows or 1, time)."""
        fused = self.kernels.loaded
        norm = nn.Module.__call__ if fused is None else fused.norm
        heads, rotation = self.t3.config.backbone.heads, self._rotation(positions, x.dtype)
        for w, (keys, values) in zip(self.layers, caches, strict=True):
            qkv = F.linear(norm(w.norm_1, x), *w.qkv).view(*x.shape[:2], 3, heads, -1)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            if rotation is not None:
                q, k = rotate(q, *rotation), rotate(k, *rotation)
            x = x + F.linear(attend(q, k, v, keys, values).transpose(1, 2).flatten(2), *w.out)
            inner = F.linear(norm(w.norm_2, x), *w.up)
            if rotation is None:
                inner = F.gelu(inner, approximate="tanh")
            else:
                gate, up = inner.chunk(2, dim=-1)
                inner = F.silu(gate) * up
            x = x + F.linear(inner, *w.down)
        return x

    def _rotation(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        """Return Llama's cosines and sines at positions (rows or 1, time), with an axis for the heads."""
        if self._inverse is None:
            return None
        cos, sin = rotations(self._inverse, positions, dtype)
        return cos[:, None], sin[:, None]

    def _add_positions(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add GPT-2's position embeddings."""
        return x + self._backbone.wpe(positions) if isinstance(self._backbone, Gpt2Backbone) else x

    def _logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.t3.speech_head(self._final_norm(x))
        return logits.float()
