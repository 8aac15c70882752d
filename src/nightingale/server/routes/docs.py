"""/docs: the API's documentation, drawn from /openapi.json by a page of our own that loads nothing else."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import HTMLResponse

router = APIRouter()
PAGE = Path(__file__).parents[1] / "docs.html"


@router.get("/docs", include_in_schema=False)
async def docs() -> HTMLResponse:
    return HTMLResponse(
        PAGE.read_text(encoding="utf-8"),
        headers={"content-security-policy": "default-src 'self' 'unsafe-inline'; frame-ancestors 'none'"},
    )
