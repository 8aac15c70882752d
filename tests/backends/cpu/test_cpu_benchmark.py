"""The script of the CPU table: each of our parts runs at toy sizes, and the table says what was reached."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "cpu.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmarks_cpu", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("model", ["multilingual", "nano"])
def test_every_part_of_ours_runs_at_toy_sizes(
    script: ModuleType, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(script, "SWEEP_BYTES", 2**20)
    monkeypatch.setattr(script, "TOKENS", 24)
    with torch.inference_mode(), torch.random.fork_rng():
        script.make(model, tmp_path, tiny=True)
        assert script.packing(model, tmp_path, tiny=True)["bytes"] > 0
        assert script.step(model, tmp_path, 1, tiny=True)["ratio"] > 0
        whole = script.sentence(model, tmp_path, 1, tiny=True)
        near = script.quality(model, tmp_path, 1, tiny=True)
    assert whole["seconds"]["whole"] >= whole["seconds"]["steps"] > 0
    assert near["score_error_of_spread"] < 0.05
    assert near["greedy_among_five"] > 0.9


def test_the_table_holds_what_was_measured_and_leaves_out_what_was_not(script: ModuleType) -> None:
    found = {
        "step multilingual": {"ratio": 1.5},
        "sentence multilingual": {"rtf": 2.0, "peak_gib": 1.9, "seconds": {"whole": 8.0}},
        "sentence nano": {"error": "out of memory"},
        "upstream multilingual": {"seconds": {"whole": 80.0}},
        "upstream nano": {"seconds": {"whole": 10.0}},
    }
    assert script.table(found) == {
        "T3 multilingual int8 step / time to read its weights": 1.5,
        "multilingual int8 + meanflow, real-time factor": 2.0,
        "speed-up over upstream: multilingual": 10.0,
        "peak memory, multilingual int8, GiB": 1.9,
    }
