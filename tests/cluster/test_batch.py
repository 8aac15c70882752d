"""Batches on a real Ray: interrupted runs, rows that end their worker, other inputs, and faults of the cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cluster.poison_worker import POISON

from nightingale.errors import ConfigError, OutputError
from nightingale.ray.batch_output import TIMINGS, BatchOutput
from nightingale.ray.batch_run import BatchResult, BatchSettings, run_batch
from nightingale.ray.connection import connected

pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[2]
ROWS = 500


@pytest.fixture(scope="module")
def address(ray_cluster: Any) -> str:
    found: str = ray_cluster.get_runtime_context().gcs_address
    return found


@pytest.fixture
def run(address: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that speaks a batch on the Ray that runs already."""
    import contextlib

    import ray

    @contextlib.contextmanager
    def here(_: str | None) -> Any:
        yield ray

    monkeypatch.setattr("nightingale.ray.batch_run.connected", here)

    def speak(source: Path, out: Path, **more: Any) -> BatchResult:
        settings = {"server": {"model": "noise"}, "cpus_per_worker": 0.5, **more}
        return run_batch(BatchSettings(source=str(source), out=str(out), **settings), None, lambda *_: None)

    return speak


def write_rows(path: Path, texts: list[str]) -> Path:
    rows = [{"id": f"{number:04d}", "text": text} for number, text in enumerate(texts)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def manifest(out: Path) -> list[dict[str, Any]]:
    """Return the rows of the manifest without times, which no two runs share."""
    rows = [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMINGS} for row in rows]


def test_a_run_that_was_killed_twice_and_resumed_has_the_manifest_of_one_that_was_not(
    address: str, run: Any, tmp_path: Path
) -> None:
    texts = [f"This is the sentence with the number {number}." for number in range(ROWS)]
    source = write_rows(tmp_path / "in.jsonl", texts)
    profile = {"model": "noise", "profile": "exact", "option": {}, "device": "auto", "offline": False}
    whole = run(source, tmp_path / "whole", server=profile)
    assert (whole.rows, whole.dead) == (ROWS, 0)

    out = tmp_path / "killed"
    command = [sys.executable, "-m", "nightingale", "cluster", "speak", str(source), "-o", str(out)]
    command += ["--address", address, "-m", "noise", "--profile", "exact", "--json"]
    command += ["--cpus-per-worker", "0.5", "--batch-rows", "20"]
    before = 0
    for _ in range(2):
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        deadline_s = time.monotonic() + 90
        while (done := records(out)) < before + 3:
            assert process.poll() is None, "the run has ended before it could be killed"
            assert time.monotonic() < deadline_s, "no rows were spoken"
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        before = done
    assert not (out / "manifest.jsonl").exists()
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    result = json.loads(ended.stdout.splitlines()[-1])
    assert (result["rows"], result["dead"]) == (ROWS, 0)
    assert result["skipped"] >= 100, "what the killed runs had done was spoken again"
    assert manifest(out) == manifest(tmp_path / "whole")
    for row in manifest(out)[::50]:
        assert (out / row["file"]).read_bytes() == (tmp_path / "whole" / row["file"]).read_bytes()


def records(out: Path) -> int:
    return len(list((out / "records").glob("*.jsonl")))


def test_a_row_that_ends_its_worker_is_quarantined_and_the_others_are_spoken(
    run: Any, tmp_path: Path
) -> None:
    texts = [*(f"Sentence {number}." for number in range(9)), POISON, "The last one."]
    source = write_rows(tmp_path / "in.jsonl", texts)
    result = run(source, tmp_path / "out", worker="cluster.poison_worker:PoisonWorker", batch_rows=4)
    assert (result.rows, result.dead) == (10, 1)
    (dead,) = [json.loads(line) for line in (tmp_path / "out" / "dead-letter.jsonl").read_text().splitlines()]
    assert dead["text"] == POISON
    assert "ended its worker 3 times" in dead["error"]


def test_tables_and_folders_are_read_and_a_second_run_does_nothing(run: Any, tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    (tmp_path / "in.csv").write_text("id,text,voice\na,Hello.,\nb,,\nc,Bye.,nosuch\n")
    table = pyarrow.table({"id": [1, 2], "sentence": ["One.", "Two."], "seed": [7, None]})
    parquet.write_table(table, tmp_path / "in.parquet")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "chapter.txt").write_text("A chapter.\n\nWith two paragraphs.")
    for name, rows, dead in (("in.csv", 1, 2), ("in.parquet", 2, 0), ("texts", 1, 0)):
        out = tmp_path / f"out-{name}"
        first = run(tmp_path / name, out, file_format="wav")
        assert (first.rows, first.dead, first.skipped) == (rows, dead, 0)
    again = run(tmp_path / "texts", tmp_path / "out-texts", file_format="wav")
    assert (again.rows, again.skipped, again.seconds) == (1, 1, 0.0)
    read = parquet.read_table(tmp_path / "out-in.parquet" / "manifest.parquet").to_pylist()
    assert {(row["id"], row["text"]) for row in read} == {("1", "One."), ("2", "Two.")}
    assert read[0]["seed"] == 7


def test_an_output_that_fills_up_stops_the_run_with_a_reason_and_loses_nothing(
    run: Any, tmp_path: Path
) -> None:
    source = write_rows(tmp_path / "in.jsonl", [f"Sentence {number}." for number in range(16)])
    out = tmp_path / "out"
    with pytest.raises(OutputError, match="No space left on device"):
        run(source, out, worker="cluster.full_disk_worker:FullDiskWorker", batch_rows=4)
    result = run(source, out, batch_rows=4)
    assert (result.rows, result.dead) == (16, 0)
    assert len({row["key"] for row in manifest(out)}) == 16
    assert len(list(BatchOutput(str(out)).records())) == 16, "a row was spoken twice"


def test_a_cluster_that_cannot_be_reached_is_an_error_that_says_what_to_do() -> None:
    command = [sys.executable, "-m", "nightingale", "cluster", "serve", "--address", "127.0.0.1:1"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == ConfigError.exit_code, ended.stderr
    assert "no Ray cluster can be reached" in ended.stderr
    assert "ray start --head" in ended.stderr


def test_a_node_with_another_version_or_without_a_package_is_named(
    ray_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nightingale.ray import connection

    connection.check_nodes(ray_cluster)
    for answer, problem in (
        (("0.0.1", []), "nightingale 0.0.1"),
        ((connection.__version__, ["av"]), "without av"),
    ):
        monkeypatch.setattr(connection, "describe_node", lambda answer=answer: answer)
        with pytest.raises(ConfigError, match=problem):
            connection.check_nodes(ray_cluster)


def test_a_cluster_of_another_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def init(*_: Any, **__: Any) -> None:
        raise RuntimeError(
            "Version mismatch: The cluster was started with:\n    Ray: 2.1.0\n    Python: 3.9.1"
        )

    monkeypatch.setattr("nightingale.ray.connection.check_reachable", lambda _: None)
    monkeypatch.setattr(ray, "init", init)
    with (
        pytest.raises(ConfigError, match=r"versions here and in the cluster differ.*Ray: 2\.1\.0"),
        connected("a:1"),
    ):
        raise AssertionError("connected")
