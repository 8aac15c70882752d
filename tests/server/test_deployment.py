"""The deployment files: the health check of the image, the systemd unit, and the proxy example."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from live_server import LiveServer, free_port

from nightingale.server.middleware import is_foreign_origin
from nightingale.server.settings import ServerSettings

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
RUNNING = (ROOT / "docs" / "running.md").read_text()


def health_check(port: int) -> int:
    found = re.search(r"HEALTHCHECK .*\\\n\s+CMD (\[.*\])", DOCKERFILE)
    assert found is not None
    program, *arguments = json.loads(found[1])
    assert program == "python"
    env = {**os.environ, "NIGHTINGALE_PORT": str(port)}
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, check=False).returncode


def test_health_check_of_the_image_reports_readiness(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert health_check(server.port) == 0
    monkeypatch.setattr(server.service, "state", "loading")
    assert health_check(server.port) != 0
    assert health_check(free_port()) != 0


def test_image_runs_as_user_with_the_tested_python() -> None:
    assert re.search(r"^USER nightingale$", DOCKERFILE, re.MULTILINE)
    tested = re.search(r"\(Python ([\d.]+)\)", (ROOT / "constraints.txt").read_text())
    assert tested is not None
    assert re.findall(r"^ARG BASE=python:([\d.]+)-slim", DOCKERFILE, re.MULTILINE) == [tested[1]]
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${BASE}"}


def test_images_are_pinned_by_the_digest_that_docker_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("Dockerfile", "compose.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    digest = "sha256:" + 32 * "a7"
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(f'#!/bin/sh\necho "$4" >> {tmp_path}/asked; echo {digest}\n', encoding="utf-8")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    for _ in range(2):  # again: a new digest takes the place of the old one
        runpy.run_path(str(ROOT / "tools" / "pin_images.py"))["main"](tmp_path)
    assert f"ARG BASE=python:3.11-slim@{digest}\n" in (tmp_path / "Dockerfile").read_text()
    pinned = re.findall(r"image: (\S+)", (tmp_path / "compose.yaml").read_text())
    assert pinned[0] == "nightingale:${TORCH:-cpu}"
    assert pinned[1].endswith(f":main@{digest}")
    assert len((tmp_path / "asked").read_text().split()) == 4


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_accepts_every_line_of_the_unit(tmp_path: Path) -> None:
    """systemd only warns about unknown lines, so there must be no output."""
    unit = re.search(r"```ini\n(.*?)```", RUNNING, re.DOTALL)
    assert unit is not None
    path = tmp_path / "nightingale.service"
    path.write_text(unit[1].replace("/opt/nightingale/bin/nightingale", sys.executable))
    command = ["systemd-analyze", "verify", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_page_behind_the_example_proxy_may_call_its_server() -> None:
    host_header = re.search(r"proxy_set_header Host (\S+);", RUNNING)
    assert host_header is not None
    for address in ("speech.example", "speech.example:8443"):
        # The values of nginx: $http_host is the header of the client, $host has no port.
        sent = {"$http_host": address, "$host": address.split(":")[0]}[host_header[1]]
        page = {"origin": f"https://{address}", "host": sent}
        assert not is_foreign_origin(page, ServerSettings(api_key="k")), (
            f"the page of {address} may not call its server"
        )
