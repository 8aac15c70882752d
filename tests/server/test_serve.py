"""`nightingale serve` as a process: flags, errors, start and shutdown."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from plain_http import HTTP
from typer.testing import CliRunner
from websockets.sync.client import connect

from nightingale.cli.arguments import parameters_of
from nightingale.cli.commands import app
from nightingale.cli.serve import serve
from nightingale.errors import VoiceNotFound
from nightingale.install import install_command
from nightingale.server.listen_socket import open_listen_socket
from nightingale.server.settings import ServerSettings

LIMIT_S = 60


@contextmanager
def running(*flags: str, home: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server on a free port; yield the process and its URL."""
    command = [sys.executable, "-m", "nightingale", "serve", "--port", "0", *flags]
    env = {**os.environ, "NIGHTINGALE_HOME": str(home), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env, cwd=home)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"listens on (http://\S+)", line):
                yield process, found[1]
                break
        else:
            pytest.fail("it did not listen")
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def wait_until_ready(address: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while HTTP.get(f"{address}/ready").status_code != 200:
        assert time.monotonic() < deadline, "it did not get ready"
        time.sleep(0.05)


def test_server_answers_before_it_is_ready_and_finishes_requests_at_sigterm(tmp_path: Path) -> None:
    with running("--model", "noise", "--profile", "balanced", "--grace", "20s", home=tmp_path) as (
        process,
        url,
    ):
        assert HTTP.get(f"{url}/health").json() == {"status": "ok"}
        wait_until_ready(url)
        body = {"input": "One sentence, and then another one. " * 12, "response_format": "pcm", "seed": 1}
        whole = HTTP.post(f"{url}/v1/audio/speech", json=body).content
        with HTTP.stream("POST", f"{url}/v1/audio/speech", json=body) as answer:
            parts = answer.iter_raw()
            received = next(parts)
            process.send_signal(signal.SIGTERM)
            for part in parts:
                received += part
        assert received == whole, "the shutdown cancelled a running request"
        assert process.wait(LIMIT_S) == 0


def test_shutdown_answers_503_and_logs_cancelled_requests_once(tmp_path: Path) -> None:
    with running("--model", "noise", "--profile", "balanced", "--grace", "3s", home=tmp_path) as (
        process,
        url,
    ):
        wait_until_ready(url)
        body = {"input": "One sentence, and then another one. " * 250, "response_format": "pcm"}
        # More audio than the server buffers for a client that does not read.
        with HTTP.stream("POST", f"{url}/v1/audio/speech", json=body) as answer:
            parts = answer.iter_raw()
            next(parts)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            late = HTTP.get(f"{url}/ready")
            assert (late.status_code, late.json()["state"]) == (503, "stopping")
            assert "shutting down" in HTTP.post(f"{url}/v1/audio/speech", json={"input": "Hi."}).text
            time.sleep(5)
            with pytest.raises(httpx.TransportError):  # an aborted connection, not a regular end
                list(parts)
        assert process.wait(LIMIT_S) == 0
        assert process.stderr is not None
        lines = process.stderr.read().splitlines()
        logged = [json.loads(line) for line in lines if line.startswith("{")]
        assert [line["level"] for line in logged if line["level"] not in ("info", "debug")] == ["warning"], (
            lines
        )
        assert "Traceback" not in "".join(lines)


def test_shutdown_finishes_the_turn_of_a_websocket(tmp_path: Path) -> None:
    with running("--model", "noise", "--profile", "balanced", home=tmp_path) as (process, url):
        wait_until_ready(url)
        with connect(url.replace("http", "ws") + "/v1/audio/speech/stream") as client:
            text = "One sentence, and then another one. " * 12
            client.send(json.dumps({"type": "session.update", "session": {"response_format": "mp3"}}))
            client.send(json.dumps({"type": "input_text.append", "text": text}))
            client.send(json.dumps({"type": "input_text.end"}))
            while not isinstance(client.recv(LIMIT_S), bytes):
                pass
            process.send_signal(signal.SIGTERM)
            while isinstance(message := client.recv(LIMIT_S), bytes):
                pass
        assert json.loads(message)["type"] == "speech.audio.done"
        assert process.wait(LIMIT_S) == 0


def test_missing_model_ends_the_server_with_its_exit_code(tmp_path: Path) -> None:
    env = {**os.environ, "NIGHTINGALE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "nightingale", "serve", "--port", "0", "-m", str(tmp_path / "no-model")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=env, check=False)
    assert done.returncode == 2
    assert "no-model" in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_default_voice_ends_the_server_with_advice_for_the_operator(tmp_path: Path) -> None:
    env = {**os.environ, "NIGHTINGALE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "nightingale",
        "serve",
        "--port",
        "0",
        "-m",
        "noise",
        "-v",
        "missing-voice",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=env, check=False)
    assert done.returncode == VoiceNotFound.exit_code
    assert "missing-voice" in done.stderr
    assert "nightingale voices list" in done.stderr
    assert "POST" not in done.stderr, "the server has exited"


def test_public_address_without_a_key_is_refused() -> None:
    result = CliRunner().invoke(app, ["serve", "--host", "0.0.0.0"])
    assert result.exit_code == 2
    assert "--insecure" in result.output


def test_taken_port_is_named_and_no_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", "--port", str(port)])
    assert result.exit_code == 2
    assert f"127.0.0.1:{port}" in result.output


def test_wyoming_without_its_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wyoming", None)
    monkeypatch.setattr(uvicorn.Server, "serve", lambda *_, **__: pytest.fail("the server was started"))
    result = CliRunner().invoke(app, ["serve", "--port", "0", "--wyoming", "tcp://127.0.0.1:0"])
    assert result.exit_code == 2
    assert install_command("wyoming") in result.output
    assert len(result.output.splitlines()) == 2


def test_taken_port_is_named_for_wyoming(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wyoming")
    monkeypatch.setattr(uvicorn.Server, "serve", lambda *_, **__: pytest.fail("the server was started"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", "--port", "0", "--wyoming", f"tcp://127.0.0.1:{port}"])
    assert result.exit_code == 2
    assert f"127.0.0.1:{port}" in result.output
    assert "--wyoming" in result.output


def test_accepted_connections_have_tcp_nodelay() -> None:
    """asyncio sets it only if the listening socket was created with its protocol."""

    async def run() -> bool:
        seen: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            client = writer.get_extra_info("socket")
            seen.set_result(bool(client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
            writer.close()

        with open_listen_socket("127.0.0.1", 0) as listener:
            async with await asyncio.start_server(handle, sock=listener):
                _, writer = await asyncio.open_connection(*listener.getsockname())
                writer.close()
                return await asyncio.wait_for(seen, 5)

    assert asyncio.run(run())


def test_every_setting_is_a_flag_and_every_flag_a_setting() -> None:
    flags = set(parameters_of(serve)) - {"config"}
    assert flags == set(ServerSettings.model_fields) - {"api_key"}, (
        "other users can read a key on a command line"
    )


def test_several_processes_share_connections_voices_and_metrics(tmp_path: Path) -> None:
    """Two streams at once are served by two processes; one that dies is started again."""
    flags = ("--model", "noise", "--profile", "balanced", "--workers", "2")
    with running(*flags, home=tmp_path) as (process, url):
        wait_until_ready(url)
        body = {"input": "One sentence, and then another one. " * 12, "response_format": "pcm", "seed": 1}
        whole = HTTP.post(f"{url}/v1/audio/speech", json=body).content
        with (
            HTTP.stream("POST", f"{url}/v1/audio/speech", json=body) as first,
            HTTP.stream("POST", f"{url}/v1/audio/speech", json=body) as second,
        ):
            assert first.read() == second.read() == whole
        served, sent, deadline = dict[str, float](), 3, time.monotonic() + LIMIT_S
        while len(served) < 2 or sum(served.values()) < sent:
            assert time.monotonic() < deadline, served
            if len(served) < 2:
                assert HTTP.post(f"{url}/v1/audio/speech", json=body).content == whole
                sent += 1
            time.sleep(0.2)  # the metrics of the other process are up to a second old
            speech = r'requests_total\{process="(\d)",route="/v1/audio/speech",status="200"\} (\S+)'
            found = re.findall(speech, HTTP.get(f"{url}/metrics").text)
            served = {number: float(count) for number, count in found}
        assert sum(served.values()) == sent
        pids = children_of(process.pid)
        assert len(pids) == 2
        os.kill(pids[0], signal.SIGKILL)
        while pids[0] in children_of(process.pid) or len(children_of(process.pid)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert HTTP.post(f"{url}/v1/audio/speech", json=body).content == whole
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0


def children_of(pid: int) -> list[int]:
    """Return the server processes of a parent, without the tracker of multiprocessing's resources."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
