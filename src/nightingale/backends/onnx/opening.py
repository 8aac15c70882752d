"""Check and open T3 on ONNX Runtime."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from nightingale.backends.base import Decoder, ModelInfo, ModelSource, Setup
from nightingale.backends.onnx import capabilities
from nightingale.backends.onnx.draft_graph import open_draft_head
from nightingale.backends.onnx.graph import GRAPH_FILE, OnnxFormat
from nightingale.backends.onnx.runner import OnnxRunner, exact_graph
from nightingale.backends.shared.packed_t3 import open_packed
from nightingale.backends.torch.decoder import pool_options
from nightingale.backends.torch.devices import use_threads
from nightingale.backends.torch.speculation import MAX_HEAD_TOKENS, open_speculation
from nightingale.backends.torch.weights import t3_weights
from nightingale.decoding.host_decoder import HostDecoder
from nightingale.decoding.kv_budget import KVBudget
from nightingale.decoding.speculative import MAX_DRAFT_TOKENS, ONNX_COSTS


def unsupported_reason(model: ModelInfo, setup: Setup) -> str | None:
    if setup.profile.needs_torch_kv_cache:
        return "this profile's KV cache needs T3's layers in PyTorch"
    if setup.precision == "float32":
        return capabilities.float32_unsupported_reason(model.preset.t3)
    if setup.precision != "int8":
        return f"it computes in float32 and int8, not in {setup.precision}"
    if setup.profile.draft:
        return (
            "in int8, a pass over several tokens may round otherwise than single steps, so no draft is exact"
        )
    return capabilities.unsupported_reason(model.preset.t3)


def open_decoder(source: ModelSource, setup: Setup) -> Decoder:
    info, profile = source.info, setup.profile
    load_t3 = partial(t3_weights, source, "cpu", "float32")
    graph: Path | bytes
    if setup.precision == "int8":
        t3, folder = open_packed(source, OnnxFormat(), load_t3)
        graph = folder / GRAPH_FILE
    else:
        t3 = load_t3()
        graph = exact_graph(t3)
    runner = OnnxRunner(
        t3,
        graph,
        **pool_options(source, setup),
        spare=MAX_DRAFT_TOKENS if profile.draft else 0,
        threads=setup.threads,
    )
    budget = KVBudget.dense(info.preset.t3, info.defaults, itemsize=4)
    on_start = None if setup.threads is None else partial(use_threads, setup.threads)
    if not profile.draft:
        return HostDecoder(runner, budget, on_start=on_start)
    threads = torch.get_num_threads() if setup.threads is None else setup.threads
    return open_speculation(
        source,
        setup,
        runner,
        budget,
        on_start,
        open_head=partial(open_draft_head, threads=threads, longest=MAX_HEAD_TOKENS),
        costs=ONNX_COSTS.row_by_row(info.rows_per_slot),
    )
