"""A decode step of a Llama T3 with its KV cache in paged blocks, for benchmarks/kv_cache_gpu.py.

The CUDA backend keeps its KV cache in slots; this is the step it would run over paged blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from nightingale.backends.cuda.t3.packed_weights import LayerWeights, RotationTable
from nightingale.backends.cuda.t3.t3_kernels import rms_norm, swiglu
from nightingale.backends.shared.paged_attention import TUNING, PagedTuning
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.paged_kv_cache import KVBlockTables


class PagedDecodeStep:
    """Positions and lengths are read from tensors, so one captured graph serves streams of all lengths."""

    def __init__(
        self, t3: T3, layers: Sequence[LayerWeights], rotation: RotationTable, tuning: PagedTuning = TUNING
    ) -> None:
        self._layers, self._heads = layers, t3.config.backbone.heads
        self._options = {"rotation": rotation, "tuning": tuning}
        norm = t3.tfmr.get_submodule("norm").weight
        assert isinstance(norm, Tensor)
        self._norm, self._head = norm, t3.speech_head.weight

    def __call__(self, x: Tensor, tables: Sequence[KVBlockTables]) -> Tensor:
        """Return logits (rows, vocab) float32 after x (rows, width) at the tables' lengths."""
        for w, table in zip(self._layers, tables, strict=True):
            qkv = F.linear(rms_norm(x, w.norm_1.weight), *w.qkv)
            q, k, v = qkv.view(len(x), 3, self._heads, 1, -1).unbind(1)
            attended = table.attend(q, k, v, **self._options)
            x = torch.addmm(x, attended.flatten(1), w.out[0].t())
            inner = swiglu(F.linear(rms_norm(x, w.norm_2.weight), *w.up))
            x = torch.addmm(x, inner, w.down[0].t())
        return F.linear(rms_norm(x, self._norm), self._head).float()
