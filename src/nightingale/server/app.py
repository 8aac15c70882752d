"""The ASGI application: its middleware, the lifetime of the engine, and the routes for operators."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from prometheus_client import generate_latest
from prometheus_client.exposition import choose_encoder
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from nightingale import __version__
from nightingale.server.elevenlabs import (
    account_routes,
    conversion_routes,
    elevenlabs_routes,
    timestamp_routes,
)
from nightingale.server.http_errors import HANDLED, ErrorEnvelope, answer_error
from nightingale.server.middleware import answer_head, check_access, limit_bodies, log_requests
from nightingale.server.openai import caption_routes, catalog_routes, realtime_routes, speech_routes
from nightingale.server.realtime import speech_socket
from nightingale.server.service.speech_service import Service, SpeechService, log
from nightingale.server.settings import ServerSettings
from nightingale.server.tenants import tenant_routes
from nightingale.server.tracing import trace_requests
from nightingale.server.web import page_routes, web_routes

EXPOSED_HEADERS = [
    "X-Request-Id",
    "Server-Timing",
    "X-Sample-Rate",
    "X-Seed",
    "X-Queue-Position",
    "X-Queue-Wait-Ms",
    "Retry-After",
    "Retry-After-Ms",
]
"""Response headers that scripts of other origins may read."""

router = APIRouter(tags=["operation"])


def create_app(
    settings: ServerSettings,
    service: SpeechService | None = None,
    *,
    metrics_page: Callable[[], Awaitable[bytes]] | None = None,
) -> FastAPI:
    """Create the server, with a service of its own by default. The model is loaded after it has started.

    metrics_page: what /metrics answers, if that is not the service's own metrics.
    """
    service = SpeechService(settings) if service is None else service
    app = FastAPI(
        title="Nightingale",
        version=__version__,
        summary="Text to speech on your own machine, compatible with OpenAI's clients.",
        lifespan=_lifespan,
        # One declaration for all routes; it also replaces FastAPI's own schema of validation errors.
        responses={"default": {"model": ErrorEnvelope, "description": "An error."}},
        docs_url=None,  # FastAPI's page loads scripts from another host; web_routes has our own
        redoc_url=None,
        redirect_slashes=False,  # it would redirect to the host that the request names
    )
    app.state.service, app.state.settings, app.state.metrics_page = service, settings, metrics_page
    for handled in HANDLED:
        app.add_exception_handler(handled, answer_error)
    for module in (
        speech_routes,
        caption_routes,
        catalog_routes,
        speech_socket,
        realtime_routes,
        elevenlabs_routes,
        account_routes,
        timestamp_routes,
        conversion_routes,
        tenant_routes,
    ):
        app.include_router(module.router)
    app.include_router(router)
    app.include_router(web_routes.docs_router)
    if settings.page:
        app.include_router(web_routes.router)
        app.include_router(page_routes.router)
    # The last one added is the outermost.
    app.add_middleware(answer_head)
    app.add_middleware(limit_bodies, settings=settings)
    app.add_middleware(check_access, settings=settings, tenants=service.tenants)
    app.add_middleware(log_requests, metrics=service.metrics)
    if settings.tracing:
        app.add_middleware(trace_requests, tracing=service.tracing)
    if settings.cors:  # outside of the others, so that allowed pages can read error responses, too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            allow_credentials=False,
            expose_headers=EXPOSED_HEADERS,
        )
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: SpeechService = app.state.service
    settings: ServerSettings = app.state.settings
    async with contextlib.AsyncExitStack() as stack:
        starting = asyncio.create_task(service.start())
        starting.add_done_callback(_log_failure)
        if settings.wyoming:
            from nightingale.server.wyoming.wyoming_server import serve_wyoming  # optional package

            await stack.enter_async_context(serve_wyoming(service, settings.wyoming))
        await stack.enter_async_context(service.tenants.saving())
        yield
        starting.cancel()
        await service.stop(settings.grace)


def _log_failure(starting: asyncio.Task[None]) -> None:
    """Log why the model could not be loaded: `nightingale serve` exits, and until then /ready says "failed"."""
    if not starting.cancelled() and (error := starting.exception()) is not None:
        log.error("the model could not be loaded", extra={"error": str(error)})


@router.get("/health")
async def health() -> dict[str, str]:
    """200 while the process is up, whatever the state of the model."""
    return {"status": "ok"}


@router.get("/ready", responses={503: {"description": "Loading, failed or shutting down."}})
async def ready(service: Service) -> Response:
    """200 once the model is loaded and warmed up; 503 until then and during a shutdown."""
    status = {"ready": service.ready, "state": service.state, "model": service.model.id}
    return JSONResponse(status | asdict(service.occupancy), 200 if service.ready else 503)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request, service: Service) -> Response:
    """Metrics for Prometheus, also in OpenMetrics' format if the client accepts that. Needs the key of an admin."""
    service.tenants.require_admin("metrics, which show the use of all tenants, are for admins")
    if (page := request.app.state.metrics_page) is not None:
        return Response(await page(), media_type=choose_encoder("")[1])
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(service.metrics.registry), media_type=media_type)


def metrics_page(service: SpeechService) -> bytes:
    """Return the metrics of one service, as Prometheus reads them."""
    return generate_latest(service.metrics.registry)


@router.get("/version")
async def version(service: Service) -> dict[str, Any]:
    """Versions of the package and of the model."""
    return {
        "version": __version__,
        "model": service.model.id,
        "sample_rate": service.sample_rate_hz,
        "notice": service.model.notice,
    }
