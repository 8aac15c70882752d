"""What the pages tell operators to install: the health check runs, the unit means something to systemd."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from live_server import LiveServer, free_port

from nightingale.server.auth import is_foreign
from nightingale.server.settings import Settings

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


def test_the_image_s_health_check_tells_ready_from_not_ready(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert health_check(server.port) == 0
    monkeypatch.setattr(server.speaker, "state", "loading")
    assert health_check(server.port) != 0
    assert health_check(free_port()) != 0


def test_the_image_is_not_root_and_has_the_python_of_the_constraints() -> None:
    assert re.search(r"^USER nightingale$", DOCKERFILE, re.MULTILINE)
    tested = re.search(r"\(Python ([\d.]+)\)", (ROOT / "constraints.txt").read_text())
    assert tested is not None
    assert set(re.findall(r"^FROM python:([\d.]+)-slim", DOCKERFILE, re.MULTILINE)) == {tested[1]}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_understands_every_line_of_the_unit(tmp_path: Path) -> None:
    """It ignores what it does not understand, and says so: there must be nothing to say."""
    unit = re.search(r"```ini\n(.*?)```", RUNNING, re.DOTALL)
    assert unit is not None
    path = tmp_path / "nightingale.service"
    path.write_text(unit[1].replace("/opt/nightingale/bin/nightingale", sys.executable))
    command = ["systemd-analyze", "verify", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_behind_the_proxy_of_the_example_is_no_stranger_on_any_port() -> None:
    asked = re.search(r"proxy_set_header Host (\S+);", RUNNING)
    assert asked is not None
    for address in ("speech.example", "speech.example:8443"):
        # What nginx makes of its variables: http_host is the client's own header, host goes without the port.
        sent = {"$http_host": address, "$host": address.split(":")[0]}[asked[1]]
        page = {"origin": f"https://{address}", "host": sent}
        assert not is_foreign(page, Settings(api_key="k")), f"the page of {address} may not call its server"
