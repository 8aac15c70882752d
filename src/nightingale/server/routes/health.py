"""/health, /ready, /metrics, /version: for whoever keeps the server running."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from nightingale import __version__
from nightingale.server.speaker import Speaker

router = APIRouter(tags=["operation"])


@router.get("/health")
async def health() -> dict[str, str]:
    """The process is up, whatever the model does."""
    return {"status": "ok"}


@router.get("/ready", responses={503: {"description": "Not yet, or not any more."}})
async def ready(request: Request) -> Response:
    """200 once the model has been loaded and has spoken; 503 until then and while shutting down."""
    speaker: Speaker = request.app.state.speaker
    crowd = speaker.occupancy
    body = {
        "ready": speaker.ready,
        "state": speaker.state,
        "model": speaker.model_name,
        "speaking": crowd.speaking,
        "waiting": crowd.waiting,
        "slots": crowd.slots,
    }
    return JSONResponse(body, 200 if speaker.ready else 503)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Counters for Prometheus."""
    speaker: Speaker = request.app.state.speaker
    return Response(speaker.meter.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/version")
async def version(request: Request) -> dict[str, Any]:
    speaker: Speaker = request.app.state.speaker
    return {
        "version": __version__,
        "model": speaker.model_name,
        "sample_rate": speaker.sample_rate_hz,
        "notice": speaker.notice,
    }
