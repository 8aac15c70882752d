"""A replica of the server in Ray Serve: the same application object as `nightingale serve`, its model loaded first."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nightingale.ray.affinity_router import UNKNOWN_CAPACITY
from nightingale.ray.cluster_settings import ClusterSettings
from nightingale.ray.proxy_middleware import REPLICA_HEADER
from nightingale.server.app import create_app, metrics_page
from nightingale.server.merged_metrics import merge_pages
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.settings import ServerSettings

APP_NAME = "nightingale"
DEPLOYMENT = "speech"
ROUTER = "nightingale.ray.affinity_router:AffinityRouter"
POLICY = "nightingale.ray.autoscaling:replicas_for"
OTHER_REQUESTS = 256
"""Requests of a replica beside those that wait in its engine's queue: it is the engine that refuses."""
HEALTH_PERIOD_S = 2.0
SWITCH_INTERVAL_S = 0.0005
"""The value of `nightingale serve`: the event loop must not wait 5 ms for the engine's thread."""


class SpeechReplica:
    """One engine and the application that serves it."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, server: dict[str, Any], service: str, capacity: int | None
    ) -> None:
        """Load the model: Ray sends no requests before this returns."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        module, _, name = service.partition(":")
        # Ray's proxy listens, and clients reach it by any name.
        settings = ServerSettings(**{"hosts": ["*"], **server})
        make = getattr(import_module(module), name)
        self._service: SpeechService = make(settings)
        self._settings, self._capacity = settings, capacity
        await self._service.start()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        app = create_app(self._settings, self._service, metrics_page=_all_pages)
        app.add_middleware(name_replica, replica=serve.get_replica_context().replica_id.unique_id)
        return app

    def check_health(self) -> None:
        if self._service.failure is not None:
            raise self._service.failure

    def record_routing_stats(self) -> dict[str, Any]:
        """Report to the routers in the proxies."""
        return {"capacity": self._known_capacity}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Report to the autoscaler."""
        return {"capacity": float(self._known_capacity), "listeners": float(self._service.metrics.active)}

    def page(self) -> tuple[str, str]:
        """Return the replica's id and its own metrics."""
        return serve.get_replica_context().replica_id.unique_id, metrics_page(self._service).decode()

    @property
    def _known_capacity(self) -> int:
        return self._capacity or self._service.occupancy.capacity or UNKNOWN_CAPACITY


async def _all_pages() -> bytes:
    """Ask all replicas for their metrics, through whichever replica was asked."""
    handle = serve.get_deployment_handle(DEPLOYMENT, serve.get_replica_context().app_name)
    return merge_pages(dict(await handle.broadcast("page").results_async()))


def name_replica(app: ASGIApp, replica: str) -> ASGIApp:
    """Put the replica's id into each answer, in the place of the request's id, which Ray's proxy adds."""

    async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_named(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept"):
                kept = [pair for pair in message.get("headers", ()) if pair[0].lower() != b"x-request-id"]
                message = {**message, "headers": [*kept, (REPLICA_HEADER, replica.encode())]}
            await send(message)

        await app(scope, receive, send_named)

    return middleware


def bind_replicas(args: dict[str, Any]) -> Any:
    """Return the application of Ray Serve for these settings."""
    settings = ClusterSettings.load(args)
    server = ServerSettings(**settings.server)
    least, largest = settings.replica_range
    options: dict[str, Any] = {"num_replicas": least}
    if least < largest:
        options = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=least,
                max_replicas=largest,
                policy=AutoscalingPolicy(policy_function=POLICY),
                metrics_interval_s=settings.metrics_interval_s,
                look_back_period_s=2 * settings.metrics_interval_s,
                upscale_delay_s=settings.upscale_delay_s,
                downscale_delay_s=settings.downscale_delay_s,
            )
        }
    deployment = serve.deployment(
        serve.ingress(None)(SpeechReplica),
        name=DEPLOYMENT,
        ray_actor_options={
            "num_cpus": settings.cpus_per_replica,
            "num_gpus": settings.gpus_per_replica,
            "runtime_env": {"env_vars": _variables(settings)},
        },
        max_constructor_retry_count=3,
        max_ongoing_requests=server.max_queue + OTHER_REQUESTS,
        graceful_shutdown_timeout_s=settings.grace_s,
        graceful_shutdown_wait_loop_s=1.0,
        health_check_period_s=HEALTH_PERIOD_S,
        request_router_config=RequestRouterConfig(
            request_router_class=ROUTER, request_routing_stats_period_s=settings.metrics_interval_s
        ),
        **options,
    )
    return deployment.bind(settings.server, settings.service, settings.listeners_per_replica)


def _variables(settings: ClusterSettings) -> dict[str, str]:
    """Return the environment of a replica: that of its node, and the voices that all share."""
    voices = settings.voices or os.environ.get("NIGHTINGALE_VOICES")
    return {"NIGHTINGALE_VOICES": voices} if voices else {}
