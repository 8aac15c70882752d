"""T3's steps in PyTorch over a pool of KV caches: the reference runner.

A slot is the KV cache of one utterance: two rows where the family can be guided, one elsewhere. Slots are
allocated once; nothing grows with the number of requests.

A step can be taken in two ways. *Alone*, each utterance by itself: its arithmetic does not depend on other
requests, so its tokens are the same bit for bit at any concurrency. *Batched*, all in one pass: weights are
read once for all utterances, which is where the time goes; sums may then round differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from nightingale.backends.torch.query_recorder import QueryRecorder
from nightingale.decoding.attention_trace import SlotTraces
from nightingale.decoding.decoding import Decoding, Prompt
from nightingale.decoding.lru import BytesLRU
from nightingale.decoding.runner import StepInput
from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_cache import BatchedKVCache, DenseKVCache, KVCache

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
    """Run T3 in the precision of its weights; implements `LogitsRunner`."""

    def __init__(
        self,
        t3: T3,
        *,
        slots: int,
        rows_per_slot: int,
        capacity: int,
        batched: bool,
        max_new_tokens: int,
    ) -> None:
        """max_new_tokens: the longest utterance."""
        self.t3, self.batched, self.capacity = t3, batched, capacity
        self._max_new_tokens = max_new_tokens
        self._rows_per_slot = rows_per_slot
        self._layers = t3.new_kv_cache(rows=slots * rows_per_slot, capacity=capacity)
        self.caches: list[list[DenseKVCache]] = [[] for _ in range(slots)]
        """caches[slot]: one per layer, over the rows that the utterance uses."""
        self.traces = SlotTraces()

    @property
    def kv_bytes(self) -> int:
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self._layers)

    @torch.inference_mode()
    def prefill(self, slot: int, prompt: Prompt, *, max_tokens: int) -> Logits:
        del max_tokens
        self.traces.begin(slot, prompt.trace)
        x = embed_prompt(self.t3, prompt, max_new_tokens=self._max_new_tokens)
        return to_logits(self.prefill_embeddings(slot, x))

    @torch.inference_mode()
    def prefill_embeddings(self, slot: int, x: Tensor) -> Tensor:
        """Read embeddings (rows, time, width) into a slot; return the logits (rows, vocab) after them."""
        rows, length = x.shape[:2]
        self.caches[slot] = self._slot_caches(slot, rows)
        recorder = self._recorder([slot])
        last = self._forward(x, self.caches[slot], recorder)[:, -1]
        if recorder is not None:
            recorder.store_prompt(self.traces[slot], length)
        logits: Tensor = self.t3.speech_head(last)
        return logits

    @torch.inference_mode()
    def step(self, inputs: Sequence[StepInput]) -> list[Logits]:
        """Return the logits (rows, vocab) of each utterance's next token. If this raises, no slot has changed."""
        positions = [self.caches[one.slot][0].position for one in inputs]
        try:
            if self.batched and len(inputs) > 1:
                stepped = self._batched(inputs)
            else:
                stepped = [self._alone(one) for one in inputs]
            return [to_logits(logits) for logits in stepped]
        except Exception:
            for one, position in zip(inputs, positions, strict=True):
                for cache in self.caches[one.slot]:
                    cache.position = position
            raise

    @torch.inference_mode()
    def move(self, source: int, target: int) -> None:
        before = self.caches[source]
        self.caches[target] = self._slot_caches(target, before[0].rows)
        for old, new in zip(before, self.caches[target], strict=True):
            length = new.position = old.position
            new.keys[:, :, :length] = old.keys[:, :, :length]
            new.values[:, :, :length] = old.values[:, :, :length]
        self.caches[source] = []
        self.traces.move(source, target)

    def release(self, slot: int) -> None:
        self.traces.pop(slot, None)
        self.caches[slot] = []

    @torch.inference_mode()
    def reset(self, slot: int) -> None:
        for cache in self.caches[slot]:
            cache.wipe()

    def _slot_caches(self, slot: int, rows: int) -> list[DenseKVCache]:
        """Return empty caches over the first rows of a slot, one per layer."""
        return [layer.slice_rows(slot * self._rows_per_slot, rows) for layer in self._layers]

    def _batched_caches(self, slots: int, used: int) -> list[BatchedKVCache]:
        """Return the cache of each layer over `used` rows of the first slots."""
        # A slot that takes no part stores its token behind its contents, where it is never read.
        lengths = [own[0].position if own else 0 for own in self.caches[:slots] for _ in range(used)]
        return BatchedKVCache.for_layers(self._layers, lengths, every=self._rows_per_slot // used)

    def _recorder(self, slots: Iterable[int]) -> QueryRecorder | None:
        """Return what records the queries of a pass, if one of its slots is traced."""
        traces = [self.traces[slot] for slot in slots if slot in self.traces]
        return QueryRecorder({layer for trace in traces for layer in trace.layers}) if traces else None

    def _forward(self, x: Tensor, caches: Sequence[KVCache], recorder: QueryRecorder | None) -> Tensor:
        """Return what T3's head reads."""
        hidden: Tensor = self.t3.tfmr(x, caches if recorder is None else recorder.wrap(caches))
        return hidden

    def _alone(self, one: StepInput) -> Tensor:
        """Return the logits (rows, vocab) after a token."""
        caches = self.caches[one.slot]
        ids = torch.full((caches[0].rows, 1), one.token, device=self.t3.speech_head.weight.device)
        recorder = self._recorder([one.slot])
        hidden = self._forward(self.t3.embed_speech(ids, one.position), caches, recorder)
        if recorder is not None:
            recorder.store(self.traces[one.slot], 0, slice(1), one.position)
        logits: Tensor = self.t3.speech_head(hidden)
        return logits[:, 0]

    def _batched(self, inputs: Sequence[StepInput]) -> list[Tensor]:
        """Step all slots up to the last one in use. Unused rows compute values that are not read.

        Where no utterance is guided, the second row of each slot is skipped: half the work.
        """
        used = max(self.caches[one.slot][0].rows for one in inputs)
        slots = max(one.slot for one in inputs) + 1
        ids, at = [0] * slots, [0] * slots
        for one in inputs:
            ids[one.slot], at[one.slot] = one.token, one.position
        given = torch.tensor([ids, at], device=self.t3.speech_head.weight.device)
        by_row = given.repeat_interleave(used, dim=1)[..., None]
        recorder = self._recorder(one.slot for one in inputs)
        caches = self._batched_caches(slots, used)
        logits = self.t3.speech_head(self._forward(self.t3.embed_speech_at(*by_row), caches, recorder))
        out = []
        for one in inputs:
            own, first = self.caches[one.slot], one.slot * used
            for cache in own:
                cache.position += 1
            if recorder is not None and one.slot in self.traces:
                recorder.store(self.traces[one.slot], first, slice(1), one.position)
            out.append(logits[first : first + own[0].rows, 0])
        return out
