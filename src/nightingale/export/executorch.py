"""The ExecuTorch export: programs with fixed shapes for XNNPACK, voices, the text vocabulary and a card.

    DIR/export.json       the card: sizes, ids, sampling, inputs and outputs of the programs in order
    DIR/t3.pte            methods `prefill` and `step` (executorch_t3.py)
    DIR/flow.pte          methods `encode` and `step` (executorch_flow.py)
    DIR/vocoder.pte       method `forward` (executorch_vocoder.py)
    DIR/tokenizer.json    the text vocabulary
    DIR/voices/NAME.f32   T3's speaker, then the flow's speaker, float32, little-endian

docs/phone.md shows how to use them; executorch_model.py is the same loop in Python.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from nightingale.backends.onnx.embeddings import torch_reason
from nightingale.clocks import CLOCKS
from nightingale.decoding.decoding import MIN_BUDGET_TOKENS
from nightingale.engine.load import Model, load_model
from nightingale.errors import ConfigError
from nightingale.export import Note
from nightingale.export.executorch_check import compare_with_engine, load_networks
from nightingale.export.executorch_flow import StaticEstimator, StaticTokenEncoder
from nightingale.export.executorch_model import CARD, FORMAT, FORMAT_VERSION, ExecutorchModel
from nightingale.export.executorch_t3 import StaticT3
from nightingale.export.executorch_vocoder import (
    AHEAD_FRAMES,
    AHEAD_SAMPLES,
    BEFORE_FRAMES,
    DELAY_SAMPLES,
    LOST_SAMPLES,
    StaticVocoder,
)
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH
from nightingale.models.chatterbox.t3.model import T3
from nightingale.voices.voice import Voice

DTYPES: Final = {torch.float32: "float32", torch.float64: "float64", torch.int64: "int64"}
TOKENIZER, VOICES = "tokenizer.json", "voices"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSizes:
    """The fixed shapes of an export."""

    capacity: int = 512
    """Positions of T3's KV cache: the text and about 16 s of speech."""
    prefill_tokens: int = 32
    block_tokens: int = 12
    """Speech tokens of a flow block: 0.48 s."""
    block_frames: int = 20
    """Mel frames of a vocoder block. With its lookahead it needs as many as the first flow block returns."""


class StaticPrograms:
    """The modules of an export by file and method, and their part of the card."""

    def __init__(self, t3: T3, flow: Flow, hift: Hift, sizes: ExportSizes) -> None:
        self.sizes, self.config, self.solver_steps = sizes, t3.config, flow.steps
        self.step = StaticT3(t3, tokens=1, capacity=sizes.capacity)
        prefill = StaticT3(t3, tokens=sizes.prefill_tokens, capacity=sizes.capacity)
        self.files: dict[str, dict[str, nn.Module]] = {
            "t3": {"prefill": prefill, "step": self.step},
            "flow": {
                "encode": StaticTokenEncoder(flow, tokens=sizes.block_tokens),
                "step": StaticEstimator(flow, tokens=sizes.block_tokens),
            },
            "vocoder": {"forward": StaticVocoder(hift, frames=sizes.block_frames)},
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

    def card(self) -> dict[str, Any]:
        """Return the part of the card that the networks determine."""
        config = self.config
        return {
            "t3": {
                "capacity": self.sizes.capacity,
                "prefill_tokens": self.sizes.prefill_tokens,
                "speech_offset": self.step.speech_offset,
                "speaker_id": self.step.speaker_id,
                "start_text": config.start_text,
                "stop_text": config.stop_text,
                "start_speech": START_SPEECH,
                "stop_speech": STOP_SPEECH,
            },
            "flow": {
                "block_tokens": self.sizes.block_tokens,
                "lookahead_tokens": LOOKAHEAD_TOKENS,
                "solver_steps": self.solver_steps,
            },
            "vocoder": {
                "block_frames": self.sizes.block_frames,
                "before_frames": BEFORE_FRAMES,
                "ahead_frames": AHEAD_FRAMES,
                "ahead_samples": AHEAD_SAMPLES,
                "delay_samples": DELAY_SAMPLES,
                "lost_samples": LOST_SAMPLES,
            },
            "programs": self.describe(),
        }


def _describe(module: Any) -> dict[str, Any]:
    example = module.example()
    with torch.no_grad():
        results = module(*example)
    inputs, outputs = module.names()
    fed_back = {
        name for name in inputs if name == "cycles" or name.startswith(("cache.", "keys.", "values."))
    }

    def values(names: list[str], tensors: tuple[Tensor, ...], *, start: bool) -> list[dict[str, Any]]:
        return [
            {"name": name, "dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape)}
            | ({"start": float(tensor.flatten()[0])} if start and name in fed_back else {})
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
        raise ConfigError(
            "ExecuTorch is not installed", fix="Install it: pip install 'nightingale-tts[executorch]'."
        )
    loaded = load_model(model, offline=True, options={})
    check_supported(loaded)
    t3, flow, hift = load_networks(loaded)
    programs = StaticPrograms(t3, flow, hift, sizes)
    planned: dict[str, dict[str, int]] = {}
    for file, methods in programs.files.items():
        note(f"lowering {file}")
        program, planned[file] = lower(methods)
        (folder / f"{file}.pte").write_bytes(program)
    shutil.copyfile(loaded.source.files["tokenizer"], folder / TOKENIZER)
    card = make_card(loaded, programs, write_voices(loaded, folder, t3, flow))
    card["planned_bytes"] = planned
    card["versions"] = {package: version(package) for package in ("executorch", "torch")}
    write_card(folder, card)
    note("comparing with the engine")
    card["check"] = compare_with_engine(loaded, ExecutorchModel.open(folder))
    write_card(folder, card)


def check_supported(model: Model) -> None:
    """Refuse models with parts that the programs lack."""
    preset = model.info.preset
    reason = "it has no weights" if model.info.synthetic else torch_reason(preset.t3)
    flow, hift = preset.flow, preset.hift
    like_wren = flow.block_causal and flow.left_context and flow.meanflow and not flow.noise_scale
    if reason is None and not (like_wren and hift.causal and hift.in_phase):
        reason = "its flow and vocoder are not those of wren"
    if reason is not None:
        raise ConfigError(
            f"{model.name} cannot be exported to ExecuTorch",
            got=reason,
            allowed="wren, or a folder with a model like it",
        )


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


def write_voices(model: Model, folder: Path, t3: T3, flow: Flow) -> dict[str, str]:
    """Write the model's voices, as the programs take them; return their files by name."""
    assert model.voices is not None
    (folder / VOICES).mkdir()
    files = {}
    for path in sorted(model.voices.glob("*.safetensors")):
        files[path.stem] = f"{VOICES}/{path.stem}.f32"
        speakers = torch.cat(speaker_inputs(Voice.load(path), t3, flow), dim=-1)
        (folder / files[path.stem]).write_bytes(speakers.numpy().astype("<f4").tobytes())
    return files


@torch.inference_mode()
def speaker_inputs(voice: Voice, t3: T3, flow: Flow) -> tuple[Tensor, Tensor]:
    """Return the inputs `speaker` of T3, (1, width), and of the flow, (1, mel)."""
    speaker: Tensor = t3.cond_enc.spkr_enc(torch.tensor(voice.speaker[None]))
    return speaker, flow.speaker(torch.tensor(voice.flow_speaker[None]))


def make_card(model: Model, programs: StaticPrograms, voices: dict[str, str]) -> dict[str, Any]:
    defaults = model.defaults
    assert model.default_voice is not None
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "model": model.name,
        "sample_rate_hz": CLOCKS.sample_rate_hz,
        "samples_per_frame": CLOCKS.samples_per_frame,
        "frames_per_token": CLOCKS.frames_per_token,
        "limits": {
            "tokens": MIN_BUDGET_TOKENS,
            "tokens_per_text_id": defaults.tokens_per_text_id,
            "max_tokens": defaults.max_new_tokens,
        },
        "sampling": asdict(defaults.sampling),
        "silence_ids": sorted(defaults.silence_ids),
        "tokenizer": TOKENIZER,
        "voices": voices,
        "default_voice": model.default_voice.name,
        **programs.card(),
    }


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    (folder / CARD).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
