"""A real Ray on two cores for the tests that are marked `ray`, and the addresses of what runs on it."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_server import free_port

from nightingale_lab.bench.replica_processes import replica_processes

PACED = "nightingale_lab.bench.paced_service:PacedService"
OBJECT_STORE_BYTES = 200_000_000


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start Ray once for all tests, with its files and its token below the tests' folder."""
    pytest.importorskip("ray")
    from nightingale.ray.connection import VARIABLES

    folder = tmp_path_factory.mktemp("ray")
    before = dict(os.environ)
    os.environ.update(VARIABLES)
    (folder / "token").write_text(secrets.token_hex(32))  # otherwise Ray makes one in the user's home
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(folder / "token")
    os.environ["NIGHTINGALE_VOICES"] = str(folder / "voices")
    os.environ["OMP_NUM_THREADS"] = "1"
    # Workers import the classes of this folder.
    os.environ["PYTHONPATH"] = f"{Path(__file__).parents[1]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    import ray  # Ray Serve reads the variables when it is imported, which is later

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
        logging_level="warning",
    )
    yield ray
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)


class Cluster:
    """The application that is deployed, as clients reach it."""

    def __init__(self, port: int) -> None:
        self.http, self.ws = f"http://127.0.0.1:{port}", f"ws://127.0.0.1:{port}"

    def deploy(self, **args: Any) -> None:
        """Deploy, or update, the application; return when its replicas take requests."""
        from ray import serve

        from nightingale.ray import build_app

        settings = {"cpus_per_replica": 0.2, "grace_s": 20, "metrics_interval_s": 0.5, **args}
        serve.run(build_app(settings), name="nightingale", route_prefix="/")

    def paced(self, replicas: str, *, max_queue: int = 0, options: dict[str, str], **args: Any) -> None:
        """Deploy replicas whose timing is given by numbers."""
        server = {"max_queue": max_queue, "option": options}
        self.deploy(replicas=replicas, service=PACED, server=server, **args)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.http, timeout=60)

    def async_client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=200)
        return httpx.AsyncClient(base_url=self.http, timeout=60, limits=limits)

    def replicas(self) -> int:
        """Return the number of replicas that take requests."""
        from ray import serve

        status = serve.status().applications["nightingale"].deployments["speech"]
        return int(status.replica_states.get("RUNNING", 0))

    def wait_for_replicas(self, count: int, seconds: float = 60.0) -> float:
        """Wait until so many replicas run; return how long that took."""
        return wait_until(lambda: self.replicas() == count, seconds)


@pytest.fixture(scope="session")
def cluster(ray_cluster: Any) -> Iterator[Cluster]:
    from ray import serve

    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield Cluster(port)
    serve.shutdown()


def wait_until(condition: Callable[[], bool], seconds: float) -> float:
    started_s = time.monotonic()
    while not condition():
        assert time.monotonic() - started_s < seconds, "it did not happen in time"
        time.sleep(0.05)
    return time.monotonic() - started_s


def kill_one_replica() -> None:
    os.kill(replica_processes()[0], signal.SIGKILL)
