"""Releasing the pages of mapped weights frees memory and loses no values."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from nightingale.models.layers.weight_layout import MIN_BYTES, pack_for_rendering, release_pages

MIB = 2**20


def resident_mib(kind: str) -> float:
    """Return a field of /proc/self/status; RssFile counts the pages of mapped files in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {kind} here")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs madvise of Linux")
def test_pages_of_a_mapped_weight_are_dropped_and_come_back(tmp_path: Path) -> None:
    written = torch.arange(16 * MIB // 4, dtype=torch.float32)
    save_file({"weight": written}, tmp_path / "w.safetensors")
    weight = load_file(tmp_path / "w.safetensors")["weight"]
    total = weight.sum()
    read = resident_mib("RssFile")
    release_pages(weight)
    assert read - resident_mib("RssFile") > 14
    assert weight.sum() == total
    assert torch.equal(weight, written)


def test_memory_that_is_not_mapped_keeps_its_values() -> None:
    weight = torch.arange(4 * MIB, dtype=torch.float32)
    release_pages(weight)
    release_pages(weight[: MIN_BYTES // 8])
    assert torch.equal(weight, torch.arange(4 * MIB, dtype=torch.float32))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs madvise of Linux")
def test_packing_a_network_releases_its_file(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({f"{n}.weight": torch.full((1024, 1024), float(n)) for n in range(8)}, path)
    net = nn.ModuleDict({str(n): nn.Linear(1024, 1024, bias=False) for n in range(8)})
    net.load_state_dict(load_file(path), assign=True)
    kept = [layer.weight.data for layer in net.values()]  # keeps the mapping
    before = resident_mib("RssFile")
    pack_for_rendering(net)
    assert resident_mib("RssFile") - before < 8
    for n, layer in enumerate(net.values()):
        assert torch.equal(layer.weight, kept[n])
