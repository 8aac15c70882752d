"""The page a person sees: static files, read once, served with the headers a careful browser wants.

Addresses inside the page are relative, so it works behind a path prefix. It asks for no key: a browser cannot
send one when it opens a page, and the files hold nothing secret. What the page then asks of the API needs it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

FOLDER = Path(__file__).parents[1] / "page"

# Ours and not the system's: on some machines its list calls a script text/plain, and browsers then refuse it.
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
SECURITY = {
    # Only our own files, and no script or style written into the page itself.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # Kept, but asked about each time: after an upgrade nobody sees half of the old page.
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class PageFile:
    content: bytes
    media_type: str
    tag: str


@cache
def page_files() -> dict[str, PageFile]:
    """Every file of the page by its name, such as "js/main.js". What is not here cannot be asked for."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file() and path.suffix in MEDIA_TYPES:
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found[path.relative_to(FOLDER).as_posix()] = PageFile(content, MEDIA_TYPES[path.suffix], tag)
    return found


@router.api_route("/", methods=["GET", "HEAD"])
def index(request: Request) -> Response:
    return _answer(request, "index.html")


@router.api_route("/page/{name:path}", methods=["GET", "HEAD"])
def page_file(request: Request, name: str) -> Response:
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    file = page_files().get(name)
    if file is None:
        raise HTTPException(404, f"The page has no file {name!r}.")
    headers = {**SECURITY, "ETag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
