"""T3's prefill and decode step as functions of fixed tensors, by library calls or by Triton kernels.

The arithmetic is that of models/chatterbox/t3, arranged for one token per row and for graphs: positions and
lengths are tensors, and KV caches are written in place.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nightingale.backends.cuda.t3.packed_weights import RotationTable, pack_weights
from nightingale.backends.cuda.t3.transformer_layer import KVCaches, rms_norm, transformer_layer
from nightingale.backends.cuda.triton_support import KernelChoice, Tuning, load_kernels, log_fallback
from nightingale.models.chatterbox.t3.backbone import Gpt2Backbone
from nightingale.models.chatterbox.t3.config import LlamaConfig
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.rope import inverse_frequencies, rotations


class PackedT3:
    """T3 with packed weights, in the precision of `t3`, whose weights are joined in place.

    positions: the capacity of the KV caches; kernels: for decode steps.
    """

    def __init__(
        self, t3: T3, *, positions: int, kernels: KernelChoice = "library", tuning: Tuning | None = None
    ) -> None:
        self.t3, self.heads = t3, t3.config.backbone.heads
        device, dtype = t3.speech_head.weight.device, t3.speech_head.weight.dtype
        self.layers = pack_weights(t3)
        self._inverse: Tensor | None = None
        if isinstance(t3.config.backbone, LlamaConfig):
            # Not the module's own, which was rounded with its weights: angles must stay exact.
            backbone = t3.config.backbone
            self._inverse = inverse_frequencies(
                backbone.width // backbone.heads, theta=backbone.rope_theta, scaling=backbone.rope_scaling
            ).to(device)

        def load() -> Any:
            from nightingale.backends.cuda.t3 import fused_step

            if device.type == "cuda":
                fused_step.check_kernels(device)
            table: RotationTable | None = None
            if self._inverse is not None:
                table = rotations(self._inverse, torch.arange(positions, device=device), dtype)
            return fused_step.FusedStep(t3, self.layers, table, tuning)

        self._fused = load_kernels(kernels, load, what="T3", default=device.type == "cuda")

    @property
    def kernels(self) -> str:
        return "library" if self._fused is None else "triton"

    def drop_kernels(self, reason: Exception) -> bool:
        """Use library calls from now on; return False if they are used already."""
        if self._fused is None:
            return False
        log_fallback("T3", reason)
        self._fused = None
        return True

    def step(self, tokens: Tensor, position: Tensor, caches: KVCaches, lengths: Tensor) -> Tensor:
        """Decode one token of each row and return the logits after it, (rows, vocab) float32.

        Args:
            tokens: (rows,) speech ids.
            position: (rows,), their positions after the start token.
            caches: Views of the positions that are attended to; they are written at `lengths`.
            lengths: (rows,), the number of cached positions before this token.
        """
        x = self.t3.embed_speech_at(tokens, position)
        if self._fused is not None:
            logits: Tensor = self._fused(self._add_positions(x, lengths), caches, lengths)
            return logits
        x, rotation = self._positioned(x[:, None], lengths[:, None])
        rows = torch.arange(len(tokens), device=tokens.device)
        masked = torch.arange(caches[0][0].shape[2], device=tokens.device) > lengths[:, None]
        mask = x.new_zeros(masked.shape).masked_fill(masked, -torch.inf)[:, None, None]
        for w, (keys, values) in zip(self.layers, caches, strict=True):

            def attention(
                q: Tensor, k: Tensor, v: Tensor, keys: Tensor = keys, values: Tensor = values
            ) -> Tensor:
                keys[rows, :, lengths] = k[:, :, 0]
                values[rows, :, lengths] = v[:, :, 0]
                return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)

            x = transformer_layer(x, w, rotation, self.heads, attention)
        return self._logits(x[:, 0])

    def prefill(self, x: Tensor, last: Tensor, caches: KVCaches, rows: Tensor) -> Tensor:
        """Fill the caches' `rows` with a prompt (rows, time, width); return the logits after `last` (1,).

        Positions after `last` are padding: no position before them attends to them, and decode steps
        overwrite them.
        """
        time, norm = x.shape[1], rms_norm if self._fused is None else self._fused.norm
        x, rotation = self._positioned(x, torch.arange(time, device=x.device)[None])
        for w, (keys, values) in zip(self.layers, caches, strict=True):

            def attention(
                q: Tensor, k: Tensor, v: Tensor, keys: Tensor = keys, values: Tensor = values
            ) -> Tensor:
                keys[:, :, :time].index_copy_(0, rows, k)
                values[:, :, :time].index_copy_(0, rows, v)
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)

            x = transformer_layer(x, w, rotation, self.heads, attention, norm)
        return self._logits(x.index_select(1, last)[:, 0])

    def _positioned(self, x: Tensor, positions: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Apply positions (rows or 1, time): GPT-2 adds embeddings, Llama gets cosines and sines."""
        if self._inverse is None:
            return self._add_positions(x, positions), None
        cos, sin = rotations(self._inverse, positions, x.dtype)
        return x, (cos[:, None], sin[:, None])

    def _add_positions(self, x: Tensor, positions: Tensor) -> Tensor:
        backbone = self.t3.tfmr
        return x + backbone.wpe(positions) if isinstance(backbone, Gpt2Backbone) else x

    def _logits(self, x: Tensor) -> Tensor:
        backbone = self.t3.tfmr
        norm = backbone.ln_f if isinstance(backbone, Gpt2Backbone) else backbone.norm
        logits: Tensor = self.t3.speech_head(norm(x))
        return logits.float()
