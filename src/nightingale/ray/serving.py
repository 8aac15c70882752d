"""Run replicas of the server on a cluster, until the command is stopped or for as long as the cluster lives."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

from nightingale.errors import ConfigError, EngineFault
from nightingale.ray.cluster_settings import ClusterSettings
from nightingale.ray.connection import LOCAL, connected, resolve_address
from nightingale.server.settings import ServerSettings


def serve_cluster(
    settings: ClusterSettings, server: ServerSettings, address: str | None, note: Callable[[str], None]
) -> None:
    """Serve on a cluster at an address, and leave it running there; without one, on this machine until stopped."""
    if server.port == 0:
        raise ConfigError(
            "a cluster needs a port", got="--port 0", allowed="1 to 65535, the same on all nodes"
        )
    with connected(address) as ray:
        from ray import serve

        check_resources(settings, ray.cluster_resources())
        try:
            serve.start(proxy_location="EveryNode", http_options={"host": server.host, "port": server.port})
            from nightingale.ray.deployment import APP_NAME, bind_replicas

            app = bind_replicas(settings.model_dump())
            serve.run(app, name=APP_NAME, route_prefix=server.root_path or "/")
        except RuntimeError as error:  # what Ray raises if replicas do not start
            raise EngineFault(
                "the replicas could not be started",
                got=str(error)[:1000],
                fix="Correct the settings; the logs of Ray (ray.io/logs) have the details.",
            ) from error
        note(f"nightingale listens on http://{server.host}:{server.port}, {settings.replicas} replicas")
        if resolve_address(address) != LOCAL:
            note("it stays there when this command ends; `serve shutdown` stops it")
            return
        stopped = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopped.set())
        stopped.wait()
        note("stopping: running speech may finish")
        serve.delete(APP_NAME)
        serve.shutdown()


def check_resources(settings: ClusterSettings, resources: dict[str, Any]) -> None:
    """Raise ConfigError if the cluster has too few cores or GPUs for the least number of replicas."""
    least = max(1, settings.replica_range[0])
    for kind, each in (("CPU", settings.cpus_per_replica), ("GPU", settings.gpus_per_replica)):
        if least * each > resources.get(kind, 0.0) + 1e-6:
            raise ConfigError(
                f"the cluster has too few {kind}s for {least} replicas",
                got=f"{resources.get(kind, 0.0):g} {kind}s; each replica reserves {each:g}",
                fix=f"Lower --replicas or --{kind.lower()}s-per-replica, or add nodes.",
            )
