"""The vocoder's blocks in an export: any lengths, equality with PyTorch, the noise, and graphs that cannot be read."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nightingale.backends.onnx.capabilities import VOCODER_GRAPHS
from nightingale.backends.onnx.numpy_weights import vocoder_weights
from nightingale.backends.torch.sample_stream import render_samples
from nightingale.backends.torch.weights import rendering_weights
from nightingale.clocks import CLOCKS
from nightingale.engine.load import load_model
from nightingale.errors import CheckpointError, ConfigError
from nightingale.export import export_model
from nightingale.export.decoder_graphs import NOISE_FRAMES
from nightingale.export.onnx_check import error_db
from nightingale.export.onnx_model import Arrays, ExportedModel
from nightingale.export.vocoder_graph import read_vocoder_graph
from nightingale.models.frame_vocoder.config import SILENT_LOG_MEL, FrameVocoderConfig
from nightingale.types import Samples

FRAMES = 60
FRAME = CLOCKS.samples_per_frame
MAX_ERROR_DB = -70.0
"""Measured: -82 to -91. The noise of the export is rounded to float16, and rounding moves the phase of the pitch."""


@pytest.fixture(scope="module")
def model(exported: Path) -> ExportedModel:
    return ExportedModel.open(exported)


@pytest.fixture(scope="module")
def mel(model: ExportedModel) -> NDArray[np.float32]:
    """Return the frames (1, frames, mel) of a sentence."""
    voice, tokens = model.voice("heart"), model.card["check"]["tokens"][: FRAMES // 2]
    inputs = {
        "speech_tokens": np.array([tokens], np.int64),
        "final": np.array([1], np.int64),
        "speaker_embeddings": voice["speaker_embeddings"],
        "speaker_features": voice["speaker_features"],
    }
    frames: NDArray[np.float32] = model.run("flow_block", {**inputs, **model._start("flow_block")})["mel"]
    assert frames.shape == (1, FRAMES, 80)
    return frames


def in_blocks(model: ExportedModel, mel: NDArray[np.float32], sizes: list[int], **states: Any) -> Samples:
    """Render blocks of these sizes, of which the last one is final."""
    state = {**model._start("vocoder_block"), **states}
    parts, samples = np.split(mel, np.cumsum(sizes)[:-1], axis=1), []
    for number, part in enumerate(parts):
        inputs: Arrays = {"mel": part, "final": np.array([number == len(parts) - 1], np.int64)}
        samples.append(model._run_block("vocoder_block", inputs, state)["waveform"][0])
    return np.concatenate(samples)


@pytest.mark.parametrize("sizes", [[60], [1] * 60, [1, 2, 3, 17, 36, 1], [24, 36, 0]])
def test_blocks_of_any_length_equal_pytorchs_whole(
    model: ExportedModel, mel: NDArray[np.float32], sizes: list[int]
) -> None:
    wren = load_model("wren", offline=True, options={})
    _, vocoder = rendering_weights(wren.source, "cpu")
    expected = render_samples(vocoder, torch.from_numpy(mel[0].T.copy()), seed=0)
    samples = in_blocks(model, mel, sizes)
    assert len(samples) == FRAMES * FRAME
    assert error_db(samples, expected) <= MAX_ERROR_DB


def test_nothing_is_no_samples(model: ExportedModel) -> None:
    assert len(in_blocks(model, np.zeros((1, 0, 80), np.float32), [0])) == 0


def test_the_noise_repeats(model: ExportedModel, mel: NDArray[np.float32]) -> None:
    once, again, between = (
        in_blocks(model, mel, [FRAMES], **{"vocoder.frames": np.array([done], np.int64)})
        for done in (NOISE_FRAMES, 2 * NOISE_FRAMES, NOISE_FRAMES + 1)
    )
    np.testing.assert_array_equal(once, again)
    assert not np.array_equal(once, between)


def test_the_first_silence_is_that_of_the_network(model: ExportedModel) -> None:
    fills = {state["name"]: state["fill"] for state in model.card["graphs"]["vocoder_block"]["states"]}
    silent = {name for name, fill in fills.items() if fill}
    assert silent == {"vocoder.pitch0", "vocoder.past_mel"}
    assert {fills[name] for name in silent} == {SILENT_LOG_MEL}


def test_weights_of_another_shape_are_refused() -> None:
    wren, config = load_model("wren", offline=True, options={}), FrameVocoderConfig()
    weights = vocoder_weights(wren.source)
    with pytest.raises(ValueError, match=r"head.bias has the shape \(7,\)"):
        read_vocoder_graph(VOCODER_GRAPHS[config], config, {**weights, "head.bias": np.zeros(7, np.float32)})


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_graph_that_cannot_be_read_is_refused(tmp_path: Path, damage: str) -> None:
    config, path = FrameVocoderConfig(), tmp_path / "vocoder.onnx"
    if damage == "short":
        shutil.copyfile(VOCODER_GRAPHS[config], path)
        path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match="vocoder's graph cannot be read"):
        read_vocoder_graph(path, config, {})


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnx" else found(name))
    with pytest.raises(ConfigError, match="the package onnx is not installed"):
        export_model("wren", tmp_path / "out", file_format="onnx")
