"""The ASGI application: its routes, its middleware, and the lifetime of the engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from nightingale import __version__
from nightingale.server import health
from nightingale.server.auth import check_access
from nightingale.server.elevenlabs import elevenlabs_routes
from nightingale.server.http_errors import HANDLED, ErrorEnvelope, answer_error
from nightingale.server.middleware import limit_bodies, log_requests
from nightingale.server.openai import model_routes, speech_routes, voice_routes
from nightingale.server.realtime import speech_socket
from nightingale.server.service.speech_service import SpeechService, log
from nightingale.server.settings import ServerSettings
from nightingale.server.web import web_routes

EXPOSED_HEADERS = [
    "X-Request-Id",
    "Server-Timing",
    "X-Sample-Rate",
    "X-Seed",
    "Retry-After",
    "Retry-After-Ms",
]
"""Response headers that scripts of other origins may read."""


def create_app(settings: ServerSettings, service: SpeechService | None = None) -> FastAPI:
    """Create the server, with a service of its own by default. The model is loaded after it has started."""
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
    )
    app.state.service, app.state.settings = service, settings
    for handled in HANDLED:
        app.add_exception_handler(handled, answer_error)
    for module in (speech_routes, voice_routes, model_routes, speech_socket, elevenlabs_routes, health):
        app.include_router(module.router)
    app.include_router(web_routes.docs_router)
    if settings.page:
        app.include_router(web_routes.router)
    # The last one added is the outermost.
    app.add_middleware(limit_bodies, settings=settings)
    app.add_middleware(check_access, settings=settings, keys=settings.keys)
    app.add_middleware(log_requests, metrics=service.metrics)
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
        starting = asyncio.create_task(_start(service))
        if settings.wyoming:
            from nightingale.server.wyoming.wyoming_server import serve_wyoming  # optional package

            wyoming = serve_wyoming(service, settings.wyoming, insecure=settings.insecure)
            await stack.enter_async_context(wyoming)
        yield
        starting.cancel()
        await service.stop(settings.grace)


async def _start(service: SpeechService) -> None:
    try:
        await service.start()
    except Exception as error:  # `nightingale serve` exits because of it; until then /ready says "failed"
        log.error("the model could not be loaded", extra={"error": str(error)})
