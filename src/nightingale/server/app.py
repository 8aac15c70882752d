"""The application: one engine, its routes, and the door in front of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from nightingale import __version__
from nightingale.server import problems
from nightingale.server.door import Door
from nightingale.server.routes import ROUTES
from nightingale.server.settings import Settings
from nightingale.server.speaker import Speaker, log

EXPOSED = ["X-Request-Id", "Server-Timing", "X-Sample-Rate", "X-Seed", "Retry-After", "Retry-After-Ms"]
"""What scripts of an invited page may read."""
ENCODER_THREADS = 2


def create_app(settings: Settings, speaker: Speaker | None = None) -> FastAPI:
    """The server as an ASGI application. The model is loaded after it has begun to answer."""
    speaker = Speaker(settings) if speaker is None else speaker
    app = FastAPI(
        title="Nightingale",
        version=__version__,
        summary="Text to speech on your own machine, as OpenAI's clients ask for it.",
        lifespan=_life,
        # Said once for all routes; it also keeps FastAPI from announcing its own kind of validation error.
        responses={"default": {"model": problems.ErrorEnvelope, "description": "What went wrong."}},
        docs_url=None,  # FastAPI's page loads its scripts from elsewhere; ours does not
        redoc_url=None,
    )
    app.state.speaker, app.state.settings = speaker, settings
    # Read once: what opens a route must open a socket, also when the file of keys changes or goes away.
    app.state.keys = settings.keys
    app.state.encoders = ThreadPoolExecutor(ENCODER_THREADS, thread_name_prefix="nightingale-encode")
    problems.install(app)
    for name in ROUTES:
        if name == "page" and not settings.page:
            continue
        app.include_router(import_module(f"nightingale.server.routes.{name}").router)
    app.add_middleware(Door, settings=settings, keys=app.state.keys, meter=speaker.meter)
    if settings.cors:  # outside the door, so that refusals, too, can be read by a page that was invited
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            allow_credentials=False,
            expose_headers=EXPOSED,
        )
    return app


@contextlib.asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    speaker: Speaker = app.state.speaker
    settings: Settings = app.state.settings
    async with contextlib.AsyncExitStack() as stack:
        starting = asyncio.create_task(_start(speaker))
        if settings.wyoming:
            from nightingale.server.wyoming import wyoming_server

            await stack.enter_async_context(
                wyoming_server(
                    speaker, settings.wyoming, insecure=settings.insecure, max_chars=settings.max_text_chars
                )
            )
        yield
        starting.cancel()
        await speaker.stop(settings.grace)
        app.state.encoders.shutdown(wait=False, cancel_futures=True)


async def _start(speaker: Speaker) -> None:
    try:
        await speaker.start()
    except Exception as error:  # the command line ends with it; /ready says "failed" meanwhile
        log.error("the model could not be loaded", extra={"error": str(error)})
