"""Packed T3 weights on disk: written once, verified, written again if damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from backends.small_t3 import LLAMA, small_t3
from torch import Tensor

from nightingale.backends.onnx.torch_model import GRAPH_FILE, OnnxFormat
from nightingale.backends.shared import packed_t3
from nightingale.backends.shared.packed_t3 import (
    digest_of_file,
    digest_of_tensors,
    is_intact,
    load_packed,
    pack,
)
from nightingale.backends.shared.quantize import quantize_weights
from nightingale.errors import OutputError


def packed_once(cache_dir: Path) -> tuple[dict[str, Tensor], Path]:
    weights = small_t3(LLAMA).state_dict()
    return weights, pack(LLAMA, weights, OnnxFormat(), cache_dir=cache_dir, source="a")


def test_weights_are_packed_once(tmp_path: Path) -> None:
    weights, first = packed_once(tmp_path)
    written_ns = (first / packed_t3.WEIGHTS).stat().st_mtime_ns
    assert pack(LLAMA, weights, OnnxFormat(), cache_dir=tmp_path, source="a") == first
    assert (first / packed_t3.WEIGHTS).stat().st_mtime_ns == written_ns, "it is not written again"
    assert pack(LLAMA, weights, OnnxFormat(), cache_dir=tmp_path, source="b") != first
    assert not list(tmp_path.glob(".*")), "nothing temporary stays"


@pytest.mark.parametrize("name", [GRAPH_FILE, packed_t3.WEIGHTS, packed_t3.INDEX, packed_t3.CHECKSUMS])
@pytest.mark.parametrize("how", ["one bit", "truncated", "missing"])
def test_a_damaged_folder_is_detected_and_written_again(tmp_path: Path, name: str, how: str) -> None:
    weights, packed = packed_once(tmp_path)
    path = packed / name
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.write_bytes(data[:9] + bytes([data[9] ^ 1]) + data[10:])
    assert not is_intact(packed)
    assert pack(LLAMA, weights, OnnxFormat(), cache_dir=tmp_path, source="a") == packed
    assert is_intact(packed)
    assert path.read_bytes() == data


def test_every_tensor_is_found_where_it_was_written(tmp_path: Path) -> None:
    weights, packed = packed_once(tmp_path)
    found = load_packed(packed)
    norm = "tfmr.layers.1.post_attention_layernorm.weight"
    assert found[norm].tolist() == weights[norm].tolist()
    kept = quantize_weights([weights["speech_head.weight"]])
    assert (found["logits.codes"] == kept.codes.numpy()).all()
    assert (found["logits.scales"] == kept.scales.numpy()).all()
    assert sum(part.nbytes for part in found.values()) > 0.95 * (packed / packed_t3.WEIGHTS).stat().st_size


def test_pages_of_mapped_weights_are_released_as_they_are_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, packed = packed_once(tmp_path / "a")
    gone: list[int] = []
    monkeypatch.setattr(packed_t3, "release_pages", lambda weight: gone.append(id(weight)))
    again = pack(LLAMA, weights, OnnxFormat(), cache_dir=tmp_path / "b", source="a", mapped=True)
    assert (again / packed_t3.WEIGHTS).read_bytes() == (packed / packed_t3.WEIGHTS).read_bytes()
    used = [name for name in weights if name.startswith("tfmr.") or name == "speech_head.weight"]
    assert len(gone) == len(set(gone)) == len(used) - packed_t3.TENSORS_PER_PRODUCT
    assert set(gone) < {id(weights[name]) for name in used}


def test_a_failure_half_way_leaves_nothing(tmp_path: Path) -> None:
    weights = small_t3(LLAMA).state_dict()
    del weights["tfmr.layers.1.mlp.up_proj.weight"]
    with pytest.raises(KeyError, match=r"layers\.1\.mlp\.up_proj"):
        pack(LLAMA, weights, OnnxFormat(), cache_dir=tmp_path, source="a")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.write_text("not a folder")
    with pytest.raises(OutputError, match="profile without int8"):
        pack(LLAMA, small_t3(LLAMA).state_dict(), OnnxFormat(), cache_dir=home, source="a")


def test_a_files_digest_is_remembered_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, home = tmp_path / "weights", tmp_path / "home"
    path.write_bytes(b"one")
    reads: list[Path] = []
    plain = packed_t3._digest
    monkeypatch.setattr(packed_t3, "_digest", lambda p: (reads.append(p), plain(p))[1])
    first = digest_of_file(path, cache_dir=home)
    assert digest_of_file(path, cache_dir=home) == first
    assert len(reads) == 1
    next(home.glob("*.known.json")).write_text(json.dumps(["damaged"]))
    assert digest_of_file(path, cache_dir=home) == first
    path.write_bytes(b"another")
    assert digest_of_file(path, cache_dir=home) != first
    assert len(reads) == 3


def test_the_digest_of_tensors_depends_on_names_shapes_and_values() -> None:
    a = {"w": torch.zeros(2, 3)}
    assert digest_of_tensors(a) == digest_of_tensors({"w": torch.zeros(2, 3)})
    others = ({"v": torch.zeros(2, 3)}, {"w": torch.zeros(3, 2)}, {"w": torch.zeros(2, 3).fill_(1)})
    assert len({digest_of_tensors(x) for x in (a, *others)}) == 4
