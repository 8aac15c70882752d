"""Downloads by `nightingale models pull` from a hub on the loopback interface, in processes of their own."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from hub.loopback_hub import COMMIT, serve_hub

from nightingale.cli import downloads
from nightingale.hub.cards import NANO
from nightingale.hub.download_progress import DownloadProgress

FILES = {file.names[0]: file.names[0].encode() * 40_000 for file in NANO.files}
TOTAL = sum(map(len, FILES.values()))


def environment(home: Path, endpoint: str, **more: str) -> dict[str, str]:
    proxies = {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}
    kept = {name: value for name, value in os.environ.items() if name.lower() not in proxies}
    kept.pop("HF_HUB_OFFLINE", None)
    return {**kept, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, **more}


def run(home: Path, endpoint: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nightingale", *arguments]
    return subprocess.run(
        command, env=environment(home, endpoint, **more), capture_output=True, text=True, timeout=120
    )


def test_a_pull_reports_its_progress_as_json_and_nothing_of_it_elsewhere(tmp_path: Path) -> None:
    with serve_hub(FILES) as endpoint:
        result = run(tmp_path, endpoint, "models", "pull", "nano", "--json")
        again = run(tmp_path, endpoint, "models", "pull", "nano")
    assert result.returncode == 0, result.stderr
    assert result.stderr.splitlines()[0].startswith("nano: about 1.95 GB to download from ResembleAI/")
    assert "%" not in result.stderr
    *events, summary = map(json.loads, result.stdout.splitlines())
    assert {event["event"] for event in events} == {"download"}
    assert [event["bytes"] for event in events] == sorted(event["bytes"] for event in events)
    assert (events[-1]["bytes"], events[-1]["total_bytes"]) == (TOTAL, TOTAL)
    assert events[-1]["bytes_per_s"] > 0
    assert events[-1]["seconds_left"] == 0
    folder = Path(summary["folder"])
    assert folder.name == COMMIT
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert again.stdout.strip() == str(folder)
    assert "to download" not in again.stderr


def test_at_a_terminal_the_progress_is_one_line_of_our_own(tmp_path: Path) -> None:
    reader, writer = pytest.importorskip("pty").openpty()
    with serve_hub(FILES) as endpoint:
        command = [sys.executable, "-m", "nightingale", "models", "pull", "nano"]
        process = subprocess.Popen(
            command, env=environment(tmp_path, endpoint), stdout=subprocess.PIPE, stderr=writer
        )
        os.close(writer)
        shown = b""
        try:
            while part := os.read(reader, 65536):
                shown += part
        except OSError:  # how Linux tells that the process has closed its terminal
            pass
        os.close(reader)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 0, shown
    size, progress = shown.decode().strip().split("\r\n")
    assert "GB to download" in size
    assert re.search(
        r"downloading nano \[#+\.*\] +\d+% [\d.]+ [MG]B of [\d.]+ [MG]B, [\d.]+ [MG]B/s", progress
    )
    assert "it/s" not in shown.decode()
    assert "█" not in shown.decode()
    assert progress.endswith("0 of 7 files have a known digest, and it matches")


def test_speed_and_time_left_do_not_count_what_was_here_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times_s = iter([100.0, 110.0, 110.5, 120.0])
    monkeypatch.setattr(downloads.time, "monotonic", lambda: next(times_s))
    lines: list[str] = []
    monkeypatch.setattr(downloads, "progress_line", lambda *_, **__: nullcontext(lines.append))
    with downloads.download_reports("nano", as_json=True, quiet=False) as report:
        for done, new in (
            (600_000_000, 100_000_000),
            (610_000_000, 110_000_000),
            (1_000_000_000, 500_000_000),
        ):
            report(DownloadProgress(file="a", done_bytes=done, total_bytes=1_000_000_000, new_bytes=new))
    assert lines == [
        f"[{'#' * 14}{'.' * 10}]  60% 600.0 MB of 1.00 GB, 10.0 MB/s, 0:40 left",
        f"[{'#' * 24}] 100% 1.00 GB of 1.00 GB, 25.0 MB/s",
    ]
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["seconds_left"] for event in events] == [40.0, 0.0]


def test_a_broken_download_goes_on_where_it_stopped(tmp_path: Path) -> None:
    name, data = "t3_nano_v1.safetensors", FILES["t3_nano_v1.safetensors"]
    blobs = tmp_path / "hub" / "models--ResembleAI--chatterbox-nano" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hashlib.sha256(data).hexdigest()}.incomplete").write_bytes(data[:500_000])
    with serve_hub(FILES) as endpoint:
        result = run(tmp_path, endpoint, "models", "pull", "nano", "--json")
    *events, summary = map(json.loads, result.stdout.splitlines())
    assert (Path(summary["folder"]) / name).read_bytes() == data
    assert events[-1]["bytes"] == TOTAL


@pytest.mark.parametrize("broken", ["no hub", "no proxy", "offline"])
def test_without_a_network_one_error_says_so_at_once(broken: str, tmp_path: Path) -> None:
    more = {"no proxy": {"HTTP_PROXY": "http://127.0.0.1:9"}, "offline": {"HF_HUB_OFFLINE": "1"}}
    endpoint = "http://hub.invalid" if broken == "no proxy" else "http://127.0.0.1:9"
    result = run(tmp_path, endpoint, "say", "Hello.", "-m", "nano", "--yes", **more.get(broken, {}))
    assert result.returncode == 3
    errors = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "Retry" not in result.stderr
    assert "Traceback" not in result.stderr
    assert ("no connection to 127.0.0.1" in result.stderr) == (broken != "offline")
