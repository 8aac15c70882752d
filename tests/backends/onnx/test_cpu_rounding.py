"""Eight bits: what rounding keeps, and that the graph's product is the twin's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from nightingale.backends.onnx.capabilities import _against, refusal
from nightingale.backends.onnx.protobuf import CONTRIB, FLOAT, UINT8, Graph
from nightingale.backends.shared.quantize import RoundedLinear, block_of, round_blocks, round_t3, round_weight
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.t3.config import MULTILINGUAL, Gpt2Config, LlamaConfig, T3Config
from nightingale.models.chatterbox.t3.model import T3


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_weight_moves_by_at_most_half_a_step_of_its_own_block() -> None:
    weight = torch.randn(6, 256, generator=rng()) * torch.logspace(-3, 1, 6)[:, None]
    weight[:, 0] = 50.0  # an outlier costs its own block precision, and no other
    rounded = round_weight(weight)
    error = (rounded.weight - weight).abs().unflatten(1, (2, 128)).amax(-1)
    assert (error <= rounded.scales * 0.5001).all()
    assert (rounded.scales[:, 0] > 0.39).all()
    assert (rounded.scales[:, 1] < 0.39).all()


def test_a_block_of_zeros_stays_zero() -> None:
    whole, scales = round_blocks(torch.zeros(2, 32), 16)
    assert not whole.any()
    assert not scales.any()


@pytest.mark.parametrize(("inputs", "block"), [(1024, 128), (4096, 128), (320, 64), (864, 32), (48, 16)])
def test_the_widest_block_that_divides_is_taken(inputs: int, block: int) -> None:
    assert block_of(inputs) == block


def test_a_width_that_no_block_divides_is_refused() -> None:
    with pytest.raises(ConfigError, match="multiple of 16"):
        block_of(100)


def test_the_twin_replaces_every_linear_of_the_layers_and_the_head_and_no_other() -> None:
    for backbone, per_layer in (
        (LlamaConfig(layers=2, width=64, heads=2, ffn=96), 7),
        (Gpt2Config(layers=2, width=64, heads=2), 4),
    ):
        names = round_t3(T3(_config(backbone)))
        assert len(names) == per_layer * backbone.layers + 1
        assert "speech_head" in names
        assert not any(name.startswith("cond_enc") for name in names)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("inputs", [256, 320, 864])
def test_the_runtimes_product_is_the_twins(rows: int, inputs: int) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    weight, bias = torch.randn(40, inputs, generator=rng()) * 0.02, torch.randn(40, generator=rng(1))
    x = torch.randn(rows, inputs, generator=rng(2))
    rounded = round_weight(weight)
    graph = Graph("")
    graph.input("x", FLOAT, ("rows", inputs))
    graph.output("y", FLOAT, ("rows", 40))
    given = [
        graph.small("codes", UINT8, rounded.codes.shape, rounded.codes.numpy().tobytes()),
        graph.small("scales", FLOAT, rounded.scales.shape, rounded.scales.numpy().tobytes()),
    ]
    settings = {"K": inputs, "N": 40, "bits": 8, "block_size": block_of(inputs), "accuracy_level": 4}
    bias_name = graph.small("bias", FLOAT, (40,), bias.numpy().tobytes())
    graph.node("MatMulNBits", ["x", *given, "", "", bias_name], ["y"], domain=CONTRIB, attributes=settings)
    session = onnxruntime.InferenceSession(graph.model(), providers=["CPUExecutionProvider"])
    ours = torch.from_numpy(session.run(None, {"x": x.numpy()})[0])
    twin = RoundedLinear(weight, bias)(x)
    plain = x @ weight.T + bias
    torch.testing.assert_close(ours, twin, atol=1e-4, rtol=0)
    assert (twin - plain).abs().max() > 1e-3, "the twin rounds; a test against it would prove nothing if not"


def _config(backbone: LlamaConfig | Gpt2Config) -> T3Config:
    return replace(MULTILINGUAL, backbone=backbone)


def test_a_model_that_cannot_be_cut_into_blocks_is_refused_in_words() -> None:
    assert "multiple of 16" in str(refusal(_config(LlamaConfig(width=1000))))
    assert "ffn" not in str(refusal(_config(Gpt2Config(width=1000))))


def test_without_the_package_the_refusal_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightingale.backends.onnx.capabilities.find_spec", lambda _: None)
    assert "pip install 'nightingale-tts[cpu]'" in str(refusal(MULTILINGUAL))


def test_a_cpu_on_which_eight_bits_are_slow_is_refused_with_the_measured_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("onnxruntime")
    _against.cache_clear()
    monkeypatch.setattr("nightingale.backends.onnx.capabilities.measure_gain", lambda _: 0.25)
    assert "0.2 times as fast" in str(refusal(MULTILINGUAL, threads=1))
    _against.cache_clear()


def test_a_runtime_that_breaks_is_refused_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")

    def broken(_: int) -> float:
        raise RuntimeError("illegal instruction\nand more")

    _against.cache_clear()
    monkeypatch.setattr("nightingale.backends.onnx.capabilities.measure_gain", broken)
    assert "illegal instruction" in str(refusal(MULTILINGUAL, threads=1))
    _against.cache_clear()


def test_the_gain_is_measured() -> None:
    pytest.importorskip("onnxruntime")
    from nightingale.backends.onnx.capabilities import measure_gain

    assert measure_gain(1) > 0
