"""Small runs of the soak, the overload and the memory run (`make nightly`), and a soak of five minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest


def run(module: str, *options: str) -> dict[str, Any]:
    """Run a command of the lab; return its last line. It exits with 1 if a check failed."""
    command = [sys.executable, "-m", f"nightingale_lab.reliability.{module}", *options, "--no-store"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def check_soak(result: dict[str, Any]) -> None:
    assert result["unloads"] == 2
    clients = {name.partition(":")[0] for name in result["outcomes"]}
    assert {"openai", "sse", "websocket", "elevenlabs", "malformed", "cancel", "killed client"} <= clients


@pytest.mark.nightly
def test_a_server_stands_half_a_minute_of_mixed_clients() -> None:
    check_soak(run("soak", "--tiny"))


@pytest.mark.slow
def test_a_server_stands_five_minutes_of_mixed_clients() -> None:
    check_soak(run("soak", "--minutes", "5"))


@pytest.mark.nightly
def test_admitted_listeners_have_no_underruns_in_an_overload() -> None:
    result = run("overload", "--tiny")
    assert result["listeners"] == 4 * result["capacity"]
    assert result["underruns"] == 0


@pytest.mark.nightly
def test_memory_does_not_grow_with_requests() -> None:
    result = run("memory_growth", "--tiny")
    assert [row["requests"] for row in result["rows"]] == [50, 100]


@pytest.mark.nightly
def test_readers_of_untrusted_input_stand_a_little_fuzzing() -> None:
    result = run("fuzzing", "--tiny")
    assert {name: row["findings"] for name, row in result["rows"].items() if row["findings"]} == {}
    assert all(row["inputs"] and row["lines"] for row in result["rows"].values())
