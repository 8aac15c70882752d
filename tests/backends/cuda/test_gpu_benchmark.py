"""The GPU's scripts must run where only torch, numpy and safetensors are installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
ABSENT = (
    "soxr",
    "soundfile",
    "tokenizers",
    "typer",
    "rich",
    "num2words",
    "platformdirs",
    "huggingface_hub",
    "triton",
)


def last_line(script: str) -> dict[str, Any]:
    """Return the result of a script at toy sizes, without the other packages."""
    code = f"import runpy, sys; sys.modules.update(dict.fromkeys({ABSENT!r})); "
    code += f"sys.path.insert(0, {str(BENCHMARKS)!r}); sys.argv = ['{script}', '--tiny', '--device', 'cpu']; "
    code += f"runpy.run_path({str(BENCHMARKS / script)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.slow
def test_each_part_is_held_beside_its_twin_on_a_bare_machine_at_toy_sizes() -> None:
    result = last_line("gpu.py")
    assert result["errors"] == {}
    for family in ("multilingual", "turbo"):
        assert result["checks"][f"{family}: float32 sdpa: greedy tokens as plain's"] is True
        assert result["checks"][f"{family}: flow, float32 eager: error"] < 1e-6
        assert result["checks"][f"{family}: vocoder, eager: error"] < 1e-4
        for part in ("T3 step, float32 plain", "T3 step", "flow, float32 eager", "vocoder, plain"):
            assert f"{family}: {part}, ms" in result["rows"]


@pytest.mark.slow
def test_the_engine_is_measured_on_a_bare_machine_at_toy_sizes() -> None:
    result = last_line("gpu_engine.py")
    assert result["errors"] == {}
    for family in ("multilingual", "turbo"):
        assert result["checks"][f"{family}: float32 greedy tokens as plain's, in a crowd"] is True
        assert result["checks"][f"{family}, fast: the same seed, the same samples"] is True
        assert f"{family}, fast: first audio p50, ms" in result["rows"]
        assert f"{family}, fast: T3 step, ms" in result["rows"]
    assert all(row["reached"] is not None for row in result["table"].values())


def test_an_operation_that_is_not_the_same_each_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from gpu_bits import different_operations, different_replays

    from nightingale.backends.cuda.graphs import Replay

    def act(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (2 * x + torch.rand_like(x),)

    assert [name.split()[0] for name in different_operations(lambda: act(torch.ones(9)))] == [
        "aten.rand_like.default"
    ]
    assert not different_operations(lambda: (-torch.ones(9)).log().sin())  # of what is no number
    moody = Replay("moody", act, {"x": torch.ones(9)}, how="eager", device=torch.device("cpu"))
    assert different_replays(moody, 3) == 3
