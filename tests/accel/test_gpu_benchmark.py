"""The script of the GPU table must run where only torch, numpy and safetensors are installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
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


@pytest.mark.slow
def test_the_whole_table_is_made_on_a_bare_machine_at_toy_sizes() -> None:
    block = f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r}))"
    code = f"{block}; import runpy; sys.argv = ['gpu.py', '--tiny', '--device', 'cpu']; "
    code += f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["errors"] == {}
    assert result["checks"]["float32 greedy tokens identical"] is True
    assert result["checks"]["turbo: float32 greedy tokens identical"] is True
    assert {"t3 step, ms", "sentence, ms", "first audio p50, ms", "audio s/s at 64"} <= result["rows"].keys()
    assert {"turbo: sentence, ms", "turbo: first audio p50, ms"} <= result["rows"].keys()
