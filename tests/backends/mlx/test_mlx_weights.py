"""Weights on MLX: every tensor is used, none is random, and the numbers of Philox are those of numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

mx = pytest.importorskip("mlx.core")

from backends.conformance import source_of  # noqa: E402

from nightingale.backends.base import ModelSource  # noqa: E402
from nightingale.backends.mlx import arrays, weight_files  # noqa: E402
from nightingale.backends.mlx.decoder import load_t3 as load_quantized  # noqa: E402
from nightingale.backends.mlx.philox_arrays import gumbel, key_words, normal, uniform_bits  # noqa: E402
from nightingale.backends.mlx.rendering.flow_network import MlxFlow  # noqa: E402
from nightingale.backends.mlx.rendering.frame_vocoder import MlxFrameVocoder  # noqa: E402
from nightingale.backends.mlx.rendering.hift_network import MlxHift  # noqa: E402
from nightingale.backends.mlx.t3.t3_network import MlxT3  # noqa: E402
from nightingale.backends.mlx.t3.transformer import Precision  # noqa: E402
from nightingale.decoding import philox  # noqa: E402
from nightingale.errors import CheckpointError  # noqa: E402
from nightingale.models import checkpoint  # noqa: E402


def saved(tmp_path: Path, changes: dict[str, torch.Tensor | None]) -> ModelSource:
    """Return the tiny Turbo with T3 in a file, after changing or removing tensors."""
    source = source_of("turbo")
    tensors = {**source.loaded("t3").state_dict(), **changes}
    path = tmp_path / "t3.safetensors"
    save_file({name: value.contiguous() for name, value in tensors.items() if value is not None}, path)
    return ModelSource(source.info, {"t3": path})


def load_t3(source: ModelSource) -> MlxT3:
    return MlxT3(source.info.preset.t3, weight_files.t3_weights(source), Precision(mx.float32))


def test_a_file_loads_like_the_network_in_memory(tmp_path: Path) -> None:
    """Weights that only training needs are ignored."""
    one = load_t3(saved(tmp_path, {"text_head.weight": torch.zeros(3), "tfmr.wte.weight": torch.ones(2)}))
    other = load_t3(source_of("turbo"))
    assert np.array_equal(
        np.array(one.backbone.layers[1].qkv.weight), np.array(other.backbone.layers[1].qkv.weight)
    )


def test_weights_are_row_major_whatever_order_a_network_in_memory_has() -> None:
    network = torch.nn.Linear(6, 4)
    network.weight.data = network.weight.data.T.contiguous().T
    taken = weight_files._state(network)["weight"]
    assert memoryview(taken).strides == (24, 4)
    assert np.array_equal(np.array(taken), network.weight.detach().numpy())


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("tfmr.h.1.mlp.c_fc.weight", None, "1 missing"),
        ("tfmr.h.2.mlp.c_fc.weight", torch.zeros(2, 2), "1 extra"),
        ("tfmr.ln_f.bias", torch.zeros(3), "1 misshapen"),
        ("speech_head.bias", torch.full((6563,), torch.nan), "1 not finite"),
    ],
)
def test_a_tensor_at_fault_is_named(
    name: str, value: torch.Tensor | None, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        load_t3(saved(tmp_path, {name: value}))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path, {})
    path = source.files["t3"]
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_t3(source)


def test_quantized_layers_are_stored_and_read_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTINGALE_HOME", str(tmp_path))
    source = saved(tmp_path, {})

    def layers() -> list[np.ndarray]:
        backbone = load_quantized(source, "int4").backbone
        assert backbone.layers[0].qkv.bits == 4
        return [np.array(array) for array in arrays.named_arrays(backbone.layers).values()]

    expected = layers()
    (stored,) = (tmp_path / "cache" / "mlx").iterdir()
    mark = dict(mx.load(str(stored)))
    mx.save_safetensors(str(stored), mark | {"0.scales": mark["0.scales"] + 1})
    again = layers()
    assert [np.array_equal(*pair) for pair in zip(again, expected, strict=True)].count(False) == 1
    mx.save_safetensors(str(stored), mark)
    stored.write_bytes(stored.read_bytes()[:500])  # a damaged file is written again
    assert all(map(np.array_equal, layers(), expected))
    assert len(stored.read_bytes()) > 500
    stored.unlink()
    stored.parent.rmdir()
    stored.parent.write_text("no folder")  # where nothing can be stored, weights are quantized each time
    assert all(map(np.array_equal, layers(), expected))


@pytest.mark.parametrize(("family", "vocoder"), [("english", MlxHift), ("wren", MlxFrameVocoder)])
def test_the_flow_and_the_vocoder_use_every_tensor(family: str, vocoder: Any) -> None:
    preset = source_of(family).info.preset
    networks = source_of(family).loaded("s3gen")
    builds, configs = (MlxFlow, vocoder), (preset.flow, preset.vocoder)
    for network, build, config in zip(networks, builds, configs, strict=True):
        tensors = {name: mx.array(value.numpy()) for name, value in network.state_dict().items()}
        for name in list(tensors)[:: len(tensors) // 7]:
            left = {key: value for key, value in tensors.items() if key != name}
            with pytest.raises(CheckpointError, match=f"1 missing \\({name}"):
                build(config, weight_files.NetworkWeights(left, None))
        more = {**tensors, "another.weight": mx.zeros((1,))}
        with pytest.raises(CheckpointError, match="1 extra"):
            build(config, weight_files.NetworkWeights(more, None))


def test_weight_norm_is_folded_as_by_pytorch() -> None:
    rng = torch.Generator().manual_seed(0)
    stored = {
        "a.parametrizations.weight.original0": torch.randn(4, 1, 1, generator=rng),
        "a.parametrizations.weight.original1": torch.randn(4, 3, 5, generator=rng),
        "a.bias": torch.randn(4, generator=rng),
    }
    expected = checkpoint.fold_weight_norm(stored)
    folded = weight_files.fold_weight_norm({name: mx.array(t.numpy()) for name, t in stored.items()})
    assert folded.keys() == expected.keys()
    np.testing.assert_allclose(np.array(folded["a.weight"]), expected["a.weight"].numpy(), rtol=1e-6)


def test_random_numbers_are_those_of_numpy() -> None:
    key = philox.stream_key(7, "tokens")
    bits = np.array(uniform_bits(key_words(key, key), mx.array([3, 900]), 6563))
    for row, number in zip(bits, (3, 900), strict=True):
        expected = philox.uniform(key, number, np.arange(6563))
        assert np.array_equal((row.astype(np.float64) + 0.5) * 2.0**-32, expected)
        np.testing.assert_allclose(
            np.array(gumbel(mx.array(row))), -np.log(-np.log(expected)), rtol=2e-6, atol=1e-6
        )
    for first, rows in ((0, 5), (17, 101), (10**9, 3)):
        np.testing.assert_allclose(
            np.array(normal(key_words(key)[0], first, rows, 9)), philox.normal(key, first, rows, 9), atol=1e-6
        )


def test_numbers_at_both_ends_of_the_unit_interval_are_finite() -> None:
    ends = np.array(gumbel(mx.array([0, 2**32 - 1], mx.uint32)))
    np.testing.assert_allclose(ends, -np.log(-np.log(np.array([2.0**-33, 1 - 2.0**-33]))), rtol=1e-6)
