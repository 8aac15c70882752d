"""Routes for operators: /health, /ready, /metrics and /version."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from nightingale import __version__
from nightingale.server.service.speech_service import Service

router = APIRouter(tags=["operation"])


@router.get("/health")
async def health() -> dict[str, str]:
    """200 while the process is up, whatever the state of the model."""
    return {"status": "ok"}


@router.get("/ready", responses={503: {"description": "Loading, failed or shutting down."}})
async def ready(service: Service) -> Response:
    """200 once the model is loaded and warmed up; 503 until then and during a shutdown."""
    status = {"ready": service.ready, "state": service.state, "model": service.model.name}
    return JSONResponse(status | asdict(service.occupancy), 200 if service.ready else 503)


@router.get("/metrics", response_class=Response)
async def metrics(service: Service) -> Response:
    """Metrics for Prometheus."""
    return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/version")
async def version(service: Service) -> dict[str, Any]:
    """Versions of the package and of the model."""
    return {
        "version": __version__,
        "model": service.model.name,
        "sample_rate": service.sample_rate_hz,
        "notice": service.model.notice,
    }
