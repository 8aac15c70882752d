"""Logits to tokens for all slots at once, without the host: the batched counterpart of decoding/sampling.py.

The sampling parameters of each request are one row of small tensors, so one graph serves any mixture of
requests; a parameter that is off has a value that changes nothing. Only sorting, which top-k and top-p need
and which costs more than everything else, is left out of the graph while no request asks for it.

Tokens are drawn by the Gumbel-max trick with the numbers of decoding/philox.py: for the same logits, seed and
draw number, decoding/sampling.py gives the same token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from nightingale.backends.cuda.random import triton_kernels, uniform
from nightingale.decoding.sampling import is_greedy
from nightingale.types import Sampling

SamplerOrder = Literal["chatterbox", "turbo"]


def needs_sorting(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1


@dataclass(slots=True, kw_only=True)
class BatchedSampling:
    """The sampling parameters of each slot; all are (slots,)."""

    temperature: Tensor
    greedy: Tensor
    top_p: Tensor
    """float64, as decoding/sampling.py sums probabilities."""
    log_min_p: Tensor
    top_k: Tensor
    """The size of the vocabulary if it is off."""
    penalty: Tensor
    cfg_weight: Tensor
    key: Tensor
    """The key of the random numbers, `int64_key`."""

    @classmethod
    def off(cls, slots: int, vocab: int, device: torch.device) -> BatchedSampling:
        def row(value: float, dtype: torch.dtype) -> Tensor:
            return torch.full((slots,), value, dtype=dtype, device=device)

        return cls(
            temperature=row(1.0, torch.float32),
            greedy=row(True, torch.bool),
            top_p=row(1.0, torch.float64),
            log_min_p=row(-math.inf, torch.float32),
            top_k=row(vocab, torch.int64),
            penalty=row(1.0, torch.float32),
            cfg_weight=row(0.0, torch.float32),
            key=row(0, torch.int64),
        )

    def set(self, slot: int, sampling: Sampling, *, key: int, vocab: int) -> None:
        greedy = is_greedy(sampling)
        values = {
            "temperature": 1.0 if greedy else sampling.temperature,
            "greedy": greedy,
            "top_p": sampling.top_p,
            "log_min_p": math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf,
            "top_k": min(sampling.top_k, vocab) if sampling.top_k > 0 else vocab,
            "penalty": sampling.repetition_penalty,
            "cfg_weight": sampling.cfg_weight,
            "key": key,
        }
        for name, row in self.tensors().items():
            # Filled: an assignment to one element of a GPU tensor is a copy from the host, which waits.
            row[slot].fill_(values[name])

    def first(self, slots: int) -> BatchedSampling:
        """Return views of the first slots."""
        return BatchedSampling(**{name: value[:slots] for name, value in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in BatchedSampling.__slots__}


def apply_guidance(logits: Tensor, weight: Tensor) -> Tensor:
    """Apply classifier-free guidance, if there are two rows: (slots, rows, vocab) -> (slots, vocab)."""
    if logits.shape[1] == 1:
        return logits[:, 0]
    conditional, unconditional = logits[:, 0], logits[:, 1]
    return conditional + weight[:, None] * (conditional - unconditional)


def process_logits(
    logits: Tensor, seen: Tensor, sampling: BatchedSampling, *, order: SamplerOrder, sorting: bool
) -> Tensor:
    """Apply the steps between guidance and the draw, in the family's order. logits, seen: (slots, vocab)."""
    if order == "chatterbox":
        logits = apply_penalty(logits, seen, sampling.penalty) / sampling.temperature[:, None]
        least = logits.amax(dim=-1, keepdim=True) + sampling.log_min_p[:, None]
        logits = logits.masked_fill(logits < least, -torch.inf)
        return top_k_top_p(logits, sampling) if sorting else logits
    # PARITY: Turbo applies the penalty last, after the cuts, and has no min-p.
    #         tests/backends/cuda/test_batched_sampling.py::test_every_family_processes_logits_as_on_the_host
    logits = logits / sampling.temperature[:, None]
    return apply_penalty(top_k_top_p(logits, sampling) if sorting else logits, seen, sampling.penalty)


def apply_penalty(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    penalty = penalty[:, None]
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def top_k_top_p(logits: Tensor, sampling: BatchedSampling) -> Tensor:
    """Apply top-k, then top-p to what is left, with one sort. Ids as likely as the last one kept are kept."""
    vocab = logits.shape[-1]
    ascending = torch.sort(logits, dim=-1).values
    least = ascending.gather(1, vocab - sampling.top_k[:, None])
    kept = ascending.masked_fill(ascending < least, -torch.inf)
    dropped = _cumulative_sum(torch.softmax(kept.double(), dim=-1)) <= 1 - sampling.top_p[:, None]
    # The most likely id is always kept, however small the mass.
    first = dropped.sum(dim=-1, keepdim=True).clamp(max=vocab - 1)
    least = torch.maximum(least, kept.gather(1, first))
    return logits.masked_fill(logits < least, -torch.inf)


def sample(logits: Tensor, sampling: BatchedSampling, number: Tensor) -> Tensor:
    """Sample one id for each slot, (slots,): its draw `number` (slots,). See `decoding.sampling.draw`."""
    kernels = triton_kernels(logits.device)
    if kernels is not None:
        sampled: Tensor = kernels.sample(logits, sampling.key, number, sampling.greedy)
        return sampled
    waits = -torch.log(uniform(sampling.key, number, logits.shape[-1]))
    return torch.where(sampling.greedy[:, None], logits.double(), logits - torch.log(waits)).argmax(dim=-1)


def _cumulative_sum(x: Tensor) -> Tensor:
    """Return the running sum of each row (slots, vocab).

    Never of one row alone: CUDA splits that among blocks that add in any order, and the last bit varies.
    """
    return x.cumsum(dim=-1) if len(x) > 1 else x.expand(2, -1).cumsum(dim=-1)[:1]
