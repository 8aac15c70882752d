"""The connection to a Ray cluster, and clear errors where there is none or where it does not fit."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from nightingale import __version__
from nightingale.errors import ConfigError, EngineFault
from nightingale.install import install_command

LOCAL: Final = "local"
OBJECT_STORE_BYTES: Final = 1 << 29
"""Shared memory of a Ray that is started here: text and results are small, audio goes to files."""
VARIABLES: Final = {
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "nightingale.ray.proxy_middleware.middlewares",
    # The next ones make the way to first audio shorter: `python -m nightingale_lab.bench cluster`.
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1000",
}
"""Environment of a node when Ray is started on it; docs/cluster.md lists them for `ray start`."""
PROBE_TIMEOUT_S: Final = 60.0
CONNECT_TIMEOUT_S: Final = 10.0
REMEDY: Final = "Install the same versions of Python, Ray and nightingale-tts here and on all nodes."


@contextmanager
def connected(address: str | None, *, cpus: int | None = None) -> Iterator[Any]:
    """Connect to the cluster at an address, or start Ray on this machine while the context is open.

    Yields the module `ray`. Without an address, the variable RAY_ADDRESS names the cluster, if it is set.
    """
    set_variables()
    ray = _import_ray()
    for name in ("ray.serve", "ray.data"):
        logging.getLogger(name).setLevel(logging.WARNING)
    address = resolve_address(address)
    local = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        check_reachable(address)
        ray.init(
            address,
            logging_level=logging.WARNING,
            log_to_driver=False,
            **(local if address == LOCAL else {}),
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            "no Ray cluster can be reached",
            got=f"{address}: {_first_line(error)}",
            allowed="the address of a head node, such as 10.0.0.5:6379 or ray://10.0.0.5:10001",
            fix="Start one with `ray start --head`, or leave --address out to start Ray on this machine.",
        ) from error
    except RuntimeError as error:
        if "ersion mismatch" not in str(error):
            raise
        raise ConfigError(
            "the versions here and in the cluster differ", got=_first_line(error, 300), fix=REMEDY
        ) from error
    try:
        check_nodes(ray)
        yield ray
    except ray.exceptions.RaySystemError as error:
        raise EngineFault(
            "the connection to the cluster is lost", got=_first_line(error), fix="Start it, then try again."
        ) from error
    finally:
        ray.shutdown()


def set_variables() -> None:
    """Set the variables of `VARIABLES` for a Ray that is started by this process, unless they are set already."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)


def resolve_address(address: str | None) -> str:
    """Return the address of a cluster, or `LOCAL` for a Ray that is started on this machine."""
    return address or os.environ.get("RAY_ADDRESS") or LOCAL


def check_reachable(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT, at once; Ray would try for most of a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()


def check_nodes(ray: Any) -> None:
    """Raise ConfigError if a node has another version of this package, or lacks a package."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    probe = ray.remote(num_cpus=0)(describe_node)
    nodes = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    asked = {
        name: probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node, name in nodes.items()
    }
    for name, answer in asked.items():
        try:
            version, missing = ray.get(answer, timeout=PROBE_TIMEOUT_S)
        except (ray.exceptions.RayError, ImportError, TimeoutError) as error:
            got = f"{name}: {_first_line(error, 300)}"
            raise ConfigError("a node of the cluster cannot run nightingale", got=got, fix=REMEDY) from error
        if version != __version__ or missing:
            lacks = f", without {', '.join(missing)}" if missing else ""
            raise ConfigError(
                "a node of the cluster does not fit",
                got=f"{name}: nightingale {version}{lacks}",
                allowed=f"nightingale {__version__} with the extra ray",
                fix=REMEDY,
            )


def describe_node() -> tuple[str, list[str]]:
    """Return the version of this package on a node, and the packages of the extra that it lacks."""
    from importlib.util import find_spec

    wanted = ("fastapi", "uvicorn", "websockets", "prometheus_client", "pyarrow", "fsspec", "av")
    return __version__, [name for name in wanted if find_spec(name) is None]


def _import_ray() -> Any:
    try:
        import ray
        import ray.serve
    except ImportError as error:
        raise ConfigError("Ray is not installed", got=str(error), fix=install_command("ray")) from error
    return ray


def _first_line(error: BaseException, chars: int = 200) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # The last line of a remote traceback is the error itself.
    chosen = lines[-1] if lines and "Traceback" in str(error) else " ".join(lines)
    return f"{type(error).__name__}: {chosen[:chars]}"
