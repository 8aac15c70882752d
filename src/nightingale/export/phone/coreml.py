"""The Core ML export: packages with fixed shapes for iOS 18, embedding tables, voices, vocabulary and a card.

    DIR/export.json           the card: sizes, ids, sampling, inputs, outputs and states of the functions
    DIR/t3.mlpackage          functions `prefill` and `step` over the same weights and states
    DIR/flow.mlpackage        a block of speech tokens to mel
    DIR/vocoder.mlpackage     a block of mel to samples
    DIR/t3.f16, flow.f16      embedding tables, (ids, width), float16, little-endian
    DIR/tokenizer.json        the text vocabulary
    DIR/voices/NAME.f32       T3's speaker, then the flow's speaker, float32, little-endian

Everything is computed in float16, so that the Neural Engine may run it, except the vocoder's pitch and
phase. docs/export.md shows how an app uses the files; coreml_model.py is the same loop in Python.
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from nightingale.engine.load import load_model
from nightingale.errors import ConfigError
from nightingale.export import Note
from nightingale.export.phone.coreml_model import FORMAT, FORMAT_VERSION, CoremlModel
from nightingale.export.phone.coreml_modules import (
    CACHE,
    FLOAT32_HANDLE,
    CoremlFlow,
    CoremlModule,
    CoremlT3,
    CoremlVocoder,
)
from nightingale.export.phone.phone_card import (
    TOKENIZER,
    ExportSizes,
    check_supported,
    make_card,
    write_card,
    write_voices,
)
from nightingale.export.phone.phone_check import ExportLimits, compare_with_engine, load_networks
from nightingale.install import install_command
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.frame_vocoder.network import FrameVocoder

LIMITS: Final = ExportLimits(other_tokens=3, logits=0.1, mel=0.05, samples_db=-40.0)
"""For float16, which has 11 bits: the most likely tokens of a sentence are nearly equal a few times."""
NUMPY: Final = {torch.float16: np.float16, torch.float32: np.float32, torch.int32: np.int32}
LIBRARIES: Final = ("libmilstoragepython", "libmodelpackage")
"""The native parts of coremltools that write packages."""


def export(model: str, folder: Path, *, note: Note, sizes: ExportSizes = ExportSizes()) -> None:  # noqa: B008, frozen
    """Write a wren-like model into an empty folder and compare it with the engine.

    Raises:
        ConfigError: The model cannot be exported, or coremltools is not installed.
        CheckpointError: The export differs from the engine.
    """
    if (reason := missing_reason()) is not None:
        raise ConfigError(
            reason, fix=f"Install it: {install_command('coreml')}. For ARM Linux see docs/export.md."
        )
    loaded = load_model(model, offline=True, options={})
    check_supported(loaded, "Core ML")
    t3, flow, vocoder = load_networks(loaded)
    programs = write_packages(t3, flow, vocoder, sizes, folder, note)
    shutil.copyfile(loaded.source.files["tokenizer"], folder / TOKENIZER)
    voices = write_voices(loaded, folder, t3, flow)
    card = make_card(loaded, sizes, voices, kind=FORMAT, version=FORMAT_VERSION)
    card["programs"], card["tables"] = programs, write_tables(t3, flow, folder)
    card["versions"] = {package: version(package) for package in ("coremltools", "torch")}
    write_card(folder, card)
    note("comparing with the engine")
    card["check"] = compare_with_engine(loaded, CoremlModel.open(folder), limits=LIMITS)
    write_card(folder, card)


def missing_reason() -> str | None:
    """Return why coremltools cannot be used, or None if it can."""
    if importlib.util.find_spec("coremltools") is None:
        return "coremltools is not installed"
    # Where there is no wheel, pip installs the Python files only.
    missing = [name for name in LIBRARIES if importlib.util.find_spec(f"coremltools.{name}") is None]
    return f"coremltools was installed without {', '.join(missing)}" if missing else None


def coreml_modules(
    t3: T3, flow: Flow, vocoder: FrameVocoder, sizes: ExportSizes
) -> dict[str, dict[str, CoremlModule]]:
    """Return the modules of an export: {file: {function: module}}."""
    return {
        "t3": {
            "prefill": CoremlT3(t3, tokens=sizes.prefill_tokens, capacity=sizes.capacity),
            "step": CoremlT3(t3, tokens=1, capacity=sizes.capacity),
        },
        "flow": {"main": CoremlFlow(flow, tokens=sizes.block_tokens)},
        "vocoder": {"main": CoremlVocoder(vocoder, frames=sizes.block_frames)},
    }


def write_packages(
    t3: T3, flow: Flow, vocoder: FrameVocoder, sizes: ExportSizes, folder: Path, note: Note
) -> dict[str, Any]:
    """Write all packages; return the card's description of their functions."""
    files = coreml_modules(t3, flow, vocoder, sizes)
    for file, functions in files.items():
        note(f"converting {file}")
        write_package(functions, folder / f"{file}.mlpackage")
    return {
        file: {name: describe(module) for name, module in functions.items()}
        for file, functions in files.items()
    }


def write_package(functions: Mapping[str, CoremlModule], path: Path) -> None:
    """Write a package with these functions; equal weights of several functions are stored once."""
    from coremltools.models.utils import MultiFunctionDescriptor, save_multifunction

    if len(functions) == 1:
        convert(*functions.values()).save(str(path))
        return
    with tempfile.TemporaryDirectory() as scratch:
        together = MultiFunctionDescriptor()
        for name, module in functions.items():
            single = str(Path(scratch, f"{name}.mlpackage"))
            convert(module).save(single)
            together.add_function(single, src_function_name="main", target_function_name=name)
        together.default_function_name = list(functions)[-1]
        save_multifunction(together, str(path))


def convert(module: CoremlModule) -> Any:
    """Return a module as a Core ML model with one function."""
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    import coremltools as ct
    from coremltools.converters.mil.mil.scope import ScopeSource

    def is_float16(op: Any) -> bool:
        return FLOAT32_HANDLE not in op.scopes.get(ScopeSource.EXIR_DEBUG_HANDLE, ())

    module.eval().requires_grad_(False)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch and coremltools, for their own code
        return ct.convert(
            module.graph(),
            inputs=[_tensor_type(ct, name, one) for name, one in module.inputs().items()],
            outputs=[ct.TensorType(name, dtype=NUMPY[dtype]) for name, dtype in module.outputs().items()],
            states=[
                ct.StateType(_tensor_type(ct, None, getattr(module, name).half()), name=name)
                for name in module.states
            ],
            minimum_deployment_target=ct.target.iOS18,
            compute_precision=ct.transform.FP16ComputePrecision(op_selector=is_float16),
            skip_model_load=True,
        )


def _tensor_type(ct: Any, name: str | None, value: Tensor) -> Any:
    return ct.TensorType(name, shape=tuple(value.shape), dtype=NUMPY[value.dtype])


def describe(module: CoremlModule) -> dict[str, Any]:
    """Return the card's description of a function."""

    def value(name: str, one: Tensor, *, start: bool) -> dict[str, Any]:
        described = {"name": name, "dtype": str(one.dtype).removeprefix("torch."), "shape": list(one.shape)}
        return described | ({"start": float(one.flatten()[0])} if start else {})

    return {
        "inputs": [value(name, one, start=name.startswith(CACHE)) for name, one in module.inputs().items()],
        "outputs": [
            {"name": name, "dtype": str(dtype).removeprefix("torch.")}
            for name, dtype in module.outputs().items()
        ],
        "states": [value(name, getattr(module, name).half(), start=True) for name in module.states],
    }


def write_tables(t3: T3, flow: Flow, folder: Path) -> dict[str, Any]:
    """Write the embedding tables of T3, text ids before speech tokens, and of the flow; describe them."""
    tables = {
        "t3": torch.cat([t3.text_emb.weight, t3.speech_emb.weight]),
        "flow": flow.input_embedding.weight,
    }
    described = {}
    for name, table in tables.items():
        described[name] = {"file": f"{name}.f16", "shape": list(table.shape)}
        (folder / f"{name}.f16").write_bytes(table.detach().numpy().astype("<f2").tobytes())
    return described
