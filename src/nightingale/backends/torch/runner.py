"""T3's steps in PyTorch over a pool of KV caches: the reference runner.

A slot is the KV cache of one utterance: two rows where the family can be guided, one elsewhere. Slots are
allocated once; nothing grows with the number of requests.

A step can be taken in two ways. *Alone*, each utterance by itself: its arithmetic does not depend on other
requests, so its tokens are the same bit for bit at any concurrency. *Batched*, all in one pass: weights are
read once for all utterances, which is where the time goes; sums may then round differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.backends.torch.kv_pools import KVPool, SlotKVCache, SlotKVPool
from nightingale.backends.torch.query_recorder import QueryRecorder
from nightingale.decoding.attention_trace import SlotTraces
from nightingale.decoding.decoding import Decoding, Prompt
from nightingale.decoding.lru import BytesLRU
from nightingale.decoding.runner import StepInput, VerifyInput
from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_cache import KVCache

Conditionings = BytesLRU[tuple[str, float], Tensor]
"""Embeddings of voices, by their hash and the exaggeration."""


@torch.inference_mode()
def embed_prompt(
    t3: T3, prompt: Prompt, *, max_new_tokens: int, cache: Conditionings | None = None
) -> Tensor:
    """Return the embeddings (rows, time, width) of everything before the first speech token.

    cache: of the part that depends on the voice.
    """
    weight = t3.speech_head.weight
    device, dtype = weight.device, weight.dtype
    voice = prompt.voice
    text = torch.tensor([t3.config.checked_text(prompt.text_ids, max_new_tokens=max_new_tokens)])

    def condition() -> Tensor:
        return t3.conditioning(
            speaker=_send(torch.tensor(voice.speaker[None]).to(dtype), device),
            prompt_ids=_send(torch.tensor(voice.prompt_ids[None, : t3.config.prompt_tokens]), device),
            exaggeration=torch.full((1,), prompt.exaggeration, device=device, dtype=dtype),
        )

    key = voice.content_hash, prompt.exaggeration
    conditioning = condition() if cache is None else cache.get(key, condition)
    return t3.conditioned_prompt(_send(text, device), conditioning, guided=prompt.guided)


def _send(values: Tensor, device: torch.device) -> Tensor:
    """Copy to a device without waiting for the work that is queued there."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def to_logits(logits: Tensor) -> Logits:
    return logits.float().cpu().numpy()


@torch.inference_mode()
def generate(t3: T3, decoding: Decoding) -> Iterator[int]:
    """Yield the speech tokens of one utterance by a plain loop: what faster implementations are tested against."""
    x = embed_prompt(t3, decoding.prompt, max_new_tokens=decoding.defaults.max_new_tokens)
    cache = t3.new_kv_cache(rows=len(x), capacity=x.shape[1] + decoding.budget)
    while not decoding.finished:
        token = decoding.accept(to_logits(t3.next_logits(x, cache)))
        yield token
        x = t3.embed_speech(torch.full((len(x), 1), token, device=x.device), decoding.appended)


class TorchRunner:
    """Run T3 in the precision of its weights; implements `DraftVerifier`."""

    def __init__(
        self,
        t3: T3,
        *,
        slots: int,
        rows_per_slot: int,
        capacity: int,
        batched: bool,
        max_new_tokens: int,
        spare: int = 0,
        pool: KVPool | None = None,
    ) -> None:
        """spare: positions past the capacity, where rows with fewer drafted tokens than others may write.
        max_new_tokens: the longest utterance. pool: the KV caches; by default dense ones."""
        self.t3, self.batched, self.capacity = t3, batched, capacity
        self._max_new_tokens = max_new_tokens
        self.pool: KVPool = pool or SlotKVPool.of(
            t3, slots=slots, rows_per_slot=rows_per_slot, capacity=capacity + spare
        )
        self.caches: list[list[SlotKVCache]] = [[] for _ in range(slots)]
        """caches[slot]: one per layer, over the rows that the utterance uses."""
        self.traces = SlotTraces()
        self._captures = False
        self._hidden: dict[int, tuple[int, list[Tensor]]] = {}
        """For each slot's latest pass: the number of its first draw, and (rows, tokens, width) of what T3's
        head read and of its residual stream at earlier layers."""

    @property
    def kv_bytes(self) -> int:
        return self.pool.bytes

    @torch.inference_mode()
    def prefill(self, slot: int, prompt: Prompt, *, max_tokens: int) -> Logits:
        self.traces.begin(slot, prompt.trace)
        x = embed_prompt(self.t3, prompt, max_new_tokens=self._max_new_tokens)
        return to_logits(self.prefill_embeddings(slot, x, max_tokens=max_tokens))

    @torch.inference_mode()
    def prefill_embeddings(self, slot: int, x: Tensor, *, max_tokens: int | None = None) -> Tensor:
        """Read embeddings (rows, time, width) into a slot; return the logits (rows, vocab) after them."""
        rows, length = x.shape[:2]
        self.caches[slot] = []
        self.caches[slot] = self.pool.open(slot, rows=rows, prompt=length, tokens=max_tokens)
        recorder = self._recorder([slot])
        # Cloned, since a view would keep the hidden states of the whole prompt alive.
        hidden = [part[:, -1:].clone() for part in self._forward(x, self.caches[slot], recorder)]
        if recorder is not None:
            recorder.store_prompt(self.traces[slot], length)
        self._hidden[slot] = 0, hidden
        logits: Tensor = self.t3.speech_head(hidden[0])
        return logits[:, 0]

    @torch.inference_mode()
    def step(self, inputs: Sequence[StepInput]) -> list[Logits]:
        taken = self._take([VerifyInput(one.slot, (one.token,), one.position) for one in inputs])
        return [to_logits(logits[:, -1]) for logits in taken]

    @torch.inference_mode()
    def verify(self, inputs: Sequence[VerifyInput]) -> list[Logits]:
        return [to_logits(logits) for logits in self._take(inputs)]

    def rewind(self, slot: int, count: int) -> None:
        for cache in self.caches[slot]:
            cache.rewind(cache.position - count)

    def capture_hidden_states(self) -> None:
        self._captures = True

    def hidden_states(self, slot: int, draw: int) -> NDArray[np.float32]:
        assert self._captures, "call capture_hidden_states first"
        first, hidden = self._hidden[slot]
        return to_logits(torch.cat([part[:, draw - first] for part in hidden], dim=-1))

    @torch.inference_mode()
    def move(self, source: int, target: int) -> None:
        self.caches[target] = self.pool.move(self.caches[source], target)
        self.caches[source] = []
        self._hidden[target] = self._hidden.pop(source)
        self.traces.move(source, target)

    def release(self, slot: int) -> None:
        self.traces.pop(slot, None)
        self.pool.close(self.caches[slot])
        self.caches[slot] = []

    @torch.inference_mode()
    def reset(self, slot: int) -> None:
        self.pool.wipe(self.caches[slot])

    def _recorder(self, slots: Iterable[int]) -> QueryRecorder | None:
        """Return what records the queries of a pass, if one of its slots is traced."""
        traces = [self.traces[slot] for slot in slots if slot in self.traces]
        return QueryRecorder({layer for trace in traces for layer in trace.layers}) if traces else None

    def _forward(self, x: Tensor, caches: Sequence[KVCache], recorder: QueryRecorder | None) -> list[Tensor]:
        """Return what T3's head reads, then the captured residual stream."""
        caches = caches if recorder is None else recorder.wrap(caches)
        return self.t3.hidden_states(x, caches) if self._captures else [self.t3.tfmr(x, caches)]

    def _take(self, inputs: Sequence[VerifyInput]) -> list[Tensor]:
        """Return the logits (rows, tokens, vocab) of each input; rewind all of them if one fails."""
        positions = [self.caches[one.slot][0].position for one in inputs]
        try:
            if self.batched and len(inputs) > 1:
                return self._batched(inputs)
            return [self._alone(one) for one in inputs]
        except Exception:
            for one, position in zip(inputs, positions, strict=True):
                for cache in self.caches[one.slot]:
                    cache.rewind(position)
            raise

    def _alone(self, one: VerifyInput) -> Tensor:
        caches = self.caches[one.slot]
        ids = torch.tensor([list(one.tokens)] * caches[0].rows, device=self.t3.speech_head.weight.device)
        recorder = self._recorder([one.slot])
        hidden = self._forward(self.t3.embed_speech(ids, one.position), caches, recorder)
        if recorder is not None:
            recorder.store(self.traces[one.slot], 0, slice(len(one.tokens)), one.position)
        self._hidden[one.slot] = one.position, hidden
        logits: Tensor = self.t3.speech_head(hidden[0])
        return logits

    def _batched(self, inputs: Sequence[VerifyInput]) -> list[Tensor]:
        """Step all slots up to the last one in use. Unused rows compute values that are not read.

        Where no utterance is guided, the second row of each slot is skipped: half the work. Utterances with
        fewer tokens than others get padding, whose results are not read either.
        """
        used = max(self.caches[one.slot][0].rows for one in inputs)
        slots = max(one.slot for one in inputs) + 1
        longest = max(len(one.tokens) for one in inputs)
        ids, at = [[0] * longest for _ in range(slots)], [[0] * longest for _ in range(slots)]
        counts = [0] * slots
        for one in inputs:
            count = counts[one.slot] = len(one.tokens)
            ids[one.slot] = [*one.tokens, *[0] * (longest - count)]
            at[one.slot] = [one.position + min(ahead, count - 1) for ahead in range(longest)]

        def by_row(values: list[Any]) -> list[Any]:
            return [value for value in values for _ in range(used)]

        caches = self.pool.batch(self.caches[:slots], used=used, counts=counts)
        embedded = torch.tensor([by_row(ids), by_row(at)], device=self.t3.speech_head.weight.device)
        recorder = self._recorder(one.slot for one in inputs)
        hidden = self._forward(self.t3.embed_speech_at(*embedded), caches, recorder)
        logits = self.t3.speech_head(hidden[0])
        out = []
        for one in inputs:
            own_caches = self.caches[one.slot]
            self.pool.advance(own_caches, len(one.tokens))
            rows = slice(one.slot * used, one.slot * used + own_caches[0].rows), slice(len(one.tokens))
            self._hidden[one.slot] = one.position, [part[rows] for part in hidden]
            if recorder is not None and one.slot in self.traces:
                recorder.store(self.traces[one.slot], rows[0].start, rows[1], one.position)
            out.append(logits[rows])
        return out
