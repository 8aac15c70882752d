"""The sampler: what is left of the scores before the draw, against the processors upstream uses.

The processors are called in the order of upstream's loops, on scores and histories upstream's T3 produced.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from families import Family
from table import Rows
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.decoding.sampling import compose_sampler, guide
from nightingale.models.chatterbox.t3.config import START_SPEECH
from nightingale.types import Sampling

STEPS = 24
GAIN = 6.0
"""Logits of random weights are flat; sharper ones give the cuts something to cut."""


def compare(rows: Rows, family: Family, scores: Tensor, ids: Tensor) -> None:
    """scores: (steps, rows, vocabulary) and ids: (steps,), of a greedy run."""
    defaults = MODEL_DEFAULTS[family.name]
    cases = {"family's defaults": defaults.sampling, "top-p 0.8": replace(defaults.sampling, top_p=0.8)}
    for name, sampling in cases.items():
        ours, theirs = [], []
        for step in range(STEPS):
            raw = GAIN * scores[step]
            history = torch.tensor([START_SPEECH, *ids[:step]])
            if not family.guided and step > 0:
                history = ids[:step]
            seen = np.zeros(raw.shape[-1], dtype=np.bool_)
            seen[history.numpy()] = True
            sampler = compose_sampler(defaults.sampler, sampling)
            ours.append(torch.from_numpy(sampler(guide(raw, sampling.cfg_weight).numpy(), seen)))
            theirs.append(_processed(family, sampling, raw, history[None]))
        rows.same_filter(f"sampler, {name}", torch.stack(ours), torch.stack(theirs), relative=1e-6)


def _processed(family: Family, sampling: Sampling, raw: Tensor, history: Tensor) -> Tensor:
    penalty = RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty))
    cool, top_p = TemperatureLogitsWarper(sampling.temperature), TopPLogitsWarper(top_p=sampling.top_p)
    if family.guided:
        order = [penalty, cool, MinPLogitsWarper(min_p=sampling.min_p), top_p]
        raw = raw[:1] + sampling.cfg_weight * (raw[:1] - raw[1:2])
    else:
        order = [cool, TopKLogitsWarper(sampling.top_k), top_p, penalty]
    processed: Tensor = LogitsProcessorList(order)(history, raw)
    return processed[0]
