"""Small runs of the soak, the overload, the memory run and the fuzzer.

Every night (`make nightly`) they must run, and make no mistake. Their bounds on time and memory hold on a machine that
does nothing else: those are `make soak`'s.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest


def run(module: str, *options: str, bounds: bool = True) -> dict[str, Any]:
    """Run a command of the lab; return its last line. It exits with 1 if a check failed."""
    command = [sys.executable, "-m", f"nightingale_lab.reliability.{module}", *options, "--no-store"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in ((0,) if bounds else (0, 1)), done.stdout[-4000:] + done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def check_soak(result: dict[str, Any]) -> None:
    clients = {name.partition(":")[0] for name in result["outcomes"]}
    assert {"openai", "sse", "websocket", "elevenlabs", "malformed", "cancel", "killed client"} <= clients
    assert any(name.endswith(": right") for name in result["outcomes"])
    assert not [problem for problem in result["problems"] if "Timeout" not in problem], "wrong answers"
    assert result["server_5xx"] == 0
    assert result["logged_errors"] == []


@pytest.mark.nightly
def test_a_server_makes_no_mistake_in_half_a_minute_of_mixed_clients() -> None:
    check_soak(run("soak", "--tiny", bounds=False))


@pytest.mark.slow
def test_a_server_stands_five_minutes_of_mixed_clients() -> None:
    result = run("soak", "--minutes", "5")
    check_soak(result)
    assert result["unloads"] == 2


@pytest.mark.nightly
def test_an_overload_has_four_times_the_listeners_of_the_capacity() -> None:
    result = run("overload", "--tiny", bounds=False)
    assert result["listeners"] == 4 * result["capacity"]


@pytest.mark.slow
def test_admitted_listeners_have_no_underruns_in_an_overload() -> None:
    assert run("overload", "--tiny")["underruns"] == 0


@pytest.mark.nightly
def test_memory_is_measured_while_requests_come() -> None:
    result = run("memory_growth", "--tiny", bounds=False)
    assert [row["requests"] for row in result["rows"]] == [50, 100]


@pytest.mark.slow
def test_memory_does_not_grow_with_requests() -> None:
    run("memory_growth", "--tiny")


@pytest.mark.nightly
def test_readers_of_untrusted_input_stand_a_little_fuzzing() -> None:
    result = run("fuzzing", "--tiny")
    assert {name: row["findings"] for name, row in result["rows"].items() if row["findings"]} == {}
    assert all(row["inputs"] and row["lines"] for row in result["rows"].values())
