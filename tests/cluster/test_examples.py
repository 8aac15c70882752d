"""The commands of docs/cluster.md, the example files, and the dashboard."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.main
from live_server import free_port

from nightingale.cli.commands import app
from nightingale.ray.connection import VARIABLES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text()
EXAMPLES = ROOT / "examples" / "cluster"


def shell_lines() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


COMMANDS = [line for line in shell_lines() if line.startswith("nightingale cluster")]


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) >= 3


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_has_options_that_exist(line: str) -> None:
    _, group, verb, *words = shlex.split(line)
    command: Any = typer.main.get_command(app)
    below = command.commands[group].commands[verb]
    below.make_context(verb, words)  # raises a usage error


def test_the_variables_of_the_page_are_those_that_a_local_ray_gets() -> None:
    told = dict(re.findall(r"^export (RAY_SERVE_\w+)=(\S+)$", PAGE, re.MULTILINE))
    assert told == VARIABLES


def test_the_settings_of_the_page_and_of_the_example_exist() -> None:
    yaml = pytest.importorskip("yaml")
    from nightingale.ray.cluster_settings import ClusterSettings
    from nightingale.server.settings import ServerSettings

    told = re.findall(r"^\| `(\w+)` \| [^|]*\| ", PAGE, re.MULTILINE)
    assert set(told) == set(ClusterSettings.model_fields) - {"metrics_interval_s", "service", "server"}
    (application,) = yaml.safe_load((EXAMPLES / "serve.yaml").read_text())["applications"]
    settings = ClusterSettings.load(application["args"])
    assert settings.replica_range == (1, 8)
    assert set(settings.server) <= set(ServerSettings.model_fields)
    module, _, name = application["import_path"].partition(":")
    assert callable(getattr(__import__(module, fromlist=[name]), name))


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    from prometheus_client import generate_latest

    from nightingale.server.service.speech_service import SpeechService
    from nightingale.server.settings import ServerSettings

    dashboard = json.loads((EXAMPLES / "grafana.json").read_text())
    asked = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    names = set(re.findall(r"nightingale_\w+", asked))
    page = generate_latest(SpeechService(ServerSettings(model="noise")).metrics.registry).decode()
    page += "nightingale_requests_total"  # has no samples before the first request
    assert len(names) > 8
    assert {name for name in names if name not in page} == set()


@pytest.mark.ray
def test_the_example_configuration_is_one_that_serve_accepts(ray_cluster: Any) -> None:
    import yaml
    from ray.serve.schema import ServeDeploySchema

    from nightingale.ray import build_app

    config = ServeDeploySchema.model_validate(yaml.safe_load((EXAMPLES / "serve.yaml").read_text()))
    (application,) = config.applications
    keys = {**application.args["server"], "api_key_file": None}
    assert build_app({**application.args, "server": keys}) is not None


@pytest.mark.ray
def test_the_two_commands_of_the_page_speak_a_sentence(tmp_path: Path) -> None:
    """Start a Ray of its own, as a newcomer does; with the model "noise", and less of the machine."""
    serve = COMMANDS[0]
    curl = next(line for line in shell_lines() if line.startswith("curl"))
    port, token = free_port(), tmp_path / "token"
    token.write_text("0" * 64)
    command = [sys.executable, "-m", *shlex.split(serve), "--port", str(port), "-m", "noise"]
    environment = {**os.environ, "RAY_AUTH_TOKEN_PATH": str(token), "NIGHTINGALE_HOME": str(tmp_path)}
    process = subprocess.Popen(
        [*command, "--cpus-per-replica", "0.5"], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any("nightingale listens on" in line for line in lines), "it did not start"
        body = json.loads(shlex.split(curl)[shlex.split(curl).index("-d") + 1])
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/audio/speech", json=body, timeout=60)
        assert answer.status_code == 200
        assert answer.content[:4] == b"RIFF"
        assert "x-replica" in answer.headers
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(90) == 0


@pytest.mark.ray
def test_the_benchmark_runs(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0" * 64)
    environment = {**os.environ, "RAY_AUTH_TOKEN_PATH": str(token), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "nightingale_lab.bench", "cluster", "--tiny"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    result = json.loads(ended.stdout.splitlines()[-1])
    assert {"latency", "growth", "arrivals", "kill", "batch"} <= set(result)
    assert result["growth"]["2"]["efficiency"] > 0.8
    assert result["kill"]["others_disturbed"] == result["kill"]["waiting_failed"] == 0
