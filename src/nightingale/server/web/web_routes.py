"""The web page and the API documentation: static files with strict security headers.

URLs inside the page are relative, so it works behind a path prefix. A browser cannot send a key for files.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

FOLDER = Path(__file__).parent / "page"
DOCS_PAGE = Path(__file__).parent / "docs.html"

# Not from the system: some systems map .js to text/plain, and browsers refuse such scripts.
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
SECURITY_HEADERS = {
    # Only files of this server, and no inline scripts or styles.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # Cached, but revalidated each time, so that an upgrade never mixes old and new files.
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)
docs_router = APIRouter(include_in_schema=False)


@docs_router.get("/docs")
async def docs() -> HTMLResponse:
    """Serve a page that shows /openapi.json and loads nothing else."""
    return HTMLResponse(
        DOCS_PAGE.read_text(encoding="utf-8"),
        headers={"content-security-policy": "default-src 'self' 'unsafe-inline'; frame-ancestors 'none'"},
    )


@cache
def page_files() -> dict[str, tuple[bytes, dict[str, str]]]:
    """Return content and headers of each file by its path such as "js/main.js". No other can be requested."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in MEDIA_TYPES:
            content = path.read_bytes()
            own = {"Content-Type": MEDIA_TYPES[path.suffix], "ETag": f'"{sha256(content).hexdigest()[:16]}"'}
            found[path.relative_to(FOLDER).as_posix()] = content, SECURITY_HEADERS | own
    return found


@router.api_route("/", methods=["GET", "HEAD"])
def index(request: Request) -> Response:
    return page_file(request, "index.html")


@router.api_route("/page/{name:path}", methods=["GET", "HEAD"])
def page_file(request: Request, name: str) -> Response:
    if name not in page_files():
        raise HTTPException(404)
    content, headers = page_files()[name]
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers)
