"""A real `nightingale serve` in a process of its own, and what the system says about that process."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_S = 180.0
"""Time that the server may take to load its model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The memory, threads and descriptors of a process at one moment."""

    rss_mb: float
    threads: int
    descriptors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    port: int
    wyoming_port: int
    pid: int
    log: Path
    """Its standard error: one JSON object a line."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def websocket_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def usage(self) -> Usage:
        """Return what the system says about the process now (Linux)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        numbers = dict(re.findall(r"^(VmRSS|Threads):\s+(\d+)", status, re.MULTILINE))
        return Usage(
            rss_mb=round(int(numbers["VmRSS"]) / 1024, 1),
            threads=int(numbers["Threads"]),
            descriptors=len(os.listdir(f"/proc/{self.pid}/fd")),
        )

    def get(self, path: str, timeout_s: float = 30.0) -> tuple[int, bytes]:
        """Return the status and the body of a GET request, over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def ready(self) -> dict[str, Any]:
        """Return what /ready says, whatever its status."""
        said: dict[str, Any] = json.loads(self.get("/ready")[1])
        return said

    def logged_problems(self) -> list[str]:
        """Return the messages that the server logged as errors, and the first lines of tracebacks."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            if not line.startswith("{"):
                found += [line] if "Traceback" in line else []
                continue
            entry = json.loads(line)
            if str(entry.get("level", "")).lower() in ("error", "critical"):
                found.append(line[:300])
        return found

    def metric(self, name: str) -> dict[str, float]:
        """Return the values of a metric by its labels."""
        page = self.get("/metrics")[1].decode()
        found = re.findall(rf"^{name}(\{{.*\}})? (\S+)$", page, re.MULTILINE)
        return {labels: float(value) for labels, value in found}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def serving(options: Sequence[str]) -> Iterator[ServerProcess]:
    """Run a server with these options of `nightingale serve` while the context is open."""
    with tempfile.TemporaryDirectory(prefix="nightingale-server-") as folder:
        log, wyoming_port = Path(folder) / "stderr", free_port()
        command = [sys.executable, "-m", "nightingale", "serve", "--port", "0", "--log-format", "json"]
        command += ["--wyoming", f"tcp://127.0.0.1:{wyoming_port}", *options]
        environment = {**os.environ, "NIGHTINGALE_HOME": f"{folder}/home"}
        with log.open("w") as stderr:
            process = subprocess.Popen(command, stderr=stderr, stdout=subprocess.DEVNULL, env=environment)
        try:
            port = _wait_until_ready(process, log)
            yield ServerProcess(port=port, wyoming_port=wyoming_port, pid=process.pid, log=log)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> int:
    """Return the port that the server listens on, once its model is loaded."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        said = log.read_text(errors="replace")
        found = re.search(r"listens on http://\S+:(\d+)", said)
        if found and re.search(r"^ready", said, re.MULTILINE):
            return int(found[1])
        time.sleep(0.05)
    raise SystemExit(f"the server did not start:\n{log.read_text(errors='replace')[-2000:]}")
