"""The ExecuTorch export: programs with fixed shapes for XNNPACK, voices, the text vocabulary and a card.

    DIR/export.json       the card: sizes, ids, sampling, inputs and outputs of the programs in order
    DIR/t3.pte            methods `prefill` and `step` (static_t3.py)
    DIR/flow.pte          methods `encode` and `step` (static_flow.py)
    DIR/vocoder.pte       method `forward` (fixed_vocoder.py)
    DIR/tokenizer.json    the text vocabulary
    DIR/voices/NAME.f32   T3's speaker, then the flow's speaker, float32, little-endian

docs/export.md shows how to use them; executorch_model.py is the same loop in Python.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from nightingale.engine.load import load_model
from nightingale.errors import ConfigError
from nightingale.export import Note
from nightingale.export.phone.executorch_model import FORMAT, FORMAT_VERSION, ExecutorchModel
from nightingale.export.phone.fixed_vocoder import FixedVocoder
from nightingale.export.phone.phone_card import (
    TOKENIZER,
    ExportSizes,
    check_supported,
    make_card,
    write_card,
    write_voices,
)
from nightingale.export.phone.phone_check import compare_with_engine, load_networks
from nightingale.export.phone.static_flow import StaticEstimator, StaticTokenEncoder
from nightingale.export.phone.static_t3 import StaticT3
from nightingale.install import install_command
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.frame_vocoder.network import FrameVocoder

DTYPES: Final = {torch.float32: "float32", torch.int64: "int64"}
FED_BACK: Final = ("cache.", "keys.", "values.")
"""Prefixes of inputs that outputs of the same name replace."""


class StaticPrograms:
    """The modules of an export by file and method."""

    def __init__(self, t3: T3, flow: Flow, vocoder: FrameVocoder, sizes: ExportSizes) -> None:
        self.files: dict[str, dict[str, nn.Module]] = {
            "t3": {
                "prefill": StaticT3(t3, tokens=sizes.prefill_tokens, capacity=sizes.capacity),
                "step": StaticT3(t3, tokens=1, capacity=sizes.capacity),
            },
            "flow": {
                "encode": StaticTokenEncoder(flow, tokens=sizes.block_tokens),
                "step": StaticEstimator(flow, tokens=sizes.block_tokens),
            },
            "vocoder": {"forward": FixedVocoder(vocoder, frames=sizes.block_frames)},
        }
        for methods in self.files.values():
            for module in methods.values():
                module.eval().requires_grad_(False)

    def describe(self) -> dict[str, Any]:
        """Return the card's description of all methods: {file: {method: inputs and outputs}}."""
        return {
            file: {method: _describe(module) for method, module in methods.items()}
            for file, methods in self.files.items()
        }


def _describe(module: Any) -> dict[str, Any]:
    example = module.example()
    with torch.no_grad():
        results = module(*example)
    inputs, outputs = module.names()

    def values(names: list[str], tensors: tuple[Tensor, ...], *, start: bool) -> list[dict[str, Any]]:
        return [
            {"name": name, "dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape)}
            | ({"start": float(tensor.flatten()[0])} if start and name.startswith(FED_BACK) else {})
            for name, tensor in zip(names, tensors, strict=True)
        ]

    return {
        "inputs": values(inputs, example, start=True),
        "outputs": values(outputs, results, start=False),
    }


def export(model: str, folder: Path, *, note: Note, sizes: ExportSizes = ExportSizes()) -> None:  # noqa: B008, frozen
    """Write a wren-like model into an empty folder and compare it with the engine.

    Raises:
        ConfigError: The model cannot be exported, or ExecuTorch is not installed.
        CheckpointError: The export differs from the engine.
    """
    if importlib.util.find_spec("executorch") is None:
        raise ConfigError("ExecuTorch is not installed", fix=f"Install it: {install_command('executorch')}.")
    loaded = load_model(model, offline=True, options={})
    check_supported(loaded, "ExecuTorch")
    t3, flow, vocoder = load_networks(loaded)
    programs = StaticPrograms(t3, flow, vocoder, sizes)
    planned: dict[str, dict[str, int]] = {}
    for file, methods in programs.files.items():
        note(f"lowering {file}")
        program, planned[file] = lower(methods)
        (folder / f"{file}.pte").write_bytes(program)
    shutil.copyfile(loaded.source.files["tokenizer"], folder / TOKENIZER)
    voices = write_voices(loaded, folder, t3, flow)
    card = make_card(loaded, sizes, voices, kind=FORMAT, version=FORMAT_VERSION)
    card["programs"] = programs.describe()
    card["planned_bytes"] = planned
    card["versions"] = {package: version(package) for package in ("executorch", "torch")}
    write_card(folder, card)
    note("comparing with the engine")
    card["check"] = compare_with_engine(loaded, ExecutorchModel.open(folder))
    write_card(folder, card)


def trace(module: Any) -> torch.export.ExportedProgram:
    """Return the graph of a module."""
    # Copies, because inputs that are the same tensor would become one input.
    return torch.export.export(module, tuple(one.clone() for one in module.example()), strict=False)


def lower(methods: Mapping[str, Any]) -> tuple[bytes, dict[str, int]]:
    """Return a program with these modules as methods, and the bytes that each method plans for its tensors.

    It is delegated to XNNPACK where that has the operations; XNNPACK's own memory is not in these bytes.
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes import MemoryPlanningPass

    with torch.no_grad():
        exported = {name: trace(module) for name, module in methods.items()}
        # Without validation of the graph: `check` compares what the programs compute with the engine.
        config = EdgeCompileConfig(_check_ir_validity=False)
        edge = to_edge_transform_and_lower(
            exported, partitioner=[XnnpackPartitioner()], compile_config=config
        )
    # Inputs are read where the caller has them; the KV cache would be copied for each token otherwise.
    planning = MemoryPlanningPass(alloc_graph_input=False)
    program = edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))
    plans = program.executorch_program.execution_plan
    return program.buffer, {plan.name: sum(plan.non_const_buffer_sizes) for plan in plans}
