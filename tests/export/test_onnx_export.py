"""The ONNX export of wren: its layout, its equality with the engine, and the refusal of damaged copies."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic_clip import voice_like

from nightingale.engine.cloning import clone
from nightingale.engine.load import load_model
from nightingale.errors import CheckpointError, ConfigError, VoiceNotFound
from nightingale.export import export_model, onnx_check
from nightingale.export.composed_graph import exact_int8_rows
from nightingale.export.onnx_check import error_db, greedy_tokens, render
from nightingale.export.onnx_model import GRAPHS, ExportedModel, cut_blocks
from nightingale.voices.voice import Voice

BLOCKS = {"first_tokens": 7, "second_tokens": 9, "largest_tokens": 36, "lookahead_tokens": 3}


@pytest.fixture(scope="module")
def model(exported: Path) -> ExportedModel:
    return ExportedModel.open(exported)


def test_the_card_lists_files_graphs_and_the_check(model: ExportedModel) -> None:
    card = model.card
    assert {path.name for path in model.folder.iterdir()} - {"export.json"} == card["files"].keys()
    assert tuple(card["graphs"]) == GRAPHS
    assert card["graphs"]["embed_tokens"]["inputs"].keys() == {"input_ids", "position_ids", "exaggeration"}
    assert card["graphs"]["conditional_decoder"]["inputs"].keys() == {
        "speech_tokens",
        "speaker_embeddings",
        "speaker_features",
    }
    assert list(card["graphs"]["speech_encoder"]["outputs"]) == [
        "audio_features",
        "audio_tokens",
        "speaker_embeddings",
        "speaker_features",
    ]
    assert max(card["check"]["error_db"].values()) <= onnx_check.MAX_ERROR_DB
    assert card["sample_rate_hz"] == 24_000
    assert len(json.loads((model.folder / card["voices"]).read_text())) == 10


def test_the_export_is_small(model: ExportedModel) -> None:
    assert sum(entry["bytes"] for entry in model.card["files"].values()) < 44 * 2**20


def test_another_voice_and_sentence_equal_the_engine(model: ExportedModel) -> None:
    wren = load_model("wren", offline=True, options={})
    assert wren.voices is not None
    voice = Voice.load(wren.voices / "george.safetensors")
    ids = wren.frontend.encode("Where did you put the keys?")
    tokens = greedy_tokens(wren, ids, voice)
    assert model.generate(ids, "george") == tokens
    expected = render(wren, tokens, voice, cut_blocks(len(tokens), model.card["blocks"]))
    samples = np.concatenate(list(model.stream(tokens, "george")))
    assert error_db(samples, expected) <= onnx_check.MAX_ERROR_DB


def test_a_single_speech_token_of_id_zero_is_not_read_as_the_stop_of_text(model: ExportedModel) -> None:
    zero, one = model._embed([0]), model._embed([255, 20, 0, 0])
    np.testing.assert_array_equal(zero[0, 0], one[0, 3])
    assert not np.array_equal(one[0, 2], one[0, 3])


def test_the_speech_encoder_clones_like_the_engine(model: ExportedModel) -> None:
    from nightingale.backends.onnx.encoding.encoders import OnnxEncoders

    wren, samples = load_model("wren", offline=True, options={}), voice_like(3.0, 24_000)
    encoders = OnnxEncoders(wren.source)
    voice = clone(samples, 24_000, name="x", source="x", family="wren", encoders=encoders, info=wren.info)
    found = model.run("speech_encoder", {"audio_values": samples[None]})
    assert float(found["speaker_embeddings"][0] @ voice.speaker) >= onnx_check.MIN_COSINE
    ids = found["audio_tokens"][0]
    assert ids.shape == voice.flow_prompt_ids.shape
    assert (ids == voice.flow_prompt_ids).mean() >= 0.9
    magnitude, expected = np.exp(found["speaker_features"][0]), np.exp(voice.flow_prompt_mel)
    assert np.abs(magnitude - expected).max() < 1e-4 * expected.max()


def test_an_unknown_voice_is_refused(model: ExportedModel) -> None:
    with pytest.raises(VoiceNotFound, match="heart"):
        model.voice("nightingale")


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("export.json", "missing", "export.json"),
        ("export.json", "short", "export.json"),
        ("language_model.onnx", "missing", "no language_model.onnx"),
        ("conditional_decoder.onnx_data", "short", "bytes, not"),
        ("voices.json", "changed", "SHA-256"),
    ],
)
def test_a_damaged_copy_is_refused(
    exported: Path, tmp_path: Path, name: str, damage: str, message: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(exported, folder)
    data = bytearray((folder / name).read_bytes())
    (folder / name).unlink()
    if damage != "missing":
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data[:-1] if damage == "short" else data)
    with pytest.raises(CheckpointError, match=message):
        ExportedModel.open(folder)


def test_an_export_of_another_version_is_refused(exported: Path, tmp_path: Path) -> None:
    card = json.loads((exported / "export.json").read_text())
    (tmp_path / "export.json").write_text(json.dumps({**card, "version": 2}))
    with pytest.raises(CheckpointError, match="version 2"):
        ExportedModel.open(tmp_path)


def test_an_export_that_differs_from_the_engine_is_refused(
    model: ExportedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`export_model` then leaves nothing: test_export_registry.py."""
    wren = load_model("wren", offline=True, options={})
    assert wren.voices is not None
    other = replace(wren, default_voice=Voice.load(wren.voices / "george.safetensors"))
    with pytest.raises(CheckpointError, match="differs from the engine in its speech tokens"):
        onnx_check.compare_with_engine(other, model)
    monkeypatch.setattr(onnx_check, "MAX_ERROR_DB", -200.0)
    with pytest.raises(CheckpointError, match="differs from the engine in its samples"):
        onnx_check.compare_with_engine(wren, model)


def test_models_with_other_networks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be exported"):
        export_model("noise", tmp_path / "out", file_format="onnx")


def test_the_exporter_needs_no_torch() -> None:
    script = "import sys; sys.modules['torch'] = None; import nightingale.export.onnx"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("tokens", "cuts"),
    [
        (0, [(0, True)]),
        (9, [(9, True)]),
        (10, [(10, False), (0, True)]),
        (90, [(10, False), (9, False), (18, False), (36, False), (17, True)]),
    ],
)
def test_blocks_are_cut_as_the_engine_cuts_them(tokens: int, cuts: list[tuple[int, bool]]) -> None:
    assert cut_blocks(tokens, BLOCKS) == cuts


def test_only_exact_codes_are_stored() -> None:
    codes = np.random.default_rng(0).integers(-127, 128, (1, 8, 300)).astype(np.float32)
    codes[:, :, 0] = 127
    scales = np.linspace(0.001, 0.1, 8).astype(np.float16).astype(np.float32)[None, :, None]
    found = exact_int8_rows(codes * scales)
    assert found is not None
    np.testing.assert_array_equal(found[0] * found[1], codes * scales)
    assert exact_int8_rows(codes * scales + np.float32(1e-6)) is None
