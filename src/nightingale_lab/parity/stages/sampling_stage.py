"""The sampler: the filtered logits before the draw, against the transformers processors that upstream uses.

The processors are called in the order of upstream's loops, on logits and histories of upstream's T3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from nightingale.decoding.sampling import guide, process_logits
from nightingale.models.chatterbox.t3.config import START_SPEECH
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.types import Sampling
from nightingale_lab.parity.table import Rows

STEPS = 24
GAIN = 6.0
"""Logits of random weights are flat. Sharper ones give the filters something to remove."""


def cases(model: str) -> Mapping[str, Sampling]:
    defaults = MODEL_DEFAULTS[model].sampling
    return {"family's defaults": defaults, "top-p 0.8": replace(defaults, top_p=0.8)}


def _steps(logits: Tensor, ids: Tensor, *, guided: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits (rows, vocabulary) and the history of each step of a greedy run."""
    for step, raw in enumerate(logits[:STEPS]):
        history = torch.tensor([START_SPEECH, *ids[:step]])
        yield GAIN * raw, ids[:step] if step and not guided else history


def run_ours(model: str, sampling: Sampling, logits: Tensor, ids: Tensor) -> Tensor:
    """logits: (steps, rows, vocabulary), ids: (steps,). Returns (steps, vocabulary)."""
    filtered = []
    for raw, history in _steps(logits, ids, guided=logits.shape[1] == 2):
        seen = np.zeros(raw.shape[-1], dtype=np.bool_)
        seen[history.numpy()] = True
        guided = guide(raw.numpy(), sampling.cfg_weight)
        processed = process_logits(guided, seen, MODEL_DEFAULTS[model].sampler, sampling)
        filtered.append(torch.from_numpy(processed))
    return torch.stack(filtered)


def run_theirs(sampling: Sampling, logits: Tensor, ids: Tensor) -> Tensor:
    from transformers.generation.logits_process import (
        LogitsProcessorList,
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    guided = logits.shape[1] == 2
    penalty = RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty))
    temperature, top_p = TemperatureLogitsWarper(sampling.temperature), TopPLogitsWarper(top_p=sampling.top_p)
    if guided:
        order = [penalty, temperature, MinPLogitsWarper(min_p=sampling.min_p), top_p]
    else:
        order = [temperature, TopKLogitsWarper(sampling.top_k), top_p, penalty]
    filtered = []
    for raw, history in _steps(logits, ids, guided=guided):
        if guided:
            raw = raw[:1] + sampling.cfg_weight * (raw[:1] - raw[1:2])
        filtered.append(LogitsProcessorList(order)(history[None], raw)[0])
    return torch.stack(filtered)


def compare(rows: Rows, model: str, logits: Tensor, ids: Tensor) -> None:
    for name, sampling in cases(model).items():
        ours, theirs = run_ours(model, sampling, logits, ids), run_theirs(sampling, logits, ids)
        rows.same_filter(f"sampler, {name}", ours, theirs, relative=1e-6)
