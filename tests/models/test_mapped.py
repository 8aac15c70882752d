"""What was copied from a mapped file is let go, and nothing is lost by it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from nightingale.models.layers.mapped_weights import SMALLEST, let_go
from nightingale.models.layers.weight_layout import for_rendering

MIB = 2**20


def resident_mib(kind: str) -> float:
    """RssFile: pages of mapped files that count as this process's memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {kind} here")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a hint to Linux")
def test_pages_of_a_mapped_weight_are_dropped_and_come_back(tmp_path: Path) -> None:
    written = torch.arange(16 * MIB // 4, dtype=torch.float32)
    save_file({"weight": written}, tmp_path / "w.safetensors")
    weight = load_file(tmp_path / "w.safetensors")["weight"]
    total = weight.sum()
    read = resident_mib("RssFile")
    let_go(weight)
    assert read - resident_mib("RssFile") > 14
    assert weight.sum() == total
    assert torch.equal(weight, written)


def test_memory_that_is_nobodys_file_keeps_its_values() -> None:
    weight = torch.arange(4 * MIB, dtype=torch.float32)
    let_go(weight)
    let_go(weight[: SMALLEST // 8])
    assert torch.equal(weight, torch.arange(4 * MIB, dtype=torch.float32))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a hint to Linux")
def test_laying_a_network_out_does_not_hold_its_file_twice(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({f"{n}.weight": torch.full((1024, 1024), float(n)) for n in range(8)}, path)
    net = nn.ModuleDict({str(n): nn.Linear(1024, 1024, bias=False) for n in range(8)})
    net.load_state_dict(load_file(path), assign=True)
    kept = [layer.weight.data for layer in net.values()]  # so that the mapping stays
    before = resident_mib("RssFile")
    for_rendering(net)
    assert resident_mib("RssFile") - before < 8
    for n, layer in enumerate(net.values()):
        assert torch.equal(layer.weight, kept[n])
