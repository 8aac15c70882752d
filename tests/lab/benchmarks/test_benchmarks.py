"""Small runs of every benchmark that README and the documentation name (`make nightly`)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightingale_lab.bench.__main__ import MODULES, main, source
from nightingale_lab.bench.programs import cpu
from nightingale_lab.bench.programs.gpu import gpu_goals

ROOT = Path(__file__).parents[3]
ABSENT = (
    "soxr", "soundfile", "tokenizers", "typer", "rich", "platformdirs", "huggingface_hub", "triton", "jiwer",
)  # fmt: skip
"""Packages that a GPU machine may lack."""
SMALL_RUNS = {
    "cpu": ("table", "parts"),
    "fleet": ("capacity", "rows"),
    "engine": ("engine_over_bare", "ten_together_over_ten_in_a_row"),
    "onnx_blocks": ("processor_ms",),
    "peer_quality": ("engines",),
    "processes": ("rows",),
    "server": ("overhead_ms_p50", "load", "overload", "recovered"),
    "streaming": ("mel_relative_l2", "streams", "planted", "segments"),
}
"""Benchmarks that run anywhere, and keys of their result."""
ON_GPUS = {"gpu", "gpu_engine"}
NEED_OTHERS = {"upstream_side", "upstream_env", "executorch_programs"}
"""Benchmarks that need packages or files of other projects."""
ON_RAY = {"cluster"}
"""Small runs of these are in tests/cluster."""


def run(*command: str, cwd: Path = ROOT) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def last_line(output: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def run_without_packages(name: str, *options: str) -> dict[str, Any]:
    """Run a benchmark as on a machine that has torch, numpy and safetensors only."""
    code = f"import runpy, sys; sys.modules.update(dict.fromkeys({ABSENT!r})); "
    code += f"sys.argv = {['', name, *options]!r}; "
    code += "runpy.run_module('nightingale_lab.bench', run_name='__main__', alter_sys=True)"
    return last_line(run("-c", code))


def test_every_benchmark_has_a_small_run() -> None:
    assert set(MODULES) == {*SMALL_RUNS, *ON_GPUS, *NEED_OTHERS, *ON_RAY}


def test_every_program_is_a_benchmark_or_part_of_one() -> None:
    programs = {
        path
        for path in source("cpu").parent.rglob("*.py")
        if "\ndef main(" in path.read_text(encoding="utf-8")
    }
    assert programs <= {source(name) for name in MODULES}


def test_documents_name_benchmarks_and_options_that_exist() -> None:
    """Every `--option` beside a benchmark in README and docs is one that it defines."""
    everywhere = (ROOT / "src/nightingale_lab/bench/runner.py").read_text()
    board = source("gpu").with_name("board.py").read_text()
    seen = 0
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")):
        for name, options in re.findall(r"nightingale_lab\.bench (\w+)([^`\n#|)]*)", page.read_text()):
            if name == "NAME":
                continue
            assert name in MODULES, f"{page.name}: there is no benchmark {name}"
            text = source(name).read_text() + everywhere + (board if name in ON_GPUS else "")
            for option in re.findall(r"--[a-z-]+", options):
                assert f'"{option}"' in text, f"{page.name}: {name} has no {option}"
                seen += 1
    assert seen > 10


def test_without_a_name_the_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    listed = capsys.readouterr().err
    for name in MODULES:
        assert re.search(rf"^  {name} +\S", listed, re.MULTILINE), name
    assert main(["--help"]) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", SMALL_RUNS)
def test_a_benchmark_runs_at_tiny_sizes(name: str) -> None:
    result = last_line(run("-m", "nightingale_lab.bench", name, "--tiny"))
    assert result["tiny"] is True
    assert result["machine"]["cores"]
    for key in SMALL_RUNS[name]:
        assert result[key], key
    assert not [part for part in result.get("parts", {}).values() if "error" in part]


@pytest.mark.nightly
def test_decode_steps_agree_with_the_plain_loop_without_a_gpu() -> None:
    result = run_without_packages("gpu", "--tiny", "--device", "cpu")
    assert result["errors"] == {}
    for family in ("multilingual", "turbo"):
        assert result["checks"][f"{family}: float32 library: greedy tokens as plain's"] is True
        for part in ("T3 step, float32 plain", "T3 step, float32 library", "T3 step"):
            assert f"{family}: {part}, ms" in result["rows"]


@pytest.mark.nightly
def test_engine_is_measured_without_a_gpu() -> None:
    result = run_without_packages("gpu_engine", "--tiny", "--device", "cpu")
    assert result["errors"] == {}
    for family in ("multilingual", "turbo"):
        for how in ("alone", "among 3 voices"):
            assert result["checks"][f"{family}: float32 greedy tokens of graphs {how} as plain's"] is True
        assert result["checks"][f"{family}, fast: the same seed, the same samples"] is True
        for row in ("own voices, block: first audio p95, ms", "own voices, segment: audio s/s"):
            assert result["rows"][f"{family}, {row}"] > 0
        assert f"{family}: most listeners, poisson" in result["rows"]
    missing = [what for what, row in result["table"].items() if row["reached"] is None]
    assert missing == ["3 listeners, own voices: GPU memory, GiB"]


@pytest.mark.nightly
def test_parts_of_the_gpu_tables_can_be_chosen() -> None:
    chosen = ["--part", "turbo/al*,x/y", "--commit", "abc"]
    result = run_without_packages("gpu_engine", "--tiny", "--device", "cpu", *chosen)
    assert result["errors"] == {}
    assert result["commit"] == "abc"
    assert result["rows"]
    assert {row.partition(":")[0] for row in result["rows"]} == {"turbo, fast"}


def test_goals_of_the_gpu_table_are_judged_by_their_sign() -> None:
    rows = {
        "multilingual, own voices, block: audio s/s": 100.0,
        "multilingual, own voices, block: first audio p95, ms": 950.0,
        "multilingual, own voices, block: listeners with underruns": 0.0,
        "multilingual, fast: sentence, ms": 150.0,
        "multilingual, upstream: sentence, ms": 2000.0,
    }
    found = gpu_goals.table(rows, 64)
    rate = found["64 listeners, own voices, block: audio s/s"]
    assert (rate["must_met"], rate["aim_met"], rate["upstream"]) == (True, False, None)
    assert found["64 listeners, own voices, block: first audio p95, ms"]["must_met"] is False
    assert found["64 listeners, own voices, block: listeners with underruns"]["aim_met"] is True
    assert found["one listener: sentence, ms"]["upstream"] == 2000.0
    assert found["one listener: T3 step, ms"]["must_met"] is None


@pytest.mark.nightly
def test_lab_modules_run(tmp_path: Path) -> None:
    """The stages of a clip, scoring, the model card's table and the regression guard."""
    soundfile = pytest.importorskip("soundfile")
    time_s = np.arange(2 * 24_000) / 24_000
    (tmp_path / "clips").mkdir()
    soundfile.write(tmp_path / "clips" / "000.wav", 0.2 * np.sin(2 * np.pi * 180 * time_s), 24_000)
    texts = "clips/texts.txt"
    (tmp_path / texts).write_text("A short text.\n")

    def run_module(name: str, *options: str) -> str:
        return run("-m", f"nightingale_lab.bench.{name}", *options, cwd=tmp_path)

    by_stage = run_module("stage_quality", "clips", "--voices", "heart", "--tiny", "--keep", "out")
    assert last_line(by_stage)["voices"]["heart"].keys() == {"recording", "vocoder", "flow", "spoken"}
    assert last_line(run_module("score", "out/heart/flow", texts, "--judges", ""))["clips"] == 1
    card = run_module("wren", "--tiny", "--parts", "default,varied,hard,questions", "--judges", "")
    assert last_line(card)["default"]["clips"] == 2
    assert last_line(card)["hard"]["clips"] == 4
    guard = run_module("guard", "--model", "noise", "--rounds", "1", "--results", str(tmp_path))
    assert last_line(guard)["slower"] == []


@pytest.mark.nightly
def test_tests_that_need_other_programs_can_be_collected() -> None:
    """Contract, browser, judge and CUDA tests are not run here, but their modules must import."""
    folders = ["tests/contract", "tests/browser", "tests/lab/bench/verify", "tests/backends/cuda"]
    chosen = "contract or browser or judges or requires_cuda"
    output = run("-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", chosen, *folders)
    for folder in folders:
        assert f"{folder}/" in output


def test_goals_of_the_cpu_table_are_those_that_were_measured() -> None:
    found: dict[str, dict[str, Any]] = {
        "step multilingual": {"ratio": 1.5},
        "sentence multilingual": {"rtf": 2.0, "peak_gib": 1.9, "seconds": {"whole": 8.0}},
        "sentence multilingual+meanflow": {"rtf": 1.1},
        "sentence nano": {"error": "out of memory"},
        "upstream multilingual": {"seconds": {"whole": 80.0}},
        "upstream nano": {"seconds": {"whole": 10.0}},
    }
    assert cpu.table(found) == {
        "T3 multilingual int8 step / time to read its weights": 1.5,
        "multilingual, 10 guided steps, real-time factor": 2.0,
        "multilingual + s3gen=meanflow, real-time factor": 1.1,
        "speed-up over upstream: multilingual": 10.0,
        "peak memory, multilingual, GiB": 1.9,
    }
