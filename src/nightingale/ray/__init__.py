"""Many machines: Ray Serve runs replicas of the server (docs/cluster.md), Ray Data speaks libraries of text.

Ray places, restarts and scales processes; this package says what a replica is, which one a request goes to, and
how many listeners one can supply. `build_app` is what a configuration of Ray Serve names. The extra `ray` installs
what is needed.
"""

from __future__ import annotations

from typing import Any

__all__ = ["build_app"]


def build_app(args: dict[str, Any]) -> Any:
    """Return the application for `serve deploy` and `serve.run`.

    Args:
        args: The fields of `nightingale.ray.cluster_settings.ClusterSettings`, such as
            {"replicas": "1..8", "gpus_per_replica": 1, "server": {"model": "turbo"}}.
    """
    from nightingale.ray.deployment import bind_replicas

    return bind_replicas(args)
