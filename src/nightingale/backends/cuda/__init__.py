"""The CUDA backend: T3 and rendering as CUDA graphs, with Triton kernels."""

from __future__ import annotations

import importlib.util
from typing import Final

from nightingale.backends.base import (
    TORCH_MISSING,
    Backend,
    Decoder,
    ModelInfo,
    ModelSource,
    Renderer,
    Role,
    Setup,
)

KV_CACHE_SHARE: Final = 0.6
"""Share of the free GPU memory that T3's KV cache may take; weights, graphs and the flow need the rest."""
ITEMSIZE: Final = {"float32": 4, "bfloat16": 2}


class CudaBackend(Backend):
    name = "cuda"
    description = "CUDA graphs and Triton kernels; tokens are sampled on the GPU"
    device_kinds: tuple[str, ...] = ("cuda",)

    def unsupported_reason(self, role: Role, model: ModelInfo, setup: Setup) -> str | None:
        machine, precision = setup.machine, setup.precision
        if importlib.util.find_spec("torch") is None:
            return TORCH_MISSING
        if model.synthetic:
            return "the model has no weights"
        if machine.problem is not None:
            return machine.problem
        if precision not in ITEMSIZE:
            return f"it computes in float32 and bfloat16, not in {precision}"
        if precision == "bfloat16" and int(machine.instructions.removeprefix("sm_")) < 80:
            return f"{machine.name} ({machine.instructions}) does not compute in bfloat16"
        if role == "decoder":
            return self._decoder_unsupported_reason(model, setup)
        if model.preset.flow.block_causal:
            return "the state of a block-causal flow grows with each block, and a graph's shapes are fixed"
        return None

    def _decoder_unsupported_reason(self, model: ModelInfo, setup: Setup) -> str | None:
        free = setup.machine.free_bytes
        needed = model.kv_cache_bytes(setup.slots, ITEMSIZE[setup.precision])
        if free is not None and needed > KV_CACHE_SHARE * free:
            return (
                f"{setup.slots} slots need {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free; "
                "choose fewer slots"
            )
        return None

    def open_decoder(self, source: ModelSource, setup: Setup) -> Decoder:
        from nightingale.backends.cuda.graph_decoder import open_decoder

        return open_decoder(source, setup)

    def open_renderer(self, source: ModelSource, setup: Setup) -> Renderer:
        from nightingale.backends.cuda.graph_renderer import open_renderer

        return open_renderer(source, setup)
