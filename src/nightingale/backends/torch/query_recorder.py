"""Record the queries of T3's alignment heads, during a pass of a runner or by a pass of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.decoding.attention_trace import AttentionTrace
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_cache import DenseKVCache, KVCache


class RecordingKVCache:
    """A KV cache that keeps the queries and keys of its latest pass: (rows, heads, time, head width) each."""

    def __init__(self, cache: KVCache) -> None:
        self._cache, self.positions = cache, cache.positions
        self.queries: Tensor | None = None
        self.keys: Tensor | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.queries, self.keys = q, k
        return self._cache.attend(q, k, v)


class QueryRecorder:
    """The recording caches of one pass."""

    def __init__(self, layers: Iterable[int]) -> None:
        """layers: those with alignment heads."""
        self._layers = layers
        self._caches: dict[int, RecordingKVCache] = {}

    def wrap(self, caches: Sequence[KVCache]) -> list[KVCache]:
        """Return the caches of all layers, of which some record."""
        self._caches = {layer: RecordingKVCache(caches[layer]) for layer in self._layers}
        return [self._caches.get(layer, cache) for layer, cache in enumerate(caches)]

    def store_prompt(self, trace: AttentionTrace, length: int) -> None:
        """Give a trace the keys of its text and the query before the first token, after the pass of a prompt."""
        text = trace.text_positions(length)
        trace.set_keys([_array(self._caches[layer].keys, 0, head, text) for layer, head in trace.heads])
        self.store(trace, 0, slice(length - 1, length), 0)

    def store(self, trace: AttentionTrace, row: int, tokens: slice, first: int) -> None:
        """Give a trace the queries of some tokens of a row, of which the first is its row `first`."""
        queries = [_array(self._caches[layer].queries, row, head, tokens) for layer, head in trace.heads]
        trace.set_queries(first, queries)


def _array(recorded: Tensor | None, row: int, head: int, positions: slice) -> NDArray[np.float32]:
    assert recorded is not None  # a pass was made
    return recorded[row, head, positions].float().cpu().numpy()


class TracePass:
    """Computes the queries of a trace again, for a decoder that does not hand out its own."""

    def __init__(self, t3: T3, trace: AttentionTrace, prompt: Tensor) -> None:
        """prompt: The embeddings (1, time, width) before the first token."""
        self._t3, self._trace, self._prompt = t3, trace, prompt

    @torch.inference_mode()
    def update(self) -> None:
        """Run the first layers over the prompt and all tokens, and store what the alignment heads computed."""
        t3, trace, length = self._t3, self._trace, self._prompt.shape[1]
        tokens = torch.tensor([trace.tokens], dtype=torch.long, device=self._prompt.device)
        x = torch.cat([self._prompt, t3.embed_speech(tokens, 1)], dim=1)
        recorder = QueryRecorder(trace.layers)
        t3.tfmr.first_layers(x, recorder.wrap([self._cache(x) for _ in range(1 + max(trace.layers))]))
        recorder.store_prompt(trace, length)
        recorder.store(trace, 0, slice(length - 1, x.shape[1]), 0)

    def _cache(self, x: Tensor) -> DenseKVCache:
        backbone = self._t3.config.backbone
        shape = 1, backbone.heads, x.shape[1], backbone.width // backbone.heads
        return DenseKVCache(x.new_zeros(shape), x.new_zeros(shape))
