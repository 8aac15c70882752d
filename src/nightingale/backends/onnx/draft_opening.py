"""Open the draft of a profile over the ONNX runner."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from nightingale.backends.base import Decoder, ModelSource, Setup
from nightingale.backends.onnx.draft_graph import OnnxDraftHead, open_draft_head, shared_weights
from nightingale.backends.onnx.numpy_weights import PackedWeights, fitting_weights, read_packed
from nightingale.backends.onnx.runner import OnnxRunner
from nightingale.backends.shared.speculation import MAX_HEAD_TOKENS, open_speculation
from nightingale.decoding.drafts import Draft
from nightingale.decoding.kv_budget import KVBudget
from nightingale.decoding.speculative import ONNX_COSTS


def open_drafts(
    source: ModelSource,
    setup: Setup,
    runner: OnnxRunner,
    t3: PackedWeights,
    budget: KVBudget,
    on_start: Callable[[], None] | None,
    *,
    threads: int,
) -> Decoder:
    """Return a speculative decoder; `t3` are the weights of the runner's T3."""

    def open_head(path: Path) -> OnnxDraftHead:
        with fitting_weights(source):
            shared = {name: t3[name] for name in shared_weights(runner.config)}
            weights = {**read_packed(path), **shared}
            return open_draft_head(
                runner.config, weights, runner.embeddings, threads=threads, longest=MAX_HEAD_TOKENS
            )

    return open_speculation(
        source,
        setup,
        runner,
        budget,
        on_start,
        open_head=open_head,
        open_model=partial(_open_draft_model, source, setup),
        costs=ONNX_COSTS.row_by_row(source.info.rows_per_slot),
    )


def _open_draft_model(source: ModelSource, setup: Setup) -> tuple[Draft, float]:
    from nightingale.backends.torch.draft_models import open_draft_model

    return open_draft_model(source, setup)
