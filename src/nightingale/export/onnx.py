"""The ONNX export: the four graphs of other Chatterbox runtimes, block graphs for streaming, voices and a card.

    DIR/export.json               the card: sizes, ids, sampling, inputs and outputs of the graphs, checksums
    DIR/tokenizer.json            the text vocabulary
    DIR/voices.json               what speech_encoder returns, for each voice of the model
    DIR/NAME.onnx, NAME.onnx_data    docs/export.md describes each graph

Nothing here needs PyTorch. The package `onnx` reads the vocoder's graph.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nightingale.backends.onnx.capabilities import VOCODER_GRAPHS
from nightingale.backends.onnx.embeddings import torch_reason
from nightingale.backends.onnx.numpy_weights import (
    dequantize,
    encoder_weights,
    fitting_weights,
    flow_weights,
    t3_weights,
    vocoder_weights,
)
from nightingale.clocks import CLOCKS
from nightingale.engine.load import Model, load_model
from nightingale.errors import ConfigError
from nightingale.export import Note
from nightingale.export.composed_graph import DTYPES, ComposedGraph, WeightsFile
from nightingale.export.decoder_graphs import conditional_decoder, flow_block, vocoder_block
from nightingale.export.language_graphs import embed_tokens, language_model
from nightingale.export.onnx_check import compare_with_engine
from nightingale.export.onnx_model import CARD, FORMAT, FORMAT_VERSION, ExportedModel, hash_of
from nightingale.export.speech_encoder_graph import speech_encoder
from nightingale.install import install_command
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH
from nightingale.models.frame_vocoder.config import FrameVocoderConfig
from nightingale.text.punctuation import ENGLISH
from nightingale.text.tokenizer import SPACE
from nightingale.voices.voice import Voice

LARGEST_BLOCK_TOKENS: Final = 36
TOKENIZER, VOICES = "tokenizer.json", "voices.json"


def export(model: str, folder: Path, *, note: Note) -> None:
    """Write a wren-like model into an empty folder and compare it with the engine.

    Raises:
        ConfigError: The model cannot be exported, or `onnx` is not installed.
        CheckpointError: The export differs from the engine.
    """
    if importlib.util.find_spec("onnx") is None:
        raise ConfigError("the package onnx is not installed", fix=f"Install it: {install_command('onnx')}.")
    loaded = load_model(model, offline=True, options={})
    check_supported(loaded)
    with fitting_weights(loaded.source):
        note("writing graphs")
        graphs = write_graphs(loaded, folder)
    shutil.copyfile(loaded.source.files["tokenizer"], folder / TOKENIZER)
    write_voices(loaded, folder)
    card = make_card(loaded, graphs)
    write_card(folder, card)
    note("comparing with the engine")
    card["check"] = compare_with_engine(loaded, ExportedModel.open(folder))
    write_card(folder, card)


def check_supported(model: Model) -> None:
    """Refuse models with parts that the graphs lack."""
    preset = model.info.preset
    reason = "it has no weights" if model.info.synthetic else torch_reason(preset.t3)
    is_like_wren = preset.xvector is None and preset.vocoder in VOCODER_GRAPHS and not preset.flow.noise_scale
    if reason is None and not is_like_wren:
        reason = "its flow and vocoder are not those of wren"
    if reason is not None:
        raise ConfigError(
            f"{model.name} cannot be exported to ONNX",
            got=reason,
            allowed="wren, or a folder with a model like it",
        )


def write_graphs(model: Model, folder: Path) -> dict[str, Any]:
    """Write all graphs and their weights; return their part of the card."""
    from nightingale.export.vocoder_graph import read_vocoder_graph  # imports the package onnx

    preset, source = model.info.preset, model.source
    t3, flow = t3_weights(source), flow_weights(source)
    config = preset.vocoder
    assert isinstance(config, FrameVocoderConfig)
    vocoder = read_vocoder_graph(VOCODER_GRAPHS[config], config, vocoder_weights(source))
    encoders = {name: encoder_weights(source, name) for name in ("speech_tokenizer", "voice_encoder")}
    prompt_samples = int(model.defaults.flow_prompt_seconds * CLOCKS.sample_rate_hz)
    positions = model.info.max_positions + 1
    decoder = "conditional_decoder"
    builders: dict[str, tuple[str, Callable[[WeightsFile], ComposedGraph]]] = {
        "embed_tokens": ("embed_tokens", lambda file: embed_tokens(preset.t3, t3, file)),
        "speech_encoder": (
            "speech_encoder",
            lambda file: speech_encoder(preset, encoders, t3, file, prompt_samples=prompt_samples),
        ),
        "language_model": (
            "language_model",
            lambda file: language_model(preset.t3, t3, file, positions=positions),
        ),
        decoder: (decoder, lambda file: conditional_decoder(preset.flow, flow, vocoder, file)),
        "flow_block": (decoder, lambda file: flow_block(preset.flow, flow, file)),
        "vocoder_block": (decoder, lambda file: vocoder_block(config, vocoder, file)),
    }
    files = {
        name: WeightsFile(folder / f"{name}.onnx_data") for name in {owner for owner, _ in builders.values()}
    }
    graphs = {}
    for name, (owner, build) in builders.items():
        graph = build(files[owner])
        (folder / f"{name}.onnx").write_bytes(graph.model())
        graphs[name] = {
            "file": f"{name}.onnx",
            "weights": f"{owner}.onnx_data",
            "inputs": {v.name: {"dtype": DTYPES[v.dtype], "shape": list(v.shape)} for v in graph.inputs},
            "outputs": {v.name: {"dtype": DTYPES[v.dtype], "shape": list(v.shape)} for v in graph.outputs},
            "states": [state._asdict() for state in graph.states],
        }
    for file in files.values():
        file.close()
    return graphs


def write_voices(model: Model, folder: Path) -> None:
    """Write what speech_encoder returns for the clip of each voice that came with the model."""
    weights = t3_weights(model.source)
    layer = [dequantize(weights[f"cond_enc.spkr_enc.{part}"]) for part in ("weight", "bias")]
    voices = {}
    for name, voice in sorted(model_voices(model).items()):
        arrays: dict[str, NDArray[Any]] = {
            "audio_features": (layer[0] @ voice.speaker + layer[1])[None, None],
            "audio_tokens": voice.flow_prompt_ids[None],
            "speaker_embeddings": voice.flow_speaker[None],
            "speaker_features": voice.flow_prompt_mel[None],
        }
        voices[name] = {
            # Nine digits are every bit of a float32.
            key: {"shape": value.shape, "data": [float(f"{x:.9g}") for x in value.ravel().tolist()]}
            if value.dtype == np.float32
            else {"shape": value.shape, "data": value.ravel().tolist()}
            for key, value in arrays.items()
        }
    (folder / VOICES).write_text(json.dumps(voices), encoding="utf-8")


def model_voices(model: Model) -> dict[str, Voice]:
    """Return the voices that came with a model, by name."""
    assert model.voices is not None
    return {path.stem: Voice.load(path) for path in model.voices.glob("*.safetensors")}


def make_card(model: Model, graphs: dict[str, Any]) -> dict[str, Any]:
    """Return the card without checksums."""
    preset, defaults = model.info.preset, model.defaults
    assert model.default_voice is not None
    default = next(name for name, voice in model_voices(model).items() if voice == model.default_voice)
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "model": model.name,
        "fingerprint": model.fingerprint,
        "made_by": f"nightingale {version('nightingale-tts')}",
        "licence": "MIT (model and voices; docs/wren.md names what it was trained on)",
        "sample_rate_hz": CLOCKS.sample_rate_hz,
        "tokens_per_second": CLOCKS.token_rate_hz,
        "tokenizer": TOKENIZER,
        "space_token": SPACE,
        "punctuation": {"replacements": ENGLISH.replacements, "enders": ENGLISH.enders},
        "vocabulary": {"text": preset.t3.text_vocab, "speech": preset.t3.speech_vocab},
        "special_ids": {
            "start_text": preset.t3.start_text,
            "stop_text": preset.t3.stop_text,
            "start_speech": START_SPEECH,
            "stop_speech": STOP_SPEECH,
        },
        "sampling": asdict(defaults.sampling),
        "limits": {
            "max_new_tokens": defaults.max_new_tokens,
            "tokens_per_text_id": defaults.tokens_per_text_id,
            "text_ids": defaults.max_text_ids,
            "segment_chars": defaults.split_chars,
        },
        "blocks": {
            "first_tokens": defaults.first_block_tokens,
            "second_tokens": defaults.second_block_tokens,
            "largest_tokens": LARGEST_BLOCK_TOKENS,
            "lookahead_tokens": LOOKAHEAD_TOKENS,
        },
        "voices": VOICES,
        "default_voice": default,
        "graphs": graphs,
    }


def write_card(folder: Path, card: dict[str, Any]) -> None:
    """Write the card with the sizes and checksums of all other files."""
    files = sorted(path for path in folder.iterdir() if path.name != CARD)
    card["files"] = {path.name: {"bytes": path.stat().st_size, "sha256": hash_of(path)} for path in files}
    (folder / CARD).write_text(json.dumps(card, indent=1), encoding="utf-8")
