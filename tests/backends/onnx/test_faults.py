"""Out of memory is MemoryFull with its exit code, and without ONNX Runtime another backend is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
from nightingale.backends.onnx import capabilities, streaming_session
from nightingale.backends.onnx.network_graph import NetworkGraph
from nightingale.backends.onnx.protobuf import FLOAT
from nightingale.engine.faults import engine_failed
from nightingale.errors import CapacityError, EngineFault, MemoryFull, memory_full, raising_memory_full

SAY_WITH_LITTLE_MEMORY = """
import resource, sys
import nightingale.engine, nightingale.backends.onnx.opening
from nightingale.cli.main import main
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv[1]) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
sys.argv = ["nightingale", "say", "Good morning.", "-o", sys.argv[2]]
main()
"""
SPEAK_WITHOUT_ONNX_RUNTIME = """
import logging, sys
sys.modules["onnxruntime"] = None
logging.basicConfig(format="log %(message)s")
from nightingale import TTS

with TTS("wren", profile="balanced") as tts:
    print(*(choice.backend.name for choice in tts.plan.choices))
    print(len(tts.say("Hello.", seed=1).samples) > 0)
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of the address space")
@pytest.mark.parametrize("spare_mb", [60, 150, 300])
def test_say_with_too_little_memory_ends_with_the_exit_code_of_memory_full(
    tmp_path: Path, spare_mb: int
) -> None:
    done = run(SAY_WITH_LITTLE_MEMORY, str(spare_mb), str(tmp_path / "a.wav"))
    assert done.returncode == CapacityError.exit_code, done.stderr
    assert "there is not enough memory" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "a.wav").exists()


def test_failed_allocations_of_onnx_runtime_are_recognized() -> None:
    graph = NetworkGraph({})
    graph.input("size", 7, (1,))
    graph.output(graph.node("ConstantOfShape", ["size"], ["y"]), FLOAT, ("n",))
    session = streaming_session.create_session(graph, 1)
    with pytest.raises(MemoryFull, match="there is not enough memory"), raising_memory_full():
        session.run(None, {"size": np.array([2**50], np.int64)})


def test_failed_allocations_of_numpy_are_recognized() -> None:
    with pytest.raises(MemoryError) as caught:
        np.zeros(2**56)
    assert isinstance(memory_full(caught.value), MemoryFull)
    assert isinstance(engine_failed(caught.value), MemoryFull)


def test_other_errors_stay_what_they_are() -> None:
    assert memory_full(ValueError("a shape")) is None
    assert isinstance(engine_failed(ValueError("a shape")), EngineFault)
    with pytest.raises(ValueError, match="a shape"), raising_memory_full():
        raise ValueError("a shape")


def test_without_onnx_runtime_another_backend_speaks_and_one_line_says_so() -> None:
    done = run(SPEAK_WITHOUT_ONNX_RUNTIME)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["torch", "torch", "True"]
    lines = [line for line in done.stderr.splitlines() if line.startswith("log")]
    assert len(lines) == 1
    assert "onnxruntime" in lines[0]


def test_a_session_that_cannot_be_created_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no kernel for this instruction set\nmore")

    monkeypatch.setattr(streaming_session, "create_session", fail)
    reason = capabilities.package_reason.__wrapped__()
    assert reason == "onnxruntime does not work here (RuntimeError: no kernel for this instruction set)"
