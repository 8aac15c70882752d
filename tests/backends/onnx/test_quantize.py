"""Int8 quantization, ONNX Runtime's int8 product, and the reasons not to use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from backends.int8_reference import ReferenceInt8Linear, quantize_t3

from nightingale.backends.onnx import capabilities
from nightingale.backends.onnx.capabilities import LARGE_PROBE, int8_unsupported_reason
from nightingale.backends.onnx.numpy_weights import RowQuantized
from nightingale.backends.onnx.numpy_weights import quantize_blocks as quantize_arrays
from nightingale.backends.onnx.protobuf import CONTRIB, FLOAT, UINT8, OnnxGraph
from nightingale.backends.shared import capability_checks
from nightingale.backends.shared.int8_blocks import block_size_for
from nightingale.backends.shared.quantize import dequantize, quantize_blocks, quantize_weights
from nightingale.errors import ConfigError
from nightingale.install import install_command
from nightingale.models.chatterbox.t3.config import MULTILINGUAL, Gpt2Config, LlamaConfig, T3Config
from nightingale.models.chatterbox.t3.model import T3


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_weight_changes_by_at_most_half_a_step_of_its_own_block() -> None:
    weight = torch.randn(6, 256, generator=rng()) * torch.logspace(-3, 1, 6)[:, None]
    weight[:, 0] = 50.0  # an outlier costs precision in its own block, and in no other
    quantized = quantize_weights([weight])
    error = (dequantize(quantized) - weight).abs().unflatten(1, (2, 128)).amax(-1)
    assert (error <= quantized.scales * 0.5001).all()
    assert (quantized.scales[:, 0] > 0.39).all()
    assert (quantized.scales[:, 1] < 0.39).all()


def test_a_block_of_zeros_stays_zero() -> None:
    codes, scales = quantize_blocks(torch.zeros(2, 32), 16)
    assert not codes.any()
    assert not scales.any()


@pytest.mark.parametrize("inputs", [1024, 320, 48])
def test_arrays_are_quantized_as_tensors_are(inputs: int) -> None:
    weight = torch.randn(6, inputs, generator=rng()) * torch.logspace(-3, 1, 6)[:, None]
    weight[2] = 0.0
    arrays, tensors = quantize_arrays(weight.numpy()), quantize_weights([weight])
    assert (arrays.codes == tensors.codes.numpy()).all()
    assert (arrays.scales == tensors.scales.numpy()).all()


def test_compact_weights_keep_their_values() -> None:
    codes = torch.randint(-127, 128, (3, 64), dtype=torch.int8, generator=rng())
    blocks = quantize_arrays(RowQuantized(codes.numpy(), torch.tensor([0.1, 2.0, 0.0]).numpy()))
    restored = (blocks.codes.astype("f4") - 128) * blocks.scales[..., None]
    assert (restored.reshape(3, 64) == codes.numpy() * blocks.scales[:, :1]).all()


@pytest.mark.parametrize(("inputs", "block"), [(1024, 128), (4096, 128), (320, 64), (864, 32), (48, 16)])
def test_the_largest_block_that_divides_is_used(inputs: int, block: int) -> None:
    assert block_size_for(inputs) == block


def test_a_width_that_no_block_divides_is_an_error() -> None:
    with pytest.raises(ConfigError, match="multiple of 16"):
        block_size_for(100)


def test_the_reference_replaces_every_linear_layer_of_backbone_and_head_and_no_other() -> None:
    for backbone, per_layer in (
        (LlamaConfig(layers=2, width=64, heads=2, ffn=96), 7),
        (Gpt2Config(layers=2, width=64, heads=2), 4),
    ):
        names = quantize_t3(T3(_config(backbone)))
        assert len(names) == per_layer * backbone.layers + 1
        assert "speech_head" in names
        assert not any(name.startswith("cond_enc") for name in names)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("inputs", [256, 320, 864])
def test_the_product_of_onnx_runtime_matches_the_reference(rows: int, inputs: int) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    weight, bias = torch.randn(40, inputs, generator=rng()) * 0.02, torch.randn(40, generator=rng(1))
    x = torch.randn(rows, inputs, generator=rng(2))
    codes, scales = quantize_weights([weight])
    graph = OnnxGraph()
    graph.input("x", FLOAT, ("rows", inputs))
    graph.output("y", FLOAT, ("rows", 40))
    weights = [
        graph.constant("codes", UINT8, codes.shape, codes.numpy().tobytes()),
        graph.constant("scales", FLOAT, scales.shape, scales.numpy().tobytes()),
    ]
    sizes = {"K": inputs, "N": 40, "bits": 8, "block_size": block_size_for(inputs), "accuracy_level": 4}
    bias_name = graph.constant("bias", FLOAT, (40,), bias.numpy().tobytes())
    graph.node("MatMulNBits", ["x", *weights, "", "", bias_name], ["y"], domain=CONTRIB, **sizes)
    session = onnxruntime.InferenceSession(graph.model(), providers=["CPUExecutionProvider"])
    ours = torch.from_numpy(session.run(None, {"x": x.numpy()})[0])
    reference = ReferenceInt8Linear(weight, bias)(x)
    float32 = x @ weight.T + bias
    torch.testing.assert_close(ours, reference, atol=1e-4, rtol=0)
    assert (reference - float32).abs().max() > 1e-3, "a reference that did not round would prove nothing"


def _config(backbone: LlamaConfig | Gpt2Config) -> T3Config:
    return replace(MULTILINGUAL, backbone=backbone)


def test_a_model_that_cannot_be_cut_into_blocks_gives_a_reason() -> None:
    assert "multiple of 16" in str(int8_unsupported_reason(_config(LlamaConfig(width=1000))))
    assert "ffn" not in str(int8_unsupported_reason(_config(Gpt2Config(width=1000))))


def test_without_the_package_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities.package_reason.cache_clear()
    monkeypatch.setattr(capability_checks, "find_spec", lambda _: None)
    assert install_command("cpu") in str(int8_unsupported_reason(MULTILINGUAL))
    capabilities.package_reason.cache_clear()


def test_a_cpu_on_which_int8_is_slow_gives_the_measured_speedup(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    capabilities._slow_reason.cache_clear()
    monkeypatch.setattr(capabilities, "measure_speedup", lambda *_, **__: 0.25)
    assert "0.2 times as fast" in str(int8_unsupported_reason(MULTILINGUAL))
    capabilities._slow_reason.cache_clear()


def test_a_runtime_that_fails_gives_a_reason_and_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")

    def fails(*_: object, **__: object) -> float:
        raise RuntimeError("illegal instruction\nand more")

    capabilities._slow_reason.cache_clear()
    monkeypatch.setattr(capabilities, "measure_speedup", fails)
    assert "illegal instruction" in str(int8_unsupported_reason(MULTILINGUAL))
    capabilities._slow_reason.cache_clear()


def test_the_speedup_is_the_ratio_of_float32_to_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_and_count(run: Callable[[], object]) -> float:
        run()
        runs.append(run)
        return 3.0 if len(runs) == 1 else 1.5

    runs: list[Callable[[], object]] = []
    monkeypatch.setattr(capabilities, "fastest_s", run_and_count)
    assert capabilities.measure_speedup(*LARGE_PROBE, threads=1) == 2.0
    assert len(runs) == 2
