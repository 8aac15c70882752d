"""Loading weights into networks: complete, checked, and without a second copy."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from nightingale.errors import CheckpointError
from nightingale.models.checkpoint import fold_weight_norm, load, part, read_tensors

HERE = Path("weights.pt")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)


def tensors() -> dict[str, torch.Tensor]:
    return {
        "a.weight": torch.arange(6.0).view(2, 3),
        "a.bias": torch.ones(2),
        "norm.weight": torch.ones(2),
        "norm.bias": torch.zeros(2),
        "norm.running_mean": torch.zeros(2),
        "norm.running_var": torch.ones(2),
        "norm.num_batches_tracked": torch.tensor(5),
    }


def test_a_network_adopts_the_tensors_themselves() -> None:
    given = tensors()
    net = load(Small, given, source=HERE)
    assert net.a.weight.data_ptr() == given["a.weight"].data_ptr()
    assert not net.training
    assert not any(p.requires_grad for p in net.parameters())
    assert int(net.norm.num_batches_tracked) == 5


def test_all_faults_are_listed_at_once() -> None:
    given = tensors()
    del given["a.bias"], given["norm.bias"]
    given |= {"b": torch.zeros(1), "a.weight": torch.zeros(3, 2), "norm.weight": torch.full((2,), torch.nan)}
    with pytest.raises(CheckpointError) as report:
        load(Small, given, source=HERE)
    assert report.value.what == "the weights do not fit Small"
    assert report.value.got == (
        "weights.pt with 2 missing (a.bias, norm.bias); 1 extra (b); "
        "1 misshapen (a.weight (3, 2) instead of (2, 3)); 1 not finite (norm.weight)"
    )


def test_a_long_list_is_shortened_and_counted() -> None:
    with pytest.raises(CheckpointError, match=r"40 extra \(x0, x1, x10, x11, x12, x13, …\)"):
        load(Small, {**tensors(), **{f"x{i}": torch.zeros(1) for i in range(40)}}, source=HERE)


def test_known_unused_tensors_are_ignored() -> None:
    net = load(
        Small, {**tensors(), "text_head": torch.zeros(1)}, source=HERE, unused=frozenset({"text_head"})
    )
    assert "text_head" not in net.state_dict()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_single_value_that_is_not_finite_is_found(value: float, dtype: torch.dtype) -> None:
    broken = tensors()
    broken["a.weight"] = broken["a.weight"].to(dtype)
    broken["a.weight"][1, 2] = value
    with pytest.raises(CheckpointError, match=r"1 not finite \(a\.weight\)"):
        load(Small, broken, source=HERE)


def test_large_finite_values_are_accepted() -> None:
    large = tensors()
    large["a.weight"] = torch.full((2, 3), 6e4, dtype=torch.float16)  # its sum would not be finite
    assert load(Small, large, source=HERE).a.weight[0, 0] == 6e4


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(4, 6, 5),
        nn.Conv1d(1, 1, 1),
        nn.ConvTranspose1d(4, 6, 5, stride=2),
    ],
    ids=["conv", "one", "transposed"],
)
def test_folding_equals_torchs_own_weight_norm(layer: nn.Module) -> None:
    rng = torch.Generator().manual_seed(0)
    normed = weight_norm(layer)
    for p in normed.parameters():
        p.data.copy_(torch.randn(p.shape, generator=rng))
    stored = {f"up.{name}": t for name, t in normed.state_dict().items()}
    assert "up.parametrizations.weight.original0" in stored
    folded = fold_weight_norm(stored)
    assert sorted(folded) == ["up.bias", "up.weight"]
    assert torch.allclose(folded["up.weight"], normed.weight, rtol=1e-6, atol=0)


def test_an_incomplete_weight_norm_pair_is_dropped() -> None:
    assert fold_weight_norm({"up.parametrizations.weight.original0": torch.ones(2, 1, 1)}) == {}


def test_part_selects_by_prefix() -> None:
    assert list(part({"flow.a": torch.ones(1), "flower": torch.ones(1)}, "flow.")) == ["a"]


@pytest.mark.parametrize("kind", ["safetensors", "pt", "before 2020", "wrapped"])
def test_every_format_gives_the_same_tensors(kind: str, tmp_path: Path) -> None:
    path = tmp_path / ("w.safetensors" if kind == "safetensors" else "w.pt")
    if kind == "safetensors":
        save_file(tensors(), path)
    else:
        torch.save(
            {"model": [tensors()]} if kind == "wrapped" else tensors(),
            path,
            _use_new_zipfile_serialization=kind != "before 2020",
        )
    found = read_tensors(path)
    assert found.keys() == tensors().keys()
    assert all(torch.equal(found[name], t) for name, t in tensors().items())


class RunsCode:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("code_ran",)


def test_a_pickle_with_code_is_refused_and_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for modern in (True, False):
        torch.save({"a": RunsCode()}, "w.pt", _use_new_zipfile_serialization=modern)
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_tensors(Path("w.pt"))
    assert [path.name for path in tmp_path.iterdir()] == ["w.pt"]


@pytest.mark.parametrize(
    "held", [[torch.zeros(1)], {"a": 1}, {1: torch.zeros(1)}, {"a": {"b": torch.zeros(1)}}]
)
def test_a_file_without_tensors_is_refused(held: object, tmp_path: Path) -> None:
    torch.save(held, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match="holds something else"):
        read_tensors(tmp_path / "w.pt")


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
@pytest.mark.parametrize("kept", [0, 7, 100, 0.5, 0.99])
def test_a_truncated_file_is_refused(name: str, kept: float, tmp_path: Path) -> None:
    path = tmp_path / name
    big = {"a": torch.zeros(64, 64)}
    save_file(big, path) if path.suffix == ".safetensors" else torch.save(big, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept if kept > 1 else kept * len(whole))])
    with pytest.raises(CheckpointError, match=r"cannot be read: got .*w\.") as report:
        read_tensors(path)
    assert "models pull" in report.value.fix


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_a_missing_file_and_a_folder_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        read_tensors(tmp_path / name)
    (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError):
        read_tensors(tmp_path / name)


def test_damaged_files_are_refused_or_read_as_tensors(tmp_path: Path) -> None:
    rng = random.Random(0)
    for name in ("w.safetensors", "w.pt"):
        path = tmp_path / name
        save_file(tensors(), path) if path.suffix == ".safetensors" else torch.save(tensors(), path)
        whole, refused = path.read_bytes(), 0
        for _ in range(60):
            damaged = bytearray(whole)
            for _ in range(rng.choice([1, 4, 40])):
                damaged[rng.randrange(min(len(damaged), 400))] = rng.randrange(256)
            path.write_bytes(damaged)
            try:
                found = read_tensors(path)
            except CheckpointError:
                refused += 1
                continue
            assert found
            assert all(isinstance(value, torch.Tensor) for value in found.values())
        assert 45 <= refused < 60, name


MEASURE = """
import sys
from pathlib import Path
import torch
from torch import nn
from nightingale.models.checkpoint import load, read_tensors

def memory(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

build = lambda: nn.Linear(4096, 4096, bias=False)
for path in map(Path, sys.argv[1:]):
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current use
    before = memory("VmRSS")
    net = load(build, read_tensors(path), source=path).to("cpu")
    print(memory("VmHWM") - before)
load(lambda: nn.Embedding(2, 2), {"weight": torch.zeros(2, 2)}, source=path)
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc of Linux")
def test_loading_makes_no_second_copy_and_imports_no_compiler(tmp_path: Path) -> None:
    paths = [tmp_path / "w.safetensors", tmp_path / "w.pt"]
    weight = {"weight": torch.ones(4096, 4096)}  # 64 MB
    save_file(weight, paths[0])
    torch.save(weight, paths[1])
    # In another process: here, memory that earlier tests freed would be reused.
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, paths)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    *sizes, compiler = done.stdout.split()
    assert compiler == "False"
    for path, grown in zip(paths, sizes, strict=True):
        assert int(grown) < 1.6 * path.stat().st_size, path.name
