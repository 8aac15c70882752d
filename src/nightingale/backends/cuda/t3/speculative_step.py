"""A decode step of one utterance that drafts a few tokens and verifies them, without the host.

    logits -> token -> draft head, n times -> layers and head over 1 + n tokens -> n sampled tokens
           -> the drafted tokens up to the first that was not sampled are appended; the logits after them stay

Both rows of a guided utterance take part in the one pass over T3. The tokens are those of plain steps: each is
sampled from T3's logits with the random numbers of its position and the penalties of the tokens before it, as in
decoding/speculative.py. Keys and values of rejected tokens are overwritten by the next step. Logits and state
are left as a plain step leaves them, so that steps of both kinds may alternate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nightingale.backends.cuda.t3.batched_sampling import DecodeState, SamplerOrder
from nightingale.backends.cuda.t3.packed_network import PackedT3
from nightingale.backends.cuda.t3.packed_weights import KVCaches
from nightingale.models.chatterbox.t3.config import TAPS
from nightingale.models.chatterbox.t3.draft_head import DraftHead

SAMPLING = ("temperature", "greedy", "top_p", "log_min_p", "top_k", "penalty", "cfg_weight", "key")
"""Fields of `DecodeState` that do not change during an utterance."""
UNLIMITED = 2**31


class SpeculativeStep:
    """Draft, verify and accept tokens of one slot.

    rows: of the slot; longest: the most tokens that are drafted in one step.
    """

    def __init__(
        self, packed: PackedT3, head: DraftHead, *, order: SamplerOrder, rows: int, longest: int
    ) -> None:
        self._packed, self._order, self._head = packed, order, PackedDraftHead(packed, head)
        weight = packed.t3.speech_head.weight
        vocab, width = weight.shape
        self._hidden = weight.new_zeros(rows, (1 + TAPS) * width)
        """The hidden states that the logits of the state were made of, with the inputs of earlier layers."""
        shape: dict[str, Any] = {"rows": rows, "vocab": vocab, "device": weight.device}
        self._drafting = DecodeState.empty(slots=1, steps=longest + 1, **shape)
        self._drafting.budget.fill_(UNLIMITED)
        self._verifying = DecodeState.empty(slots=longest, steps=1, **shape)
        """One slot for each drafted token, with the state in which it is sampled if those before it are right."""
        self._ahead = torch.arange(longest, device=weight.device)
        self._count = torch.zeros(1, dtype=torch.int64, device=weight.device)
        """The number of drafted tokens that the last step appended; 0 where kernels are compiled and not run."""

    def set_sampling(self, state: DecodeState) -> None:
        """Take the sampling parameters of the slot."""
        for name in SAMPLING:
            getattr(self._verifying, name).copy_(
                getattr(state, name).expand_as(getattr(self._verifying, name))
            )

    def __call__(self, state: DecodeState, caches: KVCaches, drafts: int, sorting: bool) -> None:
        """Append one token to the only slot of `state`, and up to `drafts` more."""
        x, lengths = self._sample(state, sorting)
        drafted, embedded = self._draft(state, x, drafts, sorting)
        logits, hidden = self._packed.verify(torch.stack([x, *embedded], dim=1), caches, lengths)
        sampled = self._verify(logits, drafts, sorting)
        self._packed.accept(state, drafted, sampled, count=self._count)
        state.logits.copy_(logits.index_select(1, self._count).view_as(state.logits))
        self._hidden.copy_(hidden.index_select(1, self._count)[:, 0])

    def _draft(
        self, state: DecodeState, x: Tensor, drafts: int, sorting: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """Propose tokens after one with the embedding x; return them, (drafts,), and the embedding of each."""
        own, verifying = self._drafting, self._verifying
        own.seen.copy_(state.seen)
        own.sampled.copy_(state.sampled)
        torch.add(state.sampled, self._ahead, out=verifying.sampled)
        own.running.fill_(True)
        own.cursor.zero_()
        parameters = {name: getattr(state, name) for name in SAMPLING}
        hidden, embedded = self._head.start(self._hidden), list[Tensor]()
        for number in range(drafts):
            verifying.seen[number].copy_(own.seen[0])
            hidden, logits = self._head.step(hidden, x)
            x, _ = self._sample(replace(own, logits=logits[None], **parameters), sorting)
            embedded.append(x)
        return own.recent[:drafts, 0], embedded

    def _verify(self, logits: Tensor, drafts: int, sorting: bool) -> Tensor:
        """Sample from T3's logits (rows, 1 + drafts, vocab) before each drafted token: (drafts,)."""
        own = self._verifying.first(drafts)
        own.logits.copy_(logits[:, :drafts].transpose(0, 1))
        own.running.fill_(True)
        own.cursor.zero_()
        self._sample(own, sorting)
        return own.recent[0]

    def _sample(self, state: DecodeState, sorting: bool) -> tuple[Tensor, Tensor]:
        """Sample and append; return embeddings without absolute positions, which depend on the pass, and lengths."""
        return self._packed.sample(state, order=self._order, sorting=sorting, absolute=False)


class PackedDraftHead:
    """A draft head by library calls, or by T3's Triton kernels with norms and activations fused."""

    def __init__(self, packed: PackedT3, head: DraftHead) -> None:
        self._packed, self._speech_head = packed, packed.t3.speech_head
        self._head = head.to(self._speech_head.weight).eval().requires_grad_(False)
        self._gate_up = [
            torch.cat([block.mlp.gate_proj.weight, block.mlp.up_proj.weight])  # type: ignore[union-attr, list-item]
            for block in self._head.blocks
        ]

    def start(self, hidden: Tensor) -> Tensor:
        """Combine captured hidden states (rows, (1 + TAPS) · width) into (rows, width)."""
        fused, head = self._packed.kernels.loaded, self._head
        if fused is None:
            return head.start(hidden)
        final, taps = hidden[:, : head.width], hidden[:, head.width :]
        return self._linear(taps, head.taps_proj.weight, norm=head.taps_norm, residual=final.contiguous())

    def step(self, hidden: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next hidden state (rows, width) after a token's embedding, and its logits (rows, vocab)."""
        head, speech = self._head, self._speech_head
        if self._packed.kernels.loaded is None:
            following = head(hidden, embedded)
            return following, speech(following).float()
        x = self._linear(torch.cat([hidden, embedded], dim=-1), head.in_proj.weight)
        for block, gate_up in zip(head.blocks, self._gate_up, strict=True):
            inner: Any = block
            hidden = self._linear(x, gate_up, norm=inner.norm, gated=True)
            x = self._linear(hidden, inner.mlp.down_proj.weight, residual=x)
        from nightingale.backends.cuda.t3 import t3_kernels

        following = t3_kernels.rms_norm(x, head.norm.weight)
        logits = torch.empty(len(x), len(speech.weight), device=x.device)
        return following, self._linear(following, speech.weight, bias=speech.bias, out=logits)

    def _linear(self, x: Tensor, weight: Tensor, *, norm: Any = None, **more: Any) -> Tensor:
        from nightingale.backends.cuda.t3 import t3_kernels

        if norm is not None:
            more |= {"norm_weight": norm.weight, "norm": t3_kernels.RMS_NORM}
        fused: Any = self._packed.kernels.loaded
        return t3_kernels.linear(x.contiguous(), weight, fused.tuning, **more)
