"""Logits to tokens for all rows at once, without the host: the batched twin of decoding/sampling.py.

Each request's knobs are a row of small tensors, so one graph serves any mixture of requests. A knob that is
off is set to a value that changes nothing. Only sorting, which top-k and top-p need and which costs more than
the rest together, is left out of the graph when nobody asks for it.

Tokens are drawn as decoding/sampling.py draws them, by the Gumbel-max trick with the same random numbers: for
the same logits, seed and draw number both give the same token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from nightingale.backends.cuda.random import triton_kernels, uniform
from nightingale.types import Sampling

Order = Literal["chatterbox", "turbo"]
COLDEST = 1e-5
"""As in decoding/sampling.py: below this temperature the likeliest id is taken."""


def needs_sorting(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1


@dataclass(slots=True, kw_only=True)
class Knobs:
    """How each slot samples; all (slots,)."""

    temperature: Tensor
    greedy: Tensor
    top_p: Tensor
    """float64, as decoding/sampling.py adds up probabilities."""
    log_min_p: Tensor
    top_k: Tensor
    """The vocabulary's size where it is off."""
    penalty: Tensor
    cfg_weight: Tensor
    key: Tensor
    """Of the random numbers: `int64_key`."""

    @classmethod
    def off(cls, slots: int, vocab: int, device: torch.device) -> Knobs:
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
        greedy = sampling.temperature < COLDEST
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
            # Filled: an assignment to one place of a GPU's tensor is a copy from the host, and waits.
            row[slot].fill_(values[name])

    def first(self, slots: int) -> Knobs:
        """Views of the first so many."""
        return Knobs(**{name: value[:slots] for name, value in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in Knobs.__slots__}


def guide(scores: Tensor, weight: Tensor) -> Tensor:
    """(slots, rows, vocab) -> (slots, vocab): guidance where there are two rows."""
    if scores.shape[1] == 1:
        return scores[:, 0]
    told, untold = scores[:, 0], scores[:, 1]
    return told + weight[:, None] * (told - untold)


def shape_scores(scores: Tensor, seen: Tensor, knobs: Knobs, *, order: Order, sorting: bool) -> Tensor:
    """The steps between guidance and the draw, in the family's order. scores, seen: (slots, vocab)."""
    if order == "chatterbox":
        scores = penalise(scores, seen, knobs.penalty) / knobs.temperature[:, None]
        least = scores.amax(dim=-1, keepdim=True) + knobs.log_min_p[:, None]
        scores = scores.masked_fill(scores < least, -torch.inf)
        return cut(scores, knobs) if sorting else scores
    # PARITY: Turbo penalises last, after the cuts, and knows no min-p.
    #         tests/backends/cuda/test_sampling.py::test_every_family_shapes_scores_as_its_plain_twin
    scores = scores / knobs.temperature[:, None]
    return penalise(cut(scores, knobs) if sorting else scores, seen, knobs.penalty)


def penalise(scores: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    penalty = penalty[:, None]
    return torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


def cut(scores: Tensor, knobs: Knobs) -> Tensor:
    """Top-k, then top-p of what it leaves, by one sort. Ids as likely as the last one kept are kept too."""
    vocab = scores.shape[-1]
    ascending = torch.sort(scores, dim=-1).values
    least = ascending.gather(1, vocab - knobs.top_k[:, None])
    kept = ascending.masked_fill(ascending < least, -torch.inf)
    unlikely = _running_sum(torch.softmax(kept.double(), dim=-1)) <= 1 - knobs.top_p[:, None]
    # The likeliest is always kept, however small the mass.
    first = unlikely.sum(dim=-1, keepdim=True).clamp(max=vocab - 1)
    least = torch.maximum(least, kept.gather(1, first))
    return scores.masked_fill(scores < least, -torch.inf)


def draw(scores: Tensor, knobs: Knobs, number: Tensor) -> Tensor:
    """Sample one id for each slot, (slots,): its draw `number` (slots,). See `decoding.sampling.draw`."""
    kernels = triton_kernels(scores.device)
    if kernels is not None:
        drawn: Tensor = kernels.sample(scores, knobs.key, number, knobs.greedy)
        return drawn
    waits = -torch.log(uniform(knobs.key, number, scores.shape[-1]))
    return torch.where(knobs.greedy[:, None], scores.double(), scores - torch.log(waits)).argmax(dim=-1)


def _running_sum(x: Tensor) -> Tensor:
    """Along each row (slots, vocab). Never of one row alone: CUDA shares that among blocks which add up in
    whatever order they come, and the last bit is another each time."""
    return x.cumsum(dim=-1) if len(x) > 1 else x.expand(2, -1).cumsum(dim=-1)[:1]
