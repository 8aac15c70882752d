"""ONNX Runtime runs wren without PyTorch, says why it refuses other models, and reports damaged files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
from backends.conformance import CPU
from safetensors.numpy import load_file, save_file

from nightingale import wren
from nightingale.backends.base import ModelInfo, ModelSource, Setup
from nightingale.backends.onnx import OnnxBackend, capabilities, opening
from nightingale.backends.onnx.numpy_weights import RowQuantized, dequantize, read_packed
from nightingale.backends.profiles import PROFILES, profile_named
from nightingale.errors import CheckpointError
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.models.frame_vocoder.config import FrameVocoderConfig


def info(name: str) -> ModelInfo:
    return ModelInfo(name=name, preset=PRESETS[name], defaults=MODEL_DEFAULTS[name])


def setup(precision: str = "float32", profile: str = "balanced") -> Setup:
    return Setup(profile=profile_named(profile), machine=CPU, precision=precision)


@pytest.fixture(autouse=True)
def _forget_package() -> Iterator[None]:
    for known in (capabilities.package_reason, capabilities._slow_reason):
        known.cache_clear()
    yield
    for known in (capabilities.package_reason, capabilities._slow_reason):
        known.cache_clear()


def test_wren_is_supported() -> None:
    assert capabilities.decoder_unsupported_reason(info("wren"), setup()) is None
    assert capabilities.renderer_unsupported_reason(info("wren"), setup()) is None
    assert opening.open_encoders(ModelSource(info("wren"), {}, packed=True)) is not None


@pytest.mark.parametrize("name", ["english", "turbo"])
def test_other_models_are_not(name: str) -> None:
    assert capabilities.decoder_unsupported_reason(info(name), setup()) is not None
    assert capabilities.renderer_unsupported_reason(info(name), setup()) is not None
    assert opening.open_encoders(ModelSource(info(name), {})) is None


def test_options_that_need_pytorch_are_named() -> None:
    assert "bfloat16" in str(capabilities.decoder_unsupported_reason(info("wren"), setup("bfloat16")))
    assert "bfloat16" in str(capabilities.renderer_unsupported_reason(info("wren"), setup("bfloat16")))
    whole = Setup(profile=PROFILES["exact"], machine=CPU, precision="float32")
    assert "whole" in str(capabilities.renderer_unsupported_reason(info("wren"), whole))


def test_slow_int8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "INT8_INSTRUCTIONS", ())
    monkeypatch.setattr(capabilities, "measure_speedup", lambda *_, **__: 1.1)
    assert "1.1 times" in str(capabilities.decoder_unsupported_reason(info("wren"), setup("int8")))
    assert "1.1 times" in str(capabilities.renderer_unsupported_reason(info("wren"), setup("int8")))
    monkeypatch.setattr(capabilities, "measure_speedup", lambda *_, **__: 2.0)
    capabilities._slow_reason.cache_clear()
    assert capabilities.decoder_unsupported_reason(info("wren"), setup("int8")) is None


def test_nothing_is_measured_where_a_cpu_has_int8_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(capabilities, "measure_speedup", fail)
    monkeypatch.setattr(capabilities, "INT8_INSTRUCTIONS", ("processor",))  # a word of every /proc/cpuinfo
    assert capabilities.decoder_unsupported_reason(info("wren"), setup("int8")) is None


def test_the_speed_of_int8_is_measured() -> None:
    assert capabilities.measure_speedup(*capabilities.SMALL_PROBE, threads=1) > 0


def test_a_missing_an_old_and_a_broken_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "not installed" in str(OnnxBackend().unsupported_reason("renderer", info("wren"), setup()))
    capabilities.package_reason.cache_clear()
    old = SimpleNamespace(__version__="1.20.1", __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "onnxruntime", old)
    assert "too old" in str(capabilities.package_reason())
    capabilities.package_reason.cache_clear()
    broken = SimpleNamespace(__version__="no number", __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "onnxruntime", broken)
    assert "does not work here" in str(capabilities.package_reason())


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"not safetensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_packed(path)
    save_file({"a.weight": np.zeros((2, 3), np.int8)}, path)
    with pytest.raises(CheckpointError, match="without their scales"):
        read_packed(path)

    save_file({"a.bias": np.array([1.0, np.nan], np.float16)}, path)
    with pytest.raises(CheckpointError, match="not finite"):
        read_packed(path)


@pytest.mark.parametrize("missing", ["flow.encoder_proj.weight", "mel2wav.head.bias"])
def test_missing_weights_are_reported(missing: str, tmp_path: Path) -> None:
    tensors = load_file(wren.folder() / wren.FILES["s3gen"])
    kept = {name: value for name, value in tensors.items() if not name.startswith(missing)}
    save_file(kept, tmp_path / "s3gen.safetensors")
    source = ModelSource(info("wren"), {"s3gen": tmp_path / "s3gen.safetensors"}, packed=True)
    with pytest.raises(CheckpointError, match="do not fit"):
        opening.open_renderer(source, setup())


def test_a_missing_layer_of_t3_is_reported(tmp_path: Path) -> None:
    tensors = load_file(wren.folder() / wren.FILES["t3"])
    kept = {name: value for name, value in tensors.items() if not name.startswith("tfmr.norm")}
    save_file(kept, tmp_path / "t3.safetensors")
    source = ModelSource(info("wren"), {"t3": tmp_path / "t3.safetensors"}, packed=True)
    with pytest.raises(CheckpointError, match="do not fit"):
        opening.open_decoder(source, setup())


def test_quantized_rows_are_restored() -> None:
    codes = np.random.default_rng(0).integers(-127, 128, (4, 32)).astype(np.int8)
    packed = RowQuantized(codes, np.array([0.5, 0.0, 2.0, 1.0], np.float32))
    np.testing.assert_array_equal(dequantize(packed), codes * packed.scales[:, None])
    np.testing.assert_array_equal(packed.rows([2, 0]), dequantize(packed)[[2, 0]])


def test_a_preset_without_graphs_is_refused() -> None:
    preset = PRESETS["wren"]
    two_sided = replace(preset, flow=replace(preset.flow, block_causal=False))
    official = replace(preset, vocoder=HiftConfig())
    other_size = replace(preset, vocoder=FrameVocoderConfig(width=128))
    for changed in (two_sided, official, other_size):
        model = replace(info("wren"), preset=changed)
        assert capabilities.renderer_unsupported_reason(model, setup()) is not None
